use std::net::SocketAddr;

use crate::connection::{Connection, OutputEnd};
use crate::follower::{Restart, RestartPolicy};
use crate::packet::{Flags, Segment, TcpOptions};
use crate::restart::replay::ReplayTracker;
use crate::restart::replica::ReplicaResume;
use crate::table::{ConnectionId, Direction, Table, TableConfig};
use crate::{Instant, Offset, Seq};

const CLIENT_FIRST: Seq = Seq(1001);
const SERVER_FIRST: Seq = Seq(5001);
const WINDOW: u16 = 1000;

/// A connection whose primary sends its output past the wire.
struct UnseenTalk {
    table: Table,
    id: ConnectionId,
}

impl UnseenTalk {
    fn open(policy: RestartPolicy) -> Self {
        let table = Table::new(TableConfig {
            policy,
            sends_directly: true,
            ..TableConfig::sample()
        });
        let mut talk = Self {
            table,
            id: ConnectionId::first_of(0),
        };
        talk.client(Flags::SYN, (0, 0), b"");
        talk.server(Flags::SYN_ACK, (0, 0), 0);
        talk.client(Flags::ACK, (0, 0), b"");
        talk.id = talk.table.find(client()).expect("it is open");
        talk
    }

    fn segment(direction: Direction, flags: Flags, (at, ack): (u32, u32)) -> Segment<'static> {
        let vip = TableConfig::sample().vip;
        let before = u32::from(flags.syn);
        let (source, destination, seq, ack) = match direction {
            Direction::In => (client(), vip, CLIENT_FIRST + at, SERVER_FIRST + ack),
            Direction::Out => (vip, client(), SERVER_FIRST + at, CLIENT_FIRST + ack),
        };
        Segment {
            source,
            destination,
            seq: Seq(seq.0.wrapping_sub(before)),
            ack,
            flags,
            window: WINDOW,
            options: TcpOptions::default(),
            payload: &[],
        }
    }

    fn client(&mut self, flags: Flags, place: (u32, u32), payload: &'static [u8]) {
        let segment = Segment {
            payload,
            ..Self::segment(Direction::In, flags, place)
        };
        self.table.on_packet(Instant::ZERO, Direction::In, &segment, None);
    }

    /// The wire logs a copy of a segment that had `cut` bytes of payload.
    fn server(&mut self, flags: Flags, place: (u32, u32), cut: u32) {
        let mut segment = Self::segment(Direction::Out, flags, place);
        segment.options.cut = cut;
        self.table
            .on_packet(Instant::ZERO, Direction::Out, &segment, None);
    }

    fn replica(&mut self, bytes: &[u8]) {
        self.table.change(self.id, |connection| {
            let replica = connection.follower_mut().replica_mut();
            replica.expect("a replica").on_output(bytes);
            connection.release();
        });
    }

    fn connection(&self) -> &Connection {
        self.table.get(self.id).expect("open")
    }

    fn restart(&self) -> Restart {
        let connection = self.connection();
        connection.restart_on(&connection.endpoint()).expect("it goes on")
    }
}

fn client() -> SocketAddr {
    "10.0.0.1:4000".parse().expect("an address")
}

#[test]
fn the_clients_acknowledgement_is_certain_although_copies_are_lost() {
    let mut talk = UnseenTalk::open(RestartPolicy::Replica);
    talk.replica(b"0123456789");
    talk.server(Flags::ACK, (0, 0), 2);
    talk.server(Flags::ACK, (4, 0), 2); // the copy of bytes 2 and 3 is lost
    let output = talk.connection().output();
    assert_eq!((output.frontier(), output.has_holes()), (Offset(6), false));
    talk.client(Flags::ACK, (0, 8), b""); // the copies of bytes 6 and 7 are lost, too
    let endpoint = talk.connection().endpoint();
    assert_eq!(endpoint.unacknowledged, Offset(8)..Offset(8));
    assert_eq!(endpoint.send_unacknowledged, SERVER_FIRST + 8);
    let Restart::Replica { resume, .. } = talk.restart() else {
        panic!("a replica follows")
    };
    let (to_send, ended) = (b"89".to_vec(), false);
    assert_eq!(resume, ReplicaResume::Ahead { to_send, ended });
    // Nothing can have been sent beyond the client's window.
    talk.client(Flags::ACK, (0, 8 + u32::from(WINDOW) + 1), b"");
    assert_eq!(talk.connection().output().frontier(), Offset(8));
}

