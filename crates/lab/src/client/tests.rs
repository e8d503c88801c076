//! Tests of the whole client with small servers on loopback. A server answers correctly, or has one particular fault.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::mpsc;

use super::replies::Wrong;
use super::report::{ConnectionPhase, ConnectionReport};
use super::run::run;
use super::*;

/// The fault of a test server. `after` is the number of content bytes of a reply before the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerFault {
    None,
    Reset { after: usize },
    Fin { after: usize },
    Silence { after: usize },
    WrongByte { after: usize },
    ExtraByte,
    ResetAtClose,
}

/// Starts a server that handles every connection by `serve` in a thread of its own.
fn listen(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn http_server(fault: ServerFault) -> SocketAddr {
    listen(move |stream| {
        let mut input = BufReader::new(stream.try_clone()?);
        let mut output = stream;
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
            let (seed, len) = path.strip_prefix("/pattern-").unwrap().split_once('-').unwrap();
            let (seed, len) = (u64::from_str_radix(seed, 16).unwrap(), len.parse().unwrap());
            while line != "\r\n" {
                line.clear();
                input.read_line(&mut line)?;
            }
            let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes();
            let head = reply.len();
            pattern::write(seed, len, &mut reply)?;
            if break_reply(fault, &mut output, &mut reply, head)? {
                return Ok(());
            }
            output.write_all(&reply)?;
        }
    })
}

/// Carries out the fault. Returns whether the connection must end now.
fn break_reply(
    fault: ServerFault,
    output: &mut TcpStream,
    reply: &mut Vec<u8>,
    head: usize,
) -> std::io::Result<bool> {
    match fault {
        ServerFault::None => return Ok(false),
        ServerFault::WrongByte { after } => {
            reply[head + after] ^= 1;
            return Ok(false);
        }
        ServerFault::ExtraByte => {
            reply.push(b'!');
            return Ok(false);
        }
        ServerFault::Reset { after } => {
            output.write_all(&reply[..head + after])?;
            SockRef::from(&*output).set_linger(Some(Duration::ZERO))?;
        }
        ServerFault::ResetAtClose => {
            output.write_all(reply)?;
            output.read_to_end(&mut Vec::new())?;
            SockRef::from(&*output).set_linger(Some(Duration::ZERO))?;
        }
        ServerFault::Fin { after } => output.write_all(&reply[..head + after])?,
        ServerFault::Silence { after } => {
            output.write_all(&reply[..head + after])?;
            let _ = output.read_to_end(&mut Vec::new());
        }
    }
    Ok(true)
}

fn redis_server() -> SocketAddr {
    listen(|stream| {
        let mut input = BufReader::new(stream.try_clone()?);
        let mut output = stream;
        let mut values: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        loop {
            let mut words = Vec::new();
            let Some(count) = read_number(&mut input)? else {
                return Ok(());
            };
            for _ in 0..count {
                let len = read_number(&mut input)?.unwrap();
                let mut word = vec![0; len + 2];
                input.read_exact(&mut word)?;
                word.truncate(len);
                words.push(word);
            }
            let number =
                |index: usize| -> usize { String::from_utf8(words[index].clone()).unwrap().parse().unwrap() };
            let value = values.entry(words[1].clone()).or_default();
            match &words[0][..] {
                b"SET" => {
                    *value = words[2].clone();
                    output.write_all(b"+OK\r\n")?;
                }
                b"APPEND" => {
                    value.extend_from_slice(&words[2]);
                    write!(output, ":{}\r\n", value.len())?;
                }
                b"SETRANGE" => {
                    value.resize(value.len().max(number(2) + words[3].len()), 0);
                    value[number(2)..][..words[3].len()].copy_from_slice(&words[3]);
                    write!(output, ":{}\r\n", value.len())?;
                }
                b"GETRANGE" => {
                    let range = &value[number(2)..=number(3)];
                    write!(output, "${}\r\n", range.len())?;
                    output.write_all(range)?;
                    output.write_all(b"\r\n")?;
                }
                b"STRLEN" => write!(output, ":{}\r\n", value.len())?,
                b"DEL" => write!(output, ":{}\r\n", words.len() - 1)?,
                other => panic!("{}", other.escape_ascii()),
            }
        }
    })
}

/// The number in a line like `*3` or `$10`; `None` at the end of the stream.
fn read_number(input: &mut impl BufRead) -> std::io::Result<Option<usize>> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok((!line.is_empty()).then(|| line[1..].trim().parse().unwrap()))
}

/// Runs `plan`. Gives every order of `at_ready` once each connection transfers data or has failed.
fn run_plan(plan: ClientPlan, at_ready: &[ClientOrder]) -> ClientReport {
    let (orders, orders_due) = mpsc::unbounded_channel();
    run(plan, orders_due, |event| {
        if let ClientEvent::Ready { .. } = event {
            at_ready.iter().for_each(|&order| orders.send(order).unwrap());
        }
        Ok(())
    })
    .unwrap()
}

fn download(fault: ServerFault) -> ConnectionReport {
    let workload = Workload::Download { bytes: 300_000 };
    let mut plan = ClientPlan::new(http_server(fault), Protocol::Http, workload);
    plan.deadline_ms = 5_000;
    if matches!(fault, ServerFault::Silence { .. }) {
        plan.deadline_ms = 300;
    }
    let order = ClientOrder::Fault {
        at_ns: crate::clock::monotonic().as_nanos(),
        window_ms: 10_000,
        clips: false,
    };
    run_plan(plan, &[order]).connections.remove(0)
}

