//! The four-way handshake, and what else INIT ACK and COOKIE ECHO can mean (RFC 9260 §5).
//!
//! ```text
//!   connect: INIT ──────────▶ the endpoint answers without keeping anything
//!            on_init_ack ◀── INIT ACK with the state cookie
//!            COOKIE ECHO ───▶ accept: the association exists
//!            on_cookie_ack ◀─ COOKIE ACK
//! ```

use std::collections::VecDeque;
use std::net::IpAddr;

use bytes::Bytes;

use super::{Association, AssociationCounts, AssociationEvent, CloseReason, Repeated};
use crate::Instant;
use crate::sctp::arrivals::Arrivals;
use crate::sctp::auth::CallKey;
use crate::sctp::cause::ErrorCause;
use crate::sctp::chunk::{InitChunk, SctpChunk};
use crate::sctp::config::SctpConfig;
use crate::sctp::cookie::CookieContent;
use crate::sctp::destination::{Destination, PathId};
use crate::sctp::failover::FailoverPolicy;
use crate::sctp::message::SctpMessage;
use crate::sctp::parameter::{InitParameter, STATE_COOKIE};
use crate::sctp::paths::PathTable;
use crate::sctp::reassembly::Reassembly;
use crate::sctp::secret::SctpSecret;
use crate::sctp::send_queue::SendQueue;
use crate::sctp::state::{AssociationState, StateEvent};
use crate::sctp::terms::{InitRefusal, InitTerms};
use crate::sctp::tsn::Tsn;

/// Numbers that name an association.
#[derive(Clone, Copy, Debug)]
pub(in crate::sctp) struct AssociationNames {
    pub local_port: u16,
    pub peer_port: u16,
    pub local_tag: u32,
    pub local_tsn: Tsn,
}

impl Association {
    /// Makes the caller's end. The INIT goes to the first address in `peer`. `addresses` are this end's addresses.
    pub(in crate::sctp) fn connect(
        config: SctpConfig,
        secret: SctpSecret,
        names: AssociationNames,
        addresses: &[IpAddr],
        peer: &[IpAddr],
        now: Instant,
    ) -> Self {
        let guess = InitTerms {
            tag: 0,
            window: config.receive_buffer,
            outbound_streams: config.inbound_streams,
            inbound_streams: config.outbound_streams,
            first_tsn: Tsn(0),
            addresses: peer.to_vec(),
            cookie: None,
            unrecognized: Vec::new(),
            preservative: 0,
        };
        let mut association = Self::new(config, secret, names, &guess, now);
        let mut init = Self::own_terms(&config, names.local_tag, names.local_tsn);
        init.parameters = addresses.iter().copied().map(InitParameter::Address).collect();
        association.own_addresses = addresses.to_vec();
        // The application vouches for these addresses (RFC 9260 §5.4, rule 1).
        for path in association.paths.ids() {
            association.confirm(path);
        }
        association.repeat_from_now(now, SctpChunk::Init(Box::new(init)));
        association
    }

    /// Makes this caller's COOKIE ECHO prove that the caller knows `key`.
    pub(in crate::sctp) fn prove_calls_by(&mut self, key: Option<CallKey>) {
        self.call_key = key;
    }

    /// Makes the called end: the cookie that this endpoint made came back from `from`.
    pub(in crate::sctp) fn accept(
        config: SctpConfig,
        secret: SctpSecret,
        content: &CookieContent,
        from: IpAddr,
        now: Instant,
    ) -> Self {
        let names = AssociationNames {
            local_port: content.local_port,
            peer_port: content.peer_port,
            local_tag: content.local_tag,
            local_tsn: content.local_tsn,
        };
        let mut association = Self::new(config, secret, names, &content.peer, now);
        association.establish(now, content.source());
        association.answer_cookie(from);
        association
    }

