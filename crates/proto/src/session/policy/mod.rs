//! When a session should move: one module per metric, and the hysteresis that all of them share.

pub mod delay;
pub mod hysteresis;
pub mod rate;
pub mod response;
pub mod retransmissions;
