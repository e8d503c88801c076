//! A table learns a conversation from a random packet on. From then on it must agree with a table that saw the whole
//! conversation.

use proptest::prelude::*;

use super::*;
use crate::connection::Endpoint;
use crate::export::{ArrivedSnapshot, ExportPlace};
use crate::follower::{Restart, RestartPolicy};
use crate::packet::{Flags, TcpOptions, Timestamps};
use crate::restart::snapshot::SnapshotStanding;
use crate::table::{Table, TableChange};
use crate::{Offset, Seq};

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 4000);
const VIP: ([u8; 4], u16) = ([10, 0, 0, 100], 80);

/// Random numbers, the same for the same seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Debug)]
struct LearnPacket {
    direction: Direction,
    segment: Segment<'static>,
    payload: Vec<u8>,
}

/// One side: its next sequence number, the highest number heard from the other side, and its timestamp clock.
struct LearnSide {
    next: Seq,
    heard: Seq,
    clock: u32,
}

/// Both sides of a conversation, and the packets that they sent.
struct LearnTalk {
    chance: Chance,
    sides: [LearnSide; 2],
    terms: Terms,
    said: Vec<LearnPacket>,
}

impl LearnTalk {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let [client, server] = [0; 2].map(|_| Seq(u32::MAX - 1000).add_random(&mut chance));
        let side = |next, clock| LearnSide {
            next,
            heard: Seq(0),
            clock,
        };
        let shifts = (chance.below(15) as u8, chance.below(15) as u8);
        let terms = Terms {
            mss: 1200,
            window_scale: chance.percent(70).then_some(shifts),
            sack: chance.percent(50),
            timestamps: chance.percent(70),
            microseconds: false,
        };
        let clocks = [u32::MAX - 20, chance.below(1 << 30) as u32];
        Self {
            chance,
            sides: [side(client, clocks[0]), side(server, clocks[1])],
            terms,
            said: Vec::new(),
        }
    }

    fn say(&mut self, direction: Direction, flags: Flags, payload: &[u8]) {
        let (me, other) = match direction {
            Direction::In => (0, 1),
            Direction::Out => (1, 0),
        };
        let ends = [CLIENT.into(), VIP.into()];
        let echo = self.sides[other].clock;
        let tick = self.chance.below(3) as u32;
        let side = &mut self.sides[me];
        side.clock = side.clock.wrapping_add(tick);
        let value = side.clock;
        let shift = self
            .terms
            .window_scale
            .map(|(client, server)| [client, server][me]);
        let segment = Segment {
            source: ends[me],
            destination: ends[other],
            seq: side.next,
            ack: side.heard,
            flags,
            // The right edge of the server's window never moves back.
            window: if me == 0 {
                5000 + self.chance.below(60_000) as u16
            } else {
                u16::MAX
            },
            options: TcpOptions {
                mss: flags.syn.then_some(if me == 0 { 1400 } else { 1200 }),
                window_scale: shift.filter(|_| flags.syn),
                sack_permitted: flags.syn && self.terms.sack,
                timestamps: self.terms.timestamps.then_some(Timestamps { value, echo }),
                ..TcpOptions::default()
            },
            payload: &[],
        };
        let side = &mut self.sides[me];
        side.next = side.next + payload.len() as u32 + u32::from(flags.syn || flags.fin);
        let payload = payload.to_vec();
        self.said.push(LearnPacket {
            direction,
            segment,
            payload,
        });
    }

    fn hear_all(&mut self, me: usize) {
        self.sides[me].heard = self.sides[1 - me].next;
    }

    fn open(&mut self) {
        self.say(Direction::In, Flags::SYN, &[]);
        self.hear_all(1);
        self.say(Direction::Out, Flags::SYN_ACK, &[]);
        self.hear_all(0);
        self.say(Direction::In, Flags::ACK, &[]);
    }

    /// Sends `message` in segments. The other side acknowledges some of these segments immediately.
    fn speak(&mut self, direction: Direction, message: &[u8]) {
        let (other, back) = match direction {
            Direction::In => (1, Direction::Out),
            Direction::Out => (0, Direction::In),
        };
        let size = 100 + self.chance.below(1100);
        for piece in message.chunks(size.max(message.len() / 20)) {
            self.say(direction, Flags::ACK, piece);
            if self.chance.percent(30) {
                self.hear_all(other);
                self.say(back, Flags::ACK, &[]);
            }
        }
        self.hear_all(other);
    }

    fn exchange(&mut self) {
        let length = self.chance.below(6000);
        let body = "b".repeat(length);
        let head = ["GET", "POST", "PUT", "HEAD"][self.chance.below(4)];
        let is_upload = matches!(head, "POST" | "PUT");
        let request = match is_upload {
            true => format!("{head} /{length} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}"),
            false => format!("{head} /{length} HTTP/1.1\r\nHost: x\r\n\r\n"),
        };
        self.speak(Direction::In, request.as_bytes());
        self.answer(head, length, &body);
    }

    /// An upload whose segments look like requests.
    fn forge(&mut self) {
        let count = 1 + self.chance.below(5);
        let pieces: Vec<String> = (0..count)
            .map(|_| "GET /forged HTTP/1.1\r\n\r\n".repeat(1 + self.chance.below(2)))
            .collect();
        let length: usize = pieces.iter().map(String::len).sum();
        let head = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        self.speak(Direction::In, head.as_bytes());
        for piece in pieces {
            self.speak(Direction::In, piece.as_bytes());
            self.say(Direction::Out, Flags::ACK, &[]);
        }
        self.answer("POST", 300, &"r".repeat(300));
    }

    /// Sends several requests, then their replies.
    fn pipeline(&mut self) {
        let count = 1 + self.chance.below(4);
        for _ in 0..count {
            self.speak(Direction::In, b"GET /pipelined HTTP/1.1\r\n\r\n");
            self.say(Direction::Out, Flags::ACK, &[]);
        }
        for number in 0..count {
            self.answer("GET", number, &"p".repeat(number));
        }
    }

    fn answer(&mut self, head: &str, length: usize, body: &str) {
        let is_upload = matches!(head, "POST" | "PUT");
        if is_upload && self.chance.percent(30) {
            self.speak(Direction::Out, b"HTTP/1.1 103 Early Hints\r\n\r\n");
        }
        let reply = match self.chance.below(3) {
            _ if head == "HEAD" => format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"),
            0 => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}x\r\n0\r\n\r\n",
                length + 1
            ),
            _ => format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"),
        };
        self.speak(Direction::Out, reply.as_bytes());
        if self.chance.percent(50) {
            self.say(Direction::In, Flags::ACK, &[]); // else the client's next request acknowledges the reply
        }
    }

    /// After the handshake, repeats some packets and swaps neighbours.
    fn disturb(&mut self) {
        let mut disturbed: Vec<LearnPacket> = Vec::new();
        for (number, packet) in std::mem::take(&mut self.said).into_iter().enumerate() {
            disturbed.push(packet);
            let count = disturbed.len();
            if number > 3 && self.chance.percent(8) {
                disturbed.push(disturbed[count - 1 - self.chance.below(4)].clone());
            } else if number > 3
                && self.chance.percent(8)
                && disturbed[count - 1].direction == disturbed[count - 2].direction
            {
                disturbed.swap(count - 1, count - 2);
            }
        }
        self.said = disturbed;
    }
}

