//! An endpoint: a port on the addresses of a host, its associations, and the answers to packets that belong to none (RFC 9260 §5.1, §8.4).
//!
//! ```text
//!   packet ──▶ INIT: answered with a signed cookie; nothing is kept
//!          ├─▶ COOKIE ECHO: a valid cookie makes an association, or changes the one that exists. If calls need a key, a proof must
//!          │   come with the cookie
//!          ├─▶ the tag of an association, or else the address of its peer: goes to this association
//!          └─▶ out of the blue: ABORT, SHUTDOWN COMPLETE, or no answer
//! ```
//!
//! To call a peer means to send it an INIT. The endpoint that does so is the caller.
//!
//! A flood of INITs, forged or replayed cookies, and packets with wrong tags leave nothing behind but counters.

use std::collections::VecDeque;
use std::net::IpAddr;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::association::setup::AssociationNames;
use super::association::{Association, AssociationEvent, SctpTransmit};
use super::auth::{AUTH, CallKey};
use super::cause::ErrorCause;
use super::chunk::{InitChunk, SctpChunk};
use super::config::{InvalidSctp, SctpConfig};
use super::cookie::{CookieContent, CookieVerdict};
use super::destination::Destination;
use super::packet::SctpPacket;
use super::parameter::InitParameter;
pub use super::registry::AssociationId;
use super::registry::{AssociationRegistry, RegistryKeys};
use super::secret::SctpSecret;
use super::state::AssociationState;
use super::terms::{InitRefusal, InitTerms, PATHS_MAX, is_host};
use super::tsn::Tsn;
use crate::Instant;

/// Maximum number of waiting answers to packets of no association. Further answers are dropped: the sender asks again.
const ANSWERS_MAX: usize = 64;
/// Reason in the ABORT to a caller without the key.
const NO_PROOF: &[u8] = b"this endpoint requires callers to prove a shared key";

/// Why an endpoint cannot call a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No address, or too many.
    #[error("a peer has 1 to {PATHS_MAX} addresses, not {0}")]
    Addresses(usize),
    /// Nothing can be sent to this address, or the answer could not come from it.
    #[error("{0} is not the address of one host")]
    NoHost(IpAddr),
    /// There is an association with this peer already.
    #[error("there is an association with {0} port {1} already")]
    Exists(IpAddr, u16),
}

/// Counters of an endpoint: packets that belong to no association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// INITs that were answered.
    pub inits: u64,
    /// INITs that were refused or dropped, except those whose only answer is a repeated SHUTDOWN ACK.
    pub refused_inits: u64,
    /// Cookies that this endpoint did not make, or made more than four cookie lives ago. Also cookies that came with a wrong tag or port,
    /// or from an address that is not in the INIT.
    pub forged_cookies: u64,
    /// Cookies that came too late.
    pub stale_cookies: u64,
    /// Cookies that came again after their association had ended.
    pub replayed_cookies: u64,
    /// Valid cookies without a proof that the caller knows the key.
    pub unproven_cookies: u64,
    /// Packets of no association, packets to another port, and packets from an address that no host has.
    pub strays: u64,
    /// Answers that were dropped because too many waited.
    pub dropped: u64,
}

/// A port with its associations.
#[derive(Debug)]
pub struct SctpEndpoint {
    config: SctpConfig,
    secret: SctpSecret,
    port: u16,
    addresses: Vec<IpAddr>,
    /// Calls are answered as long as there are fewer associations than this.
    associations_max: usize,
    /// The key that callers must prove they know. `None`: calls need no proof.
    call_key: Option<CallKey>,
    associations: FxHashMap<AssociationId, Association>,
    registry: AssociationRegistry,
    next: u64,
    /// Associations that may have packets to send or events to report.
    touched: VecDeque<AssociationId>,
    answers: VecDeque<SctpTransmit>,
    /// Associations that have events, each once.
    news: VecDeque<AssociationId>,
    counts: EndpointCounts,
}

