//! What a segment does to a connection.

use crate::accept::Rejected;

/// What a segment did to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was taken (it may have changed nothing).
    Taken,
    /// The receiver will not take it.
    Rejected(Rejected),
    /// The connection is over: a reset.
    Reset,
    /// The connection is over: both ends have closed, and each knows it of the other.
    Closed,
}