impl Seq {
    fn add_random(self, chance: &mut Chance) -> Self {
        self + chance.below(3000) as u32
    }
}

fn table() -> Table {
    let mut table = Table::new(TableConfig {
        vip: VIP.into(),
        ..TableConfig::sample()
    });
    table.set_wire(true);
    table
}

fn at(number: usize) -> Instant {
    Instant::from_nanos(number as u64 * 1_000_000)
}

fn give(table: &mut Table, number: usize, packet: &LearnPacket) -> TableChange {
    let segment = Segment {
        payload: &packet.payload,
        ..packet.segment
    };
    table.on_packet(at(number), packet.direction, &segment, None)
}

fn connection(table: &Table) -> Option<&Connection> {
    table.find(CLIENT.into()).and_then(|id| table.get(id))
}

/// The connection's state as a table would give it to a survivor. Offsets are converted to sequence numbers, because the two tables count
/// offsets from different places.
fn told(connection: &Connection) -> (Endpoint, [Seq; 3], String) {
    let mut endpoint = connection.endpoint();
    let output = connection.output().first();
    let input = connection.input().first();
    let places = [
        endpoint.unacknowledged.start.to_seq(output),
        endpoint.unacknowledged.end.to_seq(output),
        endpoint.input_frontier.to_seq(input),
    ];
    endpoint.unacknowledged = Offset::ZERO..Offset::ZERO;
    endpoint.input_frontier = Offset::ZERO;
    endpoint.send_window_max = 0; // earlier windows are unknown to the late table
    let restart = match connection.restart() {
        Ok(Restart::Http { feed, resume }) => {
            let (from, until) = (
                feed.from.to_seq(input),
                feed.until.map(|until| until.to_seq(input)),
            );
            let marks: Vec<_> = feed.marks.iter().map(|mark| mark.to_seq(input)).collect();
            format!("{from:?} {until:?} {marks:?} {resume:?}")
        }
        other => format!("{other:?}"),
    };
    (endpoint, places, restart)
}

