//! Learns connections that began before the log. A connection is learnt from its next exchange. There are such
//! connections after a restart of the agent, and after a node has become the wire of live traffic.
//!
//! ```text
//!   client    ─── data? ──┐                request ─▶
//!   server    ── data? ───┤                            reply ─▶
//!                         ▼                ▲           ▲       ▲
//!        nothing is owed, as far          candidate   learnt,  proved: protected
//!        as is known                                  on probation
//! ```
//!
//! *Nothing is owed* if neither side has unacknowledged bytes and no request is unanswered. The segments in the log show the first
//! condition, but not always the second: an acknowledged request may be unanswered.
//!
//! With policy `http`, a request that begins at the start of a segment while nothing is owed is a *candidate* for a message
//! boundary. All segments from there on are kept. If the server's next output begins with a status line, at exactly the sequence
//! number that the request's segment acknowledged, the connection is learnt. It is then an ordinary [`Connection`], but on probation.
//! The probation ends when that exchange is complete and a further request or a second of silence has followed: an earlier request that
//! was unanswered would have been answered by then. No packet repeats the *terms* of the handshake, so the primary's kernel is asked for
//! them.
//!
//! With policy `snapshot`, any segment of a client begins a candidate. Its connection is learnt once the client has acknowledged all output
//! that was sent before, because all later output is kept. No message boundary is guessed, so there is no probation. The connection is
//! protected from its application's next snapshot on.
//!
//! With policy `replay`, a connection is learnt only if the service's `keep_input` is set. It is learnt as with policy `snapshot`, and is
//! protected once the primary has sent the input from before that ([`prefix`](crate::restart::prefix)).

use std::net::SocketAddr;
use std::time::Duration;

use crate::census::{QUESTION_MAX, Terms};
use crate::clients::Recent;
use crate::connection::{Connection, Middle};
use crate::follower::{Follower, RestartPolicy};
use crate::older::{OLDER_MAX, ServerNumbers};
use crate::packet::{Direction, Segment};
use crate::restart::http;
use crate::table::TableConfig;
use crate::{Instant, Seq};

/// Time after which an unanswered question is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of times that one question is asked.
const ASKED_MAX: u32 = 20;
/// Length at which the waiting list stops taking possible strangers: clients that the server has not answered.
const STRANGERS_MAX: usize = 1024;
/// Maximum number of bytes kept for one candidate. Each segment counts with its payload and [`SEGMENT_COST`].
const CANDIDATE_BYTES: usize = 128 * 1024;
/// The same with policies `snapshot` and `replay`, where a candidate may have to keep as much as is under way in a round trip.
const CANDIDATE_BYTES_ANY: usize = 4 << 20;
/// Maximum number of bytes kept for all candidates.
const CANDIDATES_BYTES: usize = 16 << 20;
/// Bytes that a kept segment costs beside its payload.
const SEGMENT_COST: usize = 256;

/// A segment kept for a candidate.
#[derive(Debug)]
struct KeptSegment {
    at: Instant,
    direction: Direction,
    segment: Segment<'static>,
    payload: Vec<u8>,
}

impl KeptSegment {
    fn of(at: Instant, direction: Direction, segment: &Segment<'_>) -> Self {
        Self {
            at,
            direction,
            segment: Segment {
                payload: &[],
                ..*segment
            },
            payload: segment.payload.to_vec(),
        }
    }

    fn segment(&self) -> Segment<'_> {
        Segment {
            payload: &self.payload,
            ..self.segment
        }
    }

    /// The client's segment as it would be after `middle`. If it acknowledges less than that, a later segment has acknowledged more, and has
    /// announced the window that counts.
    fn since(&self, middle: Middle) -> Segment<'_> {
        let mut segment = self.segment();
        if segment.ack.distance_from(middle.output) < 0 {
            (segment.ack, segment.window) = (middle.output, 0);
        }
        segment
    }
}

