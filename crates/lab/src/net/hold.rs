//! `steadfast-lab network`: sets up only the lab's network, for manual experiments.

use std::io::Write;

use anyhow::{Context, Result};
use clap::Args;
use linux::netns::Netns;
use serde_json::json;

use super::{Topology, TopologyOptions};
use crate::emulator::{Emulator, WanOptions};
use crate::run::LabOutcome;
use crate::teardown::Teardown;

/// Build the lab's network and keep it until ^C.
///
/// The network has a client, a router and two nodes, as in every lab, but no programs run in them. Run a command in one
/// of these namespaces with `nsenter --net=/run/netns/NAME COMMAND`.
#[derive(Debug, Args)]
pub struct NetworkOptions {
    #[command(flatten)]
    way: WanOptions,
    /// Number of networks between the nodes. The second network connects only the nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    links: u8,
    /// Print the namespaces as one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Builds the network, prints its namespaces, and waits for a signal.
///
/// # Errors
/// If the network cannot be built.
pub fn run(options: &NetworkOptions) -> Result<LabOutcome> {
    let teardown = Teardown::start()?;
    let run = std::process::id().to_string();
    let plan = TopologyOptions {
        second_network: options.links > 1,
        ..TopologyOptions::of(options.way)
    };
    let network = Topology::build(&run, plan, &teardown).context("build the network")?;
    let emulator = network
        .wan
        .as_ref()
        .map(|wan| Emulator::start(wan, options.way, SEED));
    let _emulator = emulator.transpose().context("emulate the path to the client")?;
    let places = [
        ("client", &network.client),
        ("router", &network.router),
        ("switch", &network.switch),
        ("a", &network.nodes[0]),
        ("b", &network.nodes[1]),
    ];
    let mut stdout = std::io::stdout().lock();
    if options.json {
        let names: serde_json::Map<_, _> = places.iter().map(name_of).collect();
        writeln!(stdout, "{}", json!({ "namespaces": names }))?;
    } else {
        for (place, namespace) in places {
            writeln!(
                stdout,
                "{place:<8} {}",
                Netns::path_of(namespace.name()).display()
            )?;
        }
        writeln!(stdout, "^C removes it all")?;
    }
    stdout.flush()?;
    // The signal that ends this process also tears the network down.
    loop {
        std::thread::park();
    }
}

/// Seed of the emulated losses. Fixed, because experiments by hand need no variation.
const SEED: u64 = 1;

fn name_of((place, namespace): &(&str, &Netns)) -> (String, serde_json::Value) {
    ((*place).to_owned(), namespace.name().into())
}
