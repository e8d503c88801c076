//! Clients whose connections began before the log did: an agent that was started again knows nothing of them but that they are
//! there. They are shown, not protected.
//!
//! A client is noted when the server answers it, so nobody is noted for what strangers send: a kernel says nothing but RST about
//! a connection that it does not have.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rustc_hash::FxSeededState;

use crate::packet::Segment;
use crate::table::Direction;
use crate::{Instant, Seq};

/// Clients remembered at a time; the one that was noted first is forgotten first.
pub const OLDER_MAX: usize = 65_536;
/// One that a FIN was seen of counts no longer after this much silence: the other FIN may have passed before the log began.
const CLOSED_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Seen {
    noted: Instant,
    heard: Instant,
    /// By direction.
    fins: [bool; 2],
    /// What the server has said.
    said: Option<Said>,
    /// A RST, or both FINs. It stays noted, so that what comes late does not note it anew.
    over: bool,
}

/// What a server said last, of all that was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Its acknowledgement (RCV.NXT).
    pub acknowledged: Seq,
    /// Behind its last byte (SND.NXT).
    pub next: Seq,
}

impl Said {
    fn of(segment: &Segment<'_>) -> Self {
        Self {
            acknowledged: segment.ack,
            next: segment.seq + segment.seq_len(),
        }
    }

    /// Later words, unless they come late.
    fn hear(&mut self, segment: &Segment<'_>) {
        let later = |new: Seq, old: Seq| if new.distance_from(old) > 0 { new } else { old };
        let new = Self::of(segment);
        self.acknowledged = later(new.acknowledged, self.acknowledged);
        self.next = later(new.next, self.next);
    }
}

impl Seen {
    fn is_open(&self, now: Instant) -> bool {
        let closing = self.fins != [false; 2];
        !(self.over || closing && now.since(self.heard) > CLOSED_FOR)
    }
}

/// The clients of one service.
#[derive(Debug)]
pub(crate) struct Older {
    clients: std::collections::HashMap<SocketAddr, Seen, FxSeededState>,
    order: VecDeque<(SocketAddr, Instant)>,
}

impl Older {
    /// Nobody yet; `seed`: clients choose their addresses.
    pub(crate) fn new(seed: usize) -> Self {
        Self {
            clients: std::collections::HashMap::with_hasher(FxSeededState::with_seed(seed)),
            order: VecDeque::new(),
        }
    }

