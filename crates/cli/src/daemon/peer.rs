//! Messages to and from the peer, over every link.
//!
//! Each address in `[peer]` is a link with a socket of its own. So is the peer's address on each service's interface, because only a
//! datagram that arrives by this interface proves that the service's path works (docs/paths.md). Each datagram goes over all
//! links, except a packet of the channel, which goes over one. The first copy counts, and the others are dropped ([`super::frame`]). So a
//! failed link does no harm while another link works.
//!
//! A separate thread sends the heartbeats, at real-time priority. So a living node does not look dead because of a busy CPU or a slow
//! step of the agent, such as adding an address. The thread repeats the agent's last heartbeat for at most `agent_timeout_ms`, so
//! heartbeats stop if the agent hangs.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent::is_superseded;
use anyhow::Context;
use bytes::Bytes;
use linux::probe::Prober;
use proto::action::{Heartbeat, ServiceBeat};
use proto::census::ClientTerms;
use proto::census::{CensusPage, PageQuery};
use proto::channel::{ChannelRole, PeerChannel};
use proto::export::{PartReceipt, SnapshotPart};
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frame::{self, FrameKind, Opener, Refused, Sealer};
use super::link::{PeerLink, receive, send};
use crate::config::{Config, PeerTransport, SecretKey};
use crate::control::{ChannelPathStatus, ChannelStatus, PeerStatus};

/// Receive buffer in bytes. Larger than the peer's largest datagram: a heartbeat of 64 services with the maximum number of orphans.
const DATAGRAM_MAX: usize = 38 * 1024;
/// Maximum number of datagrams taken from one link at a time. A flood of datagrams must not keep the agent from its other work.
const RECEIVE_MAX: usize = 64;
/// Time between two warnings of the same kind.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two extra heartbeats for an incarnation of the peer's agent that has not proved yet that it is new. A replayed
/// recording must not make this node send without limit.
const AGAIN_EVERY: Duration = Duration::from_millis(5);
/// Time between two looks at this node's own addresses on the links, which may appear late.
const ADDRESSES_EVERY: Duration = Duration::from_secs(1);
/// Bytes of the headers of IPv6 and UDP.
const UDP_HEADERS: usize = 48;

/// A message between the nodes.
#[derive(Debug)]
pub enum PeerMessage {
    /// A heartbeat: a sign of life, with the sender's state.
    Heartbeat(Heartbeat),
    /// Asks what the receiver's kernel knows of the connections of these clients.
    Ask(About<Vec<SocketAddr>>),
    /// The answer to `Ask`.
    Told(About<Vec<ClientTerms>>),
    /// Asks which connections the receiver's kernel has.
    AskAll(About<PageQuery>),
    /// One page of the answer to `AskAll`.
    Page(About<CensusPage>),
    /// A part of a snapshot.
    Part(About<SnapshotPart>),
    /// The answer to `Part`.
    Receipt(About<PartReceipt>),
    /// Asks for the first input of a connection that the receiver's keeper relays.
    AskPrefix(About<PrefixAsk>),
    /// The answer to `AskPrefix`.
    Prefix(About<PrefixAnswer>),
}

/// A question or an answer about connections of one service.
#[derive(Debug, Serialize, Deserialize)]
pub struct About<T> {
    /// The sender's name.
    node: String,
    /// The VIP and port.
    pub vip: SocketAddr,
    /// The question or the answer itself.
    pub connections: T,
}

impl PeerMessage {
    /// The message in a frame's `contents`.
    fn read(kind: FrameKind, contents: &[u8]) -> Result<Self, Refused> {
        fn json<T: DeserializeOwned>(contents: &[u8]) -> Result<T, Refused> {
            serde_json::from_slice(contents).map_err(|_| Refused::Contents)
        }
        fn binary<T: DeserializeOwned>(contents: &[u8]) -> Result<T, Refused> {
            postcard::from_bytes(contents).map_err(|_| Refused::Contents)
        }
        Ok(match kind {
            FrameKind::Heartbeat => Self::Heartbeat(json(contents)?),
            FrameKind::Ask => Self::Ask(json(contents)?),
            FrameKind::Told => Self::Told(json(contents)?),
            FrameKind::AskAll => Self::AskAll(json(contents)?),
            FrameKind::Page => Self::Page(json(contents)?),
            FrameKind::Part => Self::Part(binary(contents)?),
            FrameKind::Receipt => Self::Receipt(binary(contents)?),
            FrameKind::AskPrefix => Self::AskPrefix(binary(contents)?),
            FrameKind::Prefix => Self::Prefix(binary(contents)?),
            FrameKind::Channel => return Err(Refused::Kind), // has packets, not messages
        })
    }

