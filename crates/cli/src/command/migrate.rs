//! The command `steadfast migrate`: gives the order to the primary, shows the progress, and says what has become of the connections.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde::Serialize;

use super::cli::MigrateOptions;
use super::error::CommandError;
use super::show::{choose_agent_of, no_answer, service_named};
use crate::control::{self, MigrationStatus, Order, RegistryStatus};

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
    let service = service_named(&status, &wish.service)?;
    let annexes = &service.annexes;
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
    if let Some(registry) = &service.registry {
        why += &not_registered(registry, &wish.to);
    }
    Err(CommandError::Use(why))
}

/// The reason, from the registry, why an annex is not in the list.
fn not_registered(registry: &RegistryStatus, name: &str) -> String {
    let names_it = |problem: &&String| {
        let subject = problem.split(": ").next().unwrap_or_default();
        subject.rsplit(['/', ' ']).next() == Some(name)
    };
    match registry.problems.iter().find(names_it) {
        Some(problem) => format!("; {problem}"),
        None if registry.is_stale => {
            "; the list of registered annexes is stale, because etcd does not answer".to_owned()
        }
        None => format!("; no annex {name} that serves it is registered"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_why_an_annex_is_no_target() {
        let mut registry = RegistryStatus {
            read_age_ns: Some(1),
            is_stale: false,
            error: None,
            problems: vec![
                "/steadfast/annexes/gamma: has version 2, but this node reads version 1".to_owned(),
                "annex delta: is at 10.0.0.5:7402, as eta".to_owned(),
            ],
        };
        assert_eq!(
            not_registered(&registry, "gamma"),
            "; /steadfast/annexes/gamma: has version 2, but this node reads version 1"
        );
        assert_eq!(
            not_registered(&registry, "delta"),
            "; annex delta: is at 10.0.0.5:7402, as eta"
        );
        assert_eq!(
            not_registered(&registry, "amma"),
            "; no annex amma that serves it is registered"
        );
        registry.is_stale = true;
        let stale = "; the list of registered annexes is stale, because etcd does not answer";
        assert_eq!(not_registered(&registry, "eta"), stale);
    }
}