#[test]
fn a_right_download_survives() {
    let report = download(ServerFault::None);
    assert!(report.survived(), "{report:?}");
    assert_eq!((report.bytes_expected, report.bytes_received), (300_000, 300_000));
    let pair = report.sha256.unwrap();
    assert_eq!(pair.expected, pattern::sha256(1, 300_000, 300_000));
    assert_eq!(report.timeline.last().unwrap().bytes, 300_000);
    assert!(report.stalls[0].gap.is_some());
}

#[test]
fn a_reset_an_early_end_and_a_timeout_are_told_apart() {
    let failure = |fault| {
        let report = download(fault);
        assert!(!report.survived());
        assert_eq!(report.bytes_received, 1000, "{fault:?}");
        let failed = report.failure.unwrap();
        assert_eq!(failed.phase, ConnectionPhase::Flow);
        failed.failure
    };
    assert_eq!(failure(ServerFault::Reset { after: 1000 }), ClientFailure::Reset);
    assert_eq!(
        failure(ServerFault::Fin { after: 1000 }),
        ClientFailure::EndOfStream { due: 1 }
    );
    assert_eq!(
        failure(ServerFault::Silence { after: 1000 }),
        ClientFailure::Timeout { due: 1 }
    );
}

#[test]
fn silence_is_a_stall_up_to_the_deadline() {
    let report = download(ServerFault::Silence { after: 1000 });
    let gap = report.stalls[0].gap.unwrap();
    assert_eq!(Some(gap), report.longest_gap);
    assert_eq!(gap.start_ns + gap.length_ns, report.ended_ns);
}

#[test]
fn a_wrong_byte_is_found_and_named() {
    let failed = download(ServerFault::WrongByte { after: 299_999 })
        .failure
        .unwrap();
    let ClientFailure::Wrong(Wrong::Content { mismatch, .. }) = failed.failure else {
        panic!("{failed}");
    };
    assert_eq!(mismatch.offset, 299_999);
}

#[test]
fn a_byte_too_many_is_found() {
    let failed = download(ServerFault::ExtraByte).failure.unwrap();
    assert!(
        matches!(failed.failure, ClientFailure::Wrong(Wrong::Unasked { .. })),
        "{failed}"
    );
}

#[test]
fn a_reset_instead_of_the_last_fin_is_not_survived() {
    let report = download(ServerFault::ResetAtClose);
    let failed = report.failure.clone().unwrap();
    assert_eq!(
        (failed.phase, failed.failure),
        (ConnectionPhase::Close, ClientFailure::Reset)
    );
    assert!(report.hash_matches() && !report.survived());
}

#[test]
fn a_closed_port_is_refused() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = run_plan(
        ClientPlan::new(free, Protocol::Http, Workload::Download { bytes: 1 }),
        &[],
    );
    let failed = report.connections[0].failure.clone().unwrap();
    assert_eq!(
        (failed.phase, failed.failure),
        (ConnectionPhase::Connect, ClientFailure::Refused)
    );
}

#[test]
fn every_workload_of_redis_survives_on_many_connections() {
    for (workload, received, sent) in [
        (Workload::Download { bytes: 3_000_000 }, 3_000_000, 1 << 20),
        (Workload::Upload { bytes: 1_000_001 }, 1_000_001, 1_000_001),
        (
            Workload::Request {
                size: 1024,
                until: Until::Count(9),
            },
            9 * 1024,
            9 * 1024,
        ),
        (Workload::Idle { size: 1024 }, 2048, 2048),
    ] {
        let mut plan = ClientPlan::new(redis_server(), Protocol::Redis, workload);
        plan.connections = 5;
        let report = run_plan(plan, &[ClientOrder::Wake]);
        assert_eq!(
            report.survivors(),
            5,
            "{workload:?}: {:?}",
            report.connections[0].failure
        );
        assert!(report.connections.iter().all(|one| one.sha256.is_some()));
        assert_eq!(report.bytes_received(), 5 * received, "{workload:?}");
        assert_eq!(report.connections[0].bytes_sent, sent, "{workload:?}");
    }
}

#[test]
fn requests_go_on_until_told_and_idle_connections_wait() {
    let until = Until::Told;
    let workload = Workload::Request { size: 1024, until };
    let report = run_plan(
        ClientPlan::new(http_server(ServerFault::None), Protocol::Http, workload),
        &[ClientOrder::Stop],
    );
    assert_eq!(report.survivors(), 1);
    let count = report.latency.unwrap().count;
    assert!(count > 0);
    assert_eq!(report.connections[0].bytes_received, count * 1024);

    let workload = Workload::Idle { size: 1500 };
    let mut plan = ClientPlan::new(http_server(ServerFault::None), Protocol::Http, workload);
    plan.deadline_ms = 200;
    let report = run_plan(plan.clone(), &[]);
    let failed = report.connections[0].failure.clone().unwrap();
    assert_eq!(failed.failure, ClientFailure::Timeout { due: 0 });
    assert_eq!(report.connections[0].bytes_received, 1500);
    plan.deadline_ms = 5_000;
    let report = run_plan(plan, &[ClientOrder::Wake]);
    assert_eq!(report.survivors(), 1);
    assert_eq!(report.bytes_received(), 3000);
}

#[test]
fn a_paced_transfer_takes_its_time() {
    let mut plan = ClientPlan::new(
        redis_server(),
        Protocol::Redis,
        Workload::Upload { bytes: 40_000 },
    );
    plan.bytes_per_second = Some(200_000);
    let report = run_plan(plan, &[]);
    assert_eq!(report.survivors(), 1);
    let took_ms = (report.ended_ns - report.started_ns) / 1_000_000;
    // The client sends 39 pieces of 1024 bytes and a last piece of 64 bytes. The last piece is due after 39 × 1024 / 200,000 s = 199.68 ms,
    // so the transfer cannot take less than the asserted time. Slower machines take longer.
    assert!(took_ms >= 194, "{took_ms}");
}
