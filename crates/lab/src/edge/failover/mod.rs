//! `steadfast-lab edge-failover`: a string fails, and its flows go on over another string, with and without local recovery.

mod command;
mod counters;
mod gaps;
mod options;
mod play;
mod report;

pub use options::{EdgeFailoverOptions, HitEdge};
pub use play::measure;
