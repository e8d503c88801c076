//! The command line.

mod check;
mod cleanup;
mod keeper;
mod man;
mod node;
mod order;
mod run;
mod show;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{Config, ConfigError, Problem};
use crate::daemon::{RecordingTarget, Start};

/// Keeps live TCP connections alive when a server fails, without changing the clients.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done; 1 not done; 2 wrong use or configuration, nothing changed; 3 cannot run \
                        here, says what is missing."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node until SIGTERM or SIGINT, then restore the network as it was found
    ///
    /// SIGUSR2 upgrades in place: the same process executes the program that is installed at its path by then. The new program
    /// reads the configuration again, and no connection is lost. If `check-config --in-place` of the new program finds a fault, the fault
    /// is logged and everything goes on as before.
    Run {
        #[command(flatten)]
        config: ConfigFile,
        /// Start although the peer does not answer, and serve alone if it is not heard of
        ///
        /// Serves only the services whose configured `primary` is this node. To serve another service, set its `primary` to this
        /// node's name first. Set it in the other node's file too, before that node returns. Be sure that the other node is off. With
        /// `[witness]` etcd is asked first, and waited for.
        #[arg(long)]
        without_peer: bool,
        /// How to write the log, to stderr; STEADFAST_LOG sets its level (error, warn, info, debug, trace)
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        log_format: LogFormat,
        /// Record all that goes into the node, in a new file in DIR, to replay it elsewhere (`steadfast-lab replay FILE`)
        ///
        /// For the search for a fault. The file contains the service's traffic, and only its owner may read it. The agent is slower meanwhile.
        #[arg(long, value_name = "DIR")]
        record: Option<PathBuf>,
        /// When the recording has this many megabytes (2²⁰ bytes), it ends, and the node goes on
        #[arg(long, value_name = "MB", default_value_t = 1024, requires = "record")]
        record_mb: u64,
    },
    /// Check a configuration against this machine and its network, and change nothing
    CheckConfig {
        #[command(flatten)]
        config: ConfigFile,
        /// Do not ask for the peer
        #[arg(long)]
        without_peer: bool,
        /// Check also whether this program could take the place of the running daemon (`systemctl reload`)
        #[arg(long)]
        in_place: bool,
    },
    /// Show what the node protects, in which mode, and how far behind it is
    ///
    /// For each service: the node's state (joining, primary, claiming, returning, backup, taking over, sole, standby), why it is simplex,
    /// the application's health, connections by protection with the reasons, log size and limits, lag, ring fill, lease,
    /// takeovers and counters. The backup is the one that knows the connections. The configuration's `[metrics]` table gives
    /// most of it to Prometheus; what it leaves out is in docs/operating.md.
    Status {
        #[command(flatten)]
        node: NodeOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show every connection, and why it is not protected if it is not
    ///
    /// IN and OUT are stream offsets, UNFOLLOWED the bytes that the restart policy has not followed yet, UNACKED the input that
    /// the primary has not acknowledged yet. Ask the backup, which is the one that knows them; a node without a backup shows those that it
    /// relays.
    Connections {
        #[command(flatten)]
        node: NodeOption,
        /// Show instead what became of the connections that this node has taken over, the last 65,536 since its agent's start
        #[arg(long)]
        restored: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let primary and backup of a service change places, without losing a connection
    ///
    /// Ask either node. Connections go on through the relay on the node that was the backup, as after a failure but without the time for
    /// its detection. The node that was the primary comes back as the backup by itself. The command returns when the node that was asked
    /// has begun to serve or has stopped serving; `status` says when the service is duplex again.
    Handover {
        /// The service's name
        service: String,
        #[command(flatten)]
        node: NodeOption,
    },
    /// Take the backup out of a service's path: the primary claims the VIP first
    ///
    /// Ask the backup. The service goes on unprotected, until `bypass --off` or the next start of the backup's daemon.
    Bypass {
        /// The service's name
        service: String,
        /// Be the backup again
        #[arg(long)]
        off: bool,
        #[command(flatten)]
        node: NodeOption,
    },
    /// Give up the node's part in all its services without losing a connection, for maintenance
    ///
    /// Services that the node serves are handed over. Services whose backup it is go on without it. This lasts until `drain --off` or the
    /// next start of its daemon. Refused if a service would not be served then. Ask on the machine of the node.
    Drain {
        /// The node's name
        name: String,
        /// Take part again
        #[arg(long)]
        off: bool,
        /// The node's configuration, if that names a `state_dir`
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Remove everything that a dead daemon left behind, and restore the network as it found it
    Cleanup {
        #[command(flatten)]
        node: NodeOption,
        /// Clean up after every dead node of this machine
        #[arg(long, conflicts_with_all = ["node", "config"])]
        all: bool,
    },
    /// Own and relay the connections that were taken over; started by the daemon
    #[command(hide = true)]
    Keeper {
        /// Where agents connect to
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// The node's state directory
        #[arg(long, value_name = "DIR")]
        state_dir: PathBuf,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// The folder to write them into
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(Args, Debug)]
struct ConfigFile {
    /// The node's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Selects the node. Not needed if there is only one.
#[derive(Args, Debug)]
struct NodeOption {
    /// The node with this configuration
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    config: Option<PathBuf>,
    /// The node with this name
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// The functions that the commands call.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Runs the node until it is told to stop.
    pub run: fn(&Start<'_>) -> anyhow::Result<()>,
    /// Names the features that this kernel lacks to run the node.
    pub features: fn(&Config) -> Vec<String>,
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// The configuration is wrong; each line names its place.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Wrong use.
    #[error("steadfast: {0}")]
    Use(String),
    /// It cannot be done here.
    #[error("steadfast: cannot run here; missing: {}", .0.join("; "))]
    Missing(Vec<String>),
    /// It was tried and failed.
    #[error("steadfast: {0:#}")]
    Failed(#[from] anyhow::Error),
}

impl CommandError {
    fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(error.into())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Config(_) | Self::Use(_) => 2,
            Self::Missing(_) => 3,
        }
    }
}

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
        Command::Bypass { service, off, node } => order::bypass(&node, service, off),
        Command::Drain { name, off, config } => order::drain(name, off, config),
        Command::Cleanup { node, all } => cleanup::cleanup(&node, all),
        Command::Keeper { socket, state_dir } => keeper::keep(socket, &state_dir),
        Command::Man { out } => man::write(&out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code().into()
        }
    }
}
