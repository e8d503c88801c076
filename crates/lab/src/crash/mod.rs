//! `steadfast-lab crash`: real clients, a real server, and something fails in the middle.

mod busy_stall;
mod command;
mod durations;
mod facts;
mod play;
mod random;
mod report;
mod round_report;
mod rounds;
mod sample;
mod staged_sample;

pub use self::command::CrashOptions;
pub use self::sample::{TakeoverSample, sample};
pub use self::staged_sample::{StagedSample, staged_sample};