/// Gives a table the conversation from packet `from` on. The table gets the answer to its question `delay` packets after it asks.
/// Returns the number of the packet at which the connection becomes protected.
fn learn_late(talk: &LearnTalk, from: usize, delay: usize) -> Option<usize> {
    let (mut full, mut late) = (table(), table());
    let mut asked: Option<(usize, Vec<SocketAddr>)> = None;
    let mut protected = None;
    for (number, packet) in talk.said.iter().enumerate() {
        give(&mut full, number, packet);
        if number < from {
            continue;
        }
        give(&mut late, number, packet);
        late.prove(at(number));
        if let Some(clients) = late.poll_question(at(number)) {
            asked.get_or_insert((number, clients));
        }
        if let Some((_, clients)) = asked.take_if(|(at, _)| *at + delay <= number) {
            clients
                .into_iter()
                .for_each(|client| late.on_told((client, Some(talk.terms))));
        }
        let Some(learnt) = connection(&late) else {
            assert_eq!(protected, None, "a protected connection was lost");
            continue;
        };
        let whole = connection(&full).expect("it saw all");
        if learnt.restart().is_ok() {
            protected.get_or_insert(number);
            assert_eq!(told(learnt), told(whole), "packet {number}");
            let maxima = [learnt, whole].map(|connection| connection.endpoint().send_window_max);
            assert!(maxima[0] <= maxima[1], "{maxima:?}");
            assert_eq!(learnt.protection(), whole.protection());
        } else if protected.is_some() {
            assert!(
                whole.restart().is_err(),
                "{:?} {:?}",
                learnt.restart(),
                whole.restart()
            );
        }
    }
    protected
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// A learnt connection is correct even if packets are repeated or reordered, or the answer to the question is late.
    #[test]
    fn what_is_learnt_is_what_a_table_knows_that_saw_all(seed: u64, from in 0.0..1.0, delay in 0..30_usize, calm: bool) {
        let mut talk = LearnTalk::new(seed);
        talk.open();
        for _ in 0..8 {
            match talk.chance.below(4) {
                0 => talk.forge(),
                1 => talk.pipeline(),
                _ => talk.exchange(),
            }
        }
        if !calm {
            talk.disturb();
        }
        let from = 3 + ((talk.said.len() - 3) as f64 * from) as usize;
        learn_late(&talk, from, delay);
    }

    /// One exchange is enough to protect a connection, if a request or a second of silence follows.
    #[test]
    fn the_next_exchange_and_what_follows_are_enough(seed: u64, before in 0..4_usize, asks_again: bool) {
        let mut talk = LearnTalk::new(seed);
        talk.open();
        (0..before).for_each(|_| talk.exchange());
        let from = talk.said.len();
        talk.exchange();
        if asks_again {
            talk.exchange();
        } else {
            (0..1100).for_each(|_| talk.say(Direction::In, Flags::ACK, &[]));
        }
        prop_assert!(learn_late(&talk, from, 0).is_some());
    }
}

