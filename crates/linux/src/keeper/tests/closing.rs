//! After a takeover, if the plan closes the connection, the next reply on the relayed connection says `Connection: close`. So the client
//! opens a new connection.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use proto::connection::OutputEnd;
use proto::restart::http::{HttpResume, Volatile};

use super::lab::*;
use crate::keeper::{Adoption, AdoptionPlan, ConnectionEnding, LoggedInput};

/// The plan of a connection between two exchanges. If it `closes`, the next reply tells the client to open a new connection.
fn between(closes: bool) -> AdoptionPlan {
    AdoptionPlan::Http {
        resume: HttpResume::Idle,
        volatile: Volatile::default(),
        closes,
    }
}

#[test]
fn the_next_reply_is_the_last_and_the_connection_ends_in_order() {
    let mut lab = KeeperLab::new();
    let (address, served) = application(|mut stream| {
        let asked = read_request(&mut stream);
        say(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        (asked, read_to_end(&mut stream).unwrap())
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, between(true));
    let mut client = lab.adopt(adoption, connection, &[]);
    say(&mut client, "GET / HTTP/1.1\r\n\r\n");
    let reply = String::from_utf8(read_to_end(&mut client).unwrap()).unwrap();
    assert_eq!(
        reply,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    );
    say(&mut client, "GET /too-late HTTP/1.1\r\n\r\n"); // the keeper drops this request, without a RST
    end(&client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    let (asked, after) = served.join().unwrap();
    assert_eq!((asked.as_str(), after.len()), ("GET / HTTP/1.1\r\n\r\n", 0));
}

/// Real curl sends three requests to real nginx. One reply tells curl to open a new connection, and curl does so. The test reads curl's
/// output only after curl has ended, so the output must fit into the pipe.
#[test]
fn curl_comes_again_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), pattern(10_000)).unwrap();
    let application = nobody();
    let has_curl = Command::new("curl").arg("-V").output().is_ok();
    let Some(_nginx) = Nginx::start(directory.path(), application).filter(|_| has_curl) else {
        eprintln!("skipped: curl_comes_again_once needs nginx and curl");
        return;
    };
    let mut lab = KeeperLab::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/file", listener.local_addr().unwrap());
    let curl = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--include"])
        .args(["--write-out", "\nconnects: %{num_connects}\n"])
        .args([&url, &url, &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for (id, closes) in [(1, true), (2, false)] {
        let (restored, client) = listener.accept().unwrap();
        let adoption = Adoption {
            id,
            service: "web".into(),
            client,
            vip: listener.local_addr().unwrap(),
            application,
            plan: between(closes),
            input_ended: false,
            output: OutputEnd::Open,
            sent_before: 0,
            keep: None,
            syn_ack: None,
        };
        lab.agent()
            .adopt(&adoption, restored.as_fd(), None, &LoggedInput::default())
            .unwrap();
    }
    let output = curl.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    let found = |what: &str| said.matches(what).count();
    assert_eq!(found("HTTP/1.1 200 OK"), 3);
    assert_eq!(found("Connection: close"), 1);
    assert_eq!(found("Connection: keep-alive"), 2);
    let connects: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("connects: "))
        .collect();
    assert_eq!(connects, ["1", "1", "0"], "it comes again once");
}