/// Bytes that look like a request (policy `http`), or any segment of a client (other policies), and all segments since.
#[derive(Debug)]
struct Candidate {
    middle: Middle,
    /// The client's highest acknowledgement number.
    acknowledged: Seq,
    kept: Vec<KeptSegment>,
    bytes: usize,
    /// Index in `kept` of the reply's first segment. Other policies than `http`: of the server's first segment.
    reply: Option<usize>,
}

impl Candidate {
    fn keep(&mut self, at: Instant, direction: Direction, segment: &Segment<'_>) -> usize {
        let cost = SEGMENT_COST + segment.payload.len();
        self.kept.push(KeptSegment::of(at, direction, segment));
        self.bytes += cost;
        cost
    }

    fn note_acknowledgement(&mut self, segment: &Segment<'_>) {
        if segment.flags.ack && segment.ack.distance_from(self.acknowledged) > 0 {
            self.acknowledged = segment.ack;
        }
    }

    /// Whether the server has spoken, and the client has acknowledged all output from before.
    fn is_complete(&self) -> bool {
        self.reply.is_some() && self.acknowledged.distance_from(self.middle.output) >= 0
    }

    /// Whether the server could send `segment` if the candidate is the only unanswered request and is answered next.
    fn admits(&mut self, segment: &Segment<'_>) -> bool {
        let ahead = segment.seq.distance_from(self.middle.output);
        if self.reply.is_some() || ahead < 0 {
            return true;
        }
        if segment.payload.is_empty() {
            return ahead == 0; // a pure acknowledgement has the sequence number SND.NXT
        }
        self.reply = Some(self.kept.len());
        let acknowledges = segment.ack.distance_from(self.middle.input);
        ahead == 0 && acknowledges > 0
    }
}

/// The terms of a client's connection, or the reason why the connection will not be learnt.
#[derive(Debug)]
enum KnownTerms {
    Terms(Terms),
    /// The connection will not be learnt, for this reason.
    Barred(String),
}

/// The connections of one service that are being learnt.
#[derive(Debug)]
pub(crate) struct Learner {
    /// Policies `snapshot` and `replay`: any segment of a client begins a candidate.
    takes_any: bool,
    candidates: Recent<Candidate>,
    /// Bytes kept for all candidates.
    bytes: usize,
    known: Recent<KnownTerms>,
    /// Clients to ask about.
    waiting: Recent<()>,
    question: TermsQuestion,
}

/// The one question that is under way.
#[derive(Debug, Default)]
struct TermsQuestion {
    clients: Vec<SocketAddr>,
    asked: u32,
    /// When the question was first asked.
    began: Instant,
    /// When it was last asked.
    at: Instant,
}

impl Learner {
    /// No clients yet. `seed` randomises the hash, because clients choose their addresses.
    pub(crate) fn new(seed: usize, policy: RestartPolicy) -> Self {
        Self {
            takes_any: matches!(policy, RestartPolicy::Snapshot | RestartPolicy::Replay),
            candidates: Recent::new(OLDER_MAX, seed),
            bytes: 0,
            known: Recent::new(OLDER_MAX, seed),
            waiting: Recent::new(OLDER_MAX, seed),
            question: TermsQuestion::default(),
        }
    }

