//! The Linux kernel as Steadfast uses it: eBPF on the wire, TCP_REPAIR, addresses and routes, packet sockets. It carries out
//! what `proto` decides. Unsafe code lives here and nowhere else.

pub mod clock;
pub mod features;
pub mod keeper;
pub mod netns;
pub mod network;
pub mod own_file;
pub mod packet_socket;
pub mod probe;
pub mod process;
pub mod raw;
pub mod repair;
pub mod spill;
pub mod transparent;
pub mod wire;
