//! Tests that the keeper relays every byte exactly once.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use proto::connection::OutputEnd;
use proto::restart::replay::ReplayTracker;
use proto::restart::replica::ReplicaResume;
use proto::spill::{Depot, InFile, LogPart};
use socket2::SockRef;

use super::lab::*;
use crate::application::{UNSENT_MAX, bound_unsent};
use crate::keeper::relay::Relay;
use crate::keeper::{Adoption, AdoptionPlan, ConnectionEnding, LoggedInput, RelayState};
use crate::spill::SpillDir;

const GET: &str = "GET /file HTTP/1.1\r\nHost: a\r\n\r\n";

fn reply(date: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn a_cut_download_is_continued_and_the_connection_stays_usable() {
    let mut lab = KeeperLab::new();
    let body = pattern(24 << 20);
    let (said, again) = (reply("then", &body), reply("now!", &body));
    for cut in [10, 40, 1 << 20, 24 << 20] {
        let (address, application) = application({
            let again = again.clone();
            move |mut stream| {
                let requests = [read_request(&mut stream), {
                    say(&mut stream, &again);
                    read_request(&mut stream)
                }];
                say(&mut stream, reply("later", b"more"));
                requests
            }
        });
        let connection = connection();
        let plan = http(GET.as_bytes(), &said[..cut]);
        let adoption = adoption(cut as u64, &connection, address, plan);
        let mut client = lab.adopt(
            adoption,
            connection,
            &[&GET.as_bytes()[..7], &GET.as_bytes()[7..]],
        );
        let rest = read_exactly(&mut client, said.len() - cut);
        assert!(
            rest[rest.len().saturating_sub(body.len())..] == body[body.len().saturating_sub(rest.len())..]
        );
        say(&mut client, GET);
        assert_eq!(read_to_end(&mut client).unwrap(), reply("later", b"more"));
        drop(client);
        assert_eq!(application.join().unwrap(), [GET, GET]);
        let ended = lab.ended(cut as u64);
        assert_eq!(
            (ended.ending, ended.to_application),
            (ConnectionEnding::Closed, 2 * GET.len() as u64)
        );
    }
}

#[test]
fn an_idle_connection_asks_the_application_when_its_client_speaks() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(|mut stream| {
        read_request(&mut stream);
        say(&mut stream, reply("now", b"ok"));
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, idle());
    let mut client = lab.adopt(adoption, connection, &[]);
    assert_eq!(lab.status().connections[0].state, RelayState::Idle);
    assert!(!application.is_finished());
    say(&mut client, GET);
    assert_eq!(read_to_end(&mut client).unwrap(), reply("now", b"ok"));
}

#[test]
fn an_idle_connection_becomes_the_application_s_after_a_while() {
    let mut lab = KeeperLab::with(|options| options.idle = Duration::from_millis(1));
    let (address, application) = application(drop);
    let connection = connection();
    let adoption = adoption(1, &connection, address, idle());
    let mut client = lab.adopt(adoption, connection, &[]);
    assert_eq!(read_to_end(&mut client).unwrap(), b"");
    application.join().unwrap();
}

#[test]
fn much_logged_input_goes_before_what_the_client_sends() {
    let mut lab = KeeperLab::new();
    let input = pattern(70 << 20);
    let (address, application) = application(|mut stream| read_to_end(&mut stream).unwrap());
    let connection = connection();
    let adoption = adoption(1, &connection, address, idle());
    let (logged, sent) = input.split_at(64 << 20);
    let slices: Vec<&[u8]> = logged.chunks(5 << 20).collect();
    let mut client = lab.adopt(adoption, connection, &slices);
    client.write_all(sent).unwrap();
    end(&client);
    assert!(application.join().unwrap() == input);
    assert_eq!(read_to_end(&mut client).unwrap(), b"");
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
}

/// Spilled input reaches the keeper as an open file, not as bytes. The application gets the spilled input and the input from memory in the
/// order of the log.
#[test]
fn spilled_input_goes_before_what_is_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = SpillDir(directory.path().to_owned()).open().unwrap();
    let input = pattern(9 << 20);
    let (spilled, kept) = input.split_at(8 << 20);
    file.append(0, spilled).unwrap();
    let in_file = |range: std::ops::Range<usize>| {
        LogPart::File(InFile {
            file: &*file,
            at: range.start as u64,
            len: range.len() as u64,
        })
    };
    for in_memory in [0, 100, 1 << 20] {
        let mut lab = KeeperLab::new();
        let (address, application) = application(|mut stream| read_to_end(&mut stream).unwrap());
        let connection = connection();
        let adoption = adoption(1, &connection, address, idle());
        let parts = [
            in_file(5..70),
            LogPart::Memory(b"mark"),
            in_file(70..spilled.len()),
            in_file(0..0),
            LogPart::Memory(&kept[..in_memory]),
        ];
        let input: LoggedInput<'_> = parts.into_iter().collect();
        lab.agent()
            .adopt(&adoption, connection.restored.as_fd(), None, &input)
            .unwrap();
        let mut client = connection.client;
        drop(connection.restored);
        client.write_all(b"then this").unwrap();
        end(&client);
        let due = [
            &spilled[5..70],
            b"mark",
            &spilled[70..],
            &kept[..in_memory],
            b"then this",
        ]
        .concat();
        assert!(application.join().unwrap() == due, "{in_memory}");
        assert_eq!(read_to_end(&mut client).unwrap(), b"");
    }
}

