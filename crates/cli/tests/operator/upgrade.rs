//! SIGUSR2 upgrades a running daemon: the daemon executes the program that is now at its path, with the present contents of its
//! configuration file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::daemon::{Daemon, pair};
use crate::lan::{CommandOutput, OperatorLan, POLL, copy_program};

/// Installs a copy of the program at `path` as a package manager does: as a new file under the same name.
fn install(path: &Path) {
    let new = path.with_extension("new");
    copy_program(&new);
    fs::rename(&new, path).unwrap();
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// Inode of the file that process `pid` runs.
fn runs(pid: u32) -> u64 {
    inode(format!("/proc/{pid}/exe"))
}

#[track_caller]
fn wait_until(what: &str, daemon: &Daemon<'_>, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        let log = || fs::read_to_string(&daemon.log).unwrap();
        assert!(Instant::now() < until, "waiting for {what}: {}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Number of refused upgrades in the log.
fn refusals(daemon: &Daemon<'_>) -> usize {
    daemon.says("not upgraded; the running program continues")
}

fn keeper(daemon: &Daemon<'_>) -> u32 {
    daemon.keeper().unwrap().try_into().unwrap()
}

fn service(daemon: &Daemon<'_>) -> Value {
    let status: Value = serde_json::from_str(&daemon.ask("status").output).unwrap();
    status["services"][0].clone()
}

/// The state directory's files whose names end in `end`.
fn files(daemon: &Daemon<'_>, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(&daemon.state_dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.to_str().unwrap().ends_with(end))
        .collect()
}

/// Nice value of a process.
fn niceness(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind_name) = stat.rsplit_once(") ").unwrap();
    behind_name.split(' ').nth(16).unwrap().parse().unwrap() // field 19 of proc(5)
}

/// Numbers of open files and of zombie children of a process.
fn leftovers(pid: u32) -> (usize, usize) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_zombie = |child: &&str| {
        fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    };
    let zombies = children.split_ascii_whitespace().filter(is_zombie).count();
    (fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), zombies)
}

/// Number of files that a process keeps open: the lowest number of 25 polls, because the process also opens files for short times.
fn files_at_rest(pid: u32) -> usize {
    let look = |_| {
        std::thread::sleep(POLL);
        leftovers(pid).0
    };
    (0..25).map(look).min().expect("it was looked at")
}

/// A pair whose first node runs its own copy of the program. On this node, a keeper that was started from the original program is still
/// running.
fn pair_with_copy<'a>(lan: &'a OperatorLan, dir: &Path, test: &str) -> [Daemon<'a>; 2] {
    let [mut one, two] = pair(lan, dir, test);
    one.program = dir.join("steadfast");
    install(&one.program);
    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    one.start_again();
    one.wait_for(&["\"role\":\"primary\"", "\"peer_state\":\"backup\""]);
    [one, two]
}

#[test]
fn a_program_takes_the_place_of_the_running_one() {
    let Some(lan) = OperatorLan::new("a_program_takes_the_place_of_the_running_one") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [mut one, two] = pair_with_copy(&lan, dir.path(), "place");
    let (pid, epoch) = (one.process.id(), service(&one)["epoch"].clone());
    assert_eq!(
        files(&one, ".sock").len(),
        3,
        "control, keeper, and the retired keeper of the first program"
    );
    let mut found = Vec::new();
    for _ in 0..2 {
        let before = keeper(&one);
        install(&one.program);
        one.signal(Signal::SIGUSR2);
        // The node must not look dead at any moment.
        let until = Instant::now() + Duration::from_secs(20);
        while runs(pid) != inode(&one.program) {
            assert!(Instant::now() < until, "the old program goes on");
            let CommandOutput { code, errors, .. } = one.run_command("cleanup");
            assert_eq!(code, 2, "a live node is left alone: {errors}");
            assert_eq!(refusals(&one), 0);
        }
        // The signal must not end the process at any moment.
        one.signal(Signal::SIGUSR2);
        one.wait_for(&["\"role\":\"primary\"", "\"peer_state\":\"backup\""]);
        assert!(
            one.process.try_wait().unwrap().is_none(),
            "the daemon is still the same process"
        );
        assert_eq!(
            runs(keeper(&one)),
            inode(&one.program),
            "the keeper is of the new program, too"
        );
        // The keeper must not take the CPU from the application to which it relays.
        assert_eq!((niceness(pid), niceness(keeper(&one))), (-20, 0));
        let retired = one.state_dir.join(format!("keeper-{before}.sock"));
        wait_until("the end of the unused keeper", &one, || {
            !retired.exists() && leftovers(pid).1 == 0
        });
        found.push(files_at_rest(pid));
    }
    assert_eq!(found[0], found[1], "no open file leaks from program to program");
    assert_eq!(service(&one)["epoch"], epoch);
    assert_eq!(service(&two)["epoch"], epoch);
    assert_eq!(refusals(&one), 0);
    let said = fs::read_to_string(&one.log).unwrap();
    assert!(said.contains("\"away\":\""), "{said}");

    one.signal(Signal::SIGTERM);
    assert_eq!(one.process.wait().unwrap().code(), Some(0));
    let left = [files(&one, ".sock"), files(&one, "lock")].concat();
    assert_eq!(left, Vec::<PathBuf>::new(), "all keepers end with the daemon");
}

