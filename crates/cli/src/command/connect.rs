//! `steadfast connect` and `steadfast accept`, and the status of both.

use std::fmt::Write as _;
use std::path::Path;

use super::cli::SessionOptions;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, bytes, fold};
use crate::config::{AcceptSettings, ConnectSettings};
use crate::connect;
use crate::control::{AcceptServiceStatus, AcceptStatus, ConnectStatus};
use crate::lock::{self, Lock, LockError};

/// Checks everything, and runs the proxy of the file.
pub(super) fn connect(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = ConnectSettings::load(&options.config)?;
    let (name, state_dir) = (settings.name.clone(), settings.state_dir.clone());
    alone(("proxy", &name), &state_dir, || connect::run_proxy(settings))
}

/// Checks everything, and runs the server's half of the file.
pub(super) fn accept(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = AcceptSettings::load(&options.config)?;
    let (name, state_dir) = (settings.name.clone(), settings.state_dir.clone());
    alone(("server", &name), &state_dir, || connect::run_half(settings))
}

/// Runs a program while no other process uses the state directory.
pub(super) fn alone(
    (what, name): (&str, &str),
    state_dir: &Path,
    run: impl FnOnce() -> anyhow::Result<()>,
) -> Result<(), CommandError> {
    let lock = Lock::take(state_dir, lock::DAEMON).map_err(|error| match error {
        LockError::Held { pid, .. } => CommandError::Use(format!(
            "{what} {name} is run by process {pid} already; another one needs another name"
        )),
        error => CommandError::failed(error),
    })?;
    run().map_err(CommandError::Failed)?;
    drop(lock);
    let _ = std::fs::remove_dir(state_dir); // files that are not the program's stay
    Ok(())
}

/// Whether the file configures a proxy or a server's half.
pub(super) fn is_in(file: &Path) -> bool {
    ConnectSettings::is_in(file) || AcceptSettings::is_in(file)
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(file: &Path) -> Result<(), CommandError> {
    let (what, name, services) = if ConnectSettings::is_in(file) {
        let settings = ConnectSettings::load(file)?;
        ("proxy", settings.name, settings.services.len())
    } else {
        let settings = AcceptSettings::load(file)?;
        ("server", settings.name, settings.services.len())
    };
    tell(format_args!(
        "{}: {what} {name}, {services} services: all right",
        file.display()
    ));
    Ok(())
}

/// The status of a server's half as text.
pub(super) fn half_text(status: &AcceptStatus) -> String {
    let sealed = sealed_text(status.sealed);
    let draining = match status.sessions_here() {
        _ if !status.draining => String::new(),
        0 => "; DRAINED: no session is left".to_owned(),
        left => format!("; DRAINING: {left} sessions are left"),
    };
    let refused = status.refused;
    let head = format!(
        "server {}, {sealed}; {refused} sessions refused{draining}",
        status.name
    );
    let mut text = fold(&head, 4);
    for service in &status.services {
        let AcceptServiceStatus {
            name,
            application,
            opened,
            came,
            left,
            ended,
            failed,
            ..
        } = service;
        let head = format!(
            "service {name} at {application}: {opened} sessions opened, {came} came, {left} left, {ended} ended; {failed} times the \
             application was not reached; {} received, {} sent",
            bytes(service.received_bytes),
            bytes(service.sent_bytes)
        );
        let _ = write!(text, "\n{}", fold(&head, 4));
    }
    let mut table = TextTable::new(&[
        ("SESSION", Align::Left),
        ("SERVICE", Align::Left),
        ("PROXY", Align::Left),
        ("STATE", Align::Left),
        ("EPOCH", Align::Right),
        ("SNAPSHOTS", Align::Right),
        ("SIZE", Align::Right),
        ("LOG", Align::Right),
    ]);
    let dash = || "-".to_owned();
    for session in &status.sessions {
        table.row([
            session.session.chars().take(8).collect(),
            session.service.clone().unwrap_or_else(dash),
            session.proxy.map_or_else(dash, |proxy| proxy.to_string()),
            session.state.clone(),
            session.epoch.to_string(),
            session.snapshots.to_string(),
            bytes(session.snapshot_bytes),
            bytes(session.log_bytes),
        ]);
    }
    if !status.sessions.is_empty() {
        let _ = write!(text, "\n{}", table.fitted());
    }
    text
}

fn sealed_text(sealed: bool) -> &'static str {
    if sealed { "sealed" } else { "NOT SEALED" }
}

/// The status of a proxy as text.
pub(super) fn proxy_text(status: &ConnectStatus) -> String {
    let sealed = sealed_text(status.sealed);
    let mut text = fold(&format!("proxy {}, {sealed}", status.name), 4);
    for service in &status.services {
        let moves = &service.migrations;
        let head = format!(
            "service {} at {}: {} sessions, {} opened, {} plain, {} refused, {} lost; {} moves, {} failed attempts, {} to move",
            service.name,
            service.listen,
            service.sessions.len(),
            service.opened,
            service.plain,
            service.refused,
            service.lost,
            moves.moved,
            moves.stayed,
            moves.pending
        );
        let _ = write!(text, "\n{}", fold(&head, 4));
        let mut table = TextTable::new(&[
            ("CLIENT", Align::Left),
            ("SERVER", Align::Left),
            ("STATE", Align::Left),
            ("SENT", Align::Right),
            ("RECEIVED", Align::Right),
        ]);
        for session in &service.sessions {
            table.row([
                session.client.to_string(),
                session.server.clone(),
                session.phase.clone(),
                bytes(session.sent_bytes),
                bytes(session.received_bytes),
            ]);
        }
        if !service.sessions.is_empty() {
            let _ = write!(text, "\n{}", table.fitted());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples;

    #[test]
    fn the_status_of_a_proxy_names_its_sessions() {
        let expected = "\
proxy laptop, sealed

service web at 127.0.0.1:80: 1 sessions, 3 opened, 1 plain, 2 refused, 4 lost; 2
    moves, 1 failed attempts, 1 to move

CLIENT          SERVER  STATE   SENT  RECEIVED
127.0.0.1:4000  a       served  10 B   2.0 KiB
";
        assert_eq!(proxy_text(&samples::proxy()), expected);
    }

    #[test]
    fn the_status_of_a_servers_half_tells_owned_sessions_from_copies() {
        let expected = "\
server a, sealed; 6 sessions refused; DRAINING: 1 sessions are left

service web at 127.0.0.1:7000: 3 sessions opened, 2 came, 1 left, 4 ended; 5
    times the application was not reached; 100 B received, 195.3 KiB sent

SESSION   SERVICE  PROXY           STATE  EPOCH  SNAPSHOTS     SIZE    LOG
00ff00ff  web      10.0.0.4:40000  owner      3          2  4.0 KiB  512 B
11ee11ee  -        -               copy       1          1    100 B    0 B
";
        assert_eq!(half_text(&samples::half()), expected);
        let mut drained = samples::half();
        drained.sessions.remove(0);
        assert!(half_text(&drained).contains("DRAINED: no session is left"));
    }
}