#[test]
fn a_client_that_ended_its_stream_still_gets_its_reply() {
    for ended_before in [false, true] {
        let mut lab = KeeperLab::new();
        let (address, _application) = application(|mut stream| {
            let request = read_to_end(&mut stream).unwrap();
            assert_eq!(request, GET.as_bytes());
            say(&mut stream, reply("now", b"ok"));
        });
        let connection = connection();
        let mut adoption = adoption(1, &connection, address, http(GET.as_bytes(), b"HTTP"));
        adoption.input_ended = ended_before;
        let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
        if !ended_before {
            end(&client);
        }
        assert_eq!(read_to_end(&mut client).unwrap(), reply("now", b"ok")[4..]);
        assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    }
}

#[test]
fn an_application_that_ended_its_stream_still_gets_input() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(|mut stream| {
        end(&stream);
        read_to_end(&mut stream).unwrap()
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, idle());
    let mut client = lab.adopt(adoption, connection, &[b"first "]);
    assert_eq!(read_to_end(&mut client).unwrap(), b"");
    say(&mut client, "second");
    end(&client);
    assert_eq!(application.join().unwrap(), b"first second");
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
}

/// Gives the keeper a connection with a replica, as `change` makes it. Returns the client's end, and the application's end of the replica.
fn with_replica(
    resume: ReplicaResume,
    logged: &LoggedInput,
    change: impl FnOnce(&mut Adoption),
) -> (KeeperLab, TcpStream, TcpStream) {
    let mut lab = KeeperLab::new();
    let replica = connection();
    let ends = connection();
    let mut adoption = adoption(1, &ends, nobody(), AdoptionPlan::Replica { resume });
    change(&mut adoption);
    let sockets = (ends.restored.as_fd(), Some(replica.client.as_fd()));
    lab.agent()
        .adopt(&adoption, sockets.0, sockets.1, logged)
        .unwrap();
    (lab, ends.client, replica.restored)
}

#[test]
fn a_replica_goes_on_from_where_either_was() {
    let ahead = ReplicaResume::Ahead {
        to_send: b"cd".to_vec(),
        ended: false,
    };
    let behind = ReplicaResume::Behind {
        said: b"ab".to_vec(),
        ended: false,
    };
    for (resume, replica_says, client_gets) in [(ahead, "ef", "cdef"), (behind, "abcd", "cd")] {
        let logged = [&b"logged "[..]][..].into();
        let (mut lab, mut client, mut application) = with_replica(resume, &logged, |_| ());
        say(&mut client, "sent");
        end(&client);
        assert_eq!(read_to_end(&mut application).unwrap(), b"logged sent");
        say(&mut application, replica_says);
        drop(application);
        assert_eq!(read_to_end(&mut client).unwrap(), client_gets.as_bytes());
        assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    }
}

/// The client may have bytes that the log lacks: the socket takes them as already sent, and repeats them only if the client needs them.
#[test]
fn output_that_was_sent_before_is_generated_again() {
    for (says, gets, ending) in [
        ("abcdefgh", Some("cdefgh"), ConnectionEnding::Closed),
        ("abcd", None, ConnectionEnding::Mismatch),
        ("a", None, ConnectionEnding::Mismatch),
    ] {
        let resume = ReplicaResume::Unseen { missing: 2 };
        let (mut lab, mut client, mut application) =
            with_replica(resume, &LoggedInput::default(), |adoption| {
                adoption.sent_before = 4
            });
        end(&client);
        say(&mut application, says);
        drop(application);
        match gets {
            Some(gets) => assert_eq!(read_to_end(&mut client).unwrap(), gets.as_bytes()),
            None => assert!(read_to_end(&mut client).is_err(), "it is reset"),
        }
        assert_eq!(lab.ended(1).ending, ending);
    }
}

#[test]
fn an_ended_output_is_ended_again_and_input_still_flows_to_a_replica() {
    for ended in [true, false] {
        let said = b"bye".to_vec();
        let resume = ReplicaResume::Behind { said, ended };
        let (mut lab, mut client, mut application) =
            with_replica(resume, &LoggedInput::default(), |adoption| {
                adoption.output = OutputEnd::FinSent;
            });
        assert_eq!(read_to_end(&mut client).unwrap(), b"");
        say(&mut application, "bye, and too late");
        end(&application);
        say(&mut client, "late");
        end(&client);
        assert_eq!(read_to_end(&mut application).unwrap(), b"late");
        assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    }
}

