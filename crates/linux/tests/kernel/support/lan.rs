//! A client, a backup and a primary on one LAN, each in a network namespace of its own.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use super::socket::{abort_on_close, use_cubic};
use super::{PATIENCE, eventually};

/// The address family of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The service's index in the wire's configuration.
    pub fn service(self) -> u16 {
        match self {
            Self::V4 => 0,
            Self::V6 => 1,
        }
    }

    /// The exit code that means a crash for this service, but not for the other family's service.
    pub fn crash_code(self) -> u8 {
        match self {
            Self::V4 => 3,
            Self::V6 => 255,
        }
    }

    /// The address on the LAN that ends in `last`.
    pub fn address(self, last: u8) -> IpAddr {
        match self {
            Self::V4 => [10, 0, 0, last].into(),
            Self::V6 => format!("fd00::{last}")
                .parse()
                .expect("the text is an IPv6 address"),
        }
    }

    /// The client's address with every port.
    pub fn clients(self) -> Vec<SocketAddr> {
        let from = |port| SocketAddr::new(self.address(1), port);
        (1..=u16::MAX).map(from).collect()
    }

    /// The service's address.
    pub fn vip(self) -> SocketAddr {
        (self.address(100), 80).into()
    }
}

/// A network namespace. The kernel removes it when the last clone of this value is dropped and the last socket of the namespace is closed.
#[derive(Clone)]
pub struct LanHost {
    netns: Arc<File>,
    /// Last byte of the host's addresses on the LAN and of its MAC address.
    last: u8,
}

impl LanHost {
    pub fn new(last: u8) -> Self {
        let open = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            File::open("/proc/thread-self/ns/net").expect("its handle")
        };
        let host = Self {
            netns: Arc::new(std::thread::spawn(open).join().expect("the thread ends")),
            last,
        };
        for (name, value) in [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            // Lets a socket without an owner end soon, because the namespace stays until its last socket ends.
            ("ipv4/tcp_orphan_retries", "1"),
        ] {
            host.sysctl(name, value);
        }
        host
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&*self.netns, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The host's address on the LAN.
    pub fn address(&self, family: Family) -> IpAddr {
        family.address(self.last)
    }

    pub fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.last]
    }

    fn mac_text(&self) -> String {
        format!("02:00:00:00:00:{:02x}", self.last)
    }

    /// Path of the namespace for other processes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.netns.as_raw_fd())
    }

    /// Sets `/proc/sys/net/NAME`.
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/{name}");
        self.run(|| fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}")));
    }

    /// How often sockets had no room for a segment, although their windows had room. A socket whose receive queue is empty takes the segment
    /// nevertheless, so the kernel does not count it as dropped (`tcp_data_queue`), but its search for room has failed (`RcvPruned`).
    pub fn wants_of_memory(&self) -> u64 {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/netstat").expect("statistics"));
        let lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let lines: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
        let count = |counter: &str| -> u64 {
            let at = lines[0].iter().position(|name| *name == counter);
            lines[1][at.expect("Linux 4.20 counts it")]
                .parse()
                .expect("a number")
        };
        count("TCPRcvQDrop").max(count("RcvPruned"))
    }

    /// Runs the lines of `batch` with iproute2's `ip`.
    #[track_caller]
    pub fn ip(&self, batch: &str) {
        self.ip_batch(&["-batch", "-"], batch);
    }

    /// As [`ip`](Self::ip), with `ip -6`.
    #[track_caller]
    pub fn ip6(&self, batch: &str) {
        self.ip_batch(&["-6", "-batch", "-"], batch);
    }

    #[track_caller]
    fn ip_batch(&self, arguments: &[&str], batch: &str) {
        let output = self.run(|| {
            let mut child = Command::new("ip")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("ip can be run");
            child
                .stdin
                .take()
                .expect("piped")
                .write_all(batch.as_bytes())
                .expect("ip reads");
            child.wait_with_output().expect("ip ends")
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{batch}: {errors}");
    }

    /// Disables netfilter on bridges. The tests use a bridge as a cable, but a bridge would drop some of their packets if `br_netfilter`
    /// were loaded.
    fn leave_bridges_alone(&self) {
        for family in ["iptables", "ip6tables"] {
            let name = format!("bridge/bridge-nf-call-{family}");
            if self.run(|| fs::exists(format!("/proc/sys/net/{name}")).unwrap_or(false)) {
                self.sysctl(&name, "0");
            }
        }
    }

    /// Waits until the kernel uses all new IPv6 addresses, which takes a moment.
    pub fn wait_for_addresses(&self) {
        const TENTATIVE: u8 = 0x40;
        eventually("all addresses are in use", || {
            let listing = self
                .run(|| fs::read_to_string("/proc/thread-self/net/if_inet6"))
                .expect("addresses");
            let flags = |line: &str| u8::from_str_radix(line.split_ascii_whitespace().nth(4)?, 16).ok();
            listing
                .lines()
                .all(|line| flags(line).is_some_and(|flags| flags & TENTATIVE == 0))
                .then_some(())
        });
    }

    /// Connects to `to`. Nothing of the connection remains in the kernel after it is closed.
    pub fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = self
            .run(|| TcpStream::connect_timeout(&to, PATIENCE))
            .expect("connect");
        patient(&stream);
        stream
    }

    pub fn listen(&self, at: SocketAddr) -> TcpListener {
        let listener = self.run(|| TcpListener::bind(at)).expect("listen");
        use_cubic(&listener);
        listener
    }

    /// Connects this host to `listener`. Returns the client's end and the server's end.
    pub fn connect_pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.connect(listener.local_addr().expect("bound"));
        (client, accept(listener))
    }
}

