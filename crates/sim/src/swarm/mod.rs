//! The swarm: many runs of the pair, each with its own network, clients and failures, all drawn from a seed.
//!
//! ```text
//!   seed ──▶ Scenario ──▶ play ──▶ Outcome: violations, coverage
//!               ▲                     │
//!               └────── shrink ◀──────┘ a violation
//! ```

mod fault;
mod outage;
mod outcome;
mod phase;
mod run;
mod scenario;
mod shrink;
mod silence;
mod story;
mod verdict;

pub use fault::{FAULTS_MIN, FaultKind, FaultTarget, PlannedFault};
pub use outcome::{RunOutcome, Violation};
pub use phase::PairPhase;
pub use run::{play, play_traced};
pub use scenario::{
    CONNECTIONS_MIN, Scenario, ScenarioConnection, ScenarioEndpoint, ScenarioNetwork, ScenarioNodes,
};
pub use shrink::{holds_without_defect, shrink};
