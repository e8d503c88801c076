//! The Linux kernel as Steadfast uses it: eBPF on the wire, TCP_REPAIR, addresses and routes, packet sockets. This crate
//! carries out the decisions of `proto`. It has all unsafe code of the workspace.

pub mod application;
mod bpf;
pub mod clock;
pub mod edge;
pub mod executable;
pub mod features;
pub mod keeper;
pub mod netns;
pub mod network;
pub mod order;
pub mod own_file;
pub mod packet_socket;
pub mod peer_process;
pub mod probe;
pub mod process;
pub mod raw;
pub mod repair;
pub mod sctp;
pub mod spill;
pub mod transparent;
pub mod wire;
