//! Where a connection stops being HTTP/1 (or never was HTTP/1), and what a replica gets and sends from there on.

use super::resume::HttpResume;
use crate::Offset;

/// The place where another protocol begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// A replica that gets the input from here on speaks that protocol too.
    pub input_from: Offset,
    /// What the replica sends first: the reply by which the connection was upgraded (RFC 9110 §7.8). `None`: the connection's
    /// output begins here.
    pub reply: Option<HttpResume>,
    /// How many bytes at the end of the latest piece of output belong to the new protocol.
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