    /// A segment, other than a SYN, of no known connection.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) {
        if direction == Direction::Out && !segment.flags.rst && !self.clients.contains_key(&client) {
            self.add(now, client);
        }
        if let Some(seen) = self.clients.get_mut(&client) {
            seen.heard = now;
            seen.fins[usize::from(direction == Direction::Out)] |= segment.flags.fin;
            seen.over |= segment.flags.rst || seen.fins == [true; 2];
            if direction == Direction::Out {
                seen.said.get_or_insert_with(|| Said::of(segment)).hear(segment);
            }
        }
    }

    fn add(&mut self, now: Instant, client: SocketAddr) {
        while self.order.len() >= OLDER_MAX {
            let Some((oldest, noted)) = self.order.pop_front() else {
                break;
            };
            if self.clients.get(&oldest).is_some_and(|seen| seen.noted == noted) {
                self.clients.remove(&oldest);
            }
        }
        self.order.push_back((client, now));
        let seen = Seen {
            noted: now,
            heard: now,
            fins: [false; 2],
            said: None,
            over: false,
        };
        self.clients.insert(client, seen);
    }

    /// What the server has said to a client.
    pub(crate) fn said(&self, client: SocketAddr) -> Option<Said> {
        self.clients.get(&client).and_then(|seen| seen.said)
    }

    /// Packets passed unlogged: what was said last is not known any more.
    pub(crate) fn forget_said(&mut self) {
        self.clients.values_mut().for_each(|seen| seen.said = None);
    }

    /// The client begins a new connection.
    pub(crate) fn forget(&mut self, client: SocketAddr) {
        self.clients.remove(&client);
    }

    /// Who is still there at `now`, in the order in which they were noted.
    pub(crate) fn iter(&self, now: Instant) -> impl Iterator<Item = SocketAddr> {
        self.order.iter().filter_map(move |(client, noted)| {
            let seen = self.clients.get(client)?;
            (seen.noted == *noted && seen.is_open(now)).then_some(*client)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seq;
    use crate::packet::{Flags, Options};

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn client(number: u32) -> SocketAddr {
        (std::net::Ipv4Addr::from(0x0a00_0000 + number), 40_000).into()
    }

    fn note(older: &mut Older, millis: u64, direction: Direction, number: u32, flags: Flags) {
        let vip = "10.0.0.100:80".parse().unwrap();
        let (source, destination) = match direction {
            Direction::In => (client(number), vip),
            Direction::Out => (vip, client(number)),
        };
        let segment = Segment {
            source,
            destination,
            seq: Seq(1),
            ack: Seq(1),
            flags,
            window: 1000,
            options: Options::default(),
            payload: &[],
        };
        older.note(at(millis), direction, client(number), &segment);
    }

    fn with(change: impl FnOnce(&mut Flags)) -> Flags {
        let mut flags = Flags::ACK;
        change(&mut flags);
        flags
    }

    fn open(older: &Older, millis: u64) -> Vec<SocketAddr> {
        older.iter(at(millis)).collect()
    }

    #[test]
    fn whom_the_server_answers_is_noted_once() {
        let mut older = Older::new(1);
        note(&mut older, 0, Direction::In, 1, Flags::ACK);
        assert!(open(&older, 0).is_empty(), "anybody can say something");
        note(&mut older, 1, Direction::Out, 1, with(|flags| flags.rst = true));
        assert!(open(&older, 1).is_empty(), "the server knows nothing of it");
        note(&mut older, 2, Direction::Out, 1, Flags::ACK);
        note(&mut older, 3, Direction::Out, 2, Flags::ACK);
        note(&mut older, 4, Direction::Out, 1, Flags::ACK);
        assert_eq!(open(&older, 5), [client(1), client(2)]);
    }

    #[test]
    fn a_reset_or_both_fins_end_it_for_good() {
        let (fin, rst) = (with(|flags| flags.fin = true), with(|flags| flags.rst = true));
        let mut older = Older::new(1);
        for number in 1..=3 {
            note(&mut older, 0, Direction::Out, number, Flags::ACK);
        }
        note(&mut older, 1, Direction::In, 1, rst);
        note(&mut older, 1, Direction::In, 2, fin);
        note(&mut older, 1, Direction::Out, 3, fin);
        assert_eq!(
            open(&older, 1),
            [client(2), client(3)],
            "half closed is not closed"
        );
        note(&mut older, 2, Direction::Out, 2, fin);
        note(&mut older, 3, Direction::Out, 1, Flags::ACK);
        note(&mut older, 3, Direction::Out, 2, Flags::ACK);
        assert_eq!(open(&older, 3), [client(3)], "late segments change nothing");
        assert_eq!(open(&older, 60_001), [client(3)]);
        assert!(
            open(&older, 60_002).is_empty(),
            "its other FIN came before the agent"
        );
    }

    #[test]
    fn a_new_connection_of_the_client_takes_its_place() {
        let mut older = Older::new(1);
        note(&mut older, 0, Direction::Out, 1, Flags::ACK);
        older.forget(client(1));
        assert!(open(&older, 1).is_empty());
        note(&mut older, 2, Direction::Out, 1, Flags::ACK);
        assert_eq!(open(&older, 2), [client(1)], "shown once");
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut older = Older::new(1);
        let bound = u32::try_from(OLDER_MAX).unwrap();
        for number in 0..=bound {
            note(&mut older, number.into(), Direction::Out, number, Flags::ACK);
        }
        let open = open(&older, bound.into());
        assert_eq!((open.len(), open[0]), (OLDER_MAX, client(1)));
        assert_eq!(older.clients.len(), OLDER_MAX);
    }
}
