//! Moves of sessions between two servers with different addresses: by each policy, at the server's request, in each state of a connection.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::Value;

use crate::daemon::stop_process;
use crate::lan::HostNamespace;
use crate::sessions::{CLIENTS, PATIENCE, SessionTestbed, moved};

const TRANSFERS: [&str; 3] = ["lazy", "eager", "client"];

fn connect(testbed: &SessionTestbed) -> TcpStream {
    let client = testbed.lan.stranger.run(|| TcpStream::connect(CLIENTS).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The names of the servers that own the sessions, in the order in which the clients came.
fn owners(testbed: &SessionTestbed) -> Vec<String> {
    let status = testbed.status();
    let sessions = status["sessions"].as_array().cloned().unwrap_or_default();
    let owner = |session: &Value| session["server"].as_str().unwrap_or_default().to_owned();
    sessions.iter().map(owner).collect()
}

/// Asks `stream_server.py` for a stream.
fn ask_stream(client: &mut TcpStream, bytes: usize, interval_us: u32) {
    writeln!(client, "STREAM {bytes} 1024 {interval_us}").unwrap();
}

#[track_caller]
fn assert_stream(got: &[u8], bytes: usize) {
    assert_eq!(got.len(), bytes);
    let expected = |at: usize| u8::try_from((at * 31 + 7) % 251).unwrap();
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

/// Limits what a host sends by an interface.
#[track_caller]
fn shape(host: &HostNamespace, interface: &str, limit: &str) {
    let arguments = format!("qdisc add dev {interface} root tbf {limit}");
    let mut tc = Command::new("tc");
    tc.args(arguments.split(' '));
    assert!(host.run(|| tc.status()).unwrap().success(), "{arguments}");
}

fn stop(testbed: &SessionTestbed, server: usize) {
    let application = testbed.applications[server].0.id();
    stop_process(Pid::from_raw(i32::try_from(application).unwrap()));
}

#[track_caller]
fn migrate(testbed: &SessionTestbed, to: &str) {
    let outcome = testbed.migrate(to);
    let (code, proxy) = (outcome.code, testbed.log("proxy.log"));
    assert_eq!(code, 0, "{to}: {}{}\n{proxy}", outcome.output, outcome.errors);
}

#[test]
fn a_stream_leaves_a_server_that_becomes_slow() {
    for policy in [
        "policy = \"rate\"\nsample_ms = 50",
        "policy = \"delay\"\nlimit_ms = 150",
    ] {
        let Some(mut testbed) = SessionTestbed::new("a_stream_leaves_a_server_that_becomes_slow") else {
            return;
        };
        let more = format!("{policy}\nhold_ms = 300\ntransfer = \"eager\"");
        testbed.start_all("stream_server.py", &["-k", "4"], &more);
        let mut client = connect(&testbed);
        ask_stream(&mut client, 1_024_000, 4000);
        let mut got = vec![0; 200_000];
        client.read_exact(&mut got).unwrap();
        // On busy CPUs, the first server may have been slow already.
        let (before, owner) = (moved(&testbed.status()), owners(&testbed));
        stop(&testbed, usize::from(owner == ["b"]));
        if let Err(error) = client.read_to_end(&mut got) {
            panic!(
                "{policy}: {error} after {} bytes: {}",
                got.len(),
                testbed.status()
            );
        }
        assert_stream(&got, 1_024_000);
        assert!(moved(&testbed.status()) > before, "{policy}: {owner:?}");
    }
}

/// One client waits for a response of a server that stands still. The other one waits for nothing. With `group`, both leave.
#[test]
fn a_policy_moves_one_session_or_all_of_its_client() {
    for (group, expected) in [(false, ["b", "a"]), (true, ["b", "b"])] {
        let Some(mut testbed) = SessionTestbed::new("a_policy_moves_one_session_or_all_of_its_client") else {
            return;
        };
        let contents = testbed.file(4096);
        let files = testbed.path("files").to_str().unwrap().to_owned();
        let more = format!("policy = \"response\"\nlimit_ms = 250\nhold_ms = 300\ngroup = {group}");
        testbed.start_all("file_server.py", &[&files], &more);
        let mut clients = [(); 2].map(|()| connect(&testbed));
        let ask = |client: &mut TcpStream| {
            client
                .write_all(b"GET /file HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap()
        };
        let answered = |client: &mut TcpStream| {
            let mut got = Vec::new();
            while !got.ends_with(&contents) {
                let mut part = [0; 4096];
                let count = client.read(&mut part).unwrap();
                assert!(count > 0, "the connection has ended");
                got.extend(&part[..count]);
            }
        };
        for client in &mut clients {
            ask(client);
            answered(client);
        }
        std::thread::sleep(Duration::from_millis(400)); // the policy holds still at first
        assert_eq!(owners(&testbed), ["a", "a"]);
        stop(&testbed, 0);
        ask(&mut clients[0]);
        answered(&mut clients[0]);
        testbed.wait_until("the other session's move", || owners(&testbed) == expected);
        assert_eq!(moved(&testbed.status()), if group { 2 } else { 1 });
        if group {
            ask(&mut clients[1]);
            answered(&mut clients[1]);
        }
    }
}

#[test]
fn a_server_with_too_many_sessions_sheds_one() {
    let Some(mut testbed) = SessionTestbed::new("a_server_with_too_many_sessions_sheds_one") else {
        return;
    };
    testbed.of_halves = "shed_above = 1".to_owned();
    testbed.start_all("stream_server.py", &["-k", "4"], "");
    let mut clients = [(); 2].map(|()| {
        let mut client = connect(&testbed);
        ask_stream(&mut client, 300_000, 5000);
        client
    });
    testbed.wait_until("the move", || owners(&testbed) == ["a", "b"]);
    for client in &mut clients {
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_stream(&got, 300_000);
    }
}

fn start_tally(testbed: &mut SessionTestbed, mode: &str, more: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operator/tally_server.py");
    let results = testbed.path("results").to_str().unwrap().to_owned();
    testbed.start_all(script.to_str().unwrap(), &[mode, &results], more);
}

fn upload(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes)
        .map(|at| u8::try_from(at * 7 % 253).unwrap())
        .collect()
}

/// CRC-32 as zlib computes it.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[test]
fn an_upload_leaves_a_lossy_path() {
    let Some(mut testbed) = SessionTestbed::new("an_upload_leaves_a_lossy_path") else {
        return;
    };
    let more = "policy = \"retransmissions\"\nretransmissions = 5\nhold_ms = 200\nstrikes = 1";
    start_tally(&mut testbed, "answer", more);
    shape(&testbed.lan.stranger, "port2", "rate 20mbit burst 8kb limit 12kb"); // a short queue: bursts are dropped
    let mut client = connect(&testbed);
    let sent = upload(0, 6_000_000);
    client.write_all(&sent).unwrap();
    testbed.wait_until("the move", || owners(&testbed) == ["b"]);
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let expected = format!("{} {}\n", sent.len(), crc(&sent));
    assert_eq!(answer.len(), expected.len() + 2_000_000);
    assert!(answer.starts_with(expected.as_bytes()), "{expected}");
}

#[test]
fn a_client_that_has_ended_its_input_gets_its_answer_across_moves() {
    for transfer in TRANSFERS {
        let Some(mut testbed) =
            SessionTestbed::new("a_client_that_has_ended_its_input_gets_its_answer_across_moves")
        else {
            return;
        };
        start_tally(&mut testbed, "answer", &format!("transfer = \"{transfer}\""));
        let mut client = connect(&testbed);
        let sent = upload(0, 300_000);
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let expected = format!("{} {}\n", sent.len(), crc(&sent));
        let mut answer = vec![0; 100_000];
        client.read_exact(&mut answer).unwrap();
        for to in ["b", "a"] {
            migrate(&testbed, to);
            assert_eq!(owners(&testbed), [to], "{transfer}: the session goes on");
        }
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), expected.len() + 2_000_000, "{transfer}");
        assert!(answer.starts_with(expected.as_bytes()), "{transfer}: {expected}");
    }
}

#[test]
fn a_server_that_has_ended_its_output_gets_its_input_across_moves() {
    for transfer in TRANSFERS {
        let Some(mut testbed) =
            SessionTestbed::new("a_server_that_has_ended_its_output_gets_its_input_across_moves")
        else {
            return;
        };
        start_tally(&mut testbed, "silent", &format!("transfer = \"{transfer}\""));
        let mut client = connect(&testbed);
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"hello\n");
        let mut sent = Vec::new();
        for to in ["b", "a"] {
            let part = upload(sent.len(), 500_000);
            client.write_all(&part).unwrap();
            sent.extend(part);
            migrate(&testbed, to);
            assert_eq!(owners(&testbed), [to], "{transfer}: the session goes on");
        }
        let part = upload(sent.len(), 500_000);
        client.write_all(&part).unwrap();
        sent.extend(part);
        client.shutdown(Shutdown::Write).unwrap();
        let results = || fs::read_to_string(testbed.path("results")).unwrap_or_default();
        testbed.wait_until("the server's result", || !results().is_empty());
        assert_eq!(
            results(),
            format!("{} {}\n", sent.len(), crc(&sent)),
            "{transfer}"
        );
    }
}

