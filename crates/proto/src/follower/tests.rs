use super::*;

#[test]
fn a_replica_is_behind_by_what_it_was_not_given_and_has_not_said() {
    let mut follower = Follower::new(RestartPolicy::Replica, Rules::default(), None, 1000);
    assert_eq!(follower.behind(Offset::ZERO), 0);
    let replica = follower.replica_mut().expect("that policy");
    replica.on_fed(Offset(30), false);
    assert_eq!(follower.behind(Offset(100)), 70);
    follower.on_output(b"hello");
    assert_eq!(follower.behind(Offset(100)), 75, "said by the primary only");
    let replica = follower.replica_mut().expect("that policy");
    replica.on_fed(Offset(100), false);
    replica.on_output(b"hello, you");
    assert_eq!(follower.behind(Offset(100)), 0, "it may be ahead");
    follower.give_up();
    assert_eq!(follower.behind(Offset(100)), 0);
}

#[test]
fn a_connection_that_will_be_repeated_keeps_all_its_input() {
    let mut follower = Follower::new(RestartPolicy::Replay, Rules::default(), None, 1000);
    follower.on_input(b"PING");
    follower.on_output(b"PONG");
    assert_eq!(follower.restart_input(Offset(4)), Offset::ZERO);
    assert_eq!(follower.behind(Offset(4)), 0);
    assert!(!follower.drains(), "waiting frees nothing");
    follower.on_output_end();
    let Ok(Restart::Replay { resume, .. }) = follower.restart() else {
        panic!("it can be repeated");
    };
    assert_eq!((resume.bytes, resume.ended), (4, true));
    follower.give_up();
    assert_eq!(follower.restart_input(Offset(4)), Offset(4));
}

#[test]
fn http_follows_what_is_logged_at_once() {
    let mut follower = Follower::new(RestartPolicy::Http, Rules::default(), None, 1000);
    follower.on_output(b"what?");
    assert_eq!(follower.behind(Offset(100)), 0);
}

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const PRIMARY: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nDate: Mon, 01 Jan 2024 00:00:01 GMT\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\n\r\n\x81\x05hello\x81\x03you";
const REPLICA: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nDate: Mon, 01 Jan 2024 00:00:59 GMT\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\n\r\n\x81\x05hello\x81\x03you";

fn http(is_opaque: bool) -> Follower {
    let opaque = Opaque {
        bound: 1000,
        volatile: Volatile::default(),
    };
    let opaque = is_opaque.then(|| Arc::new(opaque));
    Follower::new(RestartPolicy::Http, Rules::default(), opaque, 1000)
}

/// The input offset from which the replica is fed. `None` without a replica.
fn fed(follower: &Follower) -> Option<Offset> {
    follower.replica().map(Replica::fed)
}

#[test]
fn what_is_not_http_is_followed_from_its_first_byte_if_that_is_wanted() {
    let tls = b"\x16\x03\x01\x02\x00\x01";
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for input in [tls.as_slice(), b"\0\0", b"M\x01", b"PING\r\n", http2] {
        for is_opaque in [true, false] {
            let mut follower = http(is_opaque);
            follower.on_input(input);
            assert_eq!(fed(&follower), is_opaque.then_some(Offset::ZERO), "{input:?}");
            assert_eq!(follower.protection().is_ok(), is_opaque, "{input:?}");
        }
    }
}

#[test]
fn a_server_that_speaks_first_is_followed_too() {
    for input in [b"".as_slice(), b"EHLO a\r\n"] {
        let mut follower = http(true);
        follower.on_input(input);
        follower.on_output(b"220 mail\r\n");
        assert_eq!(fed(&follower), Some(Offset::ZERO));
        let replica = follower.replica_mut().expect("it is followed");
        assert!(replica.opens() && !replica.opens(), "once");
        replica.on_output(b"220 mail\r\n250 a");
        assert_eq!(
            replica.ahead(),
            5,
            "its first bytes are compared with the primary's"
        );
    }
}

