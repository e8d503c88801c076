//! The lab's network: namespaces, cables between them, a switch and a router.
//!
//! ```text
//!  client ── wan ── router ── switch ──┬── a      each name is a namespace `sf-RUN-NAME`; `wan` is there
//!                                      └── b      only if the way to the client is emulated
//! ```
//!
//! The switch has its own namespace, so that a node's cable can be pulled at the far end, as a person would do it. The second network,
//! if there is one, is another bridge in that namespace ([`switch`]).

pub mod address;
mod cable;
pub mod congestion;
pub mod hold;
mod ip;
mod kernel;
mod names;
mod options;
pub mod switch;
mod topology;

pub use self::cable::{CableEnd, cable};
pub use self::ip::{batch, batch_ipv6};
pub use self::kernel::{set_up_host, set_up_router};
pub use self::names::{
    INTERFACE, NODE_NAMES, ROUTER_LAN_INTERFACE, WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE,
};
pub use self::options::TopologyOptions;
pub use self::topology::Topology;
