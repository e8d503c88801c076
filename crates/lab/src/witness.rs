//! An etcd cluster with certificates that are made for this run. Each member has a namespace of its own, and both nodes reach all members.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;
use nix::sys::signal::Signal;

use crate::net::address::InterfaceAddresses;
use crate::node::ArbiterSetup;
use crate::process::{self, LoggedProcess};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const START_LIMIT: Duration = Duration::from_secs(20);
/// The file names of the nodes' certificates.
const CLIENTS: [&str; 2] = ["node-a", "node-b"];

/// A running cluster.
#[derive(Debug)]
pub struct EtcdProcesses {
    members: Vec<LoggedProcess>,
    tls: PathBuf,
    hosts: Vec<(Netns, InterfaceAddresses)>,
}

impl EtcdProcesses {
    /// Starts a member on each of `hosts`, and waits until all members serve. The members' files are in `directory`.
    ///
    /// # Errors
    /// Names the step that failed and quotes the member's output.
    pub fn start(hosts: Vec<(Netns, InterfaceAddresses)>, directory: &Path) -> Result<Self> {
        let endpoints: Vec<_> = hosts.iter().map(|&(_, endpoint)| endpoint).collect();
        let tls = directory.join("tls");
        certify(&tls, &endpoints).context("make certificates")?;
        let mut members = Vec::new();
        for (index, (host, _)) in hosts.iter().enumerate() {
            let mut etcd = host.command("etcd")?;
            etcd.args(arguments(index, &endpoints, &tls, directory));
            members.push(LoggedProcess::start(
                &format!("etcd-{}", name(index)),
                etcd,
                directory,
            )?);
        }
        for member in &mut members {
            member.wait_until("serve", START_LIMIT, |member| {
                std::thread::sleep(Duration::from_millis(20));
                member.output().contains("serving client traffic")
            })?;
        }
        Ok(Self { members, tls, hosts })
    }

    /// Returns the arbiter setup with which the daemons use this cluster.
    pub fn arbiter(&self) -> ArbiterSetup {
        ArbiterSetup::Etcd {
            endpoints: self.hosts.iter().map(|(_, one)| url(one, CLIENT_PORT)).collect(),
            directory: self.tls.clone(),
            clients: CLIENTS.map(str::to_owned),
        }
    }

    /// Kills all members.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill_all(&self) -> Result<()> {
        let mut members = self.members.iter();
        members.try_for_each(|member| Ok(member.signal(Signal::SIGKILL)?))
    }

    /// Kills the last member.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill_one(&self) -> Result<()> {
        let last = self.members.last().context("there is no member")?;
        Ok(last.signal(Signal::SIGKILL)?)
    }
}

/// The name of member `index`, and of its host.
pub fn name(index: usize) -> String {
    format!("w{index}")
}

fn url(member: &InterfaceAddresses, port: u16) -> String {
    format!("https://{}:{port}", member.v4)
}

fn arguments(index: usize, members: &[InterfaceAddresses], tls: &Path, directory: &Path) -> Vec<String> {
    let own = &members[index];
    let cluster: Vec<_> = members
        .iter()
        .enumerate()
        .map(|(index, member)| format!("{}={}", name(index), url(member, PEER_PORT)))
        .collect();
    let file = |name: &str| tls.join(name).display().to_string();
    let data = directory.join(format!("etcd-data-{index}"));
    let options = [
        ("name", name(index)),
        ("data-dir", data.display().to_string()),
        ("listen-client-urls", url(own, CLIENT_PORT)),
        ("advertise-client-urls", url(own, CLIENT_PORT)),
        ("listen-peer-urls", url(own, PEER_PORT)),
        ("initial-advertise-peer-urls", url(own, PEER_PORT)),
        ("initial-cluster", cluster.join(",")),
        ("initial-cluster-state", "new".to_owned()),
        ("cert-file", file("member.crt")),
        ("key-file", file("member.key")),
        ("trusted-ca-file", file("ca.crt")),
        ("client-cert-auth", "true".to_owned()),
        ("peer-cert-file", file("member.crt")),
        ("peer-key-file", file("member.key")),
        ("peer-trusted-ca-file", file("ca.crt")),
        ("peer-client-cert-auth", "true".to_owned()),
        ("logger", "zap".to_owned()),
    ];
    options
        .into_iter()
        .map(|(option, value)| format!("--{option}={value}"))
        .collect()
}

/// Makes a certificate authority, one certificate for all members, and one for each node.
fn certify(directory: &Path, members: &[InterfaceAddresses]) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    openssl(directory, "ca", "/CN=lab", &[])?;
    let addresses: Vec<_> = members.iter().map(|one| format!("IP:{}", one.v4)).collect();
    let alternatives = format!("subjectAltName={}", addresses.join(","));
    let usage = "extendedKeyUsage=serverAuth,clientAuth";
    let signed = [
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ];
    let member = ["-addext", alternatives.as_str(), "-addext", usage];
    openssl(
        directory,
        "member",
        "/CN=member",
        &[&signed[..], &member].concat(),
    )?;
    for client in CLIENTS {
        let usage = ["-addext", "extendedKeyUsage=clientAuth"];
        openssl(
            directory,
            client,
            &format!("/CN={client}"),
            &[&signed[..], &usage].concat(),
        )?;
    }
    Ok(())
}

/// Makes `NAME.key` and `NAME.crt` in `directory`.
fn openssl(directory: &Path, name: &str, subject: &str, more: &[&str]) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl
        .current_dir(directory)
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "2", "-subj", subject])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")])
        .args(more);
    process::output(&mut openssl, &format!("openssl req {subject}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::address::WITNESSES;

    #[test]
    fn each_member_knows_all_and_serves_under_its_own_address() {
        let arguments = arguments(1, &WITNESSES, Path::new("/t"), Path::new("/d")).join(" ");
        assert!(arguments.contains("--initial-cluster=w0=https://10.2.0.20:2380,w1=https://10.2.0.21:2380"));
        assert!(arguments.contains("--listen-client-urls=https://10.2.0.21:2379"));
    }
}
