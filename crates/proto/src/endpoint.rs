//! The state of a connection as its server sees it: what a survivor's kernel needs to restore the socket.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

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
    /// The output that the client has not acknowledged. The restored socket is loaded with it as already sent.
    pub unacknowledged: Range<Offset>,
    /// Next sequence number expected from the client (RCV.NXT).
    pub receive_next: Seq,
    /// The input's end in the log: the offset of `receive_next`, where a FIN does not count. All input before this offset is in the log.
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
    /// The window that the server offered last, in bytes, counted from `receive_window_from`.
    pub receive_window: u32,
    /// The acknowledgement number that came with `receive_window` (RCV.WUP).
    pub receive_window_from: Seq,
    /// The client's stream has ended, and `receive_next` includes its FIN.
    pub input_ended: bool,
    /// Whether the server has closed its stream.
    pub output: OutputEnd,
}

/// Clocks of both sides (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointTimestamps {
    /// The server's latest value.
    pub value: u32,
    /// When `value` was seen.
    pub at: Instant,
    /// The client's latest value, to be echoed.
    pub echo: u32,
}

/// How far the server has closed its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputEnd {
    /// The server has not closed it.
    Open,
    /// The server's FIN was sent, but not acknowledged.
    FinSent,
    /// The server's FIN was acknowledged.
    FinAcknowledged,
}
