//! What a segment does to a connection.

use crate::accept::Rejected;

/// What a segment did to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The connection took the segment, which may have changed nothing.
    Taken,
    /// The receiver will not take the segment.
    Rejected(Rejected),
    /// The connection is over: a reset.
    Reset,
    /// The connection is over: each end has closed, and has acknowledged the other end's FIN.
    Closed,
}
