//! How a side opened a connection.

use crate::packet::{Segment, TcpOptions};
use crate::{Instant, Seq};

/// What a side's SYN offered, and the first sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Sequence number of the SYN.
    pub seq: Seq,
    /// The window written in the SYN (never scaled).
    pub window: u16,
    /// The options.
    pub options: TcpOptions,
    /// When it was logged.
    pub at: Instant,
}

impl Opening {
    /// The opening of a SYN or SYN-ACK.
    pub fn of(segment: &Segment<'_>, at: Instant) -> Self {
        Self {
            seq: segment.seq,
            window: segment.window,
            options: segment.options,
            at,
        }
    }
}
