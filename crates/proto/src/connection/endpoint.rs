//! The state of the server's end of a connection: what a survivor's kernel needs to restore the socket.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Connection;
use crate::{Instant, Offset, Seq};

/// Everything that a kernel needs to continue the server's end of a connection exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The client.
    pub client: SocketAddr,
    /// The VIP and port.
    pub vip: SocketAddr,
    /// First sequence number that the client has not acknowledged (SND.UNA).
    pub send_unacknowledged: Seq,
    /// The output that the client has not acknowledged. The restored socket gets this output as data that it has already sent.
    pub unacknowledged: Range<Offset>,
    /// Next sequence number expected from the client (RCV.NXT).
    pub receive_next: Seq,
    /// The offset of `receive_next`, not counting a FIN. All input before this offset is in the log.
    pub input_frontier: Offset,
    /// The smaller of the two maximum segment sizes that were offered, in bytes. TCP options are not subtracted from it.
    pub mss: u16,
    /// Window scale shifts: the client's, the server's.
    pub window_scale: Option<(u8, u8)>,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// The clocks of both sides, if timestamps are in use.
    pub timestamps: Option<EndpointTimestamps>,
    /// The client's window, in bytes.
    pub send_window: u32,
    /// The largest window that the client ever offered, in bytes.
    pub send_window_max: u32,
    /// The sequence number of the segment that offered `send_window` (SND.WL1).
    pub send_window_seq: Seq,
    /// The window up to the furthest right edge that the server has offered, in bytes, counted from `receive_window_from`. The last segment
    /// may have a nearer right edge, because segments can arrive in another order than they were sent.
    pub receive_window: u32,
    /// The server's latest acknowledgement number (RCV.WUP).
    pub receive_window_from: Seq,
    /// The client's stream has ended, and `receive_next` includes its FIN.
    pub input_ended: bool,
    /// Whether the server has closed its stream.
    pub output: OutputEnd,
}

/// Clocks of both sides (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointTimestamps {
    /// The server's latest timestamp.
    pub value: u32,
    /// When `value` was seen.
    pub at: Instant,
    /// The client's latest timestamp, which the server echoes.
    pub echo: u32,
}

/// Nanoseconds between two ticks of a timestamp clock.
const TICK_NS: u64 = 1_000_000;

impl EndpointTimestamps {
    /// Upper bound of the server's timestamp clock at `now`. The result must never be behind what the client has seen, or PAWS makes the
    /// client drop every segment (RFC 7323 §5). The clock ticks in milliseconds, at the same moments as a socket's clock, so the two clocks
    /// never drift apart.
    pub(crate) fn value_at(&self, now: Instant) -> u32 {
        let ticks = |at: Instant| at.as_nanos() / TICK_NS;
        self.value
            .wrapping_add(ticks(now).wrapping_sub(ticks(self.at)) as u32)
            .wrapping_add(1)
    }

    /// The clock of a socket that was made at `at` with the start value `value`.
    #[must_use]
    pub const fn started(self, value: u32, at: Instant) -> Self {
        let value = value.wrapping_sub(1); // the clock shows one tick more
        Self { value, at, ..self }
    }

    /// Whether `now` is in the tick of the last timestamp.
    pub const fn is_same_tick(&self, now: Instant) -> bool {
        now.as_nanos() / TICK_NS == self.at.as_nanos() / TICK_NS
    }

    /// Start value of the timestamp clock for a socket that is made at `now`. It is never behind the timestamps of
    /// [`wake`](crate::takeover::wake()), and at most one tick ahead. Bit 0 stays clear, because in Linux's TCP_TIMESTAMP that bit selects
    /// another unit.
    pub fn start_value(&self, now: Instant) -> u32 {
        self.value_at(now).wrapping_add(1) & !1
    }
}

/// How far the server has closed its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputEnd {
    /// The server has not closed its stream.
    Open,
    /// The server's FIN was sent, but not acknowledged.
    FinSent,
    /// The server's FIN was acknowledged.
    FinAcknowledged,
}

impl Connection {
    /// The logged output that the client has not acknowledged.
    pub fn unacknowledged_output(&self, endpoint: &Endpoint) -> impl Iterator<Item = &[u8]> {
        let range = Some(endpoint.unacknowledged.clone()).filter(|range| !range.is_empty());
        range.into_iter().flat_map(|range| self.output.slices(range))
    }

    /// The server's end of the connection, as far as the client and the log know it.
    pub fn endpoint(&self) -> Endpoint {
        let frontier = self.output.frontier();
        let acknowledged = self.client.acknowledged.min(frontier);
        let output = match (self.output.is_complete(), self.client.acknowledged > frontier) {
            (false, _) => OutputEnd::Open,
            (true, false) => OutputEnd::FinSent,
            (true, true) => OutputEnd::FinAcknowledged,
        };
        // With commit mode `pr`, the log has no bytes to restore, and the application ends the output again.
        let unacknowledged_end = if self.sends_directly {
            acknowledged
        } else {
            frontier
        };
        let output = match output {
            OutputEnd::FinSent if self.sends_directly => OutputEnd::Open,
            output => output,
        };
        let fin = u32::from(output == OutputEnd::FinAcknowledged);
        let receive_window = self.server.right_edge.since(self.server.acknowledged);
        Endpoint {
            client: self.client_address,
            vip: self.vip,
            send_unacknowledged: acknowledged.to_seq(self.output.first()) + fin,
            unacknowledged: acknowledged..unacknowledged_end,
            receive_next: self.input.next_seq(),
            input_frontier: self.input.frontier(),
            mss: self.client.mss.min(self.server.mss),
            window_scale: self
                .agreed
                .window_scale
                .then_some((self.client.window_shift, self.server.window_shift)),
            sack: self.agreed.sack,
            timestamps: self.agreed.timestamps.then_some(EndpointTimestamps {
                value: self.server.timestamp,
                at: self.server.timestamp_at,
                echo: self.client.timestamp,
            }),
            send_window: self.client.window,
            send_window_max: self.client.window_max,
            send_window_seq: self.client.window_seq,
            receive_window: u32::try_from(receive_window).unwrap_or(u32::MAX),
            receive_window_from: self.server.acknowledged.to_seq(self.input.first()),
            input_ended: self.input.is_complete(),
            output,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_sockets_clock_goes_on_from_its_start_value() {
        let at = |micros: u64| Instant::ZERO + Duration::from_micros(micros);
        for seen in [10, 11] {
            let before = EndpointTimestamps {
                value: seen,
                at: at(1900),
                echo: 7,
            };
            for made in [1900, 2000, 2999, 3000] {
                let value = before.start_value(at(made));
                let clock = before.started(value, at(made));
                assert_eq!(clock.value_at(at(made)), value);
                assert_eq!(clock.value_at(at(made) + Duration::from_millis(5)), value + 5);
                assert!(clock.is_same_tick(at(made)) && !clock.is_same_tick(at(made + 1000)));
                assert!(value >= before.value_at(at(made)) && clock.echo == 7);
            }
        }
    }
}