    fn new(
        config: SctpConfig,
        secret: SctpSecret,
        names: AssociationNames,
        peer: &InitTerms,
        now: Instant,
    ) -> Self {
        let paths = PathTable::new(&config, &peer.addresses, peer.window, now);
        let streams = config.outbound_streams.min(peer.inbound_streams);
        let first = paths.primary();
        let sender = SendQueue::new(&config, names.local_tsn, streams, peer.window, paths.all().len());
        let inbound = config.inbound_streams.min(peer.outbound_streams);
        Self {
            config,
            secret,
            measures: config.failover == FailoverPolicy::Informed,
            state: AssociationState::CookieWait,
            local_port: names.local_port,
            peer_port: names.peer_port,
            local_tag: names.local_tag,
            peer_tag: peer.tag,
            local_tsn: names.local_tsn,
            own_addresses: Vec::new(),
            paths,
            sender,
            arrivals: Arrivals::new(&config, peer.first_tsn),
            buffer: Reassembly::new(config.receive_buffer, peer.first_tsn, inbound),
            peer_buffer: peer.window,
            repeated: None,
            call_key: None,
            gives_up_at: None,
            stale_cookies: 0,
            replies: VecDeque::new(),
            heard_on: first,
            announced: config.receive_buffer,
            errors: 0,
            retransmits_at_once: false,
            waits_for_sack: false,
            burst: config.max_burst,
            was_acknowledged: false,
            events: VecDeque::new(),
            is_renamed: true,
            is_news_known: false,
            unrecognized: Vec::new(),
            counts: AssociationCounts::default(),
        }
    }

    /// Takes the peer's terms, which came from `answerer`. Messages that the application has queued stay queued if the peer can take them.
    fn adopt(&mut self, now: Instant, peer: &InitTerms, answerer: IpAddr) {
        // The addresses that this end called. There are none when a peer restarts, because then the peer called this end.
        let is_called = |path: &&Destination| self.state.is_setup() && path.is_confirmed();
        let called: Vec<IpAddr> = self
            .paths
            .all()
            .iter()
            .filter(is_called)
            .map(Destination::address)
            .collect();
        let mut addresses = peer.addresses.clone();
        // The application chose the called addresses. The called address that answers becomes the primary destination.
        let answers = |address: &IpAddr| *address == answerer && called.contains(address);
        let first = addresses.iter().position(answers);
        let first = first.or_else(|| addresses.iter().position(|address| called.contains(address)));
        addresses.swap(0, first.unwrap_or(0));
        // Waiting replies name destinations by their old numbers, so they are dropped.
        self.replies.clear();
        let config = &self.config;
        self.paths = PathTable::new(config, &addresses, peer.window, now);
        let streams = config.outbound_streams.min(peer.inbound_streams);
        let sender = SendQueue::new(config, self.local_tsn, streams, peer.window, addresses.len());
        let queued = std::mem::replace(&mut self.sender, sender).into_messages();
        let inbound = config.inbound_streams.min(peer.outbound_streams);
        self.arrivals = Arrivals::new(config, peer.first_tsn);
        self.buffer.restart(peer.first_tsn, inbound);
        (self.peer_tag, self.peer_buffer) = (peer.tag, peer.window);
        self.unrecognized = Vec::new();
        self.heard_on = self.paths.primary();
        self.announced = config.receive_buffer;
        self.is_renamed = true;
        for path in self.paths.ids() {
            if called.contains(&self.paths.get(path).address()) {
                self.confirm(path);
            }
        }
        self.queue_again(queued);
    }

    /// Queues messages under new terms. Messages that the peer cannot take return to the application.
    fn queue_again(&mut self, queued: impl IntoIterator<Item = SctpMessage>) {
        let (streams, most) = (self.sender.streams(), self.message_max());
        let is_possible =
            |message: &SctpMessage| usize::from(message.stream) < streams && message.data.len() <= most;
        let (possible, refused): (Vec<_>, Vec<_>) = queued.into_iter().partition(is_possible);
        for message in possible {
            self.sender.push(message);
        }
        if !refused.is_empty() {
            self.tell(AssociationEvent::Refused(refused));
        }
    }

    /// It is now known that `path` belongs to the peer.
    pub(super) fn confirm(&mut self, path: PathId) {
        self.is_renamed |= !self.paths.get(path).is_confirmed();
        self.paths.confirm(path);
    }