#[test]
fn what_begins_as_http_and_breaks_is_not_followed() {
    let mut after_an_exchange = http(true);
    after_an_exchange.on_input(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    after_an_exchange.on_output(b"HTTP/1.1 204 No Content\r\n\r\n");
    after_an_exchange.on_input(b"\0\0");
    let mut after_blanks = http(true);
    after_blanks.on_input(b"\r\n");
    after_blanks.on_input(b"\0\0");
    let mut smuggled = http(true);
    smuggled.on_input(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n");
    let mut tunnel = http(true);
    tunnel.on_input(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n");
    // Garbage follows a request, also in the same segment. The request may have been executed.
    let post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\0";
    let mut behind_a_request = http(true);
    behind_a_request.on_input(post);
    let mut in_pieces = http(true);
    in_pieces.on_input(&post[..20]);
    in_pieces.on_input(&post[20..]);
    // The server has stopped waiting for the request. The server does not execute input that crosses this reply on the way.
    let mut late = http(true);
    late.on_input(b"POST / HTTP/1.1\r\n");
    late.on_output(b"HTTP/1.1 408 Request Timeout\r\n\r\n");
    let mut silent = http(true);
    silent.on_output(b"HTT");
    // The POST that asks for the upgrade must not be executed twice.
    let mut forbidden = http(true);
    forbidden.on_input(b"POST / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nContent-Length: 0\r\n\r\n");
    forbidden.on_output(PRIMARY);
    for (index, follower) in [
        after_an_exchange,
        after_blanks,
        smuggled,
        tunnel,
        forbidden,
        behind_a_request,
        in_pieces,
        late,
        silent,
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(fed(&follower), None, "{index}");
        assert!(follower.protection().is_err(), "{index}");
    }
}

/// The replica is not fed the exchanges before the upgrade. The replica's reply may have another date. It does not matter how the bytes are
/// cut into pieces.
#[test]
fn an_upgraded_connection_is_followed_from_its_request_on() {
    let (before, reply) = (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    );
    for cut in 0..PRIMARY.len() {
        for cut_replica in [1, 40, 100, REPLICA.len() - 3, REPLICA.len()] {
            let mut follower = http(true);
            follower.on_input(before);
            follower.on_output(reply);
            follower.on_input(UPGRADE);
            follower.on_output(&PRIMARY[..cut]);
            follower.on_output(&PRIMARY[cut..]);
            assert_eq!(fed(&follower), Some(Offset(before.len() as u64)));
            assert!(follower.protection().is_err(), "it has not said anything yet");
            assert!(follower.restart().is_err());
            let replica = follower.replica_mut().expect("it is followed");
            replica.on_output(&REPLICA[..cut_replica]);
            replica.on_output(&REPLICA[cut_replica..]);
            assert_eq!(follower.protection(), Ok(()), "{cut} {cut_replica}");
            let Restart::Replica { resume, .. } = follower.restart().expect("it is level") else {
                panic!("followed by a replica");
            };
            assert!(
                matches!(&resume, replica::ReplicaResume::Ahead { to_send, ended: false } if to_send.is_empty())
                    || matches!(&resume, replica::ReplicaResume::Behind { said, ended: false } if said.is_empty()),
                "{resume:?}"
            );
        }
    }
}

#[test]
fn a_replica_that_does_not_upgrade_protects_nothing() {
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n",
        b"HTTP/1.1 101 Swit",
    ];
    for answer in answers {
        let mut follower = http(true);
        follower.on_input(UPGRADE);
        follower.on_output(PRIMARY);
        let replica = follower.replica_mut().expect("it is followed");
        replica.on_output(answer);
        replica.on_output_end();
        let reason = follower.protection().expect_err("not the same");
        assert!(reason.contains("upgrade"), "{reason}");
        assert!(follower.restart().is_err());
    }
}
