//! An etcd cluster on this machine, for one test.

use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::node::FORGOTTEN;

pub struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    is_private: bool,
}

struct Member {
    process: Child,
    client: SocketAddr,
}

impl Etcd {
    /// Starts a cluster of `count` members. If `is_private`, clients reach the cluster by TLS only. If etcd is not installed, prints a
    /// message and returns `None`.
    pub fn start(test: &str, count: usize, is_private: bool) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: {test}: etcd is not installed (package etcd-server)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        if is_private {
            certificates(&folder);
        }
        let ports: Vec<(SocketAddr, SocketAddr)> = (0..count).map(|_| (free(), free())).collect();
        let cluster: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, (_, peers))| format!("m{index}=http://{peers}"))
            .collect();
        let members = ports.iter().enumerate().map(|(index, &(client, peers))| {
            let scheme = if is_private { "https" } else { "http" };
            let mut command = Command::new("etcd");
            command
                .args(["--name", &format!("m{index}")])
                .arg("--data-dir")
                .arg(folder.path().join(format!("m{index}")))
                .args(["--listen-client-urls", &format!("{scheme}://{client}")])
                .args(["--advertise-client-urls", &format!("{scheme}://{client}")])
                .args(["--listen-peer-urls", &format!("http://{peers}")])
                .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
                .args(["--initial-cluster", &cluster.join(",")])
                .args(["--heartbeat-interval", "20", "--election-timeout", "400"])
                .stdout(Stdio::null())
                .stderr(fs::File::create(folder.path().join(format!("log{index}"))).unwrap());
            if is_private {
                for (option, file) in [("cert", "cert.pem"), ("key", "key.pem"), ("trusted-ca", "ca.pem")] {
                    command
                        .arg(format!("--{option}-file"))
                        .arg(folder.path().join(file));
                }
                command.arg("--client-cert-auth");
            }
            let process = command.spawn().expect("etcd runs");
            Member { process, client }
        });
        let mut etcd = Self {
            members: members.collect(),
            folder,
            is_private,
        };
        until("every member listens", || {
            etcd.assert_alive();
            let listens = |member: &Member| TcpStream::connect(member.client).is_ok();
            etcd.members.iter().all(listens)
        });
        etcd.assert_alive();
        Some(etcd)
    }

    fn assert_alive(&mut self) {
        for (index, member) in self.members.iter_mut().enumerate() {
            if let Some(status) = member.process.try_wait().unwrap() {
                let log = fs::read_to_string(self.folder.path().join(format!("log{index}"))).unwrap();
                panic!("member {index} of {} ended with {status}: {log}", member.client);
            }
        }
    }

    /// The configuration's `[witness]` table for this cluster.
    pub fn table(&self) -> String {
        self.table_at(
            &self
                .members
                .iter()
                .map(|member| member.client)
                .collect::<Vec<_>>(),
        )
    }

    /// The configuration's `[witness]` table for members at `addresses`.
    pub fn table_at(&self, addresses: &[SocketAddr]) -> String {
        let scheme = if self.is_private { "https" } else { "http" };
        let urls: Vec<String> = addresses
            .iter()
            .map(|address| format!("{scheme}://{address}"))
            .collect();
        let mut table = format!("[witness]\nkind = \"etcd\"\nendpoints = {urls:?}\ntimeout_ms = 4000\n");
        if self.is_private {
            for (key, file) in [("ca", "ca.pem"), ("cert", "cert.pem"), ("key", "key.pem")] {
                writeln!(table, "{key} = {:?}", self.file(file)).unwrap();
            }
        }
        table
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].client
    }

    pub fn kill(&mut self, member: usize) {
        let process = &mut self.members[member].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops a member as if its machine were frozen, until the returned value is dropped.
    pub fn freeze(&self, member: usize) -> Frozen {
        let id = i32::try_from(self.members[member].process.id()).unwrap();
        kill(Pid::from_raw(id), Signal::SIGSTOP).unwrap();
        Frozen(Pid::from_raw(id))
    }
}

/// A stopped member. Dropping the value lets it continue, so that it can be killed and waited for.
pub struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for Member { process, .. } in &mut self.members {
            let _ = process.kill(); // it may be dead already
            let _ = process.wait();
        }
    }
}

/// A free address of this machine. Its port stays free until the test uses it: the kernel's ephemeral ports are higher (32,768 and up), and
/// this process never returns a port twice.
fn free() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 100).unwrap() * 100;
    let mut ports = (0..10_000).map(|_| 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000);
    let is_free = |address: &SocketAddr| TcpListener::bind(address).is_ok();
    ports
        .find_map(|port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).filter(is_free))
        .expect("a free port")
}

/// Waits until `holds` returns true.
///
/// # Panics
/// If this takes longer than [`FORGOTTEN`]. The message names `what`.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + FORGOTTEN;
    while !holds() {
        assert!(Instant::now() < end, "waited for {FORGOTTEN:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes `ca.pem`, and `cert.pem` and `key.pem` for both members and clients. `other.pem` is the certificate of an unrelated authority.
fn certificates(folder: &TempDir) {
    let authority = || {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
    };
    let (ca, key) = (authority(), KeyPair::generate().unwrap());
    let parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = parameters.signed_by(&key, &ca).unwrap();
    for (name, pem) in [
        ("ca.pem", ca.pem()),
        ("other.pem", authority().pem()),
        ("cert.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        fs::write(folder.path().join(name), pem).unwrap();
    }
}