/// A text in the configuration, its replacement, and the reason for which the daemon refuses it.
const UNFIT: [(&str, &str, &str); 7] = [
    ("port = 80", "port = eighty", "not TOML"),
    (
        "port = 80",
        "port = 81",
        "its service 0 is not 10.0.0.100 port 81",
    ),
    (
        "ring_mb = 1",
        "ring_mb = 2",
        "its map ring_overflow has 1048576 entries or bytes, not 2097152",
    ),
    (
        "\"web\"",
        "\"web\"\napplication = \"127.0.0.1:8080\"",
        "differ from the running daemon's",
    ),
    (
        "name = \"sf-test-unfit-two\"",
        "name = \"another\"",
        "[peer] name differs",
    ),
    ("\"sf-test-unfit-one\"", "\"another\"", "[node] name differs"),
    (
        "heartbeat_ms",
        "heartbeat_kms = 1\nheartbeat_ms",
        "heartbeat_kms: unknown key",
    ),
];

#[test]
fn what_does_not_fit_is_refused_and_the_service_goes_on() {
    let Some(lan) = OperatorLan::new("what_does_not_fit_is_refused_and_the_service_goes_on") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, _two] = pair_with_copy(&lan, dir.path(), "unfit");
    let (pid, ran) = (one.process.id(), inode(&one.program));
    let (before, keeper_before) = (service(&one), keeper(&one));
    let good = one.text.as_str();
    install(&one.program);
    for (count, (old, new, reason)) in (1..).zip(UNFIT) {
        assert!(good.contains(old), "{old}");
        fs::write(&one.config, good.replace(old, new)).unwrap();
        one.signal(Signal::SIGUSR2);
        wait_until(reason, &one, || refusals(&one) == count);
        let log = fs::read_to_string(&one.log).unwrap();
        let last = log.lines().rfind(|line| line.contains("not upgraded")).unwrap();
        assert!(
            last.contains(reason) && last.contains("ERROR"),
            "{reason}: {last}"
        );
    }
    fs::write(&one.config, good).unwrap();
    // A program that cannot be run is refused too.
    let away = one.program.with_extension("away");
    fs::rename(&one.program, &away).unwrap();
    one.signal(Signal::SIGUSR2);
    wait_until("the refusal of a missing program", &one, || {
        refusals(&one) == UNFIT.len() + 1
    });
    assert_eq!((runs(pid), keeper(&one)), (ran, keeper_before));
    let after = service(&one);
    for field in ["state", "peer_state", "epoch"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    // Options that may change are applied.
    fs::rename(&away, &one.program).unwrap();
    let changed = good.replacen(
        "ring_mb = 1",
        "ring_mb = 1\ntotal_mb = 7\nper_connection_mb = 1",
        1,
    );
    fs::write(&one.config, changed).unwrap();
    one.signal(Signal::SIGUSR2);
    one.wait_for(&["\"log_limit_bytes\":7340032", "\"peer_state\":\"backup\""]);
    assert_eq!(runs(pid), inode(&one.program));
}
