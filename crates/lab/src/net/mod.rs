//! The lab's network: namespaces, cables between them, a switch and a router.
//!
//! ```text
//!  client ── wan ── router ── switch ──┬── a      each name is a namespace `sf-RUN-NAME`; `wan` is there
//!                                      └── b      only if the path to the client is emulated
//! ```
//!
//! The switch is a bridge in a namespace of its own. So the lab can take down the switch's end of a node's cable, and the node loses the
//! carrier as when a person pulls the cable. If there is a second network, its switch is another bridge in that namespace ([`switch`]).

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
    ANNEX_NAMES, INTERFACE, NODE_NAMES, ROUTER_LAN_INTERFACE, WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE,
};
pub use self::options::TopologyOptions;
pub use self::topology::Topology;
