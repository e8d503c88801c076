//! The command `steadfast migrate`: gives the order to the primary, shows the progress, and says what has become of the connections.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde::Serialize;

use super::cli::MigrateOptions;
use super::error::CommandError;
use super::show::{choose_agent_of, no_answer, service_named};
use crate::control::{self, MigrationStatus, Order};

/// Time between two requests for the status.
const POLL: Duration = Duration::from_millis(20);
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// Time beyond the operator's limit in which the node must have come to an end.
const GRACE: Duration = Duration::from_secs(5);

/// The outcome, as `--json` prints it.
#[derive(Serialize)]
struct MigrationOutcome {
    ok: bool,
    moved: u64,
    stayed: u64,
    /// The latest connections that stayed, each with the reason.
    reasons: Vec<(SocketAddr, String)>,
    took_ms: f64,
}

pub(super) fn migrate(wish: MigrateOptions) -> Result<(), CommandError> {
    let state_dir = choose_agent_of(&wish.node, &wish.service)?;
    let within = Duration::from_secs(wish.within);
    if !crate::connect::is_proxy(&state_dir) {
        check_peer(&state_dir, &wish)?;
    }
    let before = &migrations(&state_dir, &wish.service)?;
    if before.pending > 0 {
        let why = anyhow!(
            "{} connections are on their way already; wait for them",
            before.pending
        );
        return Err(CommandError::Failed(why));
    }
    let begun = Instant::now();
    let order = Order::Migrate {
        service: wish.service.clone(),
        to: wish.to.clone(),
        client: wish.client,
        within_ms: wish.within * 1000,
    };
    control::order(&state_dir, order).map_err(no_answer)?;
    let after = wait(&state_dir, &wish.service, begun, within + GRACE)?;
    let stayed = after.stayed - before.stayed.min(after.stayed);
    let mut reasons = after.reasons;
    reasons.truncate(usize::try_from(stayed).unwrap_or(usize::MAX));
    let outcome = MigrationOutcome {
        ok: stayed == 0,
        moved: after.moved - before.moved.min(after.moved),
        stayed,
        reasons,
        took_ms: begun.elapsed().as_secs_f64() * 1000.0,
    };
    if wish.json {
        println!("{}", serde_json::to_string(&outcome).expect("plain data"));
    } else {
        println!(
            "{} connections moved to {} in {:.0} ms",
            outcome.moved, wish.to, outcome.took_ms
        );
        for (client, why) in &outcome.reasons {
            println!("{client} stayed: {why}");
        }
    }
    if outcome.ok {
        return Ok(());
    }
    Err(CommandError::Failed(anyhow!("{stayed} connections stayed here")))
}

/// Checks that the order names the other node of the pair, or an annex of the service.
fn check_peer(state_dir: &Path, wish: &MigrateOptions) -> Result<(), CommandError> {
    let status = control::status(state_dir).map_err(no_answer)?;
    let annexes = &service_named(&status, &wish.service)?.annexes;
    if status.peer.name == wish.to || annexes.iter().any(|annex| annex.name == wish.to) {
        return Ok(());
    }
    let names: Vec<_> = annexes.iter().map(|annex| annex.name.as_str()).collect();
    let mut why = format!(
        "the other node of {} is {}, not {}",
        wish.service, status.peer.name, wish.to
    );
    if !names.is_empty() {
        why += &format!("; its annexes: {}", names.join(", "));
    }
    Err(CommandError::Use(why))
}

/// Waits until no connection is on its way any more.
fn wait(
    state_dir: &Path,
    service: &str,
    begun: Instant,
    limit: Duration,
) -> Result<MigrationStatus, CommandError> {
    let mut told = begun;
    loop {
        let now = migrations(state_dir, service)?;
        if now.pending == 0 {
            return Ok(now);
        }
        if begun.elapsed() > limit {
            let why = anyhow!(
                "{} connections are still on their way after {limit:?}",
                now.pending
            );
            return Err(CommandError::Failed(why));
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!("{} connections still to move", now.pending);
        }
        std::thread::sleep(POLL);
    }
}

fn migrations(state_dir: &Path, name: &str) -> Result<MigrationStatus, CommandError> {
    if crate::connect::is_proxy(state_dir) {
        let status = control::connect_status(state_dir).map_err(no_answer)?;
        let mut services = status.services.into_iter();
        let service = services.find(|service| service.name == name);
        let missing = || CommandError::Use(format!("proxy {} has no service {name}", status.name));
        return Ok(service.ok_or_else(missing)?.migrations);
    }
    let status = control::status(state_dir).map_err(no_answer)?;
    Ok(service_named(&status, name)?.migrations.clone())
}
