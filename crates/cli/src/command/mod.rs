//! The command line.

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
mod stderr;
#[cfg(test)]
mod tests;
mod text;
mod tunnel;

use std::process::ExitCode;

use clap::Parser as _;

use crate::config::EdgeSettings;
use crate::daemon::RecordingTarget;
use crate::tunnel::TunnelFile;
use cli::{Cli, Command};
pub use entry::Program;
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
            run::run(program, &config.config, without_peer, log_format, record)
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
        // `--without-peer` changes nothing for an edge or a tunnel, because neither check asks a peer. `--in-place` changes nothing either:
        // the program that replaces an edge in place makes this same check, and a tunnel is not replaced in place.
        Command::CheckConfig { config, .. } if EdgeSettings::is_in(&config.config) => {
            edge::check(&config.config)
        }
        Command::CheckConfig { config, .. } if TunnelFile::is_in(&config.config) => {
            tunnel::check(&config.config)
        }
        Command::CheckConfig { config, .. } if connect::is_in(&config.config) => {
            connect::check(&config.config)
        }
        Command::CheckConfig {
            config,
            without_peer,
            in_place,
        } => check::check(program, &config.config, without_peer, in_place),
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
