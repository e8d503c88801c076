//! Checks the secrets, the witness and the programs that the configuration names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::findings::Findings;
use crate::arbiter::witness;
use crate::config::{ArbiterSettings, Config, EtcdSettings, Problem, SecretKey, private};

/// Adds all faults to `findings`. `asks`: also asks the witness, which may take its whole time limit.
pub(super) fn check(config: &Config, asks: bool, findings: &mut Findings) {
    match &config.peer.key_file {
        Some(path) => {
            let fault = SecretKey::read(path).err();
            let problems = fault.map(|what| config.problem("peer.key_file", what));
            findings.problems.extend(problems);
        }
        None => findings.warnings.push(config.problem(
            "peer.key_file",
            "is missing: whoever can write to the network between the nodes can speak as the peer",
        )),
    }
    hooks(config, findings);
    match &config.arbiter {
        ArbiterSettings::FailStop => {}
        ArbiterSettings::Fence(fence) => program(config, "fence.command", &fence.command, findings),
        ArbiterSettings::Witness(witness) => {
            findings.warnings.extend(readable_password(config, witness));
            let before = findings.problems.len();
            certificates(config, witness, findings);
            if asks && findings.problems.len() == before {
                reach(config, witness, findings);
            }
        }
    }
}

/// Checks the commands in the services' tables.
fn hooks(config: &Config, findings: &mut Findings) {
    for (index, service) in config.services.iter().enumerate() {
        let mut check = |key: &str, command: &[String]| {
            program(config, &format!("service[{index}].{key}"), command, findings);
        };
        check("on_deposed", &service.on_deposed);
        if let Some(sync) = &service.state_sync {
            check("state_sync", &sync.command);
        }
    }
}

/// Adds a problem if `command` is not empty and its first word is not a program.
fn program(config: &Config, field: &str, command: &[String], findings: &mut Findings) {
    if let Some(name) = command.first().filter(|name| find_program(name).is_none()) {
        let what = format!("there is no program {name}");
        findings.problems.push(config.problem(field, what));
    }
}

/// Warns if the password is sent unencrypted: anybody who can read the network could then take epochs.
fn readable_password(config: &Config, witness: &EtcdSettings) -> Option<Problem> {
    let is_readable = witness.user.is_some() && !witness.is_private();
    let what = "is sent unencrypted to endpoints that are http://: whoever can read the network can use it; allowed: https:// with ca";
    is_readable.then(|| config.problem("witness.password", what))
}

fn certificates(config: &Config, witness: &EtcdSettings, findings: &mut Findings) {
    let mut note = |field: &str, fault: Result<(), String>| {
        let problems = fault.err().map(|what| config.problem(field, what));
        findings.problems.extend(problems);
    };
    if let Some(ca) = &witness.ca {
        note("witness.ca", certificate(ca));
    }
    if let Some((cert, key)) = &witness.identity {
        note("witness.cert", certificate(cert));
        let read = private(key).and_then(|text| {
            PrivateKeyDer::from_pem_slice(text.as_bytes())
                .map(drop)
                .map_err(|error| format!("{} holds no private key in PEM: {error}", key.display()))
        });
        note("witness.key", read);
    }
}

fn certificate(path: &Path) -> Result<(), String> {
    let text = fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    CertificateDer::from_pem_slice(&text)
        .map(drop)
        .map_err(|error| format!("{} holds no certificate in PEM: {error}", path.display()))
}

/// Warns if the witness cannot be reached. The node may start anyway: a node that already speaks does not need the witness.
fn reach(config: &Config, witness: &EtcdSettings, findings: &mut Findings) {
    match witness::unreachable(witness) {
        Ok(faults) => {
            let warnings = faults
                .into_iter()
                .map(|what| config.problem("witness.endpoints", what));
            findings.warnings.extend(warnings);
        }
        Err(error) => findings
            .problems
            .push(config.problem("witness", format!("{error:#}"))),
    }
}

/// The file that `execvp(3)` would run.
fn find_program(name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        assert!(find_program("sh").is_some() && find_program("/bin/sh").is_some());
        for name in ["/etc/passwd", "/nowhere", "no-such-program", "/"] {
            assert_eq!(find_program(name), None);
        }
    }

    #[test]
    fn an_agent_that_goes_on_does_not_wait_for_the_witness() {
        let text = "[node]\nname = \"alpha\"\n[peer]\nname = \"beta\"\naddress = \"10.0.0.3\"\n\
                    [witness]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:9\"]\n\
                    [[service]]\nname = \"web\"\naddress = \"10.0.0.100\"\nport = 80\ninterface = \"eth0\"\n\
                    policy = \"http\"\nprimary = \"alpha\"\n";
        let config = Config::parse("steadfast.toml".as_ref(), text).expect("it is right");
        let warned = [true, false].map(|asks| {
            let mut findings = Findings::default();
            check(&config, asks, &mut findings);
            findings
                .warnings
                .iter()
                .any(|warning| warning.field == "witness.endpoints")
        });
        assert_eq!(warned, [true, false]);
    }
}
