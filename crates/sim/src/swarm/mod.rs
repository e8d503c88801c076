//! The swarm: many runs of the pair, each with its own network, clients and failures, all drawn from a seed.
//!
//! ```text
//!   seed ──▶ Scenario ──▶ play ──▶ Outcome: violations, coverage
//!               ▲                     │
//!               └────── shrink ◀──────┘ a violation
//! ```

mod fault;
mod outage;
mod phase;
mod run;
mod scenario;
mod shrink;
mod silence;
mod story;
mod verdict;

pub use fault::{Fault, Kind, Target};
pub use phase::Phase;
pub use run::{Outcome, play, play_traced};
pub use scenario::{CONNECTIONS_MIN, Connection, Endpoint, FAULTS_MIN, Network, Nodes, Scenario};
pub use shrink::{holds_without_defect, shrink};
pub use verdict::Violation;
