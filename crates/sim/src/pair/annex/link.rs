//! A link: an ordered stream of messages in both directions, between a wire, or a primary whose wire has failed, and a node that takes
//! connections. The cables may lose, reorder and duplicate packets, so the ends number the messages and repeat them, as TCP does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::Seq;
use proto::annex::AnnexId;
use proto::carried::TakeBackNumber;
use proto::census::ClientTerms;
use proto::connection::Endpoint as Known;
use proto::export::{PartReceipt, SnapshotPart};
use proto::hosting::HostGreeting;
use serde::{Deserialize, Serialize};

use crate::world::{Output, Port};

/// First byte of a link's packets. It tells them from IP packets and from the agents' datagrams.
const MARK: u8 = b'l';
/// An end repeats what the other end has not acknowledged for this time.
const REPEAT: Duration = Duration::from_millis(20);
/// An end that has heard nothing for longer gives the link up.
pub(super) const SILENT_MAX: Duration = Duration::from_millis(500);

/// Identifies a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::pair) struct LinkId {
    /// Number of the station that has called.
    pub caller: usize,
    /// Different for each of its links.
    pub number: u64,
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::pair) enum LinkWord {
    /// The caller's first message.
    Hello(HostGreeting),
    /// Make a socket.
    Restore {
        endpoint: Box<Known>,
        output: Vec<u8>,
        /// The caller's clock, in nanoseconds.
        now: u64,
    },
    /// Let the socket speak.
    Start(Box<StartWord>),
    /// End the connection without a word.
    Drop(SocketAddr),
    /// The number of the wire's last take-back.
    TakeBack(TakeBackNumber),
    /// To the primary: where connections live.
    Lives {
        places: Vec<(SocketAddr, Option<AnnexId>)>,
        is_all: bool,
    },
    /// To an annex: what are the terms of the connections of these clients?
    Ask(Vec<SocketAddr>),
    /// To an annex: where its snapshot stands.
    Receipt(PartReceipt),
    /// The caller lives.
    Ping,
    /// The answer to `Hello`.
    Welcome {
        /// The clients whose connections the sender has.
        has: Vec<SocketAddr>,
        /// From the primary: what it carries, and for which annexes.
        carries: Vec<(SocketAddr, AnnexId)>,
    },
    /// The receiver is not obeyed any more: another node has begun a link.
    Superseded,
    /// The socket is made.
    Restored {
        client: SocketAddr,
        /// The number of the latest snapshot that the sender has exported.
        exported: u64,
    },
    /// The connection cannot be had, or is lost.
    Refused { client: SocketAddr, reason: String },
    /// There is no socket of this client any more.
    Dropped(SocketAddr),
    /// The socket speaks.
    Live(SocketAddr),
    /// The answer to `Ask`.
    Told(Vec<ClientTerms>),
    /// A part of a snapshot that an annex's application has exported.
    Part(SnapshotPart),
}

/// Lets a socket speak.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::pair) struct StartWord {
    pub client: SocketAddr,
    /// The input that was logged since the socket was made.
    pub late: Vec<u8>,
    pub is_quiet: bool,
    /// The client's latest acknowledgement.
    pub acknowledged: Seq,
    /// The sequence numbers in the client's streams at which the application begins, for its exports.
    pub begins_at: Option<(Seq, Seq)>,
    /// A `RelayAdoption`, as JSON.
    pub adoption: String,
}

/// A packet of a link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::pair) struct LinkDatagram {
    pub link: LinkId,
    pub to_caller: bool,
    /// Number of the first of `words`.
    base: u64,
    words: Vec<LinkWord>,
    /// Number of messages that the sender has got.
    heard: u64,
    /// The sender has closed the link.
    is_over: bool,
}

impl LinkDatagram {
    /// Reads a packet, if it is a link's.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let bytes = packet.strip_prefix(&[MARK])?;
        serde_json::from_slice(bytes).ok()
    }

    fn packet(&self) -> Vec<u8> {
        let mut packet = vec![MARK];
        packet.extend(serde_json::to_vec(self).expect("a datagram has a JSON form"));
        packet
    }

    /// Whether the sender has closed the link.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The packet that says that a link is closed.
    fn over(link: LinkId, to_caller: bool) -> Vec<u8> {
        let datagram = Self {
            link,
            to_caller,
            base: 0,
            words: Vec::new(),
            heard: 0,
            is_over: true,
        };
        datagram.packet()
    }
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct AnnexLinkEnd {
    pub id: LinkId,
    to_caller: bool,
    /// The messages that the other end has not acknowledged, and the first one's number.
    unheard: VecDeque<LinkWord>,
    base: u64,
    /// Number of messages of `unheard` that were sent.
    sent: usize,
    /// Number of the next message of the other end.
    next: u64,
    owes: bool,
    sent_at: Instant,
    heard_at: Instant,
}

impl AnnexLinkEnd {
    pub const fn new(now: Instant, id: LinkId, to_caller: bool) -> Self {
        Self {
            id,
            to_caller,
            unheard: VecDeque::new(),
            base: 0,
            sent: 0,
            next: 0,
            owes: false,
            sent_at: now,
            heard_at: now,
        }
    }

    pub fn say(&mut self, word: LinkWord) {
        self.unheard.push_back(word);
    }

