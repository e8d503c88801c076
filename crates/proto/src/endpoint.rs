//! Where a connection stands, seen from the server: what a survivor's kernel is given.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Instant, Offset, Seq};

/// Everything that a kernel needs to go on with the server's end of a connection, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The client.
    pub client: SocketAddr,
    /// The VIP and port.
    pub vip: SocketAddr,
    /// First number that the client has not acknowledged (SND.UNA).
    pub send_unacknowledged: Seq,
    /// The output to be loaded as already sent.
    pub unacknowledged: Range<Offset>,
    /// Next number expected from the client (RCV.NXT).
    pub receive_next: Seq,
    /// The input that `receive_next` stands for: all before it is in the log.
    pub input_frontier: Offset,
    /// The smaller of the two maximum segment sizes that were offered; options come out of it.
    pub mss: u16,
    /// Window scale shifts: the client's, the server's.
    pub window_scale: Option<(u8, u8)>,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// The server's latest timestamp, when it was seen, and the client's.
    pub timestamps: Option<EndpointTimestamps>,
    /// The client's window.
    pub send_window: u32,
    /// The largest one that it ever offered.
    pub send_window_max: u32,
    /// The number of the segment that offered it (SND.WL1).
    pub send_window_seq: Seq,
    /// The window that the server offered last, counted from `receive_window_from`.
    pub receive_window: u32,
    /// The acknowledgement that offered it (RCV.WUP).
    pub receive_window_from: Seq,
    /// The client's stream has ended, and `receive_next` includes its FIN.
    pub input_ended: bool,
    /// The server's FIN.
    pub output: OutputEnd,
}

/// Clocks of both sides (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointTimestamps {
    /// The server's latest value.
    pub value: u32,
    /// When it was seen.
    pub at: Instant,
    /// The client's latest value, to be echoed.
    pub echo: u32,
}

/// How far the server's stream has been closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputEnd {
    /// Not at all.
    Open,
    /// Its FIN was sent, not acknowledged.
    FinSent,
    /// Its FIN was acknowledged.
    FinAcknowledged,
}
