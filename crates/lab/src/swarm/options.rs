//! The options of the commands `swarm` and `replay`.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use sim::pair::Defect;
use sim::swarm::Scenario;

/// Inject failures drawn from a seed into a simulated pair, and check that the pair keeps the rules.
///
/// Run N of a swarm, counted from 0, has the seed SEED + N. The scenarios of the first five runs that break a rule are shrunk and written
/// to files. `replay` plays such a file again.
#[derive(Clone, Debug, Args)]
pub struct SwarmOptions {
    /// The seed of the first run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of runs.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub runs: u64,
    /// Number of runs at the same time.
    #[arg(long, default_value_t = 1, conflicts_with = "defect", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: u32,
    /// Put this defect into the nodes, and stop at the first run that finds the defect. This tests the checkers.
    #[arg(long, value_name = "NAME", value_parser = parse)]
    pub defect: Option<Defect>,
    /// Every run has annexes, to which connections move. Otherwise, one run out of ten has.
    #[arg(long)]
    pub annexes: bool,
    /// Directory for the scenarios that break a rule.
    #[arg(long, default_value = "out/swarm")]
    pub out: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Play one run of the swarm again, or replay the recording of a daemon.
#[derive(Clone, Debug, Args)]
pub struct ReplayOptions {
    /// A scenario that the swarm has written, or a recording of `steadfast run --record`. When a recording is replayed, the node must
    /// request the same actions again.
    #[arg(required_unless_present = "seed", conflicts_with = "seed")]
    pub file: Option<PathBuf>,
    /// Replay the run of this seed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// With --seed, the run of `swarm --annexes`.
    #[arg(long, requires = "seed")]
    pub annexes: bool,
    /// Make the scenario as small as possible while it still breaks the same rule, and print the result.
    #[arg(long)]
    pub shrink: bool,
    /// Print every packet, and everything that the nodes do.
    #[arg(long)]
    pub trace: bool,
    /// Print one JSON object instead of text.
    #[arg(long, conflicts_with_all = ["trace", "shrink"])]
    pub json: bool,
}

/// The run of a seed. `annexes`: it has annexes in any case.
pub(super) fn draw(seed: u64, annexes: bool) -> Scenario {
    if annexes {
        Scenario::with_annexes(seed)
    } else {
        Scenario::draw(seed)
    }
}

/// Parses a defect's name.
fn parse(name: &str) -> Result<Defect, Error> {
    let name: StrDeserializer<'_, Error> = name.into_deserializer();
    Defect::deserialize(name)
}