/// A conversation that is between two exchanges, and a table that has seen only its last acknowledgements.
struct LearnTestbed {
    talk: LearnTalk,
    late: Table,
    given: usize,
}

impl LearnTestbed {
    fn new() -> Self {
        Self::of(table())
    }

    fn of(late: Table) -> Self {
        let mut talk = LearnTalk::new(7);
        talk.open();
        talk.exchange();
        let given = talk.said.len();
        let mut testbed = Self { talk, late, given };
        testbed.say(Direction::In, b"");
        testbed.say(Direction::Out, b"");
        testbed.tell(Some(testbed.talk.terms));
        testbed
    }

    fn say(&mut self, direction: Direction, payload: &[u8]) {
        self.talk.say(direction, Flags::ACK, payload);
        self.give();
    }

    /// One side sends `payload` and acknowledges all that the other side has sent.
    fn speak(&mut self, direction: Direction, payload: &[u8]) {
        self.talk.hear_all(usize::from(direction == Direction::Out));
        self.say(direction, payload);
    }

    fn give(&mut self) {
        for number in self.given..self.talk.said.len() {
            give(&mut self.late, number, &self.talk.said[number]);
        }
        self.given = self.talk.said.len();
    }

    fn tell(&mut self, terms: Option<Terms>) {
        let asked = self.late.poll_question(at(self.given));
        assert_eq!(asked, Some(vec![CLIENT.into()]));
        self.late.on_told((CLIENT.into(), terms));
    }

    fn request(&mut self) {
        self.speak(Direction::In, b"GET / HTTP/1.1\r\n\r\n");
    }

