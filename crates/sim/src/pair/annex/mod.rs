//! Annexes: nodes outside of the pair that have some of its connections (docs/annex.md).
//!
//! [`link`] is the messages and the stream that carries them, [`caller`] the side of a wire or a primary that calls annexes, [`hosted`] the
//! sockets of a node that takes connections, and [`station`] an annex.

pub(super) mod caller;
pub(super) mod hosted;
pub(super) mod link;
pub mod station;