#[test]
fn the_socket_goes_on_where_the_client_is_and_the_rest_is_generated_again() {
    let mut talk = UnseenTalk::open(RestartPolicy::Replica);
    talk.replica(b"0123");
    talk.server(Flags::ACK, (0, 0), 900);
    talk.client(Flags::ACK, (0, 100), b"");
    let Restart::Replica { resume, .. } = talk.restart() else {
        panic!("a replica follows")
    };
    assert_eq!(resume, ReplicaResume::Unseen { missing: 96 });
    let endpoint = talk.connection().endpoint();
    assert_eq!(endpoint.unacknowledged, Offset(100)..Offset(100));
    let wide = crate::connection::Endpoint {
        send_window: 800 + u32::from(endpoint.mss),
        ..endpoint.clone()
    };
    assert_eq!(
        talk.connection().sent_before(&wide),
        0,
        "the socket can send 800 bytes at once"
    );
    let narrow = crate::connection::Endpoint { mss: 88, ..endpoint };
    assert_eq!(talk.connection().sent_before(&narrow), 800);
    let (mss, send_window) = (600, 1000); // the second segment would not fit
    let full = crate::connection::Endpoint {
        mss,
        send_window,
        ..narrow
    };
    assert_eq!(talk.connection().sent_before(&full), 800);

    // The client acknowledges more after its socket was made: bytes from the socket's place on are still there.
    let mut talk = UnseenTalk::open(RestartPolicy::Replica);
    talk.replica(b"0123456789");
    talk.server(Flags::ACK, (0, 0), 6);
    talk.table.get_mut(talk.id).expect("open").expect_unreleased();
    let endpoint = talk.connection().endpoint();
    talk.client(Flags::ACK, (0, 6), b"");
    let Ok(Restart::Replica { resume, .. }) = talk.connection().restart_on(&endpoint) else {
        panic!("a replica follows")
    };
    let (to_send, ended) = (b"0123456789".to_vec(), false);
    assert_eq!(resume, ReplicaResume::Ahead { to_send, ended });
    assert_eq!(talk.connection().restarts_on(&endpoint), Ok(()));
}

#[test]
fn a_replayed_application_repeats_what_the_client_has() {
    let mut talk = UnseenTalk::open(RestartPolicy::Replay);
    talk.server(Flags::ACK, (0, 0), 7);
    talk.client(Flags::ACK, (0, 5), b"");
    let Restart::Replay { resume, .. } = talk.restart() else {
        panic!("the policy is replay")
    };
    assert_eq!(resume, ReplayTracker::unseen(Offset(5)));
    // The application ends its output again, after its last byte.
    talk.server(Flags::FIN_ACK, (9, 0), 0);
    let connection = talk.connection();
    assert!(connection.output().is_complete());
    assert_eq!(connection.endpoint().output, OutputEnd::Open);
    talk.client(Flags::ACK, (0, 10), b"");
    assert_eq!(talk.connection().endpoint().output, OutputEnd::FinAcknowledged);
}

/// A lost copy may have offered a larger window than the log knows.
#[test]
fn input_beyond_the_known_window_is_kept() {
    static INPUT: [u8; 1500] = [7; 1500];
    let mut talk = UnseenTalk::open(RestartPolicy::Replica);
    talk.client(Flags::ACK, (0, 0), &INPUT);
    talk.client(Flags::ACK, (1500, 0), b"x");
    assert_eq!(talk.connection().input().frontier(), Offset(1501));
    assert_eq!(talk.connection().input_acknowledged(), Offset(0));
    talk.server(Flags::ACK, (0, 1501), 0);
    assert_eq!(talk.connection().input_acknowledged(), Offset(1501));
}