fn replay(resume: proto::restart::replay::Repetition) -> AdoptionPlan {
    AdoptionPlan::Replay {
        resume,
        earlier: None,
        state: None,
        begins_at: (proto::Seq(0), proto::Seq(0)),
    }
}

#[test]
fn an_application_that_starts_anew_may_speak_first_and_repeats_what_was_said() {
    for (said, logged) in [("", ""), ("hel", ""), ("hello, ", "Ann"), ("hello, you", "Ann")] {
        let mut lab = KeeperLab::new();
        let (address, application) = application(|mut stream| {
            say(&mut stream, "hello, ");
            let name = read_exactly(&mut stream, 3);
            say(&mut stream, "you");
            name
        });
        let connection = connection();
        let mut followed = ReplayTracker::new();
        followed.on_output(said.as_bytes());
        let resume = followed.repetition();
        let adoption = adoption(1, &connection, address, replay(resume));
        let mut client = lab.adopt(adoption, connection, &[logged.as_bytes()]);
        if logged.is_empty() {
            let greeting = read_exactly(&mut client, "hello, ".len() - said.len());
            assert_eq!([said.as_bytes(), &greeting].concat(), b"hello, ");
            say(&mut client, "Ann");
        }
        end(&client);
        assert_eq!(application.join().unwrap(), b"Ann", "{said}");
        let rest = read_to_end(&mut client).unwrap();
        assert!(
            b"hello, you".ends_with(&rest)
                && rest.len() == 10 - said.len().max(7 * usize::from(logged.is_empty()))
        );
        assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    }
}

#[test]
fn an_application_that_says_something_else_ends_the_connection() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(|mut stream| say(&mut stream, "hullo, you"));
    let connection = connection();
    let mut followed = ReplayTracker::new();
    followed.on_output(b"hello");
    let resume = followed.repetition();
    let adoption = adoption(1, &connection, address, replay(resume));
    let mut client = lab.adopt(adoption, connection, &[]);
    assert!(read_to_end(&mut client).is_err(), "a reset");
    application.join().unwrap();
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Mismatch);
}

#[test]
fn the_application_sees_the_client_s_address() {
    let inside = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: needs CAP_SYS_ADMIN");
            return;
        }
        for arguments in [
            "link set lo up",
            "rule add from 127.0.0.1 iif lo lookup 100",
            "route add local 0.0.0.0/0 dev lo table 100",
        ] {
            let ip = Command::new("ip")
                .args(arguments.split(' '))
                .status()
                .expect("iproute2");
            assert!(ip.success(), "ip {arguments}");
        }
        let mut lab = KeeperLab::with(|options| options.transparent = true);
        let (address, application) = application(|stream| stream.peer_addr().unwrap());
        let connection = connection();
        let mut adoption = adoption(1, &connection, address, idle());
        adoption.client = "198.51.100.7:5555".parse().unwrap();
        let mut client = lab.adopt(adoption.clone(), connection, &[b"go"]);
        assert_eq!(application.join().unwrap(), adoption.client);
        drop(read_to_end(&mut client));
    });
    inside.join().unwrap();
}

/// How many bytes an application can write, at most `limit`, while its client reads none.
fn written_ahead(plan: AdoptionPlan, limit: usize) -> usize {
    let mut lab = KeeperLab::new();
    let (address, application) = application(move |mut stream| {
        bound_unsent(&stream).expect("a TCP connection");
        stream
            .set_write_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let piece = pattern(16 * 1024);
        let mut written = 0;
        while written < limit
            && let Ok(bytes) = stream.write(&piece)
        {
            written += bytes;
        }
        written
    });
    let connection = connection();
    // A kernel whose receiver is late enlarges its buffer up to 32 MB, if nobody has set the size.
    SockRef::from(&connection.client)
        .set_recv_buffer_size(128 << 10)
        .unwrap();
    let adoption = adoption(1, &connection, address, plan);
    let client = lab.adopt(adoption, connection, &[b"go"]);
    let written = application.join().unwrap();
    drop(client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::ClientLost);
    written
}

#[test]
fn a_client_that_does_not_read_holds_up_the_application() {
    const MUCH: usize = 256 << 20;
    assert!(written_ahead(idle(), MUCH) < MUCH);
}

#[test]
fn an_application_that_exports_states_does_not_write_far_ahead() {
    let followed = ReplayTracker::new();
    let written = written_ahead(replay(followed.repetition()), 64 << 20);
    // Two sockets and the client's receive buffer take the bytes.
    assert!(written < 8 * UNSENT_MAX as usize, "{written} bytes");
}

/// A relay allocates memory for a later state only when it enters that state. Ten thousand idle relays must not hold
/// this memory.
#[test]
fn a_connection_that_waits_takes_no_room_for_what_it_may_do() {
    fn size<F>(_: impl FnOnce(Box<Relay>) -> F) -> usize {
        size_of::<F>()
    }
    let size = size(Relay::run);
    assert!(size <= 1024, "{size} bytes");
}
