//! A node, its peer and a third host (`stranger`) on one LAN, each in a network namespace of its own, and commands that run `steadfast`
//! there.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use tempfile::TempDir;

/// A network namespace without a name. It is removed on drop.
pub struct HostNamespace {
    file: File,
}

impl HostNamespace {
    pub fn new() -> Self {
        let open = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").expect("no detection of duplicates");
            File::open("/proc/thread-self/ns/net").expect("its handle")
        };
        let namespace = Self {
            file: std::thread::spawn(open).join().expect("the thread ends"),
        };
        namespace.ip("link set lo up");
        namespace
    }

    /// A path of the namespace, for `ip`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with `arguments` in the namespace and returns its output.
    pub fn ip(&self, arguments: &str) -> String {
        let mut command = Command::new("ip");
        command.args(arguments.split_ascii_whitespace());
        let output = self.run(|| command.output().expect("ip can be run"));
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Addresses, rules, routes and nftables of the namespace, as text. A node also changes sysctls and tc filters, which are not included.
    pub fn dump(&self) -> String {
        let families = ["-4", "-6"];
        let objects = ["-j address", "-j rule", "-j route show table all"];
        let commands = families
            .iter()
            .flat_map(|family| objects.map(|object| format!("{family} {object}")));
        let mut dump: String = commands.map(|command| self.ip(&command)).collect();
        let nft = self.run(|| {
            Command::new("nft")
                .args(["list", "ruleset"])
                .output()
                .expect("nft can be run")
        });
        dump += &String::from_utf8_lossy(&nft.stdout);
        dump
    }
}

/// The LAN 10.0.0.0/24 and 2001:db8::/64: the node is 2, its peer 3, and the third host (`stranger`) 4.
pub struct OperatorLan {
    pub node: HostNamespace,
    pub peer: HostNamespace,
    pub stranger: HostNamespace,
    dir: TempDir,
}