    /// Takes a segment that is no SYN and belongs to no known connection. `said`: the highest sequence and acknowledgement numbers of the
    /// server's segments to this client that were logged before this segment. Returns whether the connection can be learnt now.
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
        said: Option<ServerNumbers>,
    ) -> bool {
        if matches!(self.known.get(client), Some(KnownTerms::Barred(_))) {
            return false;
        }
        if segment.flags.rst || segment.flags.fin {
            self.drop_candidate(client); // the connection ends, so learning it is not worth the effort
            return false;
        }
        let Some(candidate) = self.candidates.get_mut(client) else {
            if direction == Direction::In {
                self.begin(now, client, segment, said);
            }
            self.want(client, direction == Direction::In && said.is_none());
            return false;
        };
        let bytes_max = match (self.takes_any, direction) {
            (true, Direction::Out) => {
                candidate.reply.get_or_insert(candidate.kept.len());
                CANDIDATE_BYTES_ANY
            }
            (true, Direction::In) => {
                candidate.note_acknowledgement(segment);
                CANDIDATE_BYTES_ANY
            }
            (false, Direction::Out) if !candidate.admits(segment) => {
                self.drop_candidate(client);
                return false;
            }
            (false, _) => CANDIDATE_BYTES,
        };
        self.bytes += candidate.keep(now, direction, segment);
        if candidate.bytes > bytes_max {
            self.drop_candidate(client);
        }
        self.hold_bound();
        self.is_ready(client)
    }

    fn begin(
        &mut self,
        now: Instant,
        client: SocketAddr,
        segment: &Segment<'_>,
        said: Option<ServerNumbers>,
    ) {
        let mut middle = Middle {
            input: segment.seq,
            output: segment.ack,
        };
        let begins = if self.takes_any {
            said.is_some_and(|said| {
                if said.next.distance_from(middle.output) > 0 {
                    middle.output = said.next; // output that was logged before is not kept
                }
                true
            })
        } else {
            let is_quiet =
                said.is_none_or(|said| (said.acknowledged, said.next) == (middle.input, middle.output));
            is_quiet && http::begins_request(segment.payload)
        };
        if !begins || !segment.flags.ack {
            return;
        }
        let mut candidate = Candidate {
            middle,
            acknowledged: segment.ack,
            kept: Vec::new(),
            bytes: 0,
            reply: None,
        };
        self.bytes += candidate.keep(now, Direction::In, segment);
        let forgotten = self.candidates.insert(client, candidate);
        self.bytes -= forgotten.map_or(0, |forgotten| forgotten.bytes);
        self.hold_bound();
    }

    fn is_ready(&self, client: SocketAddr) -> bool {
        let is_complete = self.candidates.get(client).is_some_and(Candidate::is_complete);
        is_complete && matches!(self.known.get(client), Some(KnownTerms::Terms(_)))
    }

    fn drop_candidate(&mut self, client: SocketAddr) {
        if let Some(candidate) = self.candidates.remove(client) {
            self.bytes -= candidate.bytes;
        }
    }

    /// Drops the oldest candidates until the bound on their bytes holds.
    fn hold_bound(&mut self) {
        while self.bytes > CANDIDATES_BYTES
            && let Some((_, oldest)) = self.candidates.pop_first()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// Makes the connection of a client that is ready. If the kept segments disprove the connection, bars it instead.
    pub(crate) fn learn(&mut self, client: SocketAddr, config: &TableConfig) -> Option<Connection> {
        let Some(KnownTerms::Terms(terms)) = self.known.get(client) else {
            return None;
        };
        let candidate = self.candidates.remove(client)?;
        self.bytes -= candidate.bytes;
        let reply = &candidate.kept[candidate.reply?];
        let mut connection = Connection::learnt(
            (client, config.vip),
            terms,
            candidate.middle,
            (reply.at, &reply.segment()),
            Follower::learnt(config.policy, config.rules),
            config.connection_bytes_max,
        );
        for kept in &candidate.kept {
            match kept.direction {
                Direction::In => connection.on_client(&kept.since(candidate.middle), None),
                Direction::Out => connection.on_server(kept.at, &kept.segment(), None),
            };
            connection.prove(kept.at);
            if let Some(reason) = connection.disproof() {
                self.bar(client, reason);
                return None;
            }
        }
        if self.takes_any && connection.is_spoiled() {
            return None; // a later segment begins another candidate
        }
        Some(connection)
    }

    /// Stops learning the client's connection, for `reason`.
    pub(crate) fn bar(&mut self, client: SocketAddr, reason: String) {
        self.drop_candidate(client);
        self.known.insert(client, KnownTerms::Barred(reason));
    }

    /// Why a client's connection will never be learnt. `None` if it may still be learnt.
    pub(crate) fn barred(&self, client: SocketAddr) -> Option<&str> {
        match self.known.get(client) {
            Some(KnownTerms::Barred(reason)) => Some(reason),
            Some(KnownTerms::Terms(_)) | None => None,
        }
    }

    /// The client begins a new connection, or no longer has one.
    pub(crate) fn forget(&mut self, client: SocketAddr) {
        self.drop_candidate(client);
        self.known.remove(client);
        self.waiting.remove(client);
        self.question.clients.retain(|asked| *asked != client);
    }

    /// Drops all candidates, because some of the segments that followed their requests may be missing from the log: packets passed
    /// unlogged, or this node is not the wire.
    pub(crate) fn forget_candidates(&mut self) {
        self.candidates.clear();
        self.bytes = 0;
    }

    /// Puts a client on the waiting list for the next question, unless the terms of its connection are known. A possible stranger is left
    /// out if the list is long ([`STRANGERS_MAX`]).
    pub(crate) fn want(&mut self, client: SocketAddr, is_stranger: bool) {
        let has_room = !is_stranger || self.waiting.len() < STRANGERS_MAX;
        if has_room && !self.known.contains(client) {
            self.ask_about(client);
        }
    }

    /// Puts a client on the waiting list for the next question, which asks for the terms of its connection, and whether the connection
    /// still exists.
    pub(crate) fn ask_about(&mut self, client: SocketAddr) {
        let is_asked = self.question.clients.contains(&client) || self.waiting.contains(client);
        if !is_asked {
            self.waiting.insert(client, ());
        }
    }

    /// Whether there is no client to ask about, and no question was sent in the last [`ASK_AGAIN`].
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        let is_nobody_left = self.question.clients.is_empty() && self.waiting.len() == 0;
        is_nobody_left && now.since(self.question.at) >= ASK_AGAIN
    }

    /// The clients to ask the primary about now: the next question, or the last one again.
    pub(crate) fn poll_question(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        let question = &mut self.question;
        if !question.clients.is_empty() && now.since(question.at) < ASK_AGAIN {
            return None;
        }
        if question.clients.is_empty() || question.asked == ASKED_MAX {
            let waiting = std::iter::from_fn(|| self.waiting.pop_first());
            question.clients = waiting.take(QUESTION_MAX).map(|(client, ())| client).collect();
            (question.asked, question.began) = (0, now);
        }
        if question.clients.is_empty() {
            return None;
        }
        question.asked += 1;
        question.at = now;
        Some(question.clients.clone())
    }

    /// The primary has answered about a client. Returns when the question was first asked. `None`: no such question is open. Then
    /// the answer is a duplicate or late, and the client may have another connection by now.
    pub(crate) fn take_answer(&mut self, client: SocketAddr) -> Option<Instant> {
        let index = self.question.clients.iter().position(|asked| *asked == client)?;
        self.question.clients.swap_remove(index);
        Some(self.question.began)
    }

    /// The primary has the client's connection, with these terms. Returns whether the connection can be learnt now.
    pub(crate) fn on_terms(&mut self, client: SocketAddr, terms: Terms) -> bool {
        if terms.microseconds {
            self.bar(client, "its timestamps count microseconds".into());
        }
        if self.barred(client).is_none() {
            self.known.insert(client, KnownTerms::Terms(terms));
        }
        self.is_ready(client)
    }

    /// The primary has no connection of the client. `is_noted`: the client is noted as older ([`crate::older`]).
    pub(crate) fn on_absent(&mut self, client: SocketAddr, is_noted: bool) {
        if is_noted {
            self.bar(client, "it is not open on the primary".into());
        } else {
            self.drop_candidate(client);
        }
    }
}

#[cfg(test)]
mod tests;
