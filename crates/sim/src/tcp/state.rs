//! The states of a connection, and the events that change them.

/// The state of a connection (RFC 9293 §3.3.2). LISTEN is missing because a listener is not an endpoint; it makes endpoints.
///
/// ```text
///                 PeerSyn
///    SynSent ───────────────▶ SynReceived
///        └──────────┬──────────────┘ Opened
///                   ▼
///              Established
///        Shutdown │   │ PeerFin
///           ┌─────┘   └──────┐
///           ▼                ▼
///       FinWait1         CloseWait
///  FinAcked │ │ PeerFin      │ Shutdown
///     ┌─────┘ └─────┐        ▼
///     ▼             ▼     LastAck
///  FinWait2      Closing     │ FinAcked
///     │ PeerFin     │ FinAcked
///     └──▶ TimeWait ◀┘       ▼
///              └─────────▶ Closed ◀── Ended, from every state
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointState {
    /// There is no connection: it is over, or it failed.
    Closed,
    /// We sent a SYN.
    SynSent,
    /// We answered a SYN.
    SynReceived,
    /// Both directions are open.
    Established,
    /// We sent a FIN that the peer has not acknowledged.
    FinWait1,
    /// Our stream is over, the peer's continues.
    FinWait2,
    /// The peer's stream is over, ours continues.
    CloseWait,
    /// Both sides ended their streams before either knew of the other's end.
    Closing,
    /// Both streams ended, the peer's first. Our FIN is not acknowledged.
    LastAck,
    /// Both streams are over; the 4-tuple stays taken for 2 MSL.
    TimeWait,
}

/// An event that changes a connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpEvent {
    /// A SYN without ACK came: it crossed ours, or a listener got it.
    PeerSyn,
    /// The handshake is complete.
    Opened,
    /// The application ended our stream (and the handshake is complete).
    Shutdown,
    /// All of the peer's stream has arrived, with its end.
    PeerFin,
    /// The peer has acknowledged the end of our stream.
    FinAcked,
    /// The connection was reset or aborted, timed out, or has been in TIME-WAIT for long enough.
    Ended,
}

impl EndpointState {
    /// The state after `event`. An event that has no meaning in a state does not change it.
    pub(super) const fn after(self, event: TcpEvent) -> Self {
        use EndpointState::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent,
            TimeWait,
        };
        use TcpEvent::{Ended, FinAcked, Opened, PeerFin, PeerSyn, Shutdown};
        match (self, event) {
            (SynSent, PeerSyn) => SynReceived,
            (SynSent | SynReceived, Opened) => Established,
            (Established, Shutdown) => FinWait1,
            (Established, PeerFin) => CloseWait,
            (FinWait1, FinAcked) => FinWait2,
            (FinWait1, PeerFin) => Closing,
            (CloseWait, Shutdown) => LastAck,
            (FinWait2, PeerFin) | (Closing, FinAcked) => TimeWait,
            (
                Closed | SynSent | SynReceived | Established | FinWait1 | FinWait2 | CloseWait | Closing
                | LastAck | TimeWait,
                Ended,
            )
            | (LastAck, FinAcked) => Closed,
            (
                Closed | SynReceived | Established | FinWait1 | FinWait2 | CloseWait | Closing | LastAck
                | TimeWait,
                PeerSyn,
            )
            | (
                Closed | Established | FinWait1 | FinWait2 | CloseWait | Closing | LastAck | TimeWait,
                Opened,
            )
            | (
                Closed | SynSent | SynReceived | FinWait1 | FinWait2 | Closing | LastAck | TimeWait,
                Shutdown,
            )
            | (Closed | SynSent | SynReceived | CloseWait | Closing | LastAck | TimeWait, PeerFin)
            | (Closed | SynSent | SynReceived | Established | FinWait2 | CloseWait | TimeWait, FinAcked) => {
                self
            }
        }
    }

    /// Whether this is a synchronized state (RFC 9293 §3.3.2): the handshake is complete, and the connection is not closed.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table() {
        use EndpointState::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent,
            TimeWait,
        };
        use TcpEvent::{Ended, FinAcked, Opened, PeerFin, PeerSyn, Shutdown};
        let mut table = String::new();
        for state in [
            Closed,
            SynSent,
            SynReceived,
            Established,
            FinWait1,
            FinWait2,
            CloseWait,
            Closing,
            LastAck,
            TimeWait,
        ] {
            table += &format!("{state:?}:");
            for event in [PeerSyn, Opened, Shutdown, PeerFin, FinAcked, Ended] {
                let after = state.after(event);
                if after != state {
                    table += &format!(" {event:?} → {after:?};");
                }
            }
            table += "\n";
        }
        insta::assert_snapshot!(table, @r"
        Closed:
        SynSent: PeerSyn → SynReceived; Opened → Established; Ended → Closed;
        SynReceived: Opened → Established; Ended → Closed;
        Established: Shutdown → FinWait1; PeerFin → CloseWait; Ended → Closed;
        FinWait1: PeerFin → Closing; FinAcked → FinWait2; Ended → Closed;
        FinWait2: PeerFin → TimeWait; Ended → Closed;
        CloseWait: Shutdown → LastAck; Ended → Closed;
        Closing: FinAcked → TimeWait; Ended → Closed;
        LastAck: FinAcked → Closed; Ended → Closed;
        TimeWait: Ended → Closed;
        ");
    }
}