impl OperatorLan {
    /// The LAN for a test. `None`, with a message, if the test does not run as root.
    pub fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: {test}: network namespaces need root");
            return None;
        }
        let [node, peer, stranger] = std::array::from_fn(|_| HostNamespace::new());
        stranger.ip("link add eth0 address 02:00:0a:00:00:04 type bridge");
        stranger.ip("link set eth0 up");
        for (last, namespace) in [(2, &node), (3, &peer)] {
            let there = namespace.path();
            stranger.ip(&format!(
                "link add port{last} type veth peer name eth0 netns {there}"
            ));
            stranger.ip(&format!("link set port{last} master eth0 up"));
            namespace.ip("link set eth0 up");
        }
        for (last, namespace) in [(2, &node), (3, &peer), (4, &stranger)] {
            namespace.ip(&format!("addr add 10.0.0.{last}/24 dev eth0"));
            namespace.ip(&format!("addr add 2001:db8::{last}/64 dev eth0 nodad"));
            // The kernel accepts packets to the new address only a moment later.
            let route = format!("2001:db8::{last} ");
            let is_there = || namespace.ip("-6 route show table local").contains(&route);
            let looks = (0..500).take_while(|_| !is_there());
            looks.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        }
        let dir = tempfile::tempdir().expect("a temporary folder");
        Some(Self {
            node,
            peer,
            stranger,
            dir,
        })
    }

    /// A namespace whose only route leads through a node, like a container's. The node forwards nothing from it to other hosts.
    pub fn behind(&self, node: &HostNamespace, number: usize) -> HostNamespace {
        let container = HostNamespace::new();
        let there = container.path();
        node.ip(&format!("link add inner type veth peer name eth0 netns {there}"));
        node.ip("link set inner up");
        node.ip(&format!("addr add 172.30.{number}.1/24 dev inner"));
        node.ip(&format!("addr add fd17:{number}::1/64 dev inner nodad"));
        container.ip("link set eth0 up");
        container.ip(&format!("addr add 172.30.{number}.2/24 dev eth0"));
        container.ip(&format!("addr add fd17:{number}::2/64 dev eth0 nodad"));
        container.ip(&format!("route add default via 172.30.{number}.1"));
        container.ip(&format!("-6 route add default via fd17:{number}::1"));
        container
    }

    /// Adds a second LAN, 10.1.0.0/24, where each host has an `eth1`.
    pub fn add_second(&self) {
        // A bridge without a MAC address of its own takes the lowest MAC address of its ports. Its address would change when a port is
        // deleted, and the nodes would not notice until their neighbour entries expire.
        self.stranger
            .ip("link add eth1 address 02:00:0a:01:00:04 type bridge");
        self.stranger.ip("link set eth1 up");
        self.stranger.ip("addr add 10.1.0.4/24 dev eth1");
        self.plug_in_second(&self.node, 2);
        self.plug_in_second(&self.peer, 3);
    }

    /// Makes the `eth1` of a node. The interface's IP address ends in `last`.
    pub fn plug_in_second(&self, namespace: &HostNamespace, last: u8) {
        self.plug_in_without_address(namespace, last);
        namespace.ip(&format!("addr add 10.1.0.{last}/24 dev eth1"));
    }

    /// Makes the `eth1` of a node, which has no IP address yet. A new `eth1` has the MAC address of the old one, as a network card keeps its
    /// address. With another MAC address, the test would wait for a stale neighbour entry to expire: Linux does not replace the MAC address
    /// of a neighbour within a second of learning it (`locktime`).
    pub fn plug_in_without_address(&self, namespace: &HostNamespace, last: u8) {
        let there = namespace.path();
        self.stranger.ip(&format!(
            "link add second{last} type veth peer name eth1 address 02:00:0a:01:00:0{last} netns {there}"
        ));
        self.stranger.ip(&format!("link set second{last} master eth1 up"));
        namespace.ip("link set eth1 up");
    }

    /// The node's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Writes `text` to a file with the permissions `mode`.
    pub fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions can be set");
        path
    }

    /// Writes the node's configuration: the usual one, with `old` replaced by `new`.
    pub fn config(&self, old: &str, new: &str) -> PathBuf {
        let usual = format!(
            r#"[node]
name = "sf-test-node"
state_dir = "{}"

[peer]
name = "sf-test-peer"
address = "10.0.0.3"
key_file = "{}"
[[service]]
name = "web"
address = "10.0.0.100"
port = 80
interface = "eth0"
policy = "http"
primary = "sf-test-peer"

[[service]]
name = "web6"
address = "2001:db8::100"
port = 80
interface = "eth0"
policy = "http"
primary = "sf-test-node"
peer_address = "2001:db8::3"
"#,
            self.state_dir().display(),
            self.file("key", &"5".repeat(64), 0o600).display()
        );
        assert!(usual.contains(old), "{old:?} is in the usual configuration");
        let path = self.dir.path().join("s.toml");
        fs::write(&path, usual.replacen(old, new, 1)).expect("it can be written");
        path
    }

    /// Runs `steadfast` on the node.
    pub fn steadfast(&self, arguments: &[&str]) -> CommandOutput {
        self.node.run(|| CommandOutput::of(&mut steadfast(arguments)))
    }

    /// Runs `steadfast COMMAND --config FILE` on the node. In its errors, `s.toml` replaces the path of the file.
    pub fn with_config(&self, command: &str, file: &Path) -> CommandOutput {
        let mut outcome = self.steadfast(&[command, "--config", file.to_str().expect("text")]);
        outcome.errors = outcome.errors.replace(file.to_str().expect("text"), "s.toml");
        outcome
    }
}

/// A command that runs `steadfast` with `arguments`.
pub fn steadfast(arguments: &[&str]) -> Command {
    program(PROGRAM.as_ref(), arguments)
}

/// A process that is killed on drop.
pub struct TestProcess(pub Child);

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Time between two polls. Polling more often would take CPU time from the awaited process.
pub const POLL: Duration = Duration::from_millis(20);

/// Path of the program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_steadfast");

/// A command that runs the copy of `steadfast` at `path` with `arguments`.
pub fn program(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Copies the program to `path`, in a process of its own. A file that is open for writing cannot be executed (ETXTBSY). If this process
/// wrote the copy, a child that another test forks meanwhile would inherit the open file until the child's own exec.
pub fn copy_program(path: &Path) {
    let copied = Command::new("cp").arg(PROGRAM).arg(path).status().unwrap();
    assert!(copied.success(), "cp {PROGRAM} {}: {copied}", path.display());
}

/// Result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub output: String,
    pub errors: String,
}

impl CommandOutput {
    pub fn of(command: &mut Command) -> Self {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().expect("it can be run");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: status.code().expect("it ends by itself"),
            output: text(stdout),
            errors: text(stderr),
        }
    }
}