    /// The sender's name.
    fn node(&self) -> &str {
        match self {
            Self::Heartbeat(heartbeat) => &heartbeat.node,
            Self::Ask(about) => &about.node,
            Self::Told(about) => &about.node,
            Self::AskAll(about) => &about.node,
            Self::Page(about) => &about.node,
            Self::Part(about) => &about.node,
            Self::Receipt(about) => &about.node,
            Self::AskPrefix(about) => &about.node,
            Self::Prefix(about) => &about.node,
        }
    }
}

/// One datagram of the peer's agent.
#[derive(Debug)]
pub struct PeerDatagram {
    /// Index of the interface by which it arrived.
    pub interface: u32,
    /// The message. `None` for a copy, for a heartbeat that is older than another one that arrived, and for a packet of the channel.
    pub message: Option<PeerMessage>,
}

/// The links to the peer. Takes only datagrams from the peer's addresses and port.
pub struct PeerLinks {
    /// One for each link, except links for which no raw socket could be opened.
    probers: Vec<Prober>,
    links: Vec<PeerLink>,
    opener: Opener,
    name: String,
    own_name: String,
    is_authenticated: bool,
    said: Arc<SharedHeartbeat>,
    refused: BTreeMap<Refused, Count>,
    /// The SCTP association with the peer. `None` if questions and answers are datagrams (`[peer] transport`).
    channel: Option<PeerChannel>,
    /// When this node's addresses are looked up next for the channel.
    addresses_at: proto::Instant,
    /// Whether a log line has said that the channel is overdue.
    is_overdue_told: bool,
}

/// Datagrams that were refused for one reason.
#[derive(Default)]
struct Count {
    datagrams: u64,
    warned: Option<Instant>,
}

/// The agent's last heartbeat, shared with the thread that repeats it.
struct SharedHeartbeat {
    word: Mutex<LastHeartbeat>,
    changed: Condvar,
}

struct LastHeartbeat {
    bytes: Vec<u8>,
    /// The incarnation of the peer that this node hears. A change of this field or of `services` is news, which is sent at once.
    heard: Option<u64>,
    services: Vec<ServiceBeat>,
    at: Option<Instant>,
    /// The heartbeat has news that the thread has not sent yet.
    fresh: bool,
    /// When an extra heartbeat was last sent for a new incarnation of the peer.
    again: Option<Instant>,
    over: bool,
    sealer: Sealer,
}

impl LastHeartbeat {
    /// No heartbeat yet.
    fn new(sealer: Sealer) -> Self {
        Self {
            bytes: Vec::new(),
            heard: None,
            services: Vec::new(),
            at: None,
            fresh: false,
            again: None,
            over: false,
            sealer,
        }
    }

    /// Replaces the heartbeat. The thread sends it at the next beat, or at once if it has news. A changed `heard` is news too, because a
    /// peer that has just started waits until its new incarnation is echoed.
    fn take(&mut self, heartbeat: &Heartbeat) {
        let heard = heartbeat.echo.map(|echo| echo.incarnation);
        self.fresh |= self.heard != heard || self.services != heartbeat.services;
        self.services.clone_from(&heartbeat.services);
        self.heard = heard;
        self.bytes = to_json(heartbeat);
        self.at = Some(Instant::now());
    }
}

