//! Where a connection is not HTTP/1 (any more), and what a second application would be told and would say from there on.

use super::resume::Resume;
use crate::Offset;

/// Another protocol begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// A second application that gets the input from here on speaks that protocol too.
    pub input_from: Offset,
    /// What it says first: the reply by which the connection was upgraded (RFC 9110 §7.8). `None`: the connection's output begins
    /// here.
    pub reply: Option<Resume>,
    /// So many bytes at the end of the output that was given last come behind that.
    pub rest: usize,
}

impl Switched {
    /// At the connection's first byte.
    pub(super) const fn at_start(rest: usize) -> Self {
        Self {
            input_from: Offset::ZERO,
            reply: None,
            rest,
        }
    }
}
