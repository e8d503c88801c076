//! The commands `steadfast handover`, `bypass` and `drain`. Each gives its order to the node, and then waits until the order is carried
//! out. With `--off`, the command does not wait.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use proto::role::Role;

use super::cli::NodeOption;
use super::error::CommandError;
use super::show::{choose, choose_agent_of, no_answer, service_named};
use super::stderr::tell;
use crate::control::{self, Order, ServiceStatus};

/// Time limit for a change of roles.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the drain of a server of sessions. Longer than a server keeps a state by default (`keep_s`).
const DRAIN_MAX: Duration = Duration::from_secs(75);
/// Time between two lines of progress of this drain.
const PROGRESS: Duration = Duration::from_secs(1);
/// Time between two requests for the status.
const POLL: Duration = Duration::from_millis(20);

pub(super) fn handover(node: &NodeOption, service: String) -> Result<(), CommandError> {
    let state_dir = choose_agent_of(node, &service)?;
    let before = control::status(&state_dir).map_err(no_answer)?;
    let was_backup = service_named(&before, &service)?.state == Role::Backup;
    give(
        &state_dir,
        Order::Handover {
            service: service.clone(),
        },
    )?;
    wait(&state_dir, &|status| {
        let serves = matches!(status.state, Role::Sole | Role::Primary);
        status.name != service || serves == was_backup && status.state != Role::TakingOver
    })
}

pub(super) fn bypass(node: &NodeOption, service: String, off: bool) -> Result<(), CommandError> {
    let state_dir = choose_agent_of(node, &service)?;
    let before = control::status(&state_dir).map_err(no_answer)?;
    let serves = service_named(&before, &service)?.state.may_speak();
    if serves && !off {
        let why = anyhow!("this node serves {service}: ask its backup, or hand it over first");
        return Err(CommandError::Failed(why));
    }
    let order = Order::Leave {
        service: Some(service.clone()),
        leaves: !off,
    };
    give(&state_dir, order)?;
    wait(&state_dir, &|status| {
        off || status.name != service || has_left(status)
    })
}

pub(super) fn drain(name: String, off: bool, config: Option<PathBuf>) -> Result<(), CommandError> {
    let node = NodeOption {
        node: config.is_none().then(|| name.clone()),
        config,
        peer: None,
    };
    let agents = match &node.config {
        Some(file) => {
            let found = node.choose(BTreeSet::new)?;
            if found.name != name {
                let (file, found) = (file.display(), found.name);
                return Err(CommandError::Use(format!(
                    "{file} is of node {found}, not of {name}"
                )));
            }
            found.agents().into_iter().map(|agent| agent.state_dir).collect()
        }
        None => choose(&node)?,
    };
    if let [state_dir] = agents.as_slice()
        && crate::connect::is_half(state_dir)
    {
        return drain_half(state_dir, &name, off);
    }
    let order = Order::Leave {
        service: None,
        leaves: !off,
    };
    for state_dir in &agents {
        give(state_dir, order.clone())?;
    }
    for state_dir in &agents {
        wait(state_dir, &|status| off || has_left(status))?;
    }
    Ok(())
}

/// Orders a server's half to drain itself, and waits until no session is left. With `off`: to take sessions again.
fn drain_half(state_dir: &Path, name: &str, off: bool) -> Result<(), CommandError> {
    let order = Order::Leave {
        service: None,
        leaves: !off,
    };
    control::order(state_dir, order).map_err(no_answer)?;
    let deadline = Instant::now() + DRAIN_MAX;
    let mut told = Instant::now();
    if off {
        return Ok(());
    }
    loop {
        let status = control::accept_status(state_dir).map_err(no_answer)?;
        let left = status.sessions_here();
        if left == 0 {
            tell(format_args!(
                "server {name}: no session is left, and new ones are refused"
            ));
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(CommandError::Failed(anyhow!(
                "{left} sessions are still at {name} after {DRAIN_MAX:?}; they are asked to leave until `drain --off`"
            )));
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            tell(format_args!("server {name}: {left} sessions are left"));
        }
        std::thread::sleep(POLL);
    }
}

const fn has_left(status: &ServiceStatus) -> bool {
    matches!(status.state, Role::Standby | Role::Joining)
}

fn give(state_dir: &Path, order: Order) -> Result<(), CommandError> {
    control::order(state_dir, order).map_err(no_answer)
}

/// Waits until `is_done` is true for every service.
fn wait(state_dir: &Path, is_done: &dyn Fn(&ServiceStatus) -> bool) -> Result<(), CommandError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = control::status(state_dir).map_err(no_answer)?;
        let left: Vec<String> = status
            .services
            .iter()
            .filter(|service| !is_done(service))
            .map(|service| format!("{} is {}", service.name, service.state))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let left = left.join(", ");
            return Err(CommandError::Failed(anyhow!(
                "not done after {PATIENCE:?}: {left}"
            )));
        }
        std::thread::sleep(POLL);
    }
}