    /// Data may flow. `proven` is an address that is now known to be the peer's.
    fn establish(&mut self, now: Instant, proven: Option<IpAddr>) {
        self.state = self.state.after(StateEvent::CookieAck);
        self.repeated = None;
        self.errors = 0;
        if let Some(path) = proven.and_then(|address| self.paths.find(address)) {
            self.confirm(path);
        }
        // One probe per RTO (HB.Max.Burst, RFC 9260 §5.4): the peer may have named addresses of other hosts.
        let mut at = now;
        for path in self.paths.ids() {
            self.schedule_probe(now, path);
            let destination = self.paths.get_mut(path);
            if !destination.is_confirmed() {
                destination.probe_from(at);
                at += destination.rto();
            }
        }
        self.tell(AssociationEvent::Established);
        // Unrecognised parameters are not reported before the COOKIE ACK (RFC 9260 §5.1).
        if !self.unrecognized.is_empty() {
            let whole = std::mem::take(&mut self.unrecognized).concat();
            let cause = ErrorCause::UnrecognizedParameters(Bytes::from(whole));
            self.report(self.paths.current(), cause);
        }
    }

    pub(super) fn on_init_ack(&mut self, now: Instant, from: IpAddr, init: &InitChunk) {
        if self.state != AssociationState::CookieWait {
            self.counts.misplaced += 1; // RFC 9260 §5.2.3
            return;
        }
        let terms = match InitTerms::read(init, from) {
            // The INIT ACK comes from an address that this end called, or names such an address.
            Ok(terms) if terms.addresses.iter().any(|address| self.has_address(*address)) => terms,
            Ok(_) => {
                self.counts.forged += 1;
                return;
            }
            // The tag is 0 (RFC 9260 §3.3.3).
            Err(InitRefusal::Silent) => {
                self.end(CloseReason::Violated(ErrorCause::InvalidMandatoryParameter));
                return;
            }
            Err(InitRefusal::Abort(cause)) => {
                self.peer_tag = init.tag;
                self.send_abort(cause.clone(), CloseReason::Violated(cause));
                return;
            }
        };
        let Some(cookie) = terms.cookie.clone() else {
            self.peer_tag = terms.tag;
            let cause = ErrorCause::MissingParameter(vec![STATE_COOKIE]);
            self.send_abort(cause.clone(), CloseReason::Violated(cause));
            return;
        };
        self.adopt(now, &terms, from);
        self.state = self.state.after(StateEvent::InitAck);
        self.repeat_from_now(now, SctpChunk::CookieEcho(cookie));
        self.unrecognized = terms.unrecognized;
    }

    pub(super) fn on_cookie_ack(&mut self, now: Instant) {
        if self.state == AssociationState::CookieEchoed {
            self.establish(now, None);
        } else {
            self.counts.misplaced += 1;
        }
    }

    /// The cookie was too old: ask for a new one that lives longer, once (RFC 9260 §5.2.6).
    pub(super) fn on_stale_cookie(&mut self, now: Instant) {
        if self.state != AssociationState::CookieEchoed {
            self.counts.misplaced += 1;
            return;
        }
        self.stale_cookies += 1;
        if self.stale_cookies > 1 {
            self.end(CloseReason::StaleCookie);
            return;
        }
        self.state = self.state.after(StateEvent::StaleCookie);
        let mut init = Self::own_terms(&self.config, self.local_tag, self.local_tsn);
        let millis = u32::try_from(self.config.cookie_life.as_millis()).unwrap_or(u32::MAX);
        init.parameters = vec![InitParameter::CookiePreservative(millis)];
        init.parameters
            .extend(self.own_addresses.iter().copied().map(InitParameter::Address));
        self.repeat_from_now(now, SctpChunk::Init(Box::new(init)));
    }

    /// A valid cookie came although the association exists (RFC 9260 §5.2.4, table 12). Returns whether the rest of the packet counts.
    pub(in crate::sctp) fn on_cookie(&mut self, now: Instant, from: IpAddr, content: &CookieContent) -> bool {
        if self.state == AssociationState::Closed {
            self.counts.misplaced += 1;
            return false;
        }
        let is_own = content.local_tag == self.local_tag;
        let is_peers = content.peer.tag == self.peer_tag;
        let is_tied = content.tie_tags == (self.local_tag, self.peer_tag);
        match (is_own, is_peers, is_tied) {
            // A: the peer restarted.
            (false, false, true) => self.restart(now, from, content),
            // B: both ends called each other, and the peer's INIT is the one that counts.
            (true, false, _) if self.state.is_setup() => {
                self.adopt(now, &content.peer, content.source().unwrap_or(from));
                self.establish(now, content.source());
                self.answer_cookie(from);
                true
            }
            // D: the peer did not get the COOKIE ACK, or both ends called each other.
            (true, true, _) => {
                if self.state.is_setup() {
                    self.establish(now, content.source());
                }
                self.answer_cookie(from);
                true
            }
            // C: the cookie belongs to a call that a later call has overtaken. B after the handshake: the cookie belongs to another call of
            // the peer, not to the call that made the association. Other combinations have no explanation.
            (true, false, _) | (false, _, _) => {
                self.counts.misplaced += 1;
                false
            }
        }
    }