impl SctpEndpoint {
    /// An endpoint that answers calls while it has fewer than `associations_max` associations. With 0, it only calls. An association that
    /// has ended counts until its events and messages have been read. `secret` is 32 random bytes.
    ///
    /// All functions except `handle_too_large` treat an IPv4-mapped IPv6 address as the IPv4 address in it.
    ///
    /// # Errors
    /// If the configuration is invalid, or there are more than [`PATHS_MAX`] addresses.
    pub fn new(
        config: SctpConfig,
        secret: [u8; 32],
        port: u16,
        addresses: Vec<IpAddr>,
        associations_max: usize,
    ) -> Result<Self, InvalidSctp> {
        config.check()?;
        if addresses.len() > PATHS_MAX {
            let (field, most) = ("number of addresses", PATHS_MAX as u64);
            return Err(InvalidSctp::TooLarge { field, most });
        }
        Ok(Self {
            config,
            secret: SctpSecret::new(secret),
            port,
            addresses: canonical(&addresses),
            associations_max,
            call_key: None,
            associations: FxHashMap::default(),
            registry: AssociationRegistry::default(),
            next: 0,
            touched: VecDeque::new(),
            answers: VecDeque::new(),
            news: VecDeque::new(),
            counts: EndpointCounts::default(),
        })
    }

    /// From now on, this end proves in its calls that it knows the key, and takes only calls with this proof. So a host without the key
    /// cannot open an association, or restart the association of another caller.
    pub fn require_key(&mut self, key: CallKey) {
        self.call_key = Some(key);
    }

    /// Counters.
    pub const fn counts(&self) -> EndpointCounts {
        self.counts
    }

    /// Number of associations.
    pub fn len(&self) -> usize {
        self.associations.len()
    }

    /// Whether there is no association.
    pub fn is_empty(&self) -> bool {
        self.associations.is_empty()
    }

    /// An association, until its last event and its last message have been read.
    pub fn association(&self, id: AssociationId) -> Option<&Association> {
        self.associations.get(&id)
    }

