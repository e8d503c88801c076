//! `steadfast-lab crash` with real programs. All tests except the last two need root, iproute2, nginx, redis-server and tcpdump. If one of
//! these is missing, such a test prints that it is skipped, and passes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use linux::netns::Netns;
use nix::unistd::geteuid;
use serde_json::Value;

fn crash(options: &[&str]) -> Output {
    let lab = env!("CARGO_BIN_EXE_steadfast-lab");
    Command::new(lab).arg("crash").args(options).output().unwrap()
}

fn skipped(test: &str) -> bool {
    let have = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(program).exists())
    };
    let skip = !geteuid().is_root() || !["ip", "nginx", "redis-server", "tcpdump"].into_iter().all(have);
    if skip {
        eprintln!("skipped: {test} needs root, iproute2, nginx, redis-server and tcpdump");
    }
    skip
}

#[test]
fn without_steadfast_connections_are_reset_and_the_judge_sees_it() {
    if skipped("without_steadfast_connections_are_reset_and_the_judge_sees_it") {
        return;
    }
    for policy in ["http", "replica"] {
        let options = ["--baseline", "--policy", policy, "--workload", "request"];
        let output = crash(&[&options[..], &["--connections", "3", "--seed", "1", "--json"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["seed"], 1);
        assert_eq!(report["connections"], 3);
        assert_eq!(report["connections_survived"], 0);
        assert_eq!(report["resets_seen"], 3, "{report}");
        assert_eq!(report["unproven"], Value::Array(Vec::new()));
        // The clients waited at least until the address had moved.
        assert!(report["stall_ms"]["median"].as_f64().unwrap() >= 80.0, "{report}");
        let command = report["first_failure"]["command"].as_str().unwrap();
        assert!(command.contains("--seed 1 "), "{command}");
        let capture = report["captures"][0]["path"].as_str().unwrap();
        assert!(!Path::new(capture).exists(), "{capture} is left behind");
    }
}

#[test]
fn with_steadfast_every_connection_survives() {
    let name = "with_steadfast_every_connection_survives";
    if skipped(name) {
        return;
    }
    let steadfast = Path::new(env!("CARGO_BIN_EXE_steadfast-lab")).with_file_name("steadfast");
    if !steadfast.exists() {
        eprintln!(
            "skipped: {name} needs {}: cargo build -p steadfast",
            steadfast.display()
        );
        return;
    }
    for (policy, workload) in [
        ("http", "download"),
        ("http", "idle"),
        ("replica", "upload"),
        ("replica", "request"),
    ] {
        let options = [
            "--policy",
            policy,
            "--workload",
            workload,
            "--megabytes",
            "40",
            "--busy",
            "3",
        ];
        let output = crash(&[&options[..], &["--connections", "4", "--rtt", "2", "--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        let report = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{policy} {workload}: {report}{said}"
        );
    }
}

#[test]
fn nothing_remains_of_a_run_that_is_killed() {
    if skipped("nothing_remains_of_a_run_that_is_killed") {
        return;
    }
    let mut lab = Command::new(env!("CARGO_BIN_EXE_steadfast-lab"))
        .args(["crash", "--baseline", "--workload", "request"])
        .spawn()
        .unwrap();
    let run = format!("{}-0", lab.id());
    let files = Path::new("/dev/shm").join(format!("steadfast-lab-{run}"));
    // Node b's server is the last program that starts before the clients.
    wait_until("the servers run", || files.join("nginx-b").exists());
    let nodes = ["a", "b"].map(|node| Netns::open(&format!("sf-{run}-{node}")).unwrap().inode());
    assert_ne!(inside(&nodes), Vec::<String>::new());
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("the files are removed", || !files.exists());
    let remaining = || {
        let namespaces = std::fs::read_dir("/run/netns").unwrap().flatten();
        let names = namespaces.map(|one| one.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(&run)).collect::<Vec<_>>()
    };
    wait_until("the namespaces are removed", || remaining().is_empty());
    assert_eq!(inside(&nodes), Vec::<String>::new());
}

/// The processes in the network namespaces with these inode numbers.
fn inside(namespaces: &[u64]) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lives_there = |process: &std::fs::DirEntry| {
        let namespace = std::fs::metadata(process.path().join("ns/net"));
        namespace.is_ok_and(|link| namespaces.contains(&link.ino()))
    };
    let name = |process: std::fs::DirEntry| process.file_name().to_string_lossy().into_owned();
    processes.filter(lives_there).map(name).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_run_saw_is_kept_on_demand() {
    if skipped("what_a_run_saw_is_kept_on_demand") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let keep = directory.path().to_str().unwrap();
    let options = ["--baseline", "--ipv6", "--rtt", "5", "--workload", "idle"];
    let output = crash(&[&options[..], &["--connections", "2", "--keep", keep]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let run = std::fs::read_dir(directory.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    for name in [
        "client.pcap",
        "router.pcap",
        "node-a.pcap",
        "node-b.pcap",
        "facts.json",
        "report.json",
    ] {
        assert!(run.join(name).metadata().unwrap().len() > 24, "{name} is empty");
    }
}

#[test]
fn what_cannot_happen_is_an_exception_with_its_reason() {
    for (options, word) in [
        (
            ["--fault", "crash-worker", "--policy", "replica", "--json"],
            "no workers",
        ),
        (
            ["--policy", "http", "--workload", "upload", "--json"],
            "see --workload post",
        ),
        (
            ["--policy", "replica", "--workload", "post", "--json"],
            "see --workload upload",
        ),
    ] {
        let output = crash(&options);
        assert_eq!(output.status.code(), Some(0));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["exceptions"][0]["count"], 1);
        let reason = report["exceptions"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(word), "{reason}");
        assert_eq!((&report["connections"], &report["runs"]), (&0.into(), &0.into()));
        let text = crash(&options[..4]).stdout;
        assert!(String::from_utf8_lossy(&text).starts_with("exception: not applicable"));
    }
}

#[test]
fn wrong_use_is_told_from_what_is_missing() {
    let wrong = crash(&["--workload", "post", "--server", "apache"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("needs nginx"));
    for options in [
        &["--fault", "kill-backup", "--node", "primary"][..],
        &["--then-power-off"],
        &["--fault", "kill-server", "--then-kill-server"],
        &["--fault", "kill-agent", "--then-kill-server", "--then-power-off"],
        &["--baseline", "--fault", "flush-tc"],
        &["--server", "redis"],
        &["--how", "uplink"],
        &["--first-link", "other"],
        &[
            "--fault",
            "cut-service-path",
            "--how",
            "flicker",
            "--rounds",
            "2",
            "--workload",
            "request",
        ],
    ] {
        assert_eq!(crash(options).status.code(), Some(2), "{options:?}");
    }
    assert_eq!(crash(&["--loss", "101"]).status.code(), Some(2));
    assert_eq!(crash(&["--connections", "0"]).status.code(), Some(2));
    let missing = crash(&["--steadfast", "/no/such/steadfast"]);
    assert_eq!(missing.status.code(), Some(3));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains("/no/such/steadfast"), "{said}");
    assert!(missing.stdout.is_empty());
}
