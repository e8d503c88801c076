//! The Linux kernel as Steadfast uses it.

pub mod netns;