    /// Returns an association so that the caller can use it. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn association_mut(&mut self, id: AssociationId) -> Option<&mut Association> {
        let association = self.associations.get_mut(&id)?;
        touch(&mut self.touched, id);
        Some(association)
    }

    /// Calls a peer. The INIT goes to the first of its addresses. The address that answers becomes the primary destination.
    ///
    /// # Errors
    /// If an address is invalid, if there are too few or too many addresses, or if there is already an association with the peer.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: &[IpAddr],
        port: u16,
    ) -> Result<AssociationId, ConnectError> {
        if peer.is_empty() || peer.len() > PATHS_MAX {
            return Err(ConnectError::Addresses(peer.len()));
        }
        let addresses = canonical(peer);
        for address in &addresses {
            if !is_host(*address) {
                return Err(ConnectError::NoHost(*address));
            }
            if self.registry.by_peer(&[*address], port).is_some() {
                return Err(ConnectError::Exists(*address, port));
            }
        }
        let names = self.new_names(port);
        let (config, secret) = (self.config, self.secret.child());
        let mut association = Association::connect(config, secret, names, &self.addresses, &addresses, now);
        association.prove_calls_by(self.call_key.clone());
        Ok(self.insert(now, association))
    }

    fn new_names(&mut self, peer_port: u16) -> AssociationNames {
        let local_tag = loop {
            let tag = self.secret.draw_tag();
            if self.registry.by_tag(tag).is_none() {
                break tag;
            }
        };
        AssociationNames {
            local_port: self.port,
            peer_port,
            local_tag,
            // The lower half.
            local_tsn: Tsn(self.secret.draw() as u32),
        }
    }

    fn insert(&mut self, now: Instant, association: Association) -> AssociationId {
        let id = AssociationId(self.next);
        self.next += 1;
        self.associations.insert(id, association);
        self.refresh(now, id);
        id
    }

    /// An association may have changed. It will be asked for packets and events, and the registry lists it under its present tag and its
    /// peer's confirmed addresses. An association that has ended is not listed, so its peer may call again before the last messages have
    /// been read.
    fn refresh(&mut self, now: Instant, id: AssociationId) {
        touch(&mut self.touched, id);
        self.relist(now, id);
    }

    fn relist(&mut self, now: Instant, id: AssociationId) {
        let Some(association) = self.associations.get_mut(&id) else {
            return;
        };
        if !association.take_renamed() {
            return;
        }
        let until = now + CookieContent::life(u32::MAX, self.config.cookie_life);
        if association.state() == AssociationState::Closed {
            self.registry.remove(id, until);
            return;
        }
        let confirmed = association
            .destinations()
            .iter()
            .filter(|path| path.is_confirmed());
        let keys = RegistryKeys {
            tag: association.local_tag(),
            port: association.peer_port(),
            addresses: confirmed.map(Destination::address).collect(),
        };
        self.registry.list(id, keys, until);
    }

    /// A packet with a valid checksum came from `from`. Returns whether an association has accepted the packet. If so, `from` is an address
    /// of the association's peer.
    pub fn handle_packet(&mut self, now: Instant, from: IpAddr, mut packet: SctpPacket) -> bool {
        let from = from.to_canonical();
        // RFC 9260 §8.4, rule 1.
        if packet.destination_port != self.port || !is_host(from) {
            self.counts.strays += 1;
            return false;
        }
        let is_proven = self.take_proof(&mut packet);
        match packet.chunks.first() {
            Some(SctpChunk::Init(init)) => {
                let init = init.clone();
                self.on_init(now, from, &packet, &init);
                return false;
            }
            Some(SctpChunk::CookieEcho(cookie)) => {
                let cookie = cookie.clone();
                if !self.on_cookie_echo(now, from, &packet, &cookie, is_proven) {
                    return false;
                }
                packet.chunks.remove(0);
            }
            _ => {}
        }
        let Some((id, association)) = self.find(packet.tag, &[from], packet.source_port) else {
            self.on_stray(from, &packet);
            return false;
        };
        // The SHUTDOWN COMPLETE of an earlier association was lost, and the peer repeats its SHUTDOWN ACK until it gets a SHUTDOWN COMPLETE
        // (RFC 9260 §8.5.1 E).
        if association.state().is_setup() && packet.chunks.first() == Some(&SctpChunk::ShutdownAck) {
            self.on_stray(from, &packet);
            return false;
        }
        let counts = association.handle_packet(now, from, packet);
        self.refresh(now, id);
        counts
    }

    /// If a key is needed, removes an AUTH chunk in front of a COOKIE ECHO. Returns whether the sender may call: the sender knows the key,
    /// or no key is needed.
    fn take_proof(&self, packet: &mut SctpPacket) -> bool {
        let Some(key) = &self.call_key else {
            return true;
        };
        let is_call = matches!(
            packet.chunks[..],
            [SctpChunk::Other { kind: AUTH, .. }, SctpChunk::CookieEcho(_), ..]
        );
        let is_proven = is_call && key.is_proven(&packet.chunks);
        if is_call {
            packet.chunks.remove(0);
        }
        is_proven
    }

    /// The association with this tag. If there is none, the association whose peer has one of these addresses.
    fn find(
        &mut self,
        tag: u32,
        addresses: &[IpAddr],
        port: u16,
    ) -> Option<(AssociationId, &mut Association)> {
        let by_peer = || self.registry.by_peer(addresses, port);
        let id = self.registry.by_tag(tag).or_else(by_peer)?;
        Some((id, self.associations.get_mut(&id)?))
    }

    fn on_init(&mut self, now: Instant, from: IpAddr, packet: &SctpPacket, init: &InitChunk) {
        if packet.tag != 0 {
            self.counts.refused_inits += 1; // RFC 9260 §8.5.1 A: an INIT carries no tag
            return;
        }
        let terms = match InitTerms::read(init, from) {
            Ok(terms) => terms,
            Err(InitRefusal::Silent) => {
                self.counts.refused_inits += 1;
                return;
            }
            Err(InitRefusal::Abort(cause)) => {
                self.refuse(from, packet, init.tag, vec![cause]);
                return;
            }
        };
        let Some((names, ties)) = self.offer(from, packet, &terms) else {
            return;
        };
        self.counts.inits += 1;
        self.answer_init(now, from, packet, terms, names, ties);
    }

    /// The names and tie tags for the INIT ACK that answers an INIT. `None` if the INIT is dropped, or gets another answer.
    fn offer(
        &mut self,
        from: IpAddr,
        packet: &SctpPacket,
        terms: &InitTerms,
    ) -> Option<(AssociationNames, (u32, u32))> {
        // Any address of the INIT may belong to an association (RFC 9260 §5.1.2, rule D).
        let Some((id, association)) = self.find(0, &terms.addresses, packet.source_port) else {
            if self.associations.len() >= self.associations_max {
                self.refuse(from, packet, terms.tag, vec![ErrorCause::OutOfResource]);
                return None;
            }
            return Some((self.new_names(packet.source_port), (0, 0)));
        };
        let (names, peer_tag) = association.names();
        let ties = (names.local_tag, peer_tag);
        let new = association.new_addresses(terms);
        match association.state() {
            AssociationState::ShutdownAckSent => {
                association.on_init_while_ending(from);
                touch(&mut self.touched, id);
                None
            }
            // Both ends call each other: the answer has the same tag and TSN as this end's INIT (RFC 9260 §5.2.1). The answer reveals the
            // tag, so it goes only to an address that this end has called.
            AssociationState::CookieWait if association.has_address(from) => Some((names, ties)),
            AssociationState::CookieWait => {
                self.counts.refused_inits += 1;
                None
            }
            AssociationState::CookieEchoed if new.is_empty() => Some((names, ties)),
            _ if new.is_empty() => Some((self.new_names(packet.source_port), ties)),
            _ => {
                let bytes: Vec<u8> = new.iter().flat_map(InitParameter::to_bytes).collect();
                let cause = ErrorCause::RestartWithNewAddresses(bytes.into());
                self.refuse(from, packet, terms.tag, vec![cause]);
                None
            }
        }
    }

    fn answer_init(
        &mut self,
        now: Instant,
        from: IpAddr,
        packet: &SctpPacket,
        terms: InitTerms,
        names: AssociationNames,
        tie_tags: (u32, u32),
    ) {
        let tag = terms.tag;
        let reported = terms
            .unrecognized
            .iter()
            .cloned()
            .map(InitParameter::Unrecognized);
        let mut parameters: Vec<InitParameter> = reported.collect();
        let content = CookieContent {
            made_at: now,
            life: CookieContent::life(terms.preservative, self.config.cookie_life),
            local_tag: names.local_tag,
            local_tsn: names.local_tsn,
            tie_tags,
            local_port: self.port,
            peer_port: packet.source_port,
            peer: terms,
        };
        parameters.extend(self.addresses.iter().copied().map(InitParameter::Address));
        parameters.push(InitParameter::StateCookie(
            content.sign(&self.secret, self.config.cookie_life),
        ));
        let mut answer = Association::own_terms(&self.config, names.local_tag, names.local_tsn);
        answer.parameters = parameters;
        self.answer(from, packet, tag, SctpChunk::InitAck(Box::new(answer)));
    }

    /// Refuses an INIT.
    fn refuse(&mut self, from: IpAddr, packet: &SctpPacket, tag: u32, causes: Vec<ErrorCause>) {
        self.counts.refused_inits += 1;
        self.abort_call(from, packet, tag, causes);
    }

    fn abort_call(&mut self, to: IpAddr, packet: &SctpPacket, tag: u32, causes: Vec<ErrorCause>) {
        let is_reflected = false;
        self.answer(to, packet, tag, SctpChunk::Abort { is_reflected, causes });
    }

    /// Queues an answer to a packet of no association.
    fn answer(&mut self, to: IpAddr, packet: &SctpPacket, tag: u32, chunk: SctpChunk) {
        if self.answers.len() >= ANSWERS_MAX {
            self.counts.dropped += 1;
            return;
        }
        self.answers.push_back(SctpTransmit {
            to,
            packet: SctpPacket {
                source_port: self.port,
                destination_port: packet.source_port,
                tag,
                chunks: vec![chunk],
            },
            fragment_size: None,
        });
    }

    /// A cookie came back (RFC 9260 §5.1.5). Returns whether the rest of the packet belongs to its association.
    fn on_cookie_echo(
        &mut self,
        now: Instant,
        from: IpAddr,
        packet: &SctpPacket,
        cookie: &Bytes,
        is_proven: bool,
    ) -> bool {
        let (content, late) = match CookieContent::verify(cookie, &self.secret, self.config.cookie_life, now)
        {
            CookieVerdict::Valid(content) => (content, None),
            CookieVerdict::Stale(content, late) => (content, Some(late)),
            CookieVerdict::Forged => {
                self.counts.forged_cookies += 1;
                return false;
            }
        };
        let is_peers = content.peer_port == packet.source_port && content.peer.addresses.contains(&from);
        if !is_peers || packet.tag != content.local_tag || content.local_port != self.port {
            self.counts.forged_cookies += 1;
            return false;
        }
        // The cookie went to the INIT's source address and came back, so that address is proven. `from` may be forged, even if the INIT
        // lists it.
        let proven = content.source().unwrap_or(from);
        if !is_proven {
            self.counts.unproven_cookies += 1;
            let causes = vec![ErrorCause::UserAbort(Bytes::from_static(NO_PROOF))];
            self.abort_call(proven, packet, content.peer.tag, causes);
            return false;
        }
        // If COOKIE ACKs are lost, the peer repeats its cookie, perhaps beyond the cookie's life. So a stale cookie is accepted if its
        // association exists (RFC 9260 §5.2.4, rule 3).
        if let Some(late) = late
            && !self.is_known(&content)
        {
            self.counts.stale_cookies += 1;
            let micros = u32::try_from(late.as_micros()).unwrap_or(u32::MAX);
            let error = SctpChunk::Error(vec![ErrorCause::StaleCookie(micros)]);
            self.answer(proven, packet, content.peer.tag, error);
            return false;
        }
        if let Some((id, association)) = self.find(packet.tag, &content.peer.addresses, packet.source_port) {
            let counts = association.on_cookie(now, from, &content);
            self.refresh(now, id);
            return counts;
        }
        if self.registry.is_used(now, content.local_tag) {
            self.counts.replayed_cookies += 1;
            return false;
        }
        if self.associations.len() >= self.associations_max {
            self.abort_call(proven, packet, content.peer.tag, vec![ErrorCause::OutOfResource]);
            return false;
        }
        let secret = self.secret.child();
        let association = Association::accept(self.config, secret, &content, from, now);
        self.insert(now, association);
        true
    }

    /// Whether the cookie's association exists.
    fn is_known(&self, content: &CookieContent) -> bool {
        let id = self.registry.by_tag(content.local_tag);
        let association = id.and_then(|id| self.associations.get(&id));
        association.is_some_and(|association| association.names().1 == content.peer.tag)
    }

    /// A packet of no association (RFC 9260 §8.4).
    fn on_stray(&mut self, from: IpAddr, packet: &SctpPacket) {
        self.counts.strays += 1;
        let answer = match packet.chunks.first() {
            Some(SctpChunk::ShutdownAck) => SctpChunk::ShutdownComplete { is_reflected: true },
            // None of these chunks asks for an answer. An ERROR reports a stale cookie or an unknown chunk.
            None
            | Some(
                SctpChunk::Abort { .. }
                | SctpChunk::ShutdownComplete { .. }
                | SctpChunk::CookieAck
                | SctpChunk::Error(_)
                | SctpChunk::InitAck(_),
            ) => return,
            Some(_)
                if packet
                    .chunks
                    .iter()
                    .any(|chunk| matches!(chunk, SctpChunk::Abort { .. })) =>
            {
                return;
            }
            Some(_) => SctpChunk::Abort {
                is_reflected: true,
                causes: Vec::new(),
            },
        };
        self.answer(from, packet, packet.tag, answer);
    }

    /// The next time at which [`handle_timeout`](Self::handle_timeout) has something to do. Looks at each association, so an endpoint with
    /// thousands of associations would need an index by time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.associations
            .values()
            .filter_map(Association::poll_timeout)
            .min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (id, association) in &mut self.associations {
            if association.poll_timeout().is_some_and(|at| now >= at) {
                association.handle_timeout(now);
                due.push(*id);
            }
        }
        due.sort_unstable();
        self.touched.extend(due);
    }

    /// The kernel refuses packets of `size` bytes to `address`, because the first link's MTU is smaller.
    pub fn handle_too_large(&mut self, now: Instant, address: IpAddr, size: u32) {
        let Some((id, association)) = self.find_to(address) else {
            return;
        };
        association.handle_too_large(now, address, size);
        touch(&mut self.touched, id);
    }

    fn find_to(&mut self, address: IpAddr) -> Option<(AssociationId, &mut Association)> {
        let mut all = self.associations.iter_mut();
        let (id, association) = all.find(|(_, association)| association.has_address(address))?;
        Some((*id, association))
    }

    /// The next answer to a packet of no association. A caller that polls after each packet can send the answer to the UDP port from which
    /// the packet came (RFC 6951 §5.4). Otherwise [`poll_transmit`](Self::poll_transmit) returns the answer.
    pub fn poll_answer(&mut self) -> Option<SctpTransmit> {
        self.answers.pop_front()
    }

    /// The next packet. Use this after every other function of the endpoint, until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SctpTransmit> {
        if let Some(answer) = self.poll_answer() {
            return Some(answer);
        }
        while let Some(id) = self.touched.front().copied() {
            let Some(association) = self.associations.get_mut(&id) else {
                self.touched.pop_front();
                continue;
            };
            if let Some(transmit) = association.poll_transmit(now) {
                return Some(transmit);
            }
            if association.take_unknown_news() {
                self.news.push_back(id);
            }
            self.relist(now, id);
            self.touched.pop_front();
            self.forget_if_over(id);
        }
        None
    }

    /// Forgets an association that has ended and whose events and messages have been read.
    fn forget_if_over(&mut self, id: AssociationId) {
        if self.associations.get(&id).is_some_and(Association::is_over) {
            self.associations.remove(&id);
        }
    }

    /// The next event of an association. Use this after [`poll_transmit`](Self::poll_transmit). Events wait in their associations, so the
    /// number of associations bounds the memory of unread events.
    pub fn poll_event(&mut self) -> Option<(AssociationId, AssociationEvent)> {
        while let Some(id) = self.news.front().copied() {
            let Some(association) = self.associations.get_mut(&id) else {
                self.news.pop_front();
                continue;
            };
            let event = association.poll_event();
            if !association.has_news() {
                association.forget_news();
                self.news.pop_front();
            }
            self.forget_if_over(id);
            if let Some(event) = event {
                return Some((id, event));
            }
        }
        None
    }
}

/// The addresses in canonical form, each once.
fn canonical(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut all = Vec::with_capacity(addresses.len());
    for address in addresses.iter().map(IpAddr::to_canonical) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Notes that an association may have something to send.
fn touch(touched: &mut VecDeque<AssociationId>, id: AssociationId) {
    if touched.back() != Some(&id) {
        touched.push_back(id);
    }
}
