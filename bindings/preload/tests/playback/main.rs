//! A Redis is recorded into a file while several clients change the same keys. A second Redis plays the file back: its clients send the same
//! input, but not at the same moments. Both servers have then sent the same bytes, and have the same data.

#[path = "../support/library.rs"]
mod library;
mod redis;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use redis::RedisServer;

const CLIENTS: u64 = 6;
const COMMANDS: u64 = 400;
/// Commands that a client sends at once, at most.
const AT_ONCE: u64 = 5;

/// What a client sent and got.
struct RedisClientRun {
    address: SocketAddr,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// The next number of a fixed sequence.
fn draw(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// A command on a key that all clients use. Its reply depends on the other clients, on the time or on random numbers.
fn command(client: u64, number: u64, choice: u64) -> String {
    match choice % 14 {
        0 => "INCR counter".to_owned(),
        1 => format!("APPEND text {client}.{number},"),
        2 => format!("RPUSH list {client}.{number}"),
        3 => "LPOP list".to_owned(),
        4 => format!("SET last {client}.{number}"),
        5 => "GET last".to_owned(),
        6 => format!("SADD set {client}.{number} {client}+{number}"),
        7 => "SPOP set".to_owned(),
        8 => "SRANDMEMBER set".to_owned(),
        9 => format!("SET brief {client} PX 2"),
        10 => "GET brief".to_owned(),
        11 => format!("XADD stream * field {client}.{number}"),
        12 => format!("SET long {client} EX 1000"),
        _ => "TIME".to_owned(),
    }
}

/// Reads one reply of Redis's protocol.
fn reply(stream: &mut TcpStream, received: &mut Vec<u8>) {
    let begun = received.len();
    while !received[begun..].ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a reply");
        received.push(byte[0]);
    }
    let line = std::str::from_utf8(&received[begun..]).expect("text").trim_end();
    let (kind, rest) = line.split_at(1);
    match (kind, rest.parse::<usize>()) {
        ("$", Ok(size)) => {
            let mut body = vec![0; size + 2];
            stream.read_exact(&mut body).expect("a reply");
            received.extend(body);
        }
        ("*", Ok(count)) => (0..count).for_each(|_| reply(stream, received)),
        _ => {}
    }
}

/// One client's work on a server that is recorded.
fn work(server: &RedisServer, client: u64) -> RedisClientRun {
    let ip = Ipv4Addr::new(127, 0, 1, 10 + client as u8);
    let mut stream = server.connect((ip, 0).into());
    let mut run = RedisClientRun {
        address: stream.local_addr().expect("bound"),
        sent: Vec::new(),
        received: Vec::new(),
    };
    let mut state = client;
    let mut number = 0;
    while number < COMMANDS {
        let count = 1 + draw(&mut state) % AT_ONCE;
        let mut part = String::new();
        for _ in 0..count {
            number += 1;
            part += &command(client, number, draw(&mut state));
            part += "\r\n";
        }
        // The server may read a part of a command.
        let (first, second) = part.as_bytes().split_at(draw(&mut state) as usize % part.len());
        for half in [first, second] {
            stream.write_all(half).expect("sent");
        }
        run.sent.extend(part.as_bytes());
        (0..count).for_each(|_| reply(&mut stream, &mut run.received));
    }
    run
}

/// Sends the same input again, from the same address. Returns the replies.
fn repeat(server: &RedisServer, run: &RedisClientRun) -> Vec<u8> {
    let mut stream = server.connect(run.address);
    stream.write_all(&run.sent).expect("sent");
    let mut received = vec![0; run.received.len()];
    if let Err(error) = stream.read_exact(&mut received) {
        panic!("client {}: {error}\n{}", run.address, server.errors());
    }
    received
}

/// Several clients work at the same time.
fn at_once<T: Send>(count: usize, each: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let each = &each;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|client| scope.spawn(move || each(client)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn a_played_back_redis_sends_and_stores_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = directory.path().join("record");
    let Some(recorded) = RedisServer::start(Some(&format!("record:{}", record.display()))) else {
        return;
    };
    drop(recorded.administrator()); // it listens now
    let runs = at_once(CLIENTS as usize, |client| work(&recorded, client as u64));
    let digest = recorded.digest();
    assert_eq!(recorded.errors(), "");
    drop(recorded);

    let setting = format!("play:{}", record.display());
    let replica = RedisServer::start(Some(&setting)).expect("Redis is installed");
    drop(replica.administrator());
    let replies = at_once(runs.len(), |client| {
        repeat(&replica, &runs[runs.len() - 1 - client])
    });
    for (run, replies) in runs.iter().rev().zip(replies) {
        assert!(run.received == replies, "{}\n{}", run.address, replica.errors());
    }
    assert_eq!(replica.digest(), digest, "{}", replica.errors());
    drop(replica);

    let plain = RedisServer::start(None).expect("Redis is installed");
    drop(plain.administrator());
    at_once(runs.len(), |client| {
        let mut stream = plain.connect(runs[client].address);
        stream.write_all(&runs[client].sent).expect("sent");
        let commands = runs[client].sent.iter().filter(|&&byte| byte == b'\n').count();
        (0..commands).for_each(|_| reply(&mut stream, &mut Vec::new()));
    });
    assert_ne!(plain.digest(), digest, "without a record, the data must differ");
}
