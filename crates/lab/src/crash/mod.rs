//! `steadfast-lab crash`: real clients, a real server, and something fails in the middle.

mod command;
mod durations;
mod facts;
mod play;
mod promise;
mod report;
mod round_report;
mod rounds;
mod sample;

pub use self::command::CrashOptions;
pub use self::sample::{TakeoverSample, sample};
