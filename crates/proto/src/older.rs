//! Clients whose connections began before the log. An agent that was restarted, or a node that has become the wire, knows only
//! that these connections exist. They are shown, not protected.
//!
//! A client is noted when the server answers it, or when the primary reports its connection ([`crate::census`]). So a client's own segments
//! are not enough. The primary is asked about silent clients from time to time, because a connection may end without a packet.

use std::net::SocketAddr;
use std::time::Duration;

use crate::clients::Recent;
use crate::packet::{Direction, Segment};
use crate::{Instant, Seq};

/// Maximum number of clients. The client that was noted first is forgotten first.
pub const OLDER_MAX: usize = 65_536;
/// Silence after which a connection with one FIN counts as ended. The other FIN may have passed before the log began.
const CLOSED_FOR: Duration = Duration::from_secs(60);
/// The primary is asked about a client again when the last confirmation is this old.
const UNSURE_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of places in the list of clients, empty ones included, that one call of [`Older::unsure`] examines.
const LOOKED_AT_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct OlderConnection {
    /// When the last segment of the connection was logged; without one, when the client was noted.
    heard: Instant,
    /// When the server last certainly had the connection: it sent a segment, or the primary confirmed the connection.
    sure: Instant,
    /// No segment of the connection was logged.
    is_silent: bool,
    /// Whether a FIN was seen, by direction.
    fins: [bool; 2],
    /// The server's latest sequence and acknowledgement numbers in the log. `None` if they are unknown.
    said: Option<ServerNumbers>,
    /// A RST or both FINs were seen. The client stays noted, so that late segments do not note it again.
    over: bool,
}

/// The server's latest sequence and acknowledgement numbers in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerNumbers {
    /// The server's acknowledgement number (RCV.NXT).
    pub acknowledged: Seq,
    /// The number after the server's last byte (SND.NXT).
    pub next: Seq,
}

impl ServerNumbers {
    fn of(segment: &Segment<'_>) -> Self {
        Self {
            acknowledged: segment.ack,
            next: segment.seq + segment.seq_len(),
        }
    }

    /// Takes the segment's numbers if they are higher.
    fn hear(&mut self, segment: &Segment<'_>) {
        let later = |new: Seq, old: Seq| if new.distance_from(old) > 0 { new } else { old };
        let new = Self::of(segment);
        self.acknowledged = later(new.acknowledged, self.acknowledged);
        self.next = later(new.next, self.next);
    }
}

impl OlderConnection {
    fn new(at: Instant) -> Self {
        Self {
            heard: at,
            sure: at,
            is_silent: true,
            fins: [false; 2],
            said: None,
            over: false,
        }
    }

    fn is_open(&self, now: Instant) -> bool {
        let closing = self.fins != [false; 2];
        !(self.over || closing && now.since(self.heard.max(self.sure)) > CLOSED_FOR)
    }
}

/// The clients of one service.
#[derive(Debug)]
pub(crate) struct Older {
    clients: Recent<OlderConnection>,
    /// The place that [`unsure`](Self::unsure) examined last.
    looked_at: usize,
}

impl Older {
    /// No clients yet. `seed` randomises the hash, because clients choose their addresses.
    pub(crate) fn new(seed: usize) -> Self {
        Self {
            clients: Recent::new(OLDER_MAX, seed),
            looked_at: 0,
        }
    }

    /// Takes a segment that belongs to no known connection and is not a SYN.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) {
        if direction == Direction::Out && !segment.flags.rst && !self.clients.contains(client) {
            self.clients.insert(client, OlderConnection::new(now));
        }
        if let Some(seen) = self.clients.get_mut(client) {
            seen.heard = now;
            seen.is_silent = false;
            seen.fins[usize::from(direction == Direction::Out)] |= segment.flags.fin;
            seen.over |= segment.flags.rst || seen.fins == [true; 2];
            if direction == Direction::Out {
                seen.sure = now;
                seen.said
                    .get_or_insert_with(|| ServerNumbers::of(segment))
                    .hear(segment);
            }
        }
    }

    /// The primary, asked at `asked`, has the client's connection. Segments logged after `asked` outweigh this answer.
    pub(crate) fn confirm(&mut self, asked: Instant, client: SocketAddr) {
        match self.clients.get_mut(client) {
            Some(seen) if !seen.over => seen.sure = seen.sure.max(asked),
            Some(seen) if seen.heard >= asked => {}
            Some(_) | None => drop(self.clients.insert(client, OlderConnection::new(asked))),
        }
    }

    /// The primary, asked at `asked`, does not have the client's connection. Segments logged after `asked` outweigh this answer.
    pub(crate) fn deny(&mut self, asked: Instant, client: SocketAddr) {
        if self.clients.get(client).is_some_and(|seen| seen.heard < asked) {
            self.clients.remove(client);
        }
    }

    /// A connection that the log knew has ended. Notes the end, so that the primary's answer to an earlier question does not bring the
    /// connection back.
    pub(crate) fn end(&mut self, now: Instant, client: SocketAddr) {
        let over = OlderConnection {
            over: true,
            ..OlderConnection::new(now)
        };
        self.clients.insert(client, over);
    }

    /// At most `count` clients without a recent confirmation, including those whose connection seems to have ended. The next call goes on
    /// after these clients.
    pub(crate) fn unsure(&mut self, now: Instant, count: usize) -> Vec<SocketAddr> {
        let mut unsure = Vec::new();
        let places = self.clients.places();
        for _ in 0..places.min(LOOKED_AT_MAX) {
            if unsure.len() == count {
                break;
            }
            self.looked_at = (self.looked_at + 1) % places;
            let there = self.clients.at(self.looked_at);
            let unconfirmed = there.filter(|(_, seen)| now.since(seen.sure) >= UNSURE_AFTER);
            unsure.extend(unconfirmed.map(|(client, _)| client));
        }
        unsure
    }

    /// Whether the client is noted.
    pub(crate) fn contains(&self, client: SocketAddr) -> bool {
        self.clients.contains(client)
    }

    /// The server's latest numbers on the client's connection. `None` if they are unknown.
    pub(crate) fn said(&self, client: SocketAddr) -> Option<ServerNumbers> {
        self.clients.get(client).and_then(|seen| seen.said)
    }

    /// Packets passed unlogged, so the server's latest numbers are unknown now.
    pub(crate) fn forget_said(&mut self) {
        self.clients.values_mut().for_each(|seen| seen.said = None);
    }

    /// Forgets a client that begins a new connection.
    pub(crate) fn forget(&mut self, client: SocketAddr) {
        self.clients.remove(client);
    }

    /// The clients whose connection is open at `now`, in the order in which they were noted. The flag is true if no
    /// segment of the connection was logged.
    pub(crate) fn iter(&self, now: Instant) -> impl Iterator<Item = (SocketAddr, bool)> {
        let open = self.clients.iter().filter(move |(_, seen)| seen.is_open(now));
        open.map(|(client, seen)| (client, seen.is_silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seq;
    use crate::packet::{Flags, TcpOptions};

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
            options: TcpOptions::default(),
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
        older.iter(at(millis)).map(|(client, _)| client).collect()
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
