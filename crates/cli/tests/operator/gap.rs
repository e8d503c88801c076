//! The wire's agent is stopped until the ring is full and packets pass unlogged.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::signal::Signal;

use crate::daemon::{PairSpec, pair_of};
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::OperatorLan;

/// The log has the beginning of these connections. When the agent returns, it reads that beginning before it notices the gap in the log.
#[test]
fn connections_that_began_before_a_gap_of_the_log_are_not_protected() {
    let Some(lan) = OperatorLan::new("connections_that_began_before_a_gap_of_the_log_are_not_protected")
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let kind = PairSpec {
        agent_timeouts_ms: [60_000, 2000], // the primary waits for its wire
        ..PairSpec::default()
    };
    let [_primary, backup] = pair_of(&lan, dir.path(), "gap", &kind);
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let listener = listen(&lan.node);
    let connect = || {
        let client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let server = accept(&listener);
        // A congestion control that estimates the path's rate would keep the low estimate from the time when nothing passed.
        socket2::SockRef::from(&server)
            .set_tcp_congestion(b"cubic")
            .unwrap();
        server.set_write_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    };
    let ask = |client: &mut TcpStream, server: &mut TcpStream| {
        const ASK: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
        client.write_all(ASK).unwrap();
        server.read_exact(&mut [0; ASK.len()]).unwrap();
    };
    backup.signal(Signal::SIGSTOP);
    let mut silent = connect();
    ask(&mut silent.0, &mut silent.1);
    let (mut client, mut server) = connect();
    ask(&mut client, &mut server);
    // The body is larger than the ring. When the ring is full, nothing passes until the agent has been away for
    // `agent_timeout_ms`.
    let body = vec![7; 40 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            server.write_all(head.as_bytes()).unwrap();
            server.write_all(&body).unwrap();
        });
        let mut reply = vec![0; body.len()];
        client.read_exact(&mut reply).unwrap();
    });
    // The agent cannot know later whether this reply was logged.
    silent.1.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    silent.0.read_exact(&mut [0; 27]).unwrap();
    backup.signal(Signal::SIGCONT);
    let reason = "packets may have passed unlogged while the agent was away";
    backup.wait_for(&[
        "\"protected\":0,\"unprotected\":2",
        &format!("\"reasons\":{{\"{reason}\":2}}"),
    ]);
}
