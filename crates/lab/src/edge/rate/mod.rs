//! `steadfast-lab edge-rate`: one of two strings fails, and its flows share the other one, with and without rate control.

mod command;
mod options;
mod play;
mod report;
mod shares;

pub use options::{CongestionOption, EdgeRateOptions, RateLoad, SETTLING, StringRatio};
pub use play::{LEFT, RateFacts, measure};
