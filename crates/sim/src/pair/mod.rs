//! The pair in the simulated world: the daemon's own core, [`proto::node::Node`], carries live connections through the death of a primary.
//!
//! ```text
//!             ┌───── Neighbours: judge ─────┐        ┌──────────────── Station ─────────────────┐
//!   clients ──┤ who has the VIP?            ├─ path ─┤ kernel: wire, gate, guards, local stack  ├──┐
//!             │ an outside host             │        │ agent: Node, one action at a time        │  ├ peer, heartbeats
//!             └─────────────────────────────┴─ path ─┤ application, relay, replicas             ├──┘
//!                                                    └──────────────────────────────────────────┘
//! ```
//!
//! * A [`Station`] is a node; [`SimPair`] puts two of them into a world. Either node may be the wire or the primary.
//! * [`application`] defines programs. [`http`] and [`echo`] are two programs, with clients that check every byte.
//! * [`Judge`] checks the rules for the pair. Each [`Defect`] breaks a rule on purpose, and the judge or a client must
//!   notice.

mod annex;
mod annexed;
pub mod application;
pub(crate) mod arbiter;
mod cables;
mod census;
mod clock;
mod commit;
mod config;
mod copies;
mod death;
mod defect;
mod direct;
mod distort;
pub mod draw;
pub mod echo;
mod exports;
mod hook;
pub mod http;
mod judge;
mod kernel;
mod ledger;
mod log_reading;
mod machine;
mod neighbours;
mod one_owner;
mod orders;
mod ownership;
mod relay;
mod spill;
mod state_sync;
mod station;
mod talk;
mod testbed;
mod thread;
mod voices;
mod wire;

pub use annex::station::AnnexStation;
pub use arbiter::SimArbiterKind;
pub use commit::SimCommit;
pub use config::{SimPairConfig, vip};
pub use defect::Defect;
pub use judge::Judge;
pub use machine::{Machine, StationConfig};
pub use ownership::CarriedCounts;
pub use relay::{RelayEnding, SimRelay};
pub use spill::FullLogPolicy;
pub use state_sync::SimStateSync;
pub use station::Station;
pub use talk::SimClient;
pub use testbed::SimPair;
pub use thread::Costs;