impl PeerLinks {
    /// Opens the sockets and starts the thread that sends heartbeats.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let key = config.peer.key_file.as_deref().map(SecretKey::read).transpose();
        let key = key.map_err(anyhow::Error::msg).context("reading the key")?;
        let names = (config.node.name.as_str(), config.peer.name.as_str());
        let (sealer, opener) = frame::open(names, key.as_ref(), frame::VERSIONS, draw);
        let addresses = config.links();
        let is_shared = addresses.len() > 1 || config.node.has_several_peers();
        let links = addresses.iter().map(|&address| {
            let address = SocketAddr::new(address, config.peer.port);
            PeerLink::open(address, is_shared).with_context(|| format!("opening the link to {address}"))
        });
        let links = links.collect::<anyhow::Result<Vec<_>>>()?;
        let said = Arc::new(SharedHeartbeat {
            word: Mutex::new(LastHeartbeat::new(sealer)),
            changed: Condvar::new(),
        });
        let (rhythm, patience) = (config.detector.heartbeat, config.node.agent_timeout);
        let theirs: Vec<_> = links
            .iter()
            .map(|link| (link.address, Arc::clone(&link.socket)))
            .collect();
        let heard = Arc::clone(&said);
        std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(move || {
                if let Err(error) = linux::process::run_in_real_time() {
                    tracing::warn!(%error, "heartbeats at ordinary priority: false alarms are more likely");
                }
                heard.repeat(&theirs, rhythm, patience);
            })?;
        let prober = |&address: &IpAddr| {
            Prober::open(address)
                .inspect_err(
                    |error| tracing::warn!(%error, %address, "no probes: false alarms are more likely"),
                )
                .ok()
        };
        Ok(Self {
            probers: addresses.iter().filter_map(prober).collect(),
            links,
            opener,
            name: config.peer.name.clone(),
            own_name: config.node.name.clone(),
            is_authenticated: key.is_some(),
            said,
            refused: BTreeMap::new(),
            channel: (config.peer.transport == PeerTransport::Sctp).then(|| {
                let role = ChannelRole::of(names.0, names.1);
                let headers = u32::try_from(UDP_HEADERS + frame::OVERHEAD).unwrap_or(u32::MAX);
                PeerChannel::new(role, &addresses, headers)
            }),
            addresses_at: proto::Instant::ZERO,
            is_overdue_told: false,
        })
    }

    /// Gives a heartbeat to the thread. The thread sends it at the next beat, or at once if the heartbeat has news.
    pub fn send(&self, heartbeat: &Heartbeat) {
        let mut word = self.said.word.lock().unwrap_or_else(PoisonError::into_inner);
        word.take(heartbeat);
        self.said.changed.notify_one();
    }

    /// Asks what the peer's kernel knows of the connections of `clients`.
    pub fn ask(&mut self, vip: SocketAddr, clients: Vec<SocketAddr>) {
        self.send_once(FrameKind::Ask, vip, clients);
    }

    /// Answers [`PeerMessage::Ask`].
    pub fn tell(&mut self, vip: SocketAddr, told: Vec<ClientTerms>) {
        self.send_once(FrameKind::Told, vip, told);
    }

    /// Asks which connections the peer's kernel has.
    pub fn ask_all(&mut self, vip: SocketAddr, query: PageQuery) {
        self.send_once(FrameKind::AskAll, vip, query);
    }

    /// Answers [`PeerMessage::AskAll`].
    pub fn list(&mut self, vip: SocketAddr, page: CensusPage) {
        self.send_once(FrameKind::Page, vip, page);
    }

    /// Sends a part of a snapshot.
    pub fn send_part(&mut self, vip: SocketAddr, part: SnapshotPart) {
        self.send_once(FrameKind::Part, vip, part);
    }

    /// Answers [`PeerMessage::Part`].
    pub fn send_receipt(&mut self, vip: SocketAddr, receipt: PartReceipt) {
        self.send_once(FrameKind::Receipt, vip, receipt);
    }

    /// Asks for the first input of a connection that the peer's keeper relays.
    pub fn ask_prefix(&mut self, vip: SocketAddr, ask: PrefixAsk) {
        self.send_once(FrameKind::AskPrefix, vip, ask);
    }

    /// Answers [`PeerMessage::AskPrefix`].
    pub fn tell_prefix(&mut self, vip: SocketAddr, answer: PrefixAnswer) {
        self.send_once(FrameKind::Prefix, vip, answer);
    }

    /// Sends a message over the channel. If there is no channel or it does not take the message, sends the message once over each link; if
    /// all copies are lost, the node that waits for an answer asks again. Sends nothing if the version in use lacks this kind of message.
    fn send_once<T: Serialize>(&mut self, kind: FrameKind, vip: SocketAddr, connections: T) {
        let about = About {
            node: self.own_name.clone(),
            vip,
            connections,
        };
        let mut word = self.said.word.lock().unwrap_or_else(PoisonError::into_inner);
        if !word.sealer.speaks(kind) {
            return;
        }
        let contents = Bytes::from(if kind.is_binary() {
            postcard::to_stdvec(&about).expect("the values have a binary form")
        } else {
            to_json(&about)
        });
        if let Some(channel) = &mut self.channel
            && channel.send(kind as u32, contents.clone())
        {
            drop(word);
            self.flush_channel(linux::clock::now());
            return;
        }
        let datagram = word.sealer.seal(kind, &contents);
        for link in &self.links {
            send(link.address, &link.socket, &datagram);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> proto::Instant {
        let timer = self.channel.as_ref().and_then(PeerChannel::poll_timeout);
        timer.map_or(self.addresses_at, |timer| timer.min(self.addresses_at))
    }

    /// Does what is due: looks up this node's addresses, and runs the channel's timers.
    pub fn handle_timeout(&mut self, now: proto::Instant) {
        if now >= self.addresses_at {
            self.addresses_at = now + ADDRESSES_EVERY;
            for link in &self.links {
                link.follow_own_address();
            }
            self.renew_addresses(now);
        }
        if let Some(channel) = &mut self.channel {
            channel.handle_timeout(now);
        }
        self.flush_channel(now);
        self.tell_of_channel(now);
    }

    /// Logs when the channel becomes overdue, and when an overdue channel is established.
    fn tell_of_channel(&mut self, now: proto::Instant) {
        let Some(channel) = &self.channel else { return };
        if channel.is_overdue(now) && !self.is_overdue_told {
            self.is_overdue_told = true;
            tracing::warn!(
                peer = self.name,
                "the peer is heard, but there is no channel to it; questions and answers stay datagrams until there is one"
            );
        } else if self.is_overdue_told && channel.view().is_established {
            self.is_overdue_told = false;
            tracing::info!(peer = self.name, "the channel to the peer is established");
        }
    }

    fn renew_addresses(&mut self, now: proto::Instant) {
        let own = self.own_addresses();
        let secret = || {
            let mut secret = [0; 32];
            linux::process::fill_random(&mut secret).map(|()| secret)
        };
        let Some(channel) = &mut self.channel else { return };
        if let Err(error) = channel.set_addresses(now, &own, secret) {
            tracing::warn!(%error, "no random bytes for the channel to the peer; trying again");
        }
    }

    /// Sends the channel's packets, each over the link to its address.
    fn flush_channel(&mut self, now: proto::Instant) {
        let Some(channel) = &mut self.channel else { return };
        while let Some((to, packet)) = channel.poll_transmit(now) {
            let mut word = self.said.word.lock().unwrap_or_else(PoisonError::into_inner);
            let link = self
                .links
                .iter()
                .find(|link| link.address.ip().to_canonical() == to);
            if let Some(link) = link
                && word.sealer.speaks(FrameKind::Channel)
            {
                let datagram = word.sealer.seal(FrameKind::Channel, &packet.emit());
                send(link.address, &link.socket, &datagram);
            }
        }
    }

    /// The messages that the channel has received. All of them are attributed to `interface`, by which the peer's last datagram of any kind
    /// came in.
    fn take_from_channel(&mut self, interface: u32) -> Vec<PeerDatagram> {
        let mut arrivals = Vec::new();
        self.flush_channel(linux::clock::now());
        while let Some(message) = self.channel.as_mut().and_then(PeerChannel::receive) {
            let kind = u8::try_from(message.kind).ok().and_then(FrameKind::of);
            let read = match kind {
                Some(FrameKind::Heartbeat | FrameKind::Channel) | None => Err(Refused::Kind),
                Some(kind) => PeerMessage::read(kind, &message.contents),
            };
            match read.and_then(|message| self.of_peer(message)) {
                Ok(message) => arrivals.push(PeerDatagram {
                    interface,
                    message: Some(message),
                }),
                Err(reason) => self.refuse(reason),
            }
        }
        self.flush_channel(linux::clock::now()); // the receiver's window has grown
        arrivals
    }

    /// Probes the peer's kernel over every link.
    pub fn probe(&mut self) {
        for prober in &mut self.probers {
            if let Err(error) = prober.ask() {
                tracing::trace!(%error, "probe not sent"); // expected while the peer is away
            }
        }
    }

    /// Whether the peer's kernel has answered a probe since the last call.
    pub fn is_answered(&mut self) -> bool {
        // Call `is_answered` of every prober, because the call removes the answers from its socket. `any` would stop at the first answer.
        let answers = self.probers.iter_mut().map(Prober::is_answered);
        answers.filter(|is_answered| *is_answered).count() > 0
    }

    /// Takes the datagrams that have arrived. A heartbeat that is superseded ([`is_superseded`]) has no message.
    pub fn receive(&mut self) -> Vec<PeerDatagram> {
        let mut arrivals = Vec::new();
        let mut buffer = [0; DATAGRAM_MAX];
        let mut interface_of_channel = None;
        for index in 0..self.links.len() {
            for _ in 0..RECEIVE_MAX {
                let PeerLink { address, socket, .. } = &self.links[index];
                match receive(socket, &mut buffer) {
                    Ok((count, from, interface)) if from == Some(*address) => {
                        interface_of_channel = self.channel.is_some().then_some(interface);
                        arrivals.extend(self.take(index, &buffer[..count], interface));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A UDP socket reports each error once, such as a closed port of the peer. The next call receives again.
                    Err(_) => {}
                }
            }
        }
        if let Some(interface) = interface_of_channel {
            arrivals.extend(self.take_from_channel(interface));
        }
        let agent_of = |arrival: &PeerDatagram| match &arrival.message {
            Some(PeerMessage::Heartbeat(heartbeat)) => Some(heartbeat.incarnation),
            _ => None,
        };
        for index in 0..arrivals.len() {
            if is_superseded(&arrivals[index], &arrivals[index + 1..], agent_of) {
                arrivals[index].message = None;
            }
        }
        arrivals
    }

    /// Takes a datagram that came over the link with index `link` and through the interface with index `interface`. `None` if the datagram
    /// neither has a message that counts nor proves that the link works.
    fn take(&mut self, link: usize, datagram: &[u8], interface: u32) -> Option<PeerDatagram> {
        let heard = self.hear(link, datagram);
        let mut is_new = false;
        if matches!(heard, Ok(_) | Err(Refused::Again)) {
            if let Some(channel) = &mut self.channel {
                channel.on_heard(linux::clock::now());
            }
            let link = &mut self.links[link];
            link.heard = Some(Instant::now());
            let number = frame::Number::of(datagram);
            is_new = number.is_after(link.newest);
            if is_new {
                link.newest = number;
            }
        }
        let message = heard.unwrap_or_else(|reason| {
            self.refuse(reason);
            None
        });
        (is_new || message.is_some()).then_some(PeerDatagram { interface, message })
    }

    /// The message in `datagram`. `None` for a heartbeat that comes after a newer one, and for a packet of the channel.
    fn hear(&mut self, link: usize, datagram: &[u8]) -> Result<Option<PeerMessage>, Refused> {
        let opened = self.opener.open(datagram)?;
        if opened.kind == FrameKind::Heartbeat && opened.is_late {
            return Ok(None);
        }
        if opened.kind == FrameKind::Channel {
            let channel = self.channel.as_mut().ok_or(Refused::Transport)?;
            let packet = Bytes::copy_from_slice(opened.contents);
            let from = self.links[link].address.ip();
            return match channel.handle_packet(linux::clock::now(), from, &packet) {
                true => Ok(None),
                false => Err(Refused::Contents),
            };
        }
        let message = PeerMessage::read(opened.kind, opened.contents)?;
        self.of_peer(message).map(Some)
    }

    fn of_peer(&self, message: PeerMessage) -> Result<PeerMessage, Refused> {
        match message.node() == self.name {
            true => Ok(message),
            false => Err(Refused::Name),
        }
    }

    fn refuse(&mut self, reason: Refused) {
        if reason == Refused::Unproved {
            self.say_again();
        }
        let count = self.refused.entry(reason).or_default();
        count.datagrams += 1;
        // Copies are usual with several links. A new agent's first datagrams cannot prove yet that they are new.
        let is_usual = matches!(reason, Refused::Again | Refused::Unproved);
        if !is_usual && count.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            count.warned = Some(Instant::now());
            tracing::warn!(peer = self.name, datagrams = count.datagrams, %reason, "datagrams from the peer's address are ignored");
        }
    }

    /// Sends the heartbeat again at once. A new incarnation of the peer's agent needs this node's nonce to prove that it is new, and should
    /// not have to wait for the next beat.
    fn say_again(&self) {
        let mut word = self.said.word.lock().unwrap_or_else(PoisonError::into_inner);
        if word.again.is_none_or(|at| at.elapsed() >= AGAIN_EVERY) {
            word.again = Some(Instant::now());
            word.fresh = true;
            self.said.changed.notify_one();
        }
    }

    /// Adds the state of the links to `status`.
    pub fn describe(&self, status: &mut PeerStatus) {
        status.authenticated = self.is_authenticated;
        status.links = self.links.iter().map(PeerLink::status).collect();
        let refused = self.refused.iter();
        status.refused = refused
            .map(|(reason, count)| (reason.to_string(), count.datagrams))
            .collect();
        status.channel = self.channel.as_ref().map(|channel| {
            let view = channel.view();
            let path = |(address, usable)| ChannelPathStatus { address, usable };
            ChannelStatus {
                established: view.is_established,
                overdue: channel.is_overdue(linux::clock::now()),
                associations: view.established,
                paths: view.paths.into_iter().map(path).collect(),
                retransmissions: view.retransmissions,
            }
        });
    }

    /// This node's addresses on the links that have a route to the peer.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let own = |link: &PeerLink| link.socket.local_addr().ok().map(|address| address.ip());
        self.links.iter().filter_map(own).collect()
    }

    /// The links' sockets. A socket is readable when a datagram has arrived.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().map(|link| link.socket.as_fd())
    }
}

