//! The states of an association (RFC 9260 §4).
//!
//! ```text
//!   CookieWait ──InitAck──▶ CookieEchoed ──CookieAck──▶ Established ◀── a valid COOKIE ECHO (the other end has no state before)
//!                                                          │   │
//!                                  Close ┌─────────────────┘   └──────────────────┐ PeerShutdown
//!                                        ▼                                        ▼
//!                                 ShutdownPending ──────PeerShutdown─────▶ ShutdownReceived
//!                                        │ Drained                                │ Drained
//!                                        ▼                                        ▼
//!                                  ShutdownSent ────────PeerShutdown─────▶ ShutdownAckSent
//!                                        │ ShutdownAck                            │ ShutdownAck, ShutdownComplete
//!                                        └───────────────▶ Closed ◀───────────────┘
//! ```
//!
//! StaleCookie leads from CookieEchoed back to CookieWait. Broken, which is an ABORT in either direction or too many timeouts, leads to
//! Closed from every state. Restarted leads to Established from every state except Closed and ShutdownAckSent (RFC 9260 §5.2.4).

/// State of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssociationState {
    /// INIT was sent.
    CookieWait,
    /// COOKIE ECHO was sent.
    CookieEchoed,
    /// Data flows.
    Established,
    /// This end wants to end the association, and waits until its data is acknowledged.
    ShutdownPending,
    /// This end's data is acknowledged, and SHUTDOWN was sent.
    ShutdownSent,
    /// The peer wants to end the association; this end's data is not acknowledged yet.
    ShutdownReceived,
    /// SHUTDOWN ACK was sent.
    ShutdownAckSent,
    /// The association has ended.
    Closed,
}

/// Events that change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateEvent {
    /// A valid INIT ACK.
    InitAck,
    /// COOKIE ACK, or a COOKIE ECHO that proves that the peer knows this association (RFC 9260 §5.2.4 B, D).
    CookieAck,
    /// The peer says that the cookie is too old: INIT again.
    StaleCookie,
    /// The application wants to end the association.
    Close,
    /// All data is acknowledged.
    Drained,
    /// SHUTDOWN arrived.
    PeerShutdown,
    /// SHUTDOWN ACK arrived.
    ShutdownAck,
    /// SHUTDOWN COMPLETE arrived.
    ShutdownComplete,
    /// The peer restarted (RFC 9260 §5.2.4 A).
    Restarted,
    /// ABORT, or too many timeouts.
    Broken,
}