    fn reply(&mut self) {
        self.speak(Direction::Out, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }

    fn is_learnt(&self) -> bool {
        connection(&self.late).is_some()
    }

    fn is_protected_after(&mut self, millis: usize) -> bool {
        self.late.prove(at(self.given + millis));
        connection(&self.late).is_some_and(|connection| connection.restart().is_ok())
    }

    fn reasons(&self) -> Vec<String> {
        let older = self.late.older(at(self.given));
        older.map(|(_, cause)| cause.to_string()).collect()
    }
}

#[test]
fn an_exchange_and_silence() {
    let mut testbed = LearnTestbed::new();
    testbed.request();
    assert!(!testbed.is_learnt());
    testbed.reply();
    assert!(
        testbed.is_learnt() && !testbed.is_protected_after(5000),
        "the client's window is not known"
    );
    assert_eq!(testbed.reasons(), [] as [String; 0], "it is shown once");
    testbed.speak(Direction::In, b"");
    assert!(!testbed.is_protected_after(998));
    assert!(testbed.is_protected_after(1001));
}

#[test]
fn a_request_while_something_is_owed_is_none() {
    for owes in [Direction::In, Direction::Out] {
        let mut testbed = LearnTestbed::new();
        testbed.say(owes, b"x");
        testbed.say(Direction::In, b"GET / HTTP/1.1\r\n\r\n");
        testbed.reply();
        assert!(!testbed.is_learnt(), "{owes:?}");
        testbed.request();
        testbed.reply();
        assert!(testbed.is_learnt(), "{owes:?}");
    }
}

#[test]
fn a_reply_elsewhere_is_none() {
    let mut testbed = LearnTestbed::new();
    testbed.request();
    testbed.talk.sides[1].next = testbed.talk.sides[1].next + 1;
    testbed.reply();
    assert!(
        !testbed.is_learnt(),
        "earlier output may not have reached the client"
    );

    let mut testbed = LearnTestbed::new();
    testbed.request();
    testbed.say(Direction::Out, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(!testbed.is_learnt(), "it does not acknowledge the request");

    let mut testbed = LearnTestbed::new();
    testbed.request();
    let before = testbed.talk.sides[1].next;
    testbed.talk.sides[1].next = before + 100;
    testbed.speak(Direction::Out, b"");
    testbed.talk.sides[1].next = before;
    testbed.reply();
    assert!(!testbed.is_learnt(), "the server was further ahead");
}

#[test]
fn what_contradicts_it_bars_it() {
    for (reply, reason) in [
        (&b"220 welcome\r\n\r\n"[..], "the header does not parse"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "upgraded"),
        (
            b"HTTP/1.1 204 No\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
            "answers no request",
        ),
    ] {
        let mut testbed = LearnTestbed::new();
        testbed.request();
        testbed.speak(Direction::Out, reply);
        assert!(!testbed.is_learnt());
        let reasons = testbed.reasons();
        assert!(reasons.len() == 1 && reasons[0].contains(reason), "{reasons:?}");
        testbed.request();
        testbed.reply();
        assert!(!testbed.is_learnt(), "{reason}");
    }
}

#[test]
fn what_is_disproved_later_is_shown_again() {
    let mut testbed = LearnTestbed::new();
    testbed.request();
    testbed.reply();
    assert!(testbed.is_learnt());
    testbed.reply();
    assert!(!testbed.is_learnt());
    let reasons = testbed.reasons();
    assert!(
        reasons.len() == 1 && reasons[0].contains("answers no request"),
        "{reasons:?}"
    );
    assert_eq!(testbed.late.memory(), 0);
}

#[test]
fn a_gap_in_the_log_begins_it_anew() {
    let mut testbed = LearnTestbed::new();
    testbed.request();
    testbed.late.forget_said();
    testbed.reply();
    assert!(!testbed.is_learnt());
    testbed.request();
    testbed.reply();
    assert!(testbed.is_learnt());
}

#[test]
fn who_is_not_the_wire_learns_nothing_and_replicas_begin_with_their_connections() {
    let mut testbed = LearnTestbed::new();
    testbed.late.set_wire(false);
    testbed.request();
    testbed.reply();
    assert!(!testbed.is_learnt());

    let mut config = table().config().clone();
    config.policy = RestartPolicy::Replica;
    let mut testbed = LearnTestbed::new();
    testbed.late = Table::new(config);
    testbed.late.set_wire(true);
    testbed.request();
    testbed.reply();
    assert!(!testbed.is_learnt());
    assert_eq!(
        testbed.late.poll_question(at(testbed.given)),
        Some(vec![CLIENT.into()]),
        "whether it exists"
    );
    assert_eq!(testbed.late.poll_question(at(testbed.given)), None);
    assert_eq!(
        testbed.reasons(),
        ["older than the wire; replicas begin with their connections"]
    );
}

#[test]
fn a_question_is_repeated_and_answered_once() {
    let mut learner = Learner::new(1, RestartPolicy::Http);
    let clients: Vec<SocketAddr> = (1..=40).map(|port| ([10, 0, 0, 1], port).into()).collect();
    let terms = LearnTalk::new(1).terms;
    clients.iter().for_each(|client| learner.want(*client, false));
    learner.want(clients[0], false);
    let ask = |learner: &mut Learner, millis| learner.poll_question(at(millis));
    assert_eq!(ask(&mut learner, 1).as_deref(), Some(&clients[..QUESTION_MAX]));
    assert_eq!(ask(&mut learner, 50), None);
    assert_eq!(learner.take_answer(clients[39]), None, "nobody asked");
    assert_eq!(learner.take_answer(clients[3]), Some(at(1)));
    learner.on_terms(clients[3], terms);
    assert_eq!(learner.take_answer(clients[3]), None, "the first answer counts");
    assert_eq!(
        ask(&mut learner, 51).map(|asked| asked.len()),
        Some(QUESTION_MAX - 1)
    );
    for client in &clients[..QUESTION_MAX] {
        let asked = (*client != clients[3]).then_some(at(1));
        assert_eq!(learner.take_answer(*client), asked);
    }
    assert_eq!(ask(&mut learner, 52).as_deref(), Some(&clients[QUESTION_MAX..]));
    for number in 1..ASKED_MAX {
        assert!(ask(&mut learner, 52 + number as usize * 50).is_some());
    }
    assert_eq!(ask(&mut learner, 10_000), None, "nobody answers");
    learner.want(clients[39], false);
    assert_eq!(ask(&mut learner, 10_001), Some(vec![clients[39]]));
}

#[test]
fn memory_is_bounded() {
    let mut learner = Learner::new(1, RestartPolicy::Http);
    let mut payload = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    payload.resize(60_000, b'x');
    for number in 0..1000_u16 {
        let client: SocketAddr = ([10, 0, 0, 1], number).into();
        let segment = Segment {
            source: client,
            destination: VIP.into(),
            seq: Seq(number.into()),
            ack: Seq(0),
            flags: Flags::ACK,
            window: 1000,
            options: TcpOptions::default(),
            payload: &payload,
        };
        for _ in 0..number % 5 {
            learner.on_segment(at(0), Direction::In, client, &segment, None);
        }
        let bytes = |kept: &KeptSegment| SEGMENT_COST + kept.payload.len();
        let bytes: usize = (0..=number)
            .filter_map(|number| learner.candidates.get(([10, 0, 0, 1], number).into()))
            .flat_map(|candidate| candidate.kept.iter().map(bytes))
            .sum();
        assert!(
            bytes == learner.bytes && bytes <= CANDIDATES_BYTES,
            "{bytes} {}",
            learner.bytes
        );
    }
    assert!(learner.waiting.len() <= STRANGERS_MAX);
}

/// A table with policy `snapshot` that begins in the middle of a conversation.
fn with_snapshots() -> LearnTestbed {
    let config = TableConfig {
        policy: RestartPolicy::Snapshot,
        ..table().config().clone()
    };
    let mut table = Table::new(config);
    table.set_wire(true);
    LearnTestbed::of(table)
}

impl LearnTestbed {
    /// The application exports a snapshot. It has read and written everything, but for the last `unread` and `unsent` bytes.
    fn export(&mut self, number: u64, unread: u32, unsent: u32) -> SnapshotStanding {
        let [client, server] = [&self.talk.sides[0], &self.talk.sides[1]];
        let snapshot = ArrivedSnapshot {
            number,
            place: ExportPlace {
                input: client.next - unread,
                output: server.next + unsent,
            },
            state: number.to_be_bytes().into(),
        };
        self.late.on_snapshot(CLIENT.into(), snapshot)
    }

    /// The state, the input and the length of the output of a restart.
    fn restart(&self) -> (Vec<u8>, Vec<u8>, u64) {
        let connection = connection(&self.late).expect("it is learnt");
        let Ok(Restart::Replay {
            input_from,
            resume,
            state,
            ..
        }) = connection.restart()
        else {
            panic!("{:?}", connection.protection());
        };
        let input = connection
            .input()
            .slices(input_from..connection.input().frontier())
            .flatten()
            .copied()
            .collect();
        (
            state.expect("a snapshot").to_vec(),
            input,
            resume.bytes + resume.unchecked,
        )
    }
}

#[test]
fn with_policy_snapshot_a_connection_is_followed_from_anywhere_and_protected_from_a_snapshot_on() {
    let mut testbed = with_snapshots();
    assert!(
        matches!(testbed.export(1, 0, 0), SnapshotStanding::Refused(_)),
        "nothing is known yet"
    );
    testbed.speak(Direction::In, b"ask");
    assert!(!testbed.is_learnt());
    testbed.speak(Direction::Out, b"reply");
    assert!(testbed.is_learnt(), "the client had acknowledged all output");
    assert!(
        !testbed.is_protected_after(5000),
        "no snapshot says where an application could go on"
    );
    assert_eq!(testbed.export(2, 0, 0), SnapshotStanding::Kept);
    testbed.speak(Direction::In, b"more");
    testbed.speak(Direction::Out, b"yes");
    assert_eq!(
        testbed.restart(),
        (2_u64.to_be_bytes().into(), b"more".to_vec(), 3)
    );
    // The application has read only a part, and has written what is not sent yet.
    testbed.say(Direction::In, b"abcd");
    assert_eq!(testbed.export(3, 2, 4), SnapshotStanding::Waits);
    assert_eq!(testbed.restart().0, 2_u64.to_be_bytes());
    testbed.say(Direction::Out, b"12345");
    assert_eq!(testbed.restart(), (3_u64.to_be_bytes().into(), b"cd".to_vec(), 1));
}

/// The application has not read all of the input from before the log's beginning.
#[test]
fn with_policy_snapshot_the_log_must_have_the_unread_input() {
    let mut testbed = with_snapshots();
    testbed.speak(Direction::In, b"ask");
    testbed.speak(Direction::Out, b"reply");
    assert!(matches!(testbed.export(1, 4, 0), SnapshotStanding::Unfit(_)));
    assert!(!testbed.is_protected_after(0));
    assert_eq!(testbed.export(2, 3, 0), SnapshotStanding::Kept);
    assert_eq!(testbed.restart().1, b"ask");
}

/// Output that was under way before the wire followed the connection is not in its log.
#[test]
fn with_policy_snapshot_output_from_before_must_be_acknowledged_first() {
    let mut testbed = with_snapshots();
    testbed.say(Direction::Out, b"under way");
    testbed.say(Direction::In, b"x");
    testbed.say(Direction::Out, b"later");
    assert!(!testbed.is_learnt());
    testbed.talk.sides[0].heard = testbed.talk.sides[1].next - 6;
    testbed.say(Direction::In, b"");
    assert!(!testbed.is_learnt(), "not all of it");
    testbed.talk.sides[0].heard = testbed.talk.sides[1].next - 5;
    testbed.say(Direction::In, b"");
    assert!(testbed.is_learnt());
    assert_eq!(testbed.export(1, 0, 0), SnapshotStanding::Kept);
    let (_, _, repeated) = testbed.restart();
    assert_eq!(repeated, 0);
    assert_eq!(
        connection(&testbed.late).map(|one| one
            .output()
            .slices(Offset::LEARNT..one.output().frontier())
            .flatten()
            .count()),
        Some(5)
    );
}

/// A node that has just become the wire may miss packets. The connection is learnt again, and protected from the next snapshot on.
#[test]
fn with_policy_snapshot_a_connection_is_learnt_again_if_its_log_lacks_bytes() {
    for lost in [Direction::In, Direction::Out] {
        let mut testbed = with_snapshots();
        testbed.speak(Direction::In, b"ask");
        testbed.speak(Direction::Out, b"reply");
        assert_eq!(testbed.export(1, 0, 0), SnapshotStanding::Kept);
        testbed.talk.hear_all(usize::from(lost == Direction::Out));
        testbed.talk.say(lost, Flags::ACK, b"bypasses the wire");
        testbed.given = testbed.talk.said.len();
        testbed.say(lost, b"logged");
        testbed.speak(
            if lost == Direction::In {
                Direction::Out
            } else {
                Direction::In
            },
            b"",
        );
        assert!(!testbed.is_learnt(), "{lost:?}");
        testbed.speak(Direction::Out, b"again");
        testbed.speak(Direction::In, b"x");
        testbed.speak(Direction::Out, b"and again");
        assert!(testbed.is_learnt() && !testbed.is_protected_after(0), "{lost:?}");
        testbed.speak(Direction::In, b"");
        assert_eq!(testbed.export(2, 0, 0), SnapshotStanding::Kept, "{lost:?}");
        assert!(testbed.is_protected_after(0));
    }
}