    fn restart(&mut self, now: Instant, from: IpAddr, content: &CookieContent) -> bool {
        if self.state == AssociationState::ShutdownAckSent {
            // This end has no data left: the old association ends first (RFC 9260 §5.2.4 A).
            let path = self.paths.current();
            self.reply(path, SctpChunk::ShutdownAck);
            self.report(path, ErrorCause::CookieWhileShuttingDown);
            return false;
        }
        self.local_tag = content.local_tag;
        self.local_tsn = content.local_tsn;
        self.sender.forget_messages();
        self.adopt(now, &content.peer, content.source().unwrap_or(from));
        self.gives_up_at = None;
        self.state = self.state.after(StateEvent::Restarted);
        self.tell(AssociationEvent::Restarted);
        self.establish(now, content.source());
        self.answer_cookie(from);
        true
    }

    /// The answer goes where the COOKIE ECHO came from (RFC 9260 §6.4), even if that address still has to prove that it is the peer's.
    fn answer_cookie(&mut self, from: IpAddr) {
        let path = self.paths.find(from).unwrap_or(self.paths.current());
        self.reply(path, SctpChunk::CookieAck);
    }

    /// Sends `chunk` now, and again after each RTO until it is answered.
    pub(super) fn repeat_from_now(&mut self, now: Instant, chunk: SctpChunk) {
        let path = self.paths.current();
        self.repeated = Some(Repeated {
            chunk,
            at: now + self.paths.get(path).rto(),
            path,
            is_due: true,
            repeats: 0,
        });
    }

    /// The repeated chunk was not answered in time (RFC 9260 §5.1.6, §9.2).
    pub(super) fn repeat(&mut self, now: Instant) {
        let is_setup = self.state.is_setup();
        let repeats_max = if is_setup {
            self.config.max_init_retransmits
        } else {
            self.config.association_max_retrans
        };
        let Some(repeated) = &mut self.repeated else {
            return;
        };
        repeated.repeats += 1;
        if repeated.repeats > repeats_max {
            self.end(CloseReason::Unreachable);
            return;
        }
        if let SctpChunk::Shutdown(tsn) = &mut repeated.chunk {
            *tsn = self.arrivals.cumulative();
        }
        // Another destination, if there is one (RFC 9260 §6.4.1). No address is confirmed before the handshake is done.
        let last = repeated.path;
        let next = if is_setup {
            self.paths.after(last)
        } else {
            self.paths.alternate(last)
        };
        self.paths.get_mut(last).rto.on_timeout();
        repeated.at = now + self.paths.get(last).rto().max(self.paths.get(next).rto());
        (repeated.path, repeated.is_due) = (next, true);
    }

    /// This end's names and its peer's tag, for the answer to another INIT.
    pub(in crate::sctp) const fn names(&self) -> (AssociationNames, u32) {
        let names = AssociationNames {
            local_port: self.local_port,
            peer_port: self.peer_port,
            local_tag: self.local_tag,
            local_tsn: self.local_tsn,
        };
        (names, self.peer_tag)
    }

    /// Returns the addresses of an INIT that are not known as addresses of the peer (RFC 9260 §5.2.2).
    pub(in crate::sctp) fn new_addresses(&self, terms: &InitTerms) -> Vec<InitParameter> {
        let is_new = |address: &&IpAddr| !self.has_address(**address);
        let new = terms.addresses.iter().filter(is_new);
        new.map(|address| InitParameter::Address(*address)).collect()
    }

    /// An INIT came while this end waits for SHUTDOWN COMPLETE (RFC 9260 §9.2).
    pub(in crate::sctp) fn on_init_while_ending(&mut self, from: IpAddr) {
        let path: PathId = self.paths.find(from).unwrap_or(self.paths.current());
        self.reply(path, SctpChunk::ShutdownAck);
    }
}
