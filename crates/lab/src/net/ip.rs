//! The `ip` command of iproute2 in batch mode: one process configures a whole namespace.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use thiserror::Error;

/// The error of a batch.
#[derive(Debug, Error)]
pub enum IpError {
    /// `ip` itself could not be run.
    #[error("run ip")]
    Run(#[from] io::Error),
    /// `ip` refused one of the commands. The commands before it have taken effect.
    #[error("ip{} {command}: {reason}", namespace.as_ref().map(|name| format!(" -n {name}")).unwrap_or_default())]
    Refused {
        /// The namespace in which the command ran; `None`: the machine's own namespace.
        namespace: Option<String>,
        /// The command, without `ip`.
        command: String,
        /// The error output of `ip`.
        reason: String,
    },
}

/// Runs `commands` (each without the leading `ip`) in order, in `namespace` or in the machine's own namespace. Stops at the first
/// command that fails.
///
/// # Errors
/// Names the command that failed and what `ip` said about it.
pub fn batch(namespace: Option<&str>, commands: &[String]) -> Result<(), IpError> {
    run(Command::new("ip"), namespace, commands)
}

/// As [`batch`], with `ip -6`. For commands that `ip` would otherwise apply to IPv4, such as `rule`.
///
/// # Errors
/// As [`batch`].
pub fn batch_ipv6(namespace: Option<&str>, commands: &[String]) -> Result<(), IpError> {
    let mut ip = Command::new("ip");
    ip.arg("-6");
    run(ip, namespace, commands)
}

fn run(mut ip: Command, namespace: Option<&str>, commands: &[String]) -> Result<(), IpError> {
    if let Some(namespace) = namespace {
        ip.args(["-n", namespace]);
    }
    let mut child = ip
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all((commands.join("\n") + "\n").as_bytes()) {
            // A broken pipe: `ip` stopped reading after a command failed, and reports this on stderr.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(IpError::Refused {
        namespace: namespace.map(str::to_owned),
        command: failed_command(&said, commands).map_or_else(|| commands.join("; "), str::to_owned),
        reason: said.trim().replace('\n', "; "),
    })
}

/// The command whose number `ip` reports in the line `Command failed -:N` of its output.
fn failed_command<'a>(said: &str, commands: &'a [String]) -> Option<&'a str> {
    let line: usize = said.rsplit_once("Command failed -:")?.1.trim().parse().ok()?;
    commands.get(line.checked_sub(1)?).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failing_command_is_named() {
        let commands = ["link show dev lo".to_owned(), "link show dev sf-none".to_owned()];
        let error = batch(None, &commands).unwrap_err().to_string();
        assert!(error.starts_with("ip link show dev sf-none: "), "{error}");
    }

    #[test]
    fn a_message_without_a_line_number_points_nowhere() {
        assert_eq!(failed_command("Cannot open network namespace", &[]), None);
        assert_eq!(failed_command("Command failed -:0", &["x".to_owned()]), None);
    }
}
