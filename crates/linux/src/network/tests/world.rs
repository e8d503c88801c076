//! A router, a backup and a primary on one LAN, each in a network namespace of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace without a name. The kernel removes it after this value was dropped.
pub(super) struct Namespace {
    file: File,
}

impl Namespace {
    fn new() -> Self {
        let open = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            File::open("/proc/thread-self/ns/net").expect("its handle")
        };
        let namespace = Self {
            file: std::thread::spawn(open).join().expect("the thread ends"),
        };
        namespace.run(|| {
            for family in ["default", "all"] {
                fs::write(format!("/proc/sys/net/ipv6/conf/{family}/accept_dad"), "0").expect("accept_dad");
                fs::write(
                    format!("/proc/sys/net/ipv6/conf/{family}/router_solicitations"),
                    "0",
                )
                .expect("router_solicitations");
            }
        });
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `work` inside, on a thread of its own.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || setns(&self.file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter();
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with `arguments` inside and returns what it prints.
    pub(super) fn ip(&self, arguments: &str) -> String {
        self.command(&format!("ip {arguments}"))
    }

    pub(super) fn command(&self, line: &str) -> String {
        let output = self.run(|| {
            let mut words = line.split_ascii_whitespace();
            Command::new(words.next().expect("a program"))
                .args(words)
                .output()
                .expect("it can be run")
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// [`Self::dump`] once the kernel has made the routes of new IPv6 addresses.
    pub(super) fn settled(&self) -> BTreeMap<String, String> {
        let lines = |command: &str| self.ip(command).lines().count();
        let until = Instant::now() + Duration::from_secs(5);
        while lines("-6 -o address") > lines("-6 route show table local type local") {
            assert!(Instant::now() < until, "no routes: {}", self.ip("-6 address"));
        }
        self.dump()
    }

    /// Everything that setting up a node's network may change. A key is the query whose answer is the value (`-4 -j rule`, `nftables`), or
    /// the path of a sysctl.
    pub(super) fn dump(&self) -> BTreeMap<String, String> {
        let mut dump = BTreeMap::new();
        for family in ["-4", "-6"] {
            for object in ["address", "rule", "route show table all"] {
                let command = format!("{family} -j {object}");
                let mut entries: Vec<serde_json::Value> =
                    serde_json::from_str(&self.ip(&command)).expect("a list");
                entries.sort_by_key(ToString::to_string); // the kernel lists routes in the order in which they were made
                dump.insert(command, serde_json::to_string(&entries).expect("text"));
            }
        }
        dump.insert("nftables".to_owned(), self.command("nft list ruleset"));
        self.run(|| sysctls(Path::new("/proc/sys/net/ipv4"), &mut dump));
        self.run(|| sysctls(Path::new("/proc/sys/net/ipv6"), &mut dump));
        dump
    }
}

fn sysctls(folder: &Path, dump: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("sysctls can be listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sysctls(&path, dump);
        } else if let Ok(value) = fs::read_to_string(&path) {
            dump.insert(path.display().to_string(), value);
        }
    }
}

/// Panics if two dumps differ, and prints the differences.
#[track_caller]
pub(super) fn assert_same(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) {
    let names = before.keys().chain(after.keys());
    let differing: BTreeMap<_, _> = names
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| (name, (before.get(name), after.get(name))))
        .collect();
    assert!(differing.is_empty(), "not as found: {differing:#?}");
}

/// As [`assert_same`], but gives `after` 5 seconds to become the same as `before`.
#[track_caller]
pub(super) fn assert_same_soon(
    before: &BTreeMap<String, String>,
    after: impl Fn() -> BTreeMap<String, String>,
) {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until && after() != *before {}
    assert_same(before, &after());
}

/// The LAN. Addresses end in 1 (router), 2 (backup) and 3 (primary): 10.0.0.0/24 and 2001:db8::/64.
pub(super) struct RouterLan {
    pub(super) router: Namespace,
    pub(super) backup: Namespace,
    pub(super) primary: Namespace,
}

impl RouterLan {
    /// Makes the LAN for a test. If the caller is not root, prints that the test is skipped and returns `None`.
    pub(super) fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: {test}: network namespaces need root");
            return None;
        }
        let [router, backup, primary] = std::array::from_fn(|_| Namespace::new());
        router.ip("link add lan type bridge");
        router.ip("link set lan up");
        router.ip("addr add 10.0.0.1/24 dev lan");
        router.ip("addr add 2001:db8::1/64 dev lan nodad");
        for (last, node) in [(2, &backup), (3, &primary)] {
            let there = format!("/proc/{}/fd/{}", std::process::id(), node.file.as_raw_fd());
            router.ip(&format!(
                "link add port{last} type veth peer name eth0 netns {there}"
            ));
            router.ip(&format!("link set port{last} master lan up"));
            node.ip("link set eth0 up");
            node.ip(&format!("addr add 10.0.0.{last}/24 dev eth0"));
            node.ip(&format!("addr add 2001:db8::{last}/64 dev eth0 nodad"));
            node.ip("route add default via 10.0.0.1");
            node.ip("-6 route add default via 2001:db8::1");
        }
        let world = Self {
            router,
            backup,
            primary,
        };
        // The kernel makes link-local addresses and multicast routes a moment after a cable is plugged.
        for node in [&world.router, &world.backup, &world.primary] {
            while node.ip("-6 address").contains("tentative") || node.dump() != node.dump() {
                std::thread::yield_now();
            }
        }
        Some(world)
    }
}
