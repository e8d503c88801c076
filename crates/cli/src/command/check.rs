//! `steadfast check-config` of a node. `steadfast run` makes the same checks first.

use std::path::Path;

use super::entry::Program;
use super::error::CommandError;
use super::stderr::tell;
use crate::config::{Config, ConfigError, NodeFile, Problem};
use crate::daemon;
use crate::environment::{self, PeerMust};

/// Checks the configuration in `file`, and prints one line if there is no problem. With `in_place`, also checks whether this program could
/// take the place of the running daemon.
pub(super) fn check(
    program: &Program,
    (file, peer): (&Path, Option<&str>),
    without_peer: bool,
    in_place: bool,
) -> Result<(), CommandError> {
    let node = NodeFile::load(file)?;
    let name = node.name.clone();
    let pairs = match peer {
        Some(_) => vec![node.pair(file, peer)?],
        None => node.pairs,
    };
    let mut services = 0;
    for config in &pairs {
        check_here(program, file, config, without_peer)?;
        if in_place {
            daemon::could_go_on(config)?;
        }
        services += config.services.len();
    }
    let services = match services {
        1 => "1 service".to_owned(),
        count => format!("{count} services"),
    };
    tell(format_args!(
        "{}: node {}, {services}: all right",
        file.display(),
        name
    ));
    Ok(())
}

/// Checks the configuration `config`, which is in `file`, and prints the warnings. Fails if the configuration does not fit this machine and
/// its network.
pub(super) fn check_here(
    program: &Program,
    file: &Path,
    config: &Config,
    without_peer: bool,
) -> Result<(), CommandError> {
    for Problem { line, field, what } in warnings(program, file, config, without_peer)? {
        tell(format_args!(
            "{}:{line}: {field}: warning: {what}",
            file.display()
        ));
    }
    Ok(())
}

/// As [`check_here`], but returns the warnings.
pub(super) fn warnings(
    program: &Program,
    file: &Path,
    config: &Config,
    without_peer: bool,
) -> Result<Vec<Problem>, CommandError> {
    let missing = environment::missing(|| (program.features)(config));
    if !missing.is_empty() {
        return Err(CommandError::Missing(missing));
    }
    let peer = if linux::wire::is_left_behind(&config.node.instance) {
        PeerMust::GoOn
    } else if without_peer {
        PeerMust::Nothing
    } else {
        PeerMust::Answer
    };
    let findings = environment::check(config, peer).map_err(CommandError::failed)?;
    if findings.problems.is_empty() {
        return Ok(findings.warnings);
    }
    Err(ConfigError::new(file, findings.problems).into())
}
