//! `steadfast tunnel`, and the status of a tunnel.

use std::fmt::Write as _;
use std::path::Path;

use super::cli::TunnelOptions;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, bytes, fold};
use crate::control::{TunnelPathStatus, TunnelStatus};
use crate::lock::{self, Lock, LockError};
use crate::tunnel::{self, TunnelFile, TunnelService, TunnelSettings};

/// Name of a tunnel whose file has no `name`.
const USUAL_NAME: &str = "tunnel";

/// Checks everything, and runs the tunnel of the file or of the options.
pub(super) fn run(options: TunnelOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = match &options.config {
        Some(file) => load(file)?,
        None => from_options(options).check().map_err(CommandError::Use)?,
    };
    let lock = settings.state_dir.as_deref().map(|state_dir| {
        Lock::take(state_dir, lock::DAEMON).map_err(|error| match error {
            LockError::Held { pid, .. } => CommandError::Use(format!(
                "tunnel {} is run by process {pid} already; another one needs another name",
                settings.name
            )),
            error => CommandError::failed(error),
        })
    });
    let lock = lock.transpose()?;
    tunnel::run(&settings).map_err(CommandError::Failed)?;
    drop(lock);
    if let Some(state_dir) = &settings.state_dir {
        let _ = std::fs::remove_dir(state_dir); // files that are not the tunnel's stay
    }
    Ok(())
}

fn load(file: &Path) -> Result<TunnelSettings, CommandError> {
    let mut contents = TunnelFile::read(file).map_err(CommandError::Use)?;
    contents.name.get_or_insert_with(|| USUAL_NAME.to_owned());
    let told = |error: String| CommandError::Use(format!("{}: {error}", file.display()));
    contents.check().map_err(told)
}

fn from_options(options: TunnelOptions) -> TunnelFile {
    TunnelFile {
        name: options.name,
        via: options.via,
        to: options.to,
        udp_port: options.udp_port,
        key_file: options.key_file,
        service: vec![TunnelService {
            name: options.service,
            listen: options.listen,
            connect: options.forward,
        }],
        watch_ms: options.watch_ms,
        ..TunnelFile::default()
    }
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(file: &Path) -> Result<(), CommandError> {
    let settings = load(file)?;
    for via in &settings.plan.addresses {
        std::net::UdpSocket::bind((*via, 0))
            .map_err(|error| CommandError::Use(format!("{}: via: {via}: {error}", file.display())))?;
    }
    tell(format_args!(
        "{}: tunnel {}, {} paths, {} services: all right",
        file.display(),
        settings.name,
        settings.plan.addresses.len(),
        settings.services.len()
    ));
    Ok(())
}

/// The status as text.
pub(super) fn status_text(status: &TunnelStatus) -> String {
    let sealed = if status.sealed { "sealed" } else { "NOT SEALED" };
    let head = format!("tunnel {}, {} end, {sealed}", status.name, status.role);
    let mut text = fold(&head, 4);
    for service in &status.services {
        text += &fold(&format!("service {} {}", service.name, service.address), 4);
    }
    let open: u64 = status.associations.iter().map(|one| one.connections).sum();
    let connections = format!(
        "connections: {open} open (limit {}), {} opened, {} reset, {} refused",
        status.connections_limit, status.opened, status.reset, status.refused
    );
    text += &fold(&connections, 4);
    let data = [status.sent_bytes, status.received_bytes].map(bytes);
    let _ = writeln!(text, "data: {} sent, {} received", data[0], data[1]);
    if status.associations.is_empty() {
        text += "NO ASSOCIATION: the other end does not answer, or has not called\n";
    }
    for association in &status.associations {
        let ready = if association.ready { "ready" } else { "HANDSHAKE" };
        let _ = writeln!(
            text,
            "\nassociation: {ready}, {} connections, {} not acknowledged\n",
            association.connections,
            bytes(association.unacknowledged_bytes)
        );
        let mut table = TextTable::new(&[
            ("PATH", Align::Left),
            ("STATE", Align::Left),
            ("RTT ms", Align::Right),
            ("RTO ms", Align::Right),
            ("WINDOW", Align::Right),
            ("MTU", Align::Right),
            ("FAILED", Align::Right),
            ("SENT", Align::Right),
        ]);
        for path in &association.paths {
            table.row(row(path));
        }
        text += &table.fitted();
    }
    let counts: Vec<_> = status
        .counters
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !counts.is_empty() {
        let _ = write!(text, "\n{}", fold(&format!("counters: {}", counts.join(", ")), 4));
    }
    text
}

/// The table's row for a path. A star marks the path that gets new data.
fn row(path: &TunnelPathStatus) -> [String; 8] {
    let mark = if path.current { "*" } else { "" };
    [
        format!("{}{mark}", path.address),
        match path.state.as_str() {
            "active" => "active".to_owned(),
            other => other.to_uppercase(),
        },
        path.rtt_ms
            .map_or_else(|| "-".to_owned(), |rtt| format!("{rtt:.1}")),
        format!("{:.0}", path.rto_ms),
        bytes(path.window_bytes),
        path.mtu.to_string(),
        path.failures.to_string(),
        bytes(path.sent_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples;

    #[test]
    fn the_status_of_a_tunnel_fits_a_terminal() {
        let expected = "\
tunnel north, opening end, sealed
service web 127.0.0.1:8080
connections: 7 open (limit 256), 1000 opened, 20 reset, 3 refused
data: 5.0 MiB sent, 6.0 MiB received

association: ready, 7 connections, 2.0 KiB not acknowledged

PATH       STATE   RTT ms  RTO ms    WINDOW   MTU  FAILED     SENT
10.1.0.2   FAILED       -     212  64.0 KiB  1500       2  3.0 MiB
10.2.0.2*  active    12.3     212  64.0 KiB  1500       2  3.0 MiB

counters: malformed 5
";
        assert_eq!(status_text(&samples::tunnel()), expected);
    }

    #[test]
    fn a_tunnel_without_association_says_so() {
        let mut status = samples::tunnel();
        status.associations.clear();
        let text = status_text(&status);
        assert!(
            text.contains("NO ASSOCIATION") && text.contains("0 open"),
            "{text}"
        );
    }
}
