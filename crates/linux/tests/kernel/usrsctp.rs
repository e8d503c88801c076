//! Tests our SCTP against another implementation: usrsctp, FreeBSD's stack in user space, as client and as server. The program
//! `support/usrsctp_peer.c` uses usrsctp.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use proto::sctp::association::{AssociationEvent, CloseReason};

use crate::support::lan::{Family, LanHost};
use crate::support::sctp::{MESSAGE, PORT, TwoCables, UDP_PORT, WireEnd, addresses, run};

/// Bytes of a transfer.
const BYTES: u64 = 8_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Clean,
    Loss,
    Cut,
}

/// Compiles the program that uses usrsctp. `None` if this machine cannot compile it.
fn program() -> Option<tempfile::TempPath> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/support/usrsctp_peer.c");
    let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    let compiled = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&path)
        .args([source, "-lusrsctp", "-lpthread"])
        .output();
    match compiled {
        Ok(output) if output.status.success() => Some(path),
        _ => {
            eprintln!("skipped: usrsctp needs cc and libusrsctp-dev");
            None
        }
    }
}

fn start(host: &LanHost, program: &std::path::Path, listens: bool, is_source: bool, family: Family) -> Child {
    // As a server, usrsctp binds the addresses of its own host. As a client, it calls the addresses of the other host.
    let last = if listens { 2 } else { 1 };
    let words = [
        if listens { "listen" } else { "connect" }.to_owned(),
        if is_source { "source" } else { "sink" }.to_owned(),
        BYTES.to_string(),
        MESSAGE.to_string(),
        UDP_PORT.to_string(),
        UDP_PORT.to_string(),
        PORT.to_string(),
        "1".to_owned(),
    ];
    let of_host = addresses(family, last)
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    host.run(|| {
        Command::new(program)
            .args(words)
            .args(of_host)
            .stdout(Stdio::piped())
            .spawn()
            .expect("usrsctp starts")
    })
}

/// One transfer. Our endpoint is at `near`, usrsctp's endpoint at `far`.
fn cell(program: &std::path::Path, listens: bool, is_source: bool, family: Family, trouble: Trouble) {
    let name = format!("usrsctp listens {listens} sends {is_source} {family:?} {trouble:?}");
    let Some(net) = TwoCables::new("usrsctp") else {
        return;
    };
    if trouble == Trouble::Loss {
        net.lose_one_percent();
    }
    let mut ours = WireEnd::open(&net.near, 1, family, UDP_PORT, |_| {});
    let mut child = start(&net.far, program, listens, is_source, family);
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    if listens {
        lines.read_line(&mut line).expect("usrsctp says that it is ready");
        ours.call(family, 2);
    }
    if is_source {
        ours.wanted = BYTES;
    } else {
        ours.to_send = BYTES;
    }
    let mut is_cut = trouble != Trouble::Cut;
    // The losses end before the transfer does. If usrsctp's last packet were lost, our endpoint would repeat its own last packet, but the
    // usrsctp program would already have exited.
    let mut is_losing = trouble == Trouble::Loss;
    let (mut lost, mut timeouts, mut retransmissions) = (0, 0, 0);
    let sink = if is_source { &net.near } else { &net.far };
    run(&name, &mut [&mut ours], |ends| {
        // `unacknowledged` also counts headers, so it may be larger than the bytes that were handed over.
        if let Some(association) = ends[0].association() {
            let counts = || association.destinations().iter().map(|path| path.counts());
            timeouts = counts().map(|path| path.timeouts).sum();
            retransmissions = counts().map(|path| path.retransmissions).sum();
        }
        let waiting = ends[0].association().map_or(0, |end| end.unacknowledged() as u64);
        let moved = (ends[0].received + ends[0].handed).saturating_sub(waiting);
        if !is_cut && moved > BYTES / 4 {
            net.cut_first();
            is_cut = true;
        }
        if is_losing && moved > BYTES / 4 * 3 {
            lost = TwoCables::dropped(sink, "loss");
            net.lose_nothing();
            is_losing = false;
        }
        // The receiver ends the association when it has all bytes.
        ends[0].end().is_some()
    });
    if trouble == Trouble::Cut {
        lost = TwoCables::dropped(sink, "cut");
    }
    // The trouble came in time, and hit packets of the transfer. usrsctp does not say what it retransmitted.
    assert!(is_cut && !is_losing, "{name}: {is_cut} {is_losing}");
    assert_eq!(
        lost > 0,
        trouble != Trouble::Clean,
        "{name}: {lost} packets were lost"
    );
    let answered = match trouble {
        Trouble::Clean => true,
        Trouble::Loss => retransmissions > 0,
        Trouble::Cut => timeouts > 0,
    };
    assert!(
        is_source || answered,
        "{name}: {timeouts} timeouts, {retransmissions} retransmissions"
    );
    line.clear();
    lines.read_line(&mut line).expect("usrsctp's result");
    let status = child.wait().expect("usrsctp ends");
    assert!(
        line.starts_with(&format!("{BYTES} 0 ")) && status.success(),
        "{name}: {line} {status}"
    );
    check_end(&name, &ours, is_source);
}

/// Our endpoint has had the whole transfer, and an orderly end.
fn check_end(name: &str, ours: &WireEnd, is_source: bool) {
    assert!(
        ours.events.contains(&AssociationEvent::Established),
        "{name}: {:?}",
        ours.events
    );
    assert_eq!(ours.end(), Some(&CloseReason::ShutDown), "{name}");
    assert!(!is_source || ours.received == BYTES, "{name}");
    eprintln!("passed: {name}");
}

fn matrix(listens: bool, is_source: bool) {
    let Some(program) = program() else {
        return;
    };
    for family in Family::BOTH {
        for trouble in [Trouble::Clean, Trouble::Loss, Trouble::Cut] {
            cell(&program, listens, is_source, family, trouble);
        }
    }
}

#[test]
fn ours_calls_and_sends() {
    matrix(true, false);
}

#[test]
fn ours_calls_and_receives() {
    matrix(true, true);
}

#[test]
fn ours_is_called_and_sends() {
    matrix(false, false);
}

#[test]
fn ours_is_called_and_receives() {
    matrix(false, true);
}
