//! `steadfast-lab split`: finds which node speaks when. Both nodes live, but they do not hear each other, or the
//! processes of one node are paused for a while.

mod cell;
mod command;
mod fault;
mod picture;
mod silence;

pub use self::command::SplitOptions;
