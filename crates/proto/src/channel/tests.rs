//! Two channels with two links between them, in simulated time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::*;
use crate::census::{Census, CensusPage, PAGE_MAX, PageQuery, Terms};

const DELAY: Duration = Duration::from_millis(2);

fn address(end: usize, link: usize) -> IpAddr {
    IpAddr::from([10, link as u8, 0, end as u8 + 1])
}

fn link_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[1]),
        IpAddr::V6(_) => unreachable!("the test's addresses are IPv4"),
    }
}

struct TestPair {
    now: Instant,
    ends: [PeerChannel; 2],
    received: [Vec<ChannelMessage>; 2],
    is_cut: [bool; 2],
    /// Each packet is lost with this probability.
    loss: f64,
    random: u64,
    on_the_way: BTreeMap<(Instant, u64), (usize, IpAddr, Bytes)>,
    sent: u64,
    /// Packets that each end put on each link.
    packets: [[u64; 2]; 2],
}

impl TestPair {
    fn new(seed: u64) -> Self {
        let mut pair = Self {
            now: Instant::ZERO,
            ends: [Self::end(0), Self::end(1)],
            received: Default::default(),
            is_cut: [false; 2],
            loss: 0.0,
            random: seed | 1,
            on_the_way: BTreeMap::new(),
            sent: 0,
            packets: Default::default(),
        };
        pair.begin(0);
        pair.begin(1);
        pair
    }

    fn end(end: usize) -> PeerChannel {
        let role = if end == 0 {
            ChannelRole::Calls
        } else {
            ChannelRole::Answers
        };
        PeerChannel::new(role, &[address(1 - end, 0), address(1 - end, 1)], 120)
    }

    fn begin(&mut self, end: usize) {
        let secret = [self.draw() as u8; 32];
        self.ends[end]
            .set_addresses(self.now, &[address(end, 0), address(end, 1)], || {
                Ok::<_, ()>(secret)
            })
            .unwrap();
        self.settle();
    }

    /// An xorshift generator: the order of losses is the same in each run.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn settle(&mut self) {
        for end in 0..2 {
            while let Some((to, packet)) = self.ends[end].poll_transmit(self.now) {
                let link = link_of(to);
                self.packets[end][link] += 1;
                let is_lost = (self.draw() % 10_000) as f64 / 10_000.0 < self.loss;
                if !is_lost && !self.is_cut[link] {
                    self.sent += 1;
                    let arrival = (1 - end, address(end, link), Bytes::from(packet.emit()));
                    self.on_the_way.insert((self.now + DELAY, self.sent), arrival);
                }
            }
            while let Some(message) = self.ends[end].receive() {
                self.received[end].push(message);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
            let timer = self.ends.iter().filter_map(PeerChannel::poll_timeout).min();
            let Some(at) = arrival.into_iter().chain(timer).min().filter(|at| *at < until) else {
                break;
            };
            self.now = self.now.max(at);
            if arrival == Some(at)
                && let Some((_, (end, from, packet))) = self.on_the_way.pop_first()
            {
                assert!(self.ends[end].handle_packet(self.now, from, &packet));
            } else {
                for end in &mut self.ends {
                    end.handle_timeout(self.now);
                }
            }
        }
        self.now = until;
    }

    /// Sends message `number`. The number determines the message's length.
    fn send(&mut self, end: usize, number: u32) -> bool {
        let is_taken = self.ends[end].send(number, contents(number).into());
        self.settle();
        is_taken
    }

    /// Numbers of the messages that `end` received, sorted. Each must be whole.
    fn numbers(&self, end: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        for message in &self.received[end] {
            assert_eq!(message.contents, contents(message.kind), "{}", message.kind);
            numbers.push(message.kind);
        }
        numbers.sort_unstable();
        numbers
    }
}

