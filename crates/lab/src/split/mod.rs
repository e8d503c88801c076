//! `steadfast-lab split`: finds which node speaks when. Both nodes live, but they do not hear each other, or one of
//! them is stopped.

mod cell;
mod command;
mod fault;
mod picture;
mod silence;

pub use self::command::SplitOptions;
