//! The keeper asks a real server only for the rest of a long reply that was cut.

use std::fs;
use std::net::TcpStream;

use proto::restart::http::{Rules, Tracker};
use proto::spill::gather;
use proto::stream::StreamLog;
use proto::{Offset, Seq};

use super::lab::*;

const GET: &str = "GET /film HTTP/1.1\r\nHost: a\r\n\r\n";
const LENGTH: usize = 24 << 20;

#[test]
fn nginx_says_the_rest_and_little_more() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("film"), pattern(LENGTH)).unwrap();
    let address = nobody();
    let Some(_nginx) = Nginx::start(directory.path(), address) else {
        eprintln!("skipped: nginx_says_the_rest_and_little_more needs nginx");
        return;
    };
    let mut stream = TcpStream::connect(address).unwrap();
    say(&mut stream, GET);
    let head = read_request(&mut stream);
    let reply = [head.as_bytes(), &read_exactly(&mut stream, LENGTH)].concat();
    let mut lab = KeeperLab::new();
    for (id, ranges) in [(1, true), (2, false)] {
        let cut = head.len() + LENGTH - 1_000_000;
        let mut tracker = Tracker::new(Rules {
            ranges,
            ..Rules::default()
        });
        tracker.on_input(GET.as_bytes());
        tracker.on_output(&reply[..cut]);
        let mut log = StreamLog::new(Seq(0));
        log.insert(Offset::ZERO, GET.as_bytes(), None);
        let (feed, resume) = (tracker.feed(), tracker.resume().unwrap());
        let fed = gather(feed.logged(&log, log.frontier())).unwrap();
        let connection = connection();
        let adoption = adoption(id, &connection, address, resuming(resume));
        let mut client = lab.adopt(adoption, connection, &[&fed]);
        assert!(
            read_exactly(&mut client, reply.len() - cut) == reply[cut..],
            "{ranges}"
        );
        say(&mut client, GET);
        assert!(
            read_request(&mut client).starts_with("HTTP/1.1 200 "),
            "it goes on"
        );
    }
    drop(lab);
    let log = fs::read_to_string(directory.path().join("access.log")).unwrap();
    let said: Vec<(u16, usize)> = log.lines().filter_map(status_and_bytes).collect();
    let (status, bytes) = said[1];
    assert_eq!(status, 206, "{log}");
    assert!((1_000_000..1_040_000).contains(&bytes), "{log}");
    let wholes = said.iter().filter(|one| **one == (200, LENGTH));
    assert_eq!(
        wholes.count(),
        2,
        "nginx sends the whole file twice: to the first request, and where the operator has turned ranges off: {log}"
    );
}

/// The status and the number of bytes in a log line of nginx's usual format: … "GET /film HTTP/1.1" 206 1016384 …
fn status_and_bytes(line: &str) -> Option<(u16, usize)> {
    let mut words = line.split("\" ").nth(1)?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}
