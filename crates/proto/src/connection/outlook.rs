//! What a takeover asks of a connection: who comes first, what is to be said at once, and whether it can go on.

use super::{Cause, Connection, Endpoint, OutputEnd, Protection};
use crate::Instant;
use crate::follower::{Policy, Replica, Restart};
use crate::restart::http::Tracker;

/// A fresh socket may send ten segments (RFC 6928); options make them shorter.
const SEGMENTS_AT_FIRST: u64 = 9;
/// One that had to repeat what it was loaded with may send two as soon as that is acknowledged (RFC 5681 §3.1).
const SEGMENTS_AT_LEAST: u64 = 2;

impl Connection {
    /// Whether either side waits for bytes or an acknowledgement, or a request for its reply: such connections are taken over first.
    pub fn is_busy(&self) -> bool {
        let is_asked = |tracker: &Tracker| tracker.unanswered() > 0;
        let is_answered = |replica: &Replica| replica.ahead() > 0;
        self.owes()
            || self.follower.tracker().is_some_and(is_asked)
            || self.follower.replica().is_some_and(is_answered)
    }

    /// Since when the client has heard nothing new.
    pub fn silent_since(&self) -> Instant {
        self.server.spoke_at
    }

    /// Whether bytes or acknowledgements are under way or owed, or input is kept that a restart needs.
    fn owes(&self) -> bool {
        self.client.acknowledged < self.output.frontier()
            || self.server.acknowledged < self.input.frontier()
            || self.input.base() < self.input.frontier()
    }

    /// Whether a socket that goes live need not say a word: both may send, the client has all output, and its input was acknowledged, or
    /// will be by the reply that it waits for.
    pub fn is_quiet(&self) -> bool {
        let frontier = self.input.frontier();
        let is_asked_all = |tracker: &Tracker| tracker.is_asked_all(frontier);
        let is_acknowledged = self.server.acknowledged >= frontier;
        self.client.acknowledged >= self.output.frontier()
            && (is_acknowledged || self.follower.tracker().is_some_and(is_asked_all))
            && self.client.heard
            && !self.input.has_holes()
            && !self.output.has_holes()
            && (self.input.fin(), self.output.fin()) == (None, None)
            && self
                .server
                .right_edge
                .since(frontier)
                .min(self.client.window.into())
                >= 2 * u64::from(self.client.mss)
    }

    /// Whether a takeover can continue the connection, and every reply.
    pub fn protection(&self) -> Protection {
        if let Some(spoiled) = &self.spoiled {
            return spoiled.clone();
        }
        if self.probation.is_some() {
            return Protection::Unprotected(Cause::Older(Policy::Http));
        }
        match self.follower.protection().and_then(|()| self.bridges_hole()) {
            Ok(()) => Protection::Protected,
            Err(reason) => Protection::Unprotected(Cause::Policy(reason)),
        }
    }

    /// Whether its replica lacks what the primary has accepted, or has not answered it yet.
    pub(crate) fn is_owed_to_replica(&self) -> bool {
        let acknowledged = self.input_acknowledged();
        let ended = self.input.fin() == Some(acknowledged);
        let is_behind = |replica: &Replica| replica.is_behind(acknowledged, ended);
        self.spoiled.is_none() && self.follower.replica().is_some_and(is_behind)
    }

    /// Bytes that the primary has accepted and the replica did not get.
    pub(crate) fn unfed(&self) -> u64 {
        let acknowledged = self.input_acknowledged();
        let replica = self.follower.replica();
        replica.map_or(0, |replica| acknowledged.since(replica.fed().min(acknowledged)))
    }

    /// How a takeover goes on with the application's side: also a connection that is not protected may go on, if it is but
    /// one reply that the client does not get.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn restart(&self) -> Result<Restart, String> {
        self.restarts()?;
        self.follower.restart()
    }

    /// Whether it goes on at all; that is sooner said than how.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restarts(&self) -> Result<(), String> {
        if let Some(spoiled) = &self.spoiled {
            return Err(spoiled.to_string());
        }
        if self.probation.is_some() {
            return Err(Cause::Older(Policy::Http).to_string());
        }
        self.bridges_hole()?;
        self.follower.restarts()
    }

    /// Whether the application can go on with a socket that was made from `endpoint`. Output that was logged since is not in it: the next
    /// byte that it says would stand where the client has another one.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn restarts_on(&self, endpoint: &Endpoint) -> Result<(), String> {
        self.restarts()?;
        let (has, logged) = (endpoint.unacknowledged.end, self.output.frontier());
        let (has_ended, is_ended) = (endpoint.output != OutputEnd::Open, self.output.is_complete());
        if has != logged || has_ended != is_ended {
            return Err(format!(
                "its socket has output up to byte {has}, the log up to byte {logged}"
            ));
        }
        Ok(())
    }

    /// The input that was logged since a socket was made from `endpoint`: the socket is fed with it before it goes live.
    ///
    /// # Errors
    /// Why the application cannot go on with that socket.
    pub fn late_input(&self, endpoint: &Endpoint) -> Result<impl Iterator<Item = &[u8]>, String> {
        self.restarts_on(endpoint)?;
        Ok(self.input.slices(endpoint.input_frontier..self.input.frontier()))
    }

    /// What is behind a hole in the out-log was released. The client may have it, so it will acknowledge it as soon as the
    /// hole is filled, and a socket that has not sent it yet ignores that for ever. So the socket must get past it with
    /// what it may send unasked, and with the same bytes.
    fn bridges_hole(&self) -> Result<(), String> {
        if !self.output.has_holes() {
            return Ok(());
        }
        let mss = u64::from(self.client.mss.min(self.server.mss));
        let window = self.client.acknowledged + u64::from(self.client.window);
        let is_all_acknowledged = self.client.acknowledged >= self.output.frontier();
        let segments = if is_all_acknowledged {
            SEGMENTS_AT_FIRST
        } else {
            SEGMENTS_AT_LEAST
        };
        let unasked = self.output.frontier() + segments * mss;
        // It is the segment after the last one that may be too short to be sent.
        if self.output.end() + mss > window.min(unasked) {
            return Err("the client may be further than a restored socket may send".into());
        }
        let to_fin = self.output.fin().map(|fin| fin.since(self.output.frontier()));
        self.follower.fills_holes(to_fin)
    }
}
