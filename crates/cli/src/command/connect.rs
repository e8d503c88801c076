//! `steadfast connect` and `steadfast accept`, the status of a proxy, and the order to move its sessions.

use std::fmt::Write as _;
use std::path::Path;

use super::cli::SessionOptions;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, bytes, fold};
use crate::config::{AcceptSettings, ConnectSettings};
use crate::connect;
use crate::control::ConnectStatus;
use crate::lock::{self, Lock, LockError};

/// Checks everything, and runs the proxy of the file.
pub(super) fn connect(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = ConnectSettings::load(&options.config)?;
    let state_dir = settings.state_dir.clone();
    let lock = Lock::take(&state_dir, lock::DAEMON).map_err(|error| match error {
        LockError::Held { pid, .. } => CommandError::Use(format!(
            "proxy {} is run by process {pid} already; another one needs another name",
            settings.name
        )),
        error => CommandError::failed(error),
    })?;
    connect::run_proxy(settings).map_err(CommandError::Failed)?;
    drop(lock);
    let _ = std::fs::remove_dir(&state_dir); // files that are not the proxy's stay
    Ok(())
}

/// Checks everything, and runs the server's half of the file.
pub(super) fn accept(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = AcceptSettings::load(&options.config)?;
    connect::run_half(settings).map_err(CommandError::Failed)
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

/// The status as text.
pub(super) fn status_text(status: &ConnectStatus) -> String {
    let sealed = if status.sealed { "sealed" } else { "NOT SEALED" };
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
    use crate::control::{ConnectServiceStatus, MigrationStatus, SessionStatus};

    #[test]
    fn the_status_of_a_proxy_names_its_sessions() {
        let status = ConnectStatus {
            name: "p".into(),
            sealed: true,
            services: vec![ConnectServiceStatus {
                name: "web".into(),
                listen: "127.0.0.1:80".parse().unwrap(),
                sessions: vec![SessionStatus {
                    client: "127.0.0.1:4000".parse().unwrap(),
                    server: "a".into(),
                    phase: "served".into(),
                    sent_bytes: 10,
                    received_bytes: 2048,
                }],
                opened: 3,
                plain: 1,
                refused: 0,
                lost: 0,
                migrations: MigrationStatus::default(),
            }],
        };
        let expected = "\
proxy p, sealed

service web at 127.0.0.1:80: 1 sessions, 3 opened, 1 plain, 0 refused, 0 lost; 0
    moves, 0 failed attempts, 0 to move

CLIENT          SERVER  STATE   SENT  RECEIVED
127.0.0.1:4000  a       served  10 B   2.0 KiB
";
        assert_eq!(status_text(&status), expected);
    }
}
