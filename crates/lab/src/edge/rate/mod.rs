//! `steadfast-lab edge-rate`: one of two strings fails, and then all flows share the other string, with and without rate control.

mod command;
mod options;
mod play;
mod report;
mod shares;

pub use options::{CongestionOption, EdgeRateOptions, RateLoad, SETTLING, StringRatio};
pub use play::{LEFT, RateFacts, measure};
