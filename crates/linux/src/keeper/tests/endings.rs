//! Tests of how relayed connections end: the client sees a reset after a failure, and a normal close otherwise.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use proto::connection::OutputEnd;
use proto::restart::http::{HttpResume, Volatile};
use socket2::SockRef;

use super::lab::*;
use crate::keeper::{AdoptionPlan, ConnectionEnding};

const GET: &str = "GET / HTTP/1.1\r\n\r\n";
const CLOSE_DELIMITED: &str = "HTTP/1.1 200 OK\r\n\r\nhalf a ";

/// Continues a reply whose log ends after `said`, with an application that sends `again` and closes. Returns what the client reads, and the
/// ending and the reason that the keeper records.
fn after(said: &str, again: &'static str) -> (io::Result<Vec<u8>>, ConnectionEnding, String) {
    let mut lab = KeeperLab::new();
    let (address, _application) = application(move |mut stream| {
        read_request(&mut stream);
        say(&mut stream, again);
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, http(GET.as_bytes(), said.as_bytes()));
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    let seen = read_to_end(&mut client);
    drop(client);
    let ended = lab.ended(1);
    assert_eq!(lab.status().services["web"].ended[&ended.ending], 1);
    assert_eq!(lab.status().services["web"].live, 0);
    (seen, ended.ending, ended.reason)
}

#[test]
fn another_reply_is_a_reset() {
    let (seen, ending, reason) = after(
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na",
        "HTTP/1.1 404 No\r\n\r\n",
    );
    assert!(is_reset(&seen), "{seen:?}");
    assert_eq!(ending, ConnectionEnding::Mismatch);
    assert!(reason.contains("404"), "{reason}");
}

/// Makes a connection whose next request fails. The client has read nothing of an earlier reply, which fills the kernel's buffers. Returns
/// the client's end, and the earlier reply.
fn failing_behind_a_reply(lab: &mut KeeperLab) -> (TcpStream, Vec<u8>) {
    let (address, application) = application(|mut stream| {
        read_request(&mut stream);
        say(&mut stream, "HTTP/1.1 404 No\r\n\r\n");
    });
    let mut connection = connection();
    connection.restored.set_nonblocking(true).unwrap();
    let mut sent = Vec::new();
    for chunk in pattern(32 << 20).chunks(1 << 16) {
        match connection.restored.write(chunk) {
            Ok(count) => sent.extend_from_slice(&chunk[..count]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    let said = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na";
    let adoption = adoption(1, &connection, address, http(GET.as_bytes(), said));
    let client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    application.join().unwrap();
    (client, sent)
}

/// An immediate reset would discard the rest of the earlier reply.
#[test]
fn what_was_sent_before_a_failure_arrives_before_the_reset() {
    let mut lab = KeeperLab::new();
    let (mut client, sent) = failing_behind_a_reply(&mut lab);
    std::thread::sleep(Duration::from_millis(50));
    assert!(read_exactly(&mut client, sent.len()) == sent);
    assert!(is_reset(&read_to_end(&mut client)));
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Mismatch);
}

#[test]
fn a_client_that_acknowledges_nothing_is_reset_after_the_linger_time() {
    let mut lab = KeeperLab::with(|options| options.linger = Duration::from_millis(50));
    let (_client, _) = failing_behind_a_reply(&mut lab);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Mismatch);
}

#[test]
fn a_reply_that_ends_early_is_a_reset() {
    let (seen, ending, _) = after(CLOSE_DELIMITED, "HTTP/1.1 200 OK\r\n\r\nhalf");
    assert!(
        is_reset(&seen) && ending == ConnectionEnding::Mismatch,
        "{seen:?}, {ending:?}"
    );
    let length = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na";
    let (seen, ending, _) = after(length, length);
    assert!(
        is_reset(&seen) && ending == ConnectionEnding::Mismatch,
        "{seen:?}, {ending:?}"
    );
}

#[test]
fn a_reply_that_ends_with_the_connection_is_completed() {
    let (seen, ending, _) = after(CLOSE_DELIMITED, "HTTP/1.1 200 OK\r\n\r\nhalf a loaf");
    assert_eq!(
        (seen.unwrap(), ending),
        (b"loaf".to_vec(), ConnectionEnding::Closed)
    );
}

#[test]
fn an_application_that_resets_resets_the_client() {
    let mut lab = KeeperLab::new();
    let (address, _application) = application(|mut stream| {
        read_request(&mut stream);
        say(&mut stream, CLOSE_DELIMITED);
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, http(GET.as_bytes(), b"HTTP"));
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    let seen = read_to_end(&mut client);
    assert!(is_reset(&seen), "{seen:?}");
    assert_eq!(lab.ended(1).ending, ConnectionEnding::ApplicationLost);
}

/// The keeper's write to the application may get the error of the application's RST. A later read then finds a normal end of the stream.
/// The keeper must still record that the application is lost.
#[test]
fn an_application_that_resets_who_writes_to_it_resets_the_client() {
    let mut lab = KeeperLab::new();
    for id in 1..=30 {
        let (address, application) = application(|mut stream| {
            read_request(&mut stream);
            say(&mut stream, CLOSE_DELIMITED);
            stream
        });
        let connection = connection();
        let adoption = adoption(
            id,
            &connection,
            address,
            http(GET.as_bytes(), CLOSE_DELIMITED.as_bytes()),
        );
        let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
        let stream = application.join().unwrap();
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        let mut writer = client.try_clone().unwrap();
        let writes = std::thread::spawn(move || while writer.write_all(&[b'x'; 1000]).is_ok() {});
        std::thread::sleep(Duration::from_millis(5));
        drop(stream);
        let _ = read_to_end(&mut client); // the writing thread may have got the reset's error first, so this result is not checked
        assert_eq!(lab.ended(id).ending, ConnectionEnding::ApplicationLost);
        writes.join().unwrap();
    }
}

#[test]
fn an_application_that_is_not_there_is_a_refusal_where_nothing_was_said() {
    let mut lab = KeeperLab::with(|options| options.connect_timeout = Duration::from_millis(50));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), http(GET.as_bytes(), b""));
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    let seen = read_to_end(&mut client).expect("it ends well");
    assert!(
        seen.starts_with(b"HTTP/1.1 503 ") && seen.windows(11).any(|it| it == b"Retry-After"),
        "{seen:?}"
    );
    drop(client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
}

#[test]
fn an_application_that_is_not_there_is_a_reset() {
    let mut lab = KeeperLab::with(|options| options.connect_timeout = Duration::from_millis(50));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), http(GET.as_bytes(), b"HTTP"));
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    let seen = read_to_end(&mut client);
    assert!(is_reset(&seen), "{seen:?}");
    assert_eq!(lab.ended(1).ending, ConnectionEnding::ApplicationUnreachable);
}