impl AssociationState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::CookieWait,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownPending,
        Self::ShutdownSent,
        Self::ShutdownReceived,
        Self::ShutdownAckSent,
        Self::Closed,
    ];

    /// The state after an event. An event that does not fit the state changes nothing.
    pub(super) const fn after(self, event: StateEvent) -> Self {
        use StateEvent::{
            Broken, Close, CookieAck, Drained, InitAck, PeerShutdown, Restarted, ShutdownAck,
            ShutdownComplete, StaleCookie,
        };
        match (self, event) {
            (_, Broken) => Self::Closed,
            (Self::CookieWait, InitAck) => Self::CookieEchoed,
            // A COOKIE ECHO may come before the INIT ACK if both ends call each other.
            (Self::CookieWait | Self::CookieEchoed, CookieAck | Restarted) => Self::Established,
            // Nothing was promised to the peer yet.
            (Self::CookieWait | Self::CookieEchoed, Close) => Self::Closed,
            (Self::CookieEchoed, StaleCookie) => Self::CookieWait,
            (Self::CookieWait, StaleCookie | Drained | PeerShutdown | ShutdownAck | ShutdownComplete) => {
                Self::CookieWait
            }
            (Self::CookieEchoed, InitAck | Drained | PeerShutdown | ShutdownAck | ShutdownComplete) => {
                Self::CookieEchoed
            }
            (Self::Established, Close) => Self::ShutdownPending,
            (Self::Established | Self::ShutdownPending, PeerShutdown) => Self::ShutdownReceived,
            (
                Self::Established,
                InitAck | CookieAck | StaleCookie | Drained | ShutdownAck | ShutdownComplete | Restarted,
            ) => Self::Established,
            (Self::ShutdownPending, Drained) => Self::ShutdownSent,
            (
                Self::ShutdownPending,
                InitAck | CookieAck | StaleCookie | Close | ShutdownAck | ShutdownComplete,
            ) => Self::ShutdownPending,
            (Self::ShutdownSent, PeerShutdown) => Self::ShutdownAckSent,
            (Self::ShutdownSent, ShutdownAck) => Self::Closed,
            (Self::ShutdownSent, InitAck | CookieAck | StaleCookie | Close | Drained | ShutdownComplete) => {
                Self::ShutdownSent
            }
            (Self::ShutdownReceived, Drained) => Self::ShutdownAckSent,
            (
                Self::ShutdownReceived,
                InitAck | CookieAck | StaleCookie | Close | PeerShutdown | ShutdownAck | ShutdownComplete,
            ) => Self::ShutdownReceived,
            (Self::ShutdownPending | Self::ShutdownSent | Self::ShutdownReceived, Restarted) => {
                Self::Established
            }
            (Self::ShutdownAckSent, ShutdownAck | ShutdownComplete) => Self::Closed,
            (
                Self::ShutdownAckSent,
                InitAck | CookieAck | StaleCookie | Close | Drained | PeerShutdown | Restarted,
            ) => Self::ShutdownAckSent,
            (
                Self::Closed,
                InitAck | CookieAck | StaleCookie | Close | Drained | PeerShutdown | ShutdownAck
                | ShutdownComplete | Restarted,
            ) => Self::Closed,
        }
    }

    /// Whether the handshake of this end's call is still going on.
    pub(super) const fn is_setup(self) -> bool {
        matches!(self, Self::CookieWait | Self::CookieEchoed)
    }

    /// Whether the application may send new messages.
    pub const fn takes_messages(self) -> bool {
        matches!(self, Self::CookieWait | Self::CookieEchoed | Self::Established)
    }

    /// Whether data is sent (RFC 9260 §6, §9.2).
    pub(super) const fn sends_data(self) -> bool {
        matches!(
            self,
            Self::Established | Self::ShutdownPending | Self::ShutdownReceived
        )
    }

    /// Whether data of the peer is taken.
    pub(super) const fn takes_data(self) -> bool {
        matches!(
            self,
            Self::Established | Self::ShutdownPending | Self::ShutdownSent
        )
    }

    /// Whether idle destinations are probed (RFC 9260 §8.3).
    pub(super) const fn probes(self) -> bool {
        matches!(
            self,
            Self::Established | Self::ShutdownPending | Self::ShutdownSent | Self::ShutdownReceived
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn the_whole_table() {
        use StateEvent::{
            Broken, Close, CookieAck, Drained, InitAck, PeerShutdown, Restarted, ShutdownAck,
            ShutdownComplete, StaleCookie,
        };
        let events = [
            InitAck,
            CookieAck,
            StaleCookie,
            Close,
            Drained,
            PeerShutdown,
            ShutdownAck,
            ShutdownComplete,
            Restarted,
            Broken,
        ];
        let mut table = String::new();
        for state in AssociationState::ALL {
            write!(table, "{state:?}:").expect("text");
            for event in events {
                let next = state.after(event);
                if next != state {
                    write!(table, " {event:?}→{next:?}").expect("text");
                }
            }
            writeln!(table).expect("text");
        }
        insta::assert_snapshot!(table, @r"
        CookieWait: InitAck→CookieEchoed CookieAck→Established Close→Closed Restarted→Established Broken→Closed
        CookieEchoed: CookieAck→Established StaleCookie→CookieWait Close→Closed Restarted→Established Broken→Closed
        Established: Close→ShutdownPending PeerShutdown→ShutdownReceived Broken→Closed
        ShutdownPending: Drained→ShutdownSent PeerShutdown→ShutdownReceived Restarted→Established Broken→Closed
        ShutdownSent: PeerShutdown→ShutdownAckSent ShutdownAck→Closed Restarted→Established Broken→Closed
        ShutdownReceived: Drained→ShutdownAckSent Restarted→Established Broken→Closed
        ShutdownAckSent: ShutdownAck→Closed ShutdownComplete→Closed Broken→Closed
        Closed:
        ");
    }
}
