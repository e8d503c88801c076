//! Sessions of unmodified client programs between two servers with different addresses.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::lan::steadfast;
use crate::sessions::{CLIENTS, PATIENCE, SessionTestbed, moved};

#[test]
fn a_download_moves_there_and_back_many_times() {
    for transfer in ["lazy", "eager", "client"] {
        let Some(mut testbed) = SessionTestbed::new("a_download_moves_there_and_back_many_times") else {
            return;
        };
        // Lasts longer than eight moves on a busy machine.
        let contents = testbed.file(60 << 20);
        let files = testbed.path("files").to_str().unwrap().to_owned();
        testbed.start_all("file_server.py", &[&files], &format!("transfer = \"{transfer}\""));
        let curl = testbed.curl("6M", "got");
        testbed.wait_until("data", || {
            testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(1 << 20)
        });
        for to in ["b", "a"].repeat(4) {
            let outcome = testbed.migrate(to);
            assert_eq!(
                outcome.code,
                0,
                "{transfer}: {}{}\n{}",
                outcome.output,
                outcome.errors,
                testbed.log("proxy.log")
            );
            assert_eq!(testbed.status()["sessions"][0]["server"], to);
        }
        assert_eq!(moved(&testbed.status()), 8);
        testbed.finish(curl, "got", &contents);
        testbed.wait_until("the end", || {
            testbed.status()["sessions"] == serde_json::json!([])
        });
    }
}

#[test]
fn a_download_survives_the_death_of_its_server() {
    for transfer in ["eager", "client"] {
        let Some(mut testbed) = SessionTestbed::new("a_download_survives_the_death_of_its_server") else {
            return;
        };
        let contents = testbed.file(16 << 20);
        let files = testbed.path("files").to_str().unwrap().to_owned();
        testbed.start_all("file_server.py", &[&files], &format!("transfer = \"{transfer}\""));
        let curl = testbed.curl("4M", "got");
        testbed.wait_until("data", || {
            testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(4 << 20)
        });
        assert_eq!(testbed.status()["sessions"][0]["server"], "a");
        testbed.lan.stranger.ip("link set port2 down"); // nobody hears the host any more
        testbed.halves[0].kill();
        testbed.applications[0].kill();
        testbed.wait_until("the move", || testbed.status()["sessions"][0]["server"] == "b");
        testbed.finish(curl, "got", &contents);
    }
}

#[test]
fn a_dead_server_ends_a_session_whose_state_only_it_has() {
    let Some(mut testbed) = SessionTestbed::new("a_dead_server_ends_a_session_whose_state_only_it_has")
    else {
        return;
    };
    testbed.file(16 << 20);
    let files = testbed.path("files").to_str().unwrap().to_owned();
    testbed.start_all("file_server.py", &[&files], "transfer = \"lazy\"");
    let text = fs::read_to_string(testbed.config()).unwrap();
    testbed.proxy = None;
    fs::write(testbed.config(), format!("patience_ms = 1500\n{text}")).unwrap();
    let command = steadfast(&["connect", "--config", &testbed.config()]);
    testbed.proxy = Some(testbed.spawn(&testbed.lan.stranger, "proxy.log", command));
    testbed.wait_until("the proxy", || testbed.log("proxy.log").contains("ready"));
    let curl = testbed.curl("4M", "got");
    testbed.wait_until("data", || {
        testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(1 << 20)
    });
    testbed.halves[0].kill();
    testbed.applications[0].kill();
    let done = curl.wait_with_output().unwrap();
    assert_eq!(
        done.status.code(),
        Some(56),
        "curl is told that the connection was reset"
    );
    assert_eq!(testbed.status()["lost"], 1);
}

#[test]
fn a_server_that_does_not_speak_the_protocol_gets_plain_tcp() {
    let Some(mut testbed) = SessionTestbed::new("a_server_that_does_not_speak_the_protocol_gets_plain_tcp")
    else {
        return;
    };
    let listener = testbed.host(0).run(|| TcpListener::bind("10.0.0.2:80").unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    testbed.start_proxy("plain = \"10.0.0.2:80\"");
    let mut client = testbed.lan.stranger.run(|| TcpStream::connect(CLIENTS).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"only these bytes").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "only these bytes");
    server.join().unwrap();
    let status = testbed.status();
    assert_eq!((&status["plain"], &status["opened"]), (&1.into(), &0.into()));
}

/// A drained server asks its sessions to leave, sends new clients elsewhere, and says when no session is left.
#[test]
fn a_server_is_drained_and_says_what_it_has() {
    let Some(mut testbed) = SessionTestbed::new("a_server_is_drained_and_says_what_it_has") else {
        return;
    };
    let contents = testbed.file(16 << 20);
    let files = testbed.path("files").to_str().unwrap().to_owned();
    testbed.start_all("file_server.py", &[&files], "transfer = \"eager\"");
    let of_state = |testbed: &SessionTestbed, server: usize, state: &str| {
        let status = testbed.half_status(server);
        let sessions = status["sessions"].as_array().cloned().unwrap_or_default();
        let of_state = sessions.iter().filter(|session| session["state"] == state);
        of_state.count()
    };
    let early = ["one", "two"].map(|got| (got, testbed.curl("4M", got)));
    testbed.wait_until("two sessions and their copies", || {
        of_state(&testbed, 0, "owner") == 2 && of_state(&testbed, 1, "copy") == 2
    });
    assert_eq!(testbed.half_status(0)["services"][0]["opened"], 2);
    let page = testbed.metrics(testbed.host(0));
    assert!(
        page.contains("steadfast_accept_sessions{state=\"owner\"} 2\n"),
        "{page}"
    );
    let page = testbed.metrics(&testbed.lan.stranger);
    assert!(
        page.contains("steadfast_proxy_sessions{phase=\"served\",service=\"web\"} 2\n"),
        "{page}"
    );

    let drained = testbed.at_half(0, &["drain", "a"]);
    assert_eq!(drained.code, 0, "{}", drained.errors);
    assert!(
        drained.errors.contains("server a: no session is left"),
        "{}",
        drained.errors
    );
    assert_eq!(
        (of_state(&testbed, 0, "owner"), of_state(&testbed, 1, "owner")),
        (0, 2)
    );
    assert_eq!(testbed.half_status(0)["draining"], true);
    let text = testbed.at_half(0, &["status"]).output;
    assert!(text.contains("DRAINED"), "{text}");

    let late = testbed.curl("4M", "three");
    testbed.wait_until("a new session elsewhere", || of_state(&testbed, 1, "owner") == 3);
    assert!(testbed.half_status(0)["refused"].as_u64() >= Some(1));
    for (got, curl) in early {
        testbed.finish(curl, got, &contents);
    }
    testbed.finish(late, "three", &contents);
    assert_eq!(testbed.status()["lost"], 0);
    assert_eq!(testbed.at_half(0, &["drain", "a", "--off"]).code, 0);
    assert_eq!(testbed.half_status(0)["draining"], false);
    assert_eq!(
        testbed.at_half(0, &["drain", "b"]).code,
        2,
        "the file is of another server"
    );
}