#[test]
fn a_request_that_is_not_in_the_log_is_a_reset() {
    let mut lab = KeeperLab::new();
    let connection = connection();
    let adoption = adoption(
        1,
        &connection,
        nobody(),
        http(GET.as_bytes(), CLOSE_DELIMITED.as_bytes()),
    );
    let mut client = lab.adopt(adoption, connection, &[]);
    assert!(is_reset(&read_to_end(&mut client)));
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Failed);
}

#[test]
fn a_client_that_resets_is_counted_and_resets_the_application() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(|mut stream| {
        let seen = read_to_end(&mut stream);
        (is_reset(&seen), seen)
    });
    let connection = connection();
    let adoption = adoption(1, &connection, address, idle());
    let client = lab.adopt(adoption, connection, &[b"go"]);
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let (is_reset, seen) = application.join().unwrap();
    assert!(is_reset, "{seen:?}");
    assert_eq!(lab.ended(1).ending, ConnectionEnding::ClientLost);
}

#[test]
fn a_finished_connection_ends_without_an_application() {
    let finished = AdoptionPlan::Http {
        resume: HttpResume::Finished,
        volatile: Volatile::default(),
        closes: false,
    };
    for plan in [finished, AdoptionPlan::Silent] {
        for output in [OutputEnd::Open, OutputEnd::FinSent] {
            let mut lab = KeeperLab::new();
            let connection = connection();
            let mut adoption = adoption(1, &connection, nobody(), plan.clone());
            adoption.output = output;
            let mut client = lab.adopt(adoption, connection, &[]);
            assert_eq!(read_to_end(&mut client).unwrap(), b"");
            say(&mut client, "nobody hears this");
            end(&client);
            assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
        }
    }
}

#[test]
fn a_client_that_does_not_close_is_not_waited_for_for_ever() {
    let mut lab = KeeperLab::with(|options| options.linger = Duration::from_millis(20));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), AdoptionPlan::Silent);
    let _client = lab.adopt(adoption, connection, &[]);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Lingered);
}

#[test]
fn an_output_whose_end_is_acknowledged_is_closed_without_a_word() {
    let mut lab = KeeperLab::new();
    let connection = connection();
    if setsockopt(&connection.restored, sockopt::TcpRepair, &1).is_err() {
        eprintln!("skipped: needs CAP_NET_ADMIN");
        return;
    }
    setsockopt(&connection.restored, sockopt::TcpRepair, &0).unwrap();
    let mut adoption = adoption(1, &connection, nobody(), AdoptionPlan::Silent);
    adoption.output = OutputEnd::FinAcknowledged;
    let mut client = lab.adopt(adoption, connection, &[]);
    say(&mut client, "more");
    end(&client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let seen = read_to_end(&mut client);
    assert!(
        seen.as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
        "{seen:?}"
    );
}
