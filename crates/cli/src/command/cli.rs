//! The commands and their options.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::control::ChosenClient;

/// Keeps live TCP connections alive when a server fails, without changing the clients.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done; 1 not done; 2 wrong use or configuration, nothing changed; 3 cannot run \
                        here, says what is missing."
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the node until SIGTERM or SIGINT, then restore the network as it was found
    ///
    /// SIGUSR2 upgrades in place: the same process executes the program file that is now at the path of its own binary. The new program
    /// reads the configuration again, and no connection is lost. If `check-config --in-place` of the new program finds a fault, the fault
    /// is logged and everything goes on as before.
    ///
    /// A node with several peers has an agent process for each. This command then starts them, starts one again that ends, passes signals
    /// on to them, and serves the metrics of all.
    Run {
        #[command(flatten)]
        config: ConfigFile,
        /// Start although the peer does not answer, and serve alone if the peer is not heard
        ///
        /// Serves only the services whose configured `primary` is this node. To serve another service, set its `primary` to this node's
        /// name first. Set it in the other node's file too, before that node returns. Be sure that the other node is off. With `[witness]`,
        /// the node first asks etcd, and waits for the answer.
        #[arg(long)]
        without_peer: bool,
        /// How to write the log, to stderr; STEADFAST_LOG sets its level (error, warn, info, debug, trace)
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        log_format: LogFormat,
        /// Record all that goes into the node, in a new file in DIR, to replay it elsewhere (`steadfast-lab replay FILE`)
        ///
        /// Helps to find a fault. The file contains the service's traffic, and only its owner may read it. The agent is slower while it
        /// records.
        #[arg(long, value_name = "DIR")]
        record: Option<PathBuf>,
        /// When the recording has this many megabytes (2²⁰ bytes), it ends, and the node goes on
        #[arg(long, value_name = "MB", default_value_t = 1024, requires = "record")]
        record_mb: u64,
    },
    /// Run an edge of a cluster of forwarding nodes, until SIGTERM or SIGINT
    ///
    /// The edge finds failed strings by heartbeats, moves their connections to other strings, sends cached packets again, and caps windows
    /// while bandwidth is missing. eBPF forwards the packets. If this process dies, eBPF goes on, and the next process adopts the flows.
    /// SIGUSR2 upgrades in place: the same process executes the program file that is now at the path of its own binary.
    Edge {
        /// The edge's configuration
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check the configuration against this machine, and change nothing
        #[arg(long)]
        check: bool,
        /// How to write the log, to stderr; STEADFAST_LOG sets its level (error, warn, info, debug, trace)
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        log_format: LogFormat,
    },
    /// Carry TCP services to another site over several paths, until SIGTERM or SIGINT
    ///
    /// One end opens connections (`--listen`, `--to`), the other one serves them (`--forward`). All connections share one SCTP association
    /// over all paths, so a cut path costs no connection. Without a key, only loopback addresses are allowed.
    Tunnel(TunnelOptions),
    /// Carry client programs' connections as sessions that move between servers, until SIGTERM or SIGINT
    ///
    /// Runs on the clients' host, before servers that run `steadfast accept`. A session moves when the service's policy says so, when the
    /// server asks for it, when the server fails (with transfer `eager` or `client`), or by `steadfast migrate SERVICE --to SERVER --node
    /// NAME`. If no server speaks the protocol, connections are plain TCP. See docs/connect.md.
    Connect(SessionOptions),
    /// Accept sessions of `steadfast connect` beside the application, until SIGTERM or SIGINT
    ///
    /// Connects to the application for each session, and serves the socket at which the application exports and imports its state
    /// (libsteadfast).
    Accept(SessionOptions),
    /// Hold back each reply of an HTTP/1 application until the backup has the whole reply, until SIGTERM or SIGINT
    ///
    /// Runs on both nodes, at the service's port, before the application. The service has policy `snapshot`. So each client gets one
    /// consistent reply wherever a failure comes, even if the application's replies are random. At SIGTERM, replies that are under way
    /// are completed. See docs/restart-staged.md.
    Stage(SessionOptions),
    /// Take live connections of services that other nodes protect, until SIGTERM or SIGINT
    ///
    /// The application runs on this node, too. `steadfast migrate SERVICE --to NAME` on the service's primary moves connections here, and on
    /// its backup back to the primary, or to another annex. The backup stays the wire of all connections. At SIGTERM it takes back those
    /// that are here. If its file names a registry, the nodes find it through etcd. See docs/annex.md and docs/registry.md.
    Annex(SessionOptions),
    /// Check the configuration of a node, an edge, a tunnel, a proxy or a stage against this machine and its network, and change nothing
    CheckConfig {
        #[command(flatten)]
        config: ConfigFile,
        /// Do not check whether the peer answers
        #[arg(long)]
        without_peer: bool,
        /// Check also whether this program could take the place of the running daemon (`systemctl reload`)
        #[arg(long)]
        in_place: bool,
    },
    /// Show what the node protects, in which mode, and how far behind it is
    ///
    /// For each service: the node's state (joining, primary, claiming, returning, backup, taking over, sole, standby), why it is simplex,
    /// the application's health, connections by protection with the reasons, log size and limits, lag, ring fill, lease, takeovers and
    /// counters. For an edge: its strings and what the data path counted. For a tunnel: its paths and connections. Ask the backup about
    /// connections: a primary shows none of its own. For a proxy or a server of sessions: the sessions. With a `[metrics]` table, Prometheus gets most of this status; docs/operating.md names
    /// the fields without a metric.
    Status {
        #[command(flatten)]
        node: NodeOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show every connection, and for each unprotected one the reason
    ///
    /// IN and OUT are stream offsets, UNFOLLOWED the bytes that the restart policy has not followed yet, UNACKED the input that the primary
    /// has not acknowledged yet. Ask the backup: a primary shows none of its own connections. A node without a backup shows the connections
    /// that it relays.
    Connections {
        #[command(flatten)]
        node: NodeOption,
        /// Show instead the fate of the last 65,536 connections that this node has taken over since its agent started
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
    /// Move live connections to the other node, without losing one
    ///
    /// Ask the node that has them: the primary, or its backup for those that have moved there. The service itself stays where it is: new
    /// connections go to the primary as before. A connection moves as soon as the restart policy can continue it on the other node; with
    /// policy http, a request that must not be executed twice is waited for. What cannot move in time stays, unharmed, and the command says
    /// why. With the policies http and snapshot, a connection that has moved is protected again from its next request or exported state on.
    /// With the others, it is lost if its node fails before it serves the service (see docs/migration.md). The exit code is 1 if a connection
    /// stayed.
    Migrate(MigrateOptions),
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
    /// The node hands over the services that it serves. Services for which the node is the backup go on without it. The drain lasts until
    /// `drain --off` or the next start of the node's daemon. The order is refused if a service would not be served any more. Run this
    /// command on the node's own machine. A server of sessions (`steadfast accept`) asks its sessions to leave and refuses new ones; the
    /// command returns when none is left.
    Drain {
        /// The node's name, or the server's
        name: String,
        /// Take part again
        #[arg(long)]
        off: bool,
        /// The node's configuration; needed if it sets `state_dir`
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Remove everything that a dead daemon left behind, and restore the network as the daemon found it
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
        /// The socket to which agents connect
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

/// What `steadfast migrate` is told.
#[derive(Debug, Args)]
pub(super) struct MigrateOptions {
    /// The service's name
    pub service: String,
    /// The node that is to have the connections: the other node of the service's pair, or an annex of the service
    #[arg(long, value_name = "NODE")]
    pub to: String,
    /// Move only the connections of this client: an address, or an address and a port
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub client: Option<ChosenClient>,
    /// Time that connections have to become movable, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub within: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub node: NodeOption,
}

/// Options of a tunnel.
#[derive(Args, Debug)]
pub(super) struct TunnelOptions {
    /// The tunnel's configuration; instead of the other options
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "forward", "to", "via", "key_file", "service", "udp_port", "watch_ms"])]
    pub config: Option<PathBuf>,
    /// Opening end: address at which clients connect
    #[arg(long, value_name = "ADDRESS:PORT", requires = "to")]
    pub listen: Option<SocketAddr>,
    /// Serving end: address of the server
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "listen")]
    pub forward: Option<SocketAddr>,
    /// Opening end: address of the serving end; the serving end then announces its further addresses
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Local addresses, one for each path
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        required_unless_present = "config"
    )]
    pub via: Vec<IpAddr>,
    /// File with the key that both ends share (openssl rand -hex 32)
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The tunnel's name on this host, for `steadfast status --node NAME`
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub name: Option<String>,
    /// The service's name, the same at both ends
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub service: String,
    /// Local UDP port of SCTP; 0 means raw IP, protocol 132
    #[arg(long, value_name = "PORT")]
    pub udp_port: Option<u16>,
    /// Milliseconds between heartbeats that find failures fast
    #[arg(long, value_name = "MS")]
    pub watch_ms: Option<u64>,
    /// How to write the log, to stderr; STEADFAST_LOG sets its level (error, warn, info, debug, trace)
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Options of a proxy, of a server's half, or of a stage.
#[derive(Args, Debug)]
pub(super) struct SessionOptions {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How to write the log, to stderr; STEADFAST_LOG sets its level (error, warn, info, debug, trace)
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Args, Debug)]
pub(super) struct ConfigFile {
    /// The node's configuration
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Only the agent for this peer, if the node has several
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
}

/// Selects the node. Not needed if there is only one.
#[derive(Args, Debug)]
pub(super) struct NodeOption {
    /// The node with this configuration
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    pub config: Option<PathBuf>,
    /// The node with this name
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only the agent for this peer, if the node has several
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}