/// The next connection of `listener`.
pub fn accept(listener: &TcpListener) -> TcpStream {
    let listener = socket2::SockRef::from(listener);
    listener.set_read_timeout(Some(PATIENCE)).expect("a timeout"); // this timeout also applies to accept(2)
    let (server, _) = listener.accept().expect("accept");
    let server = TcpStream::from(server);
    patient(&server);
    server
}

/// Sets timeouts, so that a failing test does not hang. Lets the kernel forget the connection at once when the stream is closed.
pub fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    abort_on_close(stream);
    use_cubic(stream);
}

/// The three hosts. The client's host has the bridge `lan`, to which both nodes are connected. The primary has the VIP on `lo`. It routes
/// packets whose source is the VIP through the backup.
///
/// ```text
///      client (…1)       backup (…2)         primary (…3)
///        lan ── port2 ──── eth0: VIP, one-armed
///         └──── port3 ────────────────────────── eth0, lo: VIP; from VIP via backup
/// ```
pub struct Lan {
    pub client: LanHost,
    pub backup: LanHost,
    pub primary: LanHost,
}

impl Lan {
    /// The LAN for a test. `None`, with a message, if the test does not run as root.
    pub fn new(test: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let [client, backup, primary] = [1, 2, 3].map(LanHost::new);
        let ports: String = [&backup, &primary].into_iter().map(port).collect();
        client.leave_bridges_alone();
        client.ip(&format!(
            "link set lo up
             link add lan address {} type bridge mcast_snooping 0
             link set lan up
             addr add 10.0.0.1/24 dev lan
             addr add fd00::1/64 dev lan nodad
             {ports}",
            client.mac_text()
        ));
        backup.ip(&node_batch(&backup));
        backup.ip("addr add 10.0.0.100/32 dev eth0\n addr add fd00::100/128 dev eth0 nodad");
        primary.sysctl("ipv4/conf/all/arp_ignore", "1");
        primary.sysctl("ipv4/conf/all/arp_announce", "2");
        primary.ip(&node_batch(&primary));
        primary.ip("addr add 10.0.0.100/32 dev lo
             rule add from 10.0.0.100 lookup 100
             route add default via 10.0.0.2 dev eth0 table 100");
        primary.ip6(
            "addr add fd00::100/128 dev lo nodad
             rule add from fd00::100 lookup 100
             route add default via fd00::2 dev eth0 table 100",
        );
        for host in [&client, &backup, &primary] {
            host.wait_for_addresses();
        }
        Some(Self {
            client,
            backup,
            primary,
        })
    }

    /// Cuts the primary's cable.
    pub fn power_off_primary(&self) {
        self.client.ip("link set port3 down");
    }
}

/// Returns whether this process is root, as the test needs. Prints a message if it is not.
pub fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: {test}: network namespaces and eBPF need root");
    }
    root
}

fn port(node: &LanHost) -> String {
    let (last, mac, netns) = (node.last, node.mac_text(), node.path());
    format!(
        "link add port{last} type veth peer name eth0 address {mac} netns {netns}
         link set port{last} master lan up\n"
    )
}

fn node_batch(node: &LanHost) -> String {
    let last = node.last;
    format!(
        "link set lo up
         link set eth0 up
         addr add 10.0.0.{last}/24 dev eth0
         addr add fd00::{last}/64 dev eth0 nodad\n"
    )
}
