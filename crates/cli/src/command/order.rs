//! The commands `steadfast handover`, `bypass` and `drain`. Each gives its order to the node, and then waits until the order is carried
//! out. With `--off`, the command does not wait.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use proto::role::Role;

use super::cli::NodeOption;
use super::error::CommandError;
use super::show::{choose, no_answer, service_named};
use crate::config::Config;
use crate::control::{self, Order, ServiceStatus};

/// Time limit for a change of roles.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two requests for the status.
const POLL: Duration = Duration::from_millis(20);

pub(super) fn handover(node: &NodeOption, service: String) -> Result<(), CommandError> {
    let state_dir = choose(node)?;
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
    let state_dir = choose(node)?;
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
    let state_dir = match config {
        Some(file) => {
            let node = Config::load(&file)?.node;
            if node.name != name {
                let file = file.display();
                return Err(CommandError::Use(format!(
                    "{file} is of node {}, not of {name}",
                    node.name
                )));
            }
            node.state_dir
        }
        None => choose(&NodeOption {
            config: None,
            node: Some(name),
        })?,
    };
    let order = Order::Leave {
        service: None,
        leaves: !off,
    };
    give(&state_dir, order)?;
    wait(&state_dir, &|status| off || has_left(status))
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