fn contents(number: u32) -> Vec<u8> {
    let length = 1 + (number as usize * 7919) % 40_000;
    (0..length).map(|at| (at as u32 ^ number) as u8).collect()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn every_message_arrives_once_although_a_link_is_cut() {
    for link in 0..2 {
        let mut pair = TestPair::new(7);
        pair.run(seconds(1));
        for number in 0..100 {
            assert!(pair.send(0, number) && pair.send(1, number));
            pair.run(Duration::from_millis(3));
            pair.is_cut[link] |= number == 50;
        }
        pair.run(seconds(3));
        assert_eq!(pair.numbers(0), (0..100).collect::<Vec<_>>(), "link {link}");
        assert_eq!(pair.numbers(1), (0..100).collect::<Vec<_>>(), "link {link}");
        assert_eq!(pair.ends[0].view().established, 1);
    }
}

#[test]
fn every_message_arrives_once_although_packets_are_lost() {
    for seed in 1..6 {
        let mut pair = TestPair::new(seed);
        pair.loss = 0.1;
        pair.run(seconds(10));
        for number in 0..50 {
            assert!(pair.send(0, number) && pair.send(1, number));
            pair.run(Duration::from_millis(50));
        }
        pair.run(seconds(20));
        for end in 0..2 {
            assert_eq!(pair.numbers(end), (0..50).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

#[test]
fn nothing_is_taken_while_there_is_no_association() {
    let mut pair = TestPair::new(3);
    pair.is_cut = [true; 2];
    pair.run(seconds(30));
    assert!(!pair.send(0, 1) && !pair.send(1, 1));
    assert!(pair.packets[0][0] < 40, "calls do not flood: {:?}", pair.packets);
    pair.is_cut = [false; 2];
    pair.run(seconds(12));
    assert!(pair.send(0, 1) && pair.send(1, 1));
}

#[test]
fn a_call_gets_through_although_a_link_is_cut() {
    for link in 0..2 {
        let mut pair = TestPair::new(15);
        pair.is_cut[link] = true;
        pair.run(seconds(10));
        assert!(
            pair.send(0, 1) && pair.send(1, 2),
            "link {link}: {:?}",
            pair.ends[0].view()
        );
        pair.run(seconds(3));
        assert_eq!(
            (pair.numbers(0), pair.numbers(1)),
            (vec![2], vec![1]),
            "link {link}"
        );
    }
}

/// Setting the same addresses again changes nothing.
#[test]
fn the_same_addresses_keep_the_association() {
    let mut pair = TestPair::new(17);
    pair.run(seconds(1));
    for end in [0, 1, 0] {
        pair.begin(end);
        pair.run(seconds(3));
    }
    assert_eq!(pair.ends[0].view().established, 1);
}

#[test]
fn both_links_may_be_away_for_a_while() {
    let mut pair = TestPair::new(5);
    pair.run(seconds(1));
    pair.is_cut = [true; 2];
    for number in 0..10 {
        assert!(pair.send(0, number));
    }
    pair.run(seconds(4));
    pair.is_cut = [false; 2];
    pair.run(seconds(3));
    assert_eq!(pair.numbers(1), (0..10).collect::<Vec<_>>());
}

/// An agent that restarted has a new channel. Messages that wait at the other end are lost with the old association, and later messages
/// arrive.
#[test]
fn a_node_that_restarts_is_heard_again() {
    for end in 0..2 {
        let mut pair = TestPair::new(9);
        pair.run(seconds(1));
        pair.ends[end] = TestPair::end(end);
        pair.begin(end);
        pair.run(seconds(4));
        for by in 0..2 {
            assert!(
                pair.send(by, by as u32),
                "end {end} restarted: {:?}",
                pair.ends[by].view()
            );
        }
        pair.run(seconds(1));
        assert_eq!(
            (pair.numbers(0), pair.numbers(1)),
            (vec![1], vec![0]),
            "end {end}"
        );
    }
}

#[test]
fn an_address_that_comes_later_becomes_a_path() {
    for end in 0..2 {
        let mut pair = TestPair::new(11);
        pair.ends[end] = TestPair::end(end);
        pair.ends[end]
            .set_addresses(pair.now, &[address(end, 0)], || Ok::<_, ()>([1; 32]))
            .unwrap();
        pair.run(seconds(2));
        assert_eq!(pair.ends[1 - end].view().paths.len(), 1);
        pair.begin(end);
        pair.run(seconds(8));
        assert_eq!(pair.ends[1 - end].view().paths.len(), 2, "end {end}");
        assert!(pair.send(0, 1) && pair.send(1, 2));
        pair.run(seconds(1));
        assert_eq!(
            (pair.numbers(0), pair.numbers(1)),
            (vec![2], vec![1]),
            "end {end}"
        );
    }
}

#[test]
fn bytes_that_are_no_packet_are_told_apart() {
    let mut pair = TestPair::new(13);
    pair.run(seconds(1));
    let now = pair.now;
    assert!(!pair.ends[0].handle_packet(now, address(1, 0), &Bytes::from_static(b"no packet at all")));
    assert!(pair.send(0, 1));
}

#[test]
fn one_of_two_nodes_calls() {
    let roles = [("alpha", "beta"), ("beta", "alpha"), ("a", "a-1"), ("a-1", "a")]
        .map(|(own, peer)| ChannelRole::of(own, peer));
    assert_eq!(roles[0], ChannelRole::Calls);
    assert!(roles.chunks(2).all(|pair| pair[0] != pair[1]), "{roles:?}");
}

/// The agents hear each other, but no packet of the channel arrives.
#[test]
fn a_channel_without_an_answer_is_overdue_while_the_peer_is_heard() {
    let mut pair = TestPair::new(1);
    pair.is_cut = [true; 2];
    let hear = |pair: &mut TestPair, seconds: u32| {
        for _ in 0..seconds * 10 {
            pair.run(Duration::from_millis(100));
            let now = pair.now;
            pair.ends.iter_mut().for_each(|end| end.on_heard(now));
        }
        pair.ends.each_ref().map(|end| end.is_overdue(pair.now))
    };
    assert_eq!(hear(&mut pair, 9), [false; 2]);
    assert_eq!(hear(&mut pair, 2), [true; 2]);
    // The association with a silent peer is not overdue. When the peer is heard again, the time begins anew.
    pair.run(Duration::from_secs(60));
    assert!(!pair.ends[0].is_overdue(pair.now));
    assert_eq!(hear(&mut pair, 9), [false; 2]);
    pair.is_cut = [false; 2];
    assert_eq!(hear(&mut pair, 20), [false; 2]);
    assert!(pair.ends[0].view().is_established);
    // If an association ends, the time begins at its end.
    pair.is_cut = [true; 2];
    pair.ends[1] = TestPair::end(1);
    pair.begin(1);
    let closed = (0..120).find(|_| {
        hear(&mut pair, 1);
        !pair.ends[0].view().is_established
    });
    assert!(closed.is_some(), "the association ends");
    assert!(!pair.ends[0].is_overdue(pair.now));
    assert_eq!(hear(&mut pair, 11), [true; 2]);
}

/// The questions and pages of a census, in the order in which they travel. They are values here, and the channel carries their numbers.
#[derive(Default)]
struct CensusTalk {
    queries: Vec<PageQuery>,
    pages: Vec<CensusPage>,
}

/// A link is cut while a census is under way. Every connection is on the pages that count, once, and in order.
#[test]
fn a_census_is_complete_although_a_link_is_cut() {
    let terms = Terms {
        mss: 1460,
        window_scale: None,
        sack: true,
        timestamps: true,
        microseconds: false,
    };
    let clients: Vec<SocketAddr> = (1..=300).map(|port| (address(0, 9), port).into()).collect();
    for (link, cut_after) in [(0, 0), (0, 3), (1, 3), (0, 9), (1, 9)] {
        let mut pair = TestPair::new(19);
        pair.run(seconds(2));
        let (mut census, mut talk, mut counted) = (Census::default(), CensusTalk::default(), Vec::new());
        census.begin(pair.now);
        let mut unread: [VecDeque<u32>; 2] = Default::default();
        for _ in 0..3000 {
            if let Some(query) = census.poll(pair.now) {
                assert!(pair.send(0, talk.queries.len() as u32));
                talk.queries.push(query);
            }
            pair.is_cut[link] |= talk.pages.len() > cut_after;
            pair.run(Duration::from_millis(1));
            for (end, unread) in unread.iter_mut().enumerate() {
                unread.extend(pair.received[end].drain(..).map(|message| message.kind));
            }
            while let Some(number) = unread[1].pop_front() {
                let query = talk.queries[number as usize];
                let later = clients.iter().filter(|client| Some(**client) > query.after);
                let connections: Vec<_> = later.take(PAGE_MAX).map(|client| (*client, terms)).collect();
                let is_last = connections
                    .last()
                    .is_none_or(|(client, _)| Some(client) == clients.last());
                assert!(pair.send(1, talk.pages.len() as u32));
                talk.pages.push(CensusPage {
                    query,
                    connections,
                    is_last,
                });
            }
            while let Some(number) = unread[0].pop_front() {
                let page = &talk.pages[number as usize];
                if census.takes(page) {
                    counted.extend(page.connections.iter().map(|(client, _)| *client));
                }
            }
        }
        assert!(
            census.is_complete(),
            "link {link} after {cut_after}: {}",
            counted.len()
        );
        assert_eq!(counted, clients, "link {link} after {cut_after}");
        assert!(pair.is_cut[link] && pair.ends[0].view().established == 1);
        // No question and no page was lost.
        assert_eq!(talk.pages.len(), talk.queries.len());
    }
}
