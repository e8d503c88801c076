//! The Linux kernel as Steadfast uses it.

pub mod netns;
pub mod packet_socket;
