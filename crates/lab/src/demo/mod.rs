//! `steadfast-lab demo`: shows a person that a download goes on when its server's power goes off.

mod command;
mod download;

pub use self::command::DemoOptions;