    /// The other end's next messages.
    pub fn on_datagram(&mut self, now: Instant, datagram: LinkDatagram) -> Vec<LinkWord> {
        self.heard_at = now;
        while self.base < datagram.heard && self.unheard.pop_front().is_some() {
            self.base += 1;
            self.sent = self.sent.saturating_sub(1);
        }
        self.owes |= !datagram.words.is_empty();
        let mut words = Vec::new();
        for (number, word) in (datagram.base..).zip(datagram.words) {
            if number == self.next {
                self.next += 1;
                words.push(word);
            }
        }
        words
    }

    pub fn is_silent(&self, now: Instant) -> bool {
        now >= self.heard_at + SILENT_MAX
    }

    /// The packet that is to be sent now, if one is.
    pub fn poll_packet(&mut self, now: Instant) -> Option<Vec<u8>> {
        let is_fresh = self.sent < self.unheard.len();
        let repeats = !self.unheard.is_empty() && now >= self.sent_at + REPEAT;
        if !is_fresh && !repeats && !self.owes {
            return None;
        }
        let from = if repeats { 0 } else { self.sent };
        self.sent = self.unheard.len();
        self.owes = false;
        self.sent_at = now;
        let datagram = LinkDatagram {
            link: self.id,
            to_caller: self.to_caller,
            base: self.base + from as u64,
            words: self.unheard.range(from..).cloned().collect(),
            heard: self.next,
            is_over: false,
        };
        Some(datagram.packet())
    }

    /// When this end repeats what was not acknowledged.
    pub fn repeats_at(&self) -> Option<Instant> {
        (!self.unheard.is_empty()).then(|| self.sent_at + REPEAT)
    }

    /// When this end repeats something, or gives the link up.
    pub fn poll_timeout(&self) -> Instant {
        let gives_up = self.heard_at + SILENT_MAX;
        self.repeats_at().map_or(gives_up, |at| at.min(gives_up))
    }

    pub fn over(&self) -> Vec<u8> {
        LinkDatagram::over(self.id, self.to_caller)
    }
}

/// A message of a caller.
#[derive(Debug)]
pub(in crate::pair) struct LinkCall {
    pub id: LinkId,
    /// The link's number. A later link has a higher one.
    pub link: u64,
    /// `None`: the link has ended.
    pub word: Option<LinkWord>,
}

#[derive(Debug)]
struct ServedLink {
    number: u64,
    port: Port,
    end: AnnexLinkEnd,
}

/// The links of callers, at the node that they call.
#[derive(Debug, Default)]
pub(in crate::pair) struct LinkServer {
    served: BTreeMap<LinkId, ServedLink>,
    ended: BTreeSet<LinkId>,
    count: u64,
    calls: VecDeque<LinkCall>,
    closing: Vec<Output>,
}

impl LinkServer {
    /// A packet of a caller came in through `port`.
    pub fn on_datagram(&mut self, now: Instant, port: Port, datagram: LinkDatagram) {
        let id = datagram.link;
        if datagram.is_over {
            return self.end(id);
        }
        if !self.served.contains_key(&id) {
            let begins = datagram.base == 0 && !datagram.words.is_empty();
            if !begins || self.ended.contains(&id) {
                let packet = LinkDatagram::over(id, true);
                return self.closing.push(Output::Transmit { port, packet });
            }
            self.count += 1;
            let served = ServedLink {
                number: self.count,
                port,
                end: AnnexLinkEnd::new(now, id, true),
            };
            self.served.insert(id, served);
        }
        let served = self.served.get_mut(&id).expect("it was found or added");
        let words = served.end.on_datagram(now, datagram).into_iter();
        let link = served.number;
        let calls = words.filter(|word| !matches!(word, LinkWord::Ping));
        self.calls.extend(calls.map(|word| LinkCall {
            id,
            link,
            word: Some(word),
        }));
    }

    /// No process listens: the kernel ends the caller's link.
    pub fn refuse(port: Port, datagram: &LinkDatagram) -> Option<Output> {
        let packet = LinkDatagram::over(datagram.link, true);
        (!datagram.is_over).then_some(Output::Transmit { port, packet })
    }

    fn end(&mut self, id: LinkId) {
        self.ended.insert(id);
        if let Some(served) = self.served.remove(&id) {
            let (link, word) = (served.number, None);
            self.calls.push_back(LinkCall { id, link, word });
            let packet = served.end.over();
            let port = served.port;
            self.closing.push(Output::Transmit { port, packet });
        }
    }

    pub fn poll_call(&mut self) -> Option<LinkCall> {
        self.calls.pop_front()
    }

    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub fn reply(&mut self, id: LinkId, word: LinkWord) {
        if let Some(served) = self.served.get_mut(&id) {
            served.end.say(word);
        }
    }

    /// Ends the links whose callers are silent.
    pub fn handle_timeout(&mut self, now: Instant) {
        let silent = self.served.iter().filter(|(_, served)| served.end.is_silent(now));
        let silent: Vec<_> = silent.map(|(&id, _)| id).collect();
        silent.into_iter().for_each(|id| self.end(id));
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.served.values().map(|served| served.end.poll_timeout()).min()
    }

    /// All links end.
    pub fn reset(&mut self) {
        let ids: Vec<_> = self.served.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end(id));
    }

    /// The process has died: its kernel closes all links. Nobody answers the calls any more.
    pub fn die(&mut self) -> Vec<Output> {
        self.reset();
        self.calls.clear();
        std::mem::take(&mut self.closing)
    }

    /// The packets that are to be sent now.
    pub fn outputs(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = std::mem::take(&mut self.closing);
        for served in self.served.values_mut() {
            let port = served.port;
            outputs.extend(
                served
                    .end
                    .poll_packet(now)
                    .map(|packet| Output::Transmit { port, packet }),
            );
        }
        outputs
    }
}
