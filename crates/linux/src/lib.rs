//! The Linux kernel as Steadfast uses it.

pub mod clock;
pub mod netns;
pub mod keeper;
pub mod packet_socket;
pub mod raw;
pub mod repair;
pub mod wire;
pub mod network;
pub mod process;
pub mod transparent;
