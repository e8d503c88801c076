//! The lab's network carries packets and is removed with the lab. The tests need root; without root they print so and pass.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linux::netns::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

const LIMIT: Duration = Duration::from_secs(20);

fn skipped(test: &str) -> bool {
    let skip = !geteuid().is_root();
    if skip {
        eprintln!("skipped: {test} builds network namespaces and so needs root");
    }
    skip
}

/// A running `steadfast-lab network`.
struct LabProcess {
    child: Child,
    namespaces: serde_json::Map<String, serde_json::Value>,
}

impl LabProcess {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_steadfast-lab"))
            .args(["network", "--json"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
        let namespaces = printed["namespaces"].as_object().unwrap().clone();
        Self { child, namespaces }
    }

    fn namespace(&self, place: &str) -> Netns {
        Netns::open(self.namespaces[place].as_str().unwrap()).unwrap()
    }

    fn kill(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn remains(&self) -> Vec<&str> {
        let names = self.namespaces.values().map(|name| name.as_str().unwrap());
        names.filter(|name| Netns::path_of(name).exists()).collect()
    }

    fn assert_nothing_remains(&mut self) {
        self.child.wait().unwrap();
        wait_until("the namespaces are removed", || self.remains().is_empty());
    }
}

impl Drop for LabProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill(Signal::SIGTERM);
            self.child.wait().unwrap();
        }
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a short text over TCP from the client to `address` in `node`.
fn talk(lab: &LabProcess, node: &str, address: &str) -> std::io::Result<()> {
    talk_within(Duration::from_secs(10), lab, node, address)
}

fn talk_within(patience: Duration, lab: &LabProcess, node: &str, address: &str) -> std::io::Result<()> {
    talk_from(patience, lab, "client", node, address)
}

fn talk_from(
    patience: Duration,
    lab: &LabProcess,
    from: &str,
    node: &str,
    address: &str,
) -> std::io::Result<()> {
    let address: IpAddr = address.parse().unwrap();
    let listen = || TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
    let listener = lab.namespace(node).run(listen).unwrap();
    let to = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&to, patience);
    let mut client = lab.namespace(from).run(connect).unwrap()?;
    client.write_all(b"steadfast")?;
    drop(client);
    let mut heard = String::new();
    listener.accept()?.0.read_to_string(&mut heard)?;
    assert_eq!(heard, "steadfast");
    Ok(())
}

#[test]
fn the_client_reaches_both_nodes_until_the_cable_is_pulled() {
    if skipped("the_client_reaches_both_nodes_until_the_cable_is_pulled") {
        return;
    }
    let lab = LabProcess::start();
    for (node, address) in [
        ("a", "10.2.0.10"),
        ("a", "fd02::10"),
        ("b", "10.2.0.11"),
        ("b", "fd02::11"),
    ] {
        talk(&lab, node, address).unwrap_or_else(|error| panic!("{address}: {error}"));
    }
    let cable = lab.namespace("switch").cable("a").unwrap();
    cable.pull().unwrap();
    talk_within(Duration::from_millis(500), &lab, "a", "10.2.0.10").unwrap_err();
    talk(&lab, "b", "10.2.0.11").unwrap();
    cable.plug().unwrap();
    talk(&lab, "a", "10.2.0.10").unwrap();
}

#[test]
fn the_second_network_works_without_the_first() {
    if skipped("the_second_network_works_without_the_first") {
        return;
    }
    let lab = LabProcess::start_with(&["--links", "2"]);
    let between = |from: &str, to: &str, address: &str| {
        talk_from(Duration::from_millis(500), &lab, from, to, address)
            .unwrap_or_else(|error| panic!("{from} to {address}: {error}"));
    };
    lab.namespace("switch").cable("b").unwrap().pull().unwrap();
    talk_within(Duration::from_millis(500), &lab, "b", "10.2.0.11").unwrap_err();
    talk_within(Duration::from_millis(500), &lab, "b", "10.4.0.11").unwrap_err();
    between("a", "b", "10.4.0.11");
    between("b", "a", "fd04::10");
}

#[test]
fn an_emulated_way_delays_limits_and_loses() {
    if skipped("an_emulated_way_delays_limits_and_loses") {
        return;
    }
    let far = LabProcess::start_with(&["--rtt", "30"]);
    let quickest = (0..5).map(|_| {
        let begun = Instant::now();
        talk(&far, "a", "10.2.0.10").unwrap();
        begun.elapsed()
    });
    // The handshake takes one round trip, and the data take half of one.
    let quickest = quickest.min().unwrap();
    assert!(quickest >= Duration::from_millis(45), "{quickest:?}");

    let broken = LabProcess::start_with(&["--loss", "100"]);
    talk(&broken, "a", "10.2.0.10").unwrap_err();

    const MEGABYTE: usize = 1_000_000;
    let slow = LabProcess::start_with(&["--rate", "8", "--loss", "0.1"]);
    let listener = slow
        .namespace("a")
        .run(|| TcpListener::bind("10.2.0.10:0").unwrap());
    let listener = listener.unwrap();
    let to = listener.local_addr().unwrap();
    let begun = Instant::now();
    let mut client = slow.namespace("client").run(|| TcpStream::connect(to).unwrap());
    let sending = std::thread::spawn(move || client.as_mut().unwrap().write_all(&[7; MEGABYTE]).unwrap());
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert_eq!(received.len(), MEGABYTE);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn nothing_remains_after_any_end() {
    if skipped("nothing_remains_after_any_end") {
        return;
    }
    for signal in [Signal::SIGKILL, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut lab = LabProcess::start();
        assert_eq!(lab.remains().len(), lab.namespaces.len());
        let mut command = lab.namespace("a").command("sleep").unwrap();
        let mut inside = command.arg("1000").spawn().unwrap();
        // A stopped process must be killed too.
        kill(Pid::from_raw(inside.id().cast_signed()), Signal::SIGSTOP).unwrap();
        lab.kill(signal);
        lab.assert_nothing_remains();
        wait_until("the process inside is killed", || {
            inside.try_wait().unwrap().is_some()
        });
    }
}

#[test]
fn two_labs_do_not_meet() {
    if skipped("two_labs_do_not_meet") {
        return;
    }
    let mut one = LabProcess::start();
    let other = LabProcess::start();
    one.kill(Signal::SIGKILL);
    one.assert_nothing_remains();
    talk(&other, "b", "10.2.0.11").unwrap();
}

#[test]
fn nothing_remains_after_the_parent_is_killed() {
    if skipped("nothing_remains_after_the_parent_is_killed") {
        return;
    }
    let script = format!("{} network --json & wait", env!("CARGO_BIN_EXE_steadfast-lab"));
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    for name in printed["namespaces"].as_object().unwrap().values() {
        let path = Netns::path_of(name.as_str().unwrap());
        wait_until("the namespaces are removed", || !path.exists());
    }
}