/// An unpredictable number, not 0.
fn draw() -> u64 {
    linux::process::random_seed() as u64 | 1
}

impl SharedHeartbeat {
    /// Runs the thread. Sends the last heartbeat every `rhythm`, and news at once. Sends nothing while the last heartbeat is older than
    /// `patience`.
    fn repeat(&self, links: &[(SocketAddr, Arc<UdpSocket>)], rhythm: Duration, patience: Duration) {
        let mut due = Instant::now();
        let mut word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        while !word.over {
            let now = Instant::now();
            if word.fresh || now >= due {
                word.fresh = false;
                due = now + rhythm;
                if word.at.is_some_and(|at| now.duration_since(at) < patience) {
                    let LastHeartbeat { sealer, bytes, .. } = &mut *word;
                    let datagram = sealer.seal(FrameKind::Heartbeat, bytes);
                    for (address, socket) in links {
                        send(*address, socket, &datagram);
                    }
                }
            }
            let wait = due.saturating_duration_since(Instant::now());
            word = self
                .changed
                .wait_timeout(word, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

fn to_json(contents: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(contents).expect("what is said has a JSON form")
}

impl Drop for PeerLinks {
    fn drop(&mut self) {
        self.said.word.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.said.changed.notify_one();
    }
}

#[cfg(test)]
#[path = "peer_fuzz.rs"]
mod fuzzed;

#[cfg(test)]
mod tests {
    use proto::action::{ApplicationState, Echo};
    use proto::migration::{
        MigrationBeat, MigrationOffer, OfferAnswer, OfferState, REASON_MAX, SERVICES_FEW, offers_max,
    };
    use proto::orphans::{Orphans, TOLD_MAX};
    use proto::role::Role;

    use super::*;

    /// Every service with long fields, and the maximum number of orphans, offers and answers of one heartbeat.
    #[test]
    fn the_largest_heartbeat_fits() {
        let longest = SocketAddr::from(([0xffff_u16; 8], u16::MAX));
        let beat = ServiceBeat {
            vip: longest,
            role: Role::Primary,
            epoch: u64::MAX,
            configured_primary: false,
            mac: [u8::MAX; 6],
            server: ApplicationState::Alive,
            leaves: false,
            hands_over: false,
            orphans: Orphans {
                first: u64::MAX,
                clients: vec![longest; TOLD_MAX],
            },
            adopted: u64::MAX,
            migration: None,
            path: Some(proto::path::PathWord {
                outside: proto::path::Reachability::Unknown,
                hears: Some(false),
            }),
            direct: true,
            immediate: true,
            take_back: Some(u64::MAX),
        };
        for count in [SERVICES_FEW, linux::wire::SERVICES_MAX] {
            let mut services = vec![beat.clone(); count];
            for service in &mut services[1..] {
                service.orphans.clients.clear();
            }
            // One service has its turn.
            let answer = OfferAnswer {
                number: u64::MAX,
                state: OfferState::Waiting("\"".repeat(REASON_MAX)),
            };
            // Connections may move in both directions at once.
            let offer = MigrationOffer {
                number: u64::MAX,
                client: longest,
                is_released: true,
                is_frozen: true,
                reverses: true,
                annex: None, // what moves to an annex is not reversed, and the annex takes fewer bytes
                is_bereft: false, // it is not frozen
            };
            services[0].migration = Some(MigrationBeat {
                offers: vec![offer; offers_max(count)],
                answers: vec![answer; offers_max(count)],
                leads_first: true,
            });
            let heartbeat = Heartbeat {
                node: "n".repeat(32),
                incarnation: u64::MAX,
                sequence: u64::MAX,
                sent: u64::MAX,
                echo: Some(Echo {
                    incarnation: u64::MAX,
                    sent: u64::MAX,
                }),
                services,
            };
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), "5".repeat(64)).unwrap();
            let key = SecretKey::read(file.path()).unwrap();
            let (mut sealer, _) = frame::open(("alpha", "beta"), Some(&key), frame::VERSIONS, draw);
            let datagram = sealer.seal(FrameKind::Heartbeat, &to_json(&heartbeat));
            assert!(datagram.len() < DATAGRAM_MAX, "{} bytes", datagram.len());
        }
    }

    #[test]
    fn news_go_out_at_once_and_the_rest_in_its_rhythm() {
        let (sealer, _) = frame::open(("alpha", "beta"), None, frame::VERSIONS, draw);
        let mut word = LastHeartbeat::new(sealer);
        let mut heartbeat = Heartbeat {
            node: "alpha".to_owned(),
            incarnation: 1,
            sequence: 1,
            sent: 1,
            echo: None,
            services: Vec::new(),
        };
        let mut is_news = |heartbeat: &Heartbeat| {
            word.take(heartbeat);
            std::mem::take(&mut word.fresh)
        };
        is_news(&heartbeat);
        (heartbeat.sequence, heartbeat.sent) = (2, 2);
        assert!(!is_news(&heartbeat));
        let echo = |incarnation, sent| Some(Echo { incarnation, sent });
        heartbeat.echo = echo(7, 1);
        assert!(is_news(&heartbeat), "a peer has come");
        heartbeat.echo = echo(7, 2);
        assert!(!is_news(&heartbeat));
        heartbeat.echo = echo(8, 1);
        assert!(is_news(&heartbeat), "another incarnation of the peer");
    }
}
