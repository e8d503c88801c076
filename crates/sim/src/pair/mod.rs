//! The pair in the simulated world: the very core of the daemon, [`proto::node::Node`], carries live connections through the
//! death of a primary.
//!
//! ```text
//!             ┌─ tap: judge ─┐           ┌──────────── Backup ────────────┐              ┌── Primary ──┐
//!   clients ──┤              ├── path ───┤ wire: log, then release        ├──── LAN ─────┤ Host, Node, │
//!             └──────────────┘           │ agent: Node, one action a time ├─ heartbeats ─┤ application │
//!                                        │ local stack, relay, replicas   │              └─────────────┘
//!                                        └────────────────────────────────┘
//! ```
//!
//! * [`Backup`], [`Primary`] are the nodes; [`Scene`] puts them into a world.
//! * [`application`] says what a program is; [`http`] and [`echo`] are two, with clients that check every byte.
//! * [`Judge`] checks what the pair promises; [`Defect`]s are broken promises that it must notice.

pub mod application;
mod backup;
mod carry_out;
pub mod echo;
pub mod http;
mod judge;
mod primary;
mod relay;
mod scene;
mod wire;

pub use backup::{Backup, BackupConfig, Costs, Defect};
pub use judge::Judge;
pub use primary::Primary;
pub use relay::{Ending, Relay};
pub use scene::{Scene, SceneConfig, Talk, vip};
