//! The command line.

mod annex;
mod check;
mod cleanup;
mod cli;
mod connect;
mod edge;
mod entry;
mod error;
mod keeper;
mod log;
mod man;
mod migrate;
mod node;
mod order;
mod run;
mod show;
mod stage;
mod stderr;
#[cfg(test)]
mod tests;
mod text;
mod tunnel;

use std::process::ExitCode;

use clap::Parser as _;

use crate::config::AnnexFile;
use crate::config::EdgeSettings;
use crate::daemon::RecordingTarget;
use crate::stage::StageSettings;
use crate::tunnel::TunnelFile;
use cli::{Cli, Command, ConfigFile};
pub use entry::Program;
use error::CommandError;
use stderr::tell;

/// Does what the command line says.
pub fn main(program: &Program) -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run {
            config,
            without_peer,
            log_format,
            record,
            record_mb,
        } => {
            let record = record.map(|directory| RecordingTarget {
                directory,
                bytes_max: record_mb << 20,
            });
            let file = (config.config.as_path(), config.peer.as_deref());
            run::run(program, file, without_peer, log_format, record)
        }
        Command::Edge {
            config,
            check: true,
            log_format: _,
        } => edge::check(&config),
        Command::Edge {
            config,
            check: false,
            log_format,
        } => edge::run(&config, log_format),
        Command::Tunnel(options) => tunnel::run(options),
        Command::Connect(options) => connect::connect(&options),
        Command::Accept(options) => connect::accept(&options),
        Command::Stage(options) => stage::run(&options),
        Command::Annex(options) => annex::run(&options),
        Command::CheckConfig {
            config,
            without_peer,
            in_place,
        } => check_config(program, &config, without_peer, in_place),
        Command::Status { node, json } => show::status(&node, json),
        Command::Connections {
            node,
            restored: false,
            json,
        } => show::connections(&node, json),
        Command::Connections {
            node,
            restored: true,
            json,
        } => show::restored(&node, json),
        Command::Handover { service, node } => order::handover(&node, service),
        Command::Migrate(options) => migrate::migrate(options),
        Command::Bypass { service, off, node } => order::bypass(&node, service, off),
        Command::Drain { name, off, config } => order::drain(name, off, config),
        Command::Cleanup { node, all } => cleanup::cleanup(&node, all),
        Command::Keeper { socket, state_dir } => keeper::keep(socket, &state_dir),
        Command::Man { out } => man::write(&out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(format_args!("{failure}"));
            failure.exit_code().into()
        }
    }
}

/// Checks a file by what it configures. `--without-peer` changes nothing for an edge, a tunnel, a proxy or a stage, because their checks ask
/// no peer. `--in-place` changes nothing either: the program that replaces an edge in place makes this same check, and the others are not
/// replaced in place.
fn check_config(
    program: &Program,
    ConfigFile { config: file, peer }: &ConfigFile,
    without_peer: bool,
    in_place: bool,
) -> Result<(), CommandError> {
    if EdgeSettings::is_in(file) {
        edge::check(file)
    } else if TunnelFile::is_in(file) {
        tunnel::check(file)
    } else if connect::is_in(file) {
        connect::check(file)
    } else if AnnexFile::is_in(file) {
        annex::check(file)
    } else if StageSettings::is_in(file) {
        stage::check(file)
    } else {
        check::check(program, (file, peer.as_deref()), without_peer, in_place)
    }
}
