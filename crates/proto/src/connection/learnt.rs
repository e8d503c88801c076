//! A connection that is learnt in its middle ([`crate::learn`]): how its log begins, and what proves that learning was right.

use std::net::SocketAddr;
use std::time::Duration;

use super::client::ClientState;
use super::{
    AtLimit, Connection, Follower, NegotiatedOptions, Probation, Protection, ServerState, StreamLog, Takes,
    UnprotectedCause,
};
use crate::census::Terms;
use crate::packet::Segment;
use crate::restart::prefix::{JoinStep, PrefixPart};
use crate::{Instant, Offset, Seq};

/// The positions of both streams at a moment when no byte before them was unacknowledged. Policy `http`: and no request was unanswered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Middle {
    /// Sequence number of the input's next byte (RCV.NXT).
    pub input: Seq,
    /// Sequence number of the output's next byte (SND.NXT).
    pub output: Seq,
}

/// A silence of this length after the first exchange ends the probation: a server that still had requests to answer would have sent
/// something by then.
const SILENCE: Duration = Duration::from_secs(1);

impl Connection {
    /// The connection of `client` with `vip` as it was at `middle`. The caller gives the connection all segments since then. The handshake
    /// agreed on `terms`. `reply` is the server's first output since then, logged at `at`. The connection is on probation.
    pub(crate) fn learnt(
        (client, vip): (SocketAddr, SocketAddr),
        terms: &Terms,
        middle: Middle,
        (at, reply): (Instant, &Segment<'_>),
        follower: Follower,
        limit: u64,
    ) -> Self {
        let (theirs, ours) = terms.window_scale.unwrap_or((0, 0));
        // Only the follower of policy `http` guesses where a message begins.
        let probation = follower.tracker().map(|_| Probation::default());
        let learns_anywhere = probation.is_none();
        let keeps_all = follower.is_joining();
        let window = u32::from(reply.window) << ours;
        let input = StreamLog::learnt(middle.input);
        // Before the reply the right edge may have been nearer. That does no harm: no client sends beyond what it was offered.
        let acknowledged = input.offset_of(reply.ack).unwrap_or(Offset::LEARNT);
        Self {
            client_address: client,
            vip,
            client: ClientState::learnt(terms.mss, theirs, middle.input),
            server: ServerState {
                mss: terms.mss,
                window_shift: ours,
                acknowledged: Offset::LEARNT,
                window_max: window,
                right_edge: acknowledged + u64::from(window),
                timestamp: reply.options.timestamps.map_or(0, |timestamps| timestamps.value),
                timestamp_at: at,
                spoke_at: at,
            },
            agreed: NegotiatedOptions {
                window_scale: terms.window_scale.is_some(),
                sack: terms.sack,
                timestamps: terms.timestamps,
            },
            input,
            output: StreamLog::learnt(middle.output),
            follower,
            limit,
            at_limit: AtLimit::Unprotect,
            capped: None,
            takes: Takes::All,
            unreleased_from: None,
            sack_overflow: false,
            probation,
            learns_anywhere,
            keeps_all,
            sends_directly: false,
            spoiled: None,
        }
    }

    /// Whether the connection is on probation: there is no proof yet that it was learnt correctly.
    pub(crate) fn is_on_probation(&self) -> bool {
        self.probation.is_some()
    }

    /// Ends the probation if an exchange is complete and a request or silence followed it. Called at `now`, after a segment or
    /// when time has passed. An exchange is a request and its reply, each of the length that it announced. The client's
    /// acknowledgement of new output is required because it also makes the client's window certain.
    pub(crate) fn prove(&mut self, now: Instant) {
        let (Some(probation), Some(tracker)) = (&mut self.probation, self.follower.tracker()) else {
            return;
        };
        if !tracker.has_exchanged() || self.client.acknowledged <= self.output.start() {
            return;
        }
        let exchanged = *probation.exchanged.get_or_insert(now);
        if tracker.unanswered() > 0 || now.since(exchanged) >= SILENCE {
            self.probation = None;
        }
    }

    /// Whether the log of a learnt connection has become useless, but another one can begin. With policy `snapshot`, it can begin anywhere.
    /// Such a log lacks input or output, for example: some packets still bypass a node that has just become the wire.
    pub(crate) fn must_be_learnt_again(&self) -> bool {
        let lacks_output = || self.output.has_holes() && self.client.acknowledged > self.output.frontier();
        let is_full = matches!(
            self.spoiled,
            Some(Protection::Unprotected(UnprotectedCause::Full(_)))
        );
        // A log that was given up at its limit would reach the limit again, if the input from the start must be kept.
        if is_full && self.keeps_all {
            return false;
        }
        self.learns_anywhere && (self.spoiled.is_some() || lacks_output())
    }

    /// A part of the connection's first input has come from the other node.
    pub(crate) fn on_prefix(&mut self, part: &PrefixPart) -> JoinStep {
        let (first, first_output) = (self.input.first(), self.output.first());
        let spills = self.at_limit.spills();
        let Some(tracker) = self.follower.replay_mut() else {
            return JoinStep::Refused("the connection's log was given up".into());
        };
        let Some(joining) = tracker.joining_mut() else {
            return JoinStep::Joined;
        };
        if let Err(reason) = joining.take(part, first, (self.limit, spills)) {
            return JoinStep::Refused(reason);
        }
        let step = JoinStep::Wants(joining.arrived());
        if self.input.is_shelved() || !joining.is_complete() {
            return step;
        }
        let place = part.output.and_then(|place| joining.place(place, first_output));
        let Some(((joined, after), mut input)) = place.zip(joining.take_input()) else {
            return step;
        };
        let (limit, acknowledged) = (self.limit, self.server.acknowledged);
        let appended = input.append(&self.input, |log| {
            if let Some(spills) = spills
                && log.memory() as u64 > limit
            {
                // If this fails, `hold_limit` gives the connection up.
                let _ = log.spill(
                    spills,
                    acknowledged,
                    usize::try_from(limit / 2).unwrap_or(usize::MAX),
                );
            }
        });
        if let Err(error) = appended {
            return JoinStep::Refused(format!("its log cannot be read: {error}"));
        }
        tracker.join(joined, &after);
        self.input = input;
        self.hold_limit();
        match &self.spoiled {
            None => JoinStep::Joined,
            Some(reason) => JoinStep::Refused(reason.to_string()),
        }
    }

    /// Why the connection should not have been learnt. `None` if its probation is over or has shown no reason.
    pub(crate) fn disproof(&self) -> Option<String> {
        self.probation.as_ref()?;
        if let Some(spoiled) = &self.spoiled {
            return Some(spoiled.to_string());
        }
        let tracker = self.follower.tracker()?;
        if let Some(reason) = tracker.refusal() {
            return Some(reason.to_string());
        }
        let is_pipelined = !tracker.has_exchanged() && tracker.unanswered() > 1;
        is_pipelined.then(|| "it had several unanswered requests".into())
    }
}