#[test]
fn a_state_of_16_mb_moves_in_each_mode() {
    for transfer in TRANSFERS {
        let Some(mut testbed) = SessionTestbed::new("a_state_of_16_mb_moves_in_each_mode") else {
            return;
        };
        let size = (16 << 20).to_string();
        let more = format!("transfer = \"{transfer}\"");
        testbed.start_all("stream_server.py", &["-k", "100", "-s", &size], &more);
        let mut client = connect(&testbed);
        ask_stream(&mut client, 1_024_000, 4000);
        let mut got = Vec::new();
        for to in ["b", "a"] {
            let mut part = vec![0; 300_000]; // behind two snapshots of this owner, which take a moment to be pushed
            client.read_exact(&mut part).unwrap();
            got.extend(part);
            migrate(&testbed, to);
            let owner = usize::from(to == "b");
            let of_owner = || testbed.half_status(owner)["sessions"][0].clone();
            testbed.wait_until("the commit with the state", || of_owner()["state"] == "owner");
            let bytes = of_owner()["snapshot_bytes"].as_u64();
            assert!(bytes >= Some(16 << 20), "{transfer}: {bytes:?}");
        }
        client.read_to_end(&mut got).unwrap();
        assert_stream(&got, 1_024_000);
    }
}

#[test]
fn a_state_that_takes_longer_than_the_lease_moves_once() {
    for transfer in ["client", "lazy"] {
        let Some(mut testbed) = SessionTestbed::new("a_state_that_takes_longer_than_the_lease_moves_once")
        else {
            return;
        };
        let size = (8 << 20).to_string();
        let more = format!("transfer = \"{transfer}\"");
        testbed.start_all("stream_server.py", &["-k", "250", "-s", &size], &more);
        let path = "rate 30mbit burst 32kb latency 50ms"; // 2.2 s for a state, and the lease lasts 1 s
        for (server, port) in [(0, "port2"), (1, "port3")] {
            shape(testbed.host(server), "eth0", path);
            shape(&testbed.lan.stranger, port, path);
        }
        let mut client = connect(&testbed);
        ask_stream(&mut client, 512_000, 4000);
        let mut got = vec![0; 256_000];
        client.read_exact(&mut got).unwrap();
        let has_state = || testbed.half_status(0)["sessions"][0]["snapshot_bytes"].as_u64() > Some(0);
        testbed.wait_until("the state", has_state);
        migrate(&testbed, "b");
        client.read_to_end(&mut got).unwrap();
        assert_stream(&got, 512_000);
        let (migrations, log) = (testbed.status()["migrations"].clone(), testbed.log("proxy.log"));
        assert_eq!(migrations["moved"], 1, "{transfer}: {migrations}\n{log}");
        assert_eq!(migrations["reasons"], serde_json::json!([]), "{transfer}\n{log}");
    }
}
