//! Questions of a takeover about a connection: its priority, whether its client must be told something at once, and
//! whether the connection can go on.

use super::{Connection, Endpoint, OutputEnd, Protection, UnprotectedCause};
use crate::Instant;
use crate::follower::{Replica, Restart, RestartPolicy};
use crate::restart::http::Tracker;

/// Amount of output that a fresh socket can send at once, in units of the MSS. The socket may send ten segments (RFC 6928), but options
/// make the payload of each segment shorter than the MSS.
pub(super) const SEGMENTS_AT_FIRST: u64 = 9;
/// Number of segments that a restored socket may send once its restored output is acknowledged. It had to retransmit this output, so its
/// congestion window is small (RFC 5681 §3.1).
const SEGMENTS_AT_LEAST: u64 = 2;

impl Connection {
    /// Whether a side waits for bytes or an acknowledgement, a request has no reply yet, or the replica has sent more than the primary.
    /// Busy connections are taken over first.
    pub fn is_busy(&self) -> bool {
        let is_asked = |tracker: &Tracker| tracker.unanswered() > 0;
        let is_answered = |replica: &Replica| replica.ahead() > 0;
        self.owes()
            || self.follower.tracker().is_some_and(is_asked)
            || self.follower.replica().is_some_and(is_answered)
    }

    /// When the server last sent payload to the client.
    pub fn silent_since(&self) -> Instant {
        self.server.spoke_at
    }

    /// Whether bytes or acknowledgements are outstanding, or input is kept that a restart needs.
    fn owes(&self) -> bool {
        self.client.acknowledged < self.output.frontier()
            || self.server.acknowledged < self.input.frontier()
            || self.input.base() < self.input.frontier()
    }

    /// Whether a socket that was made from `endpoint` need not send anything when it goes live: both sides may send, the client has all output,
    /// and the socket knows that. What the client has said since then is in the log only, so a socket that must learn of it asks the client.
    /// The client's input is acknowledged, or the reply that the client waits for will acknowledge it.
    pub fn is_quiet(&self, endpoint: &Endpoint) -> bool {
        let frontier = self.input.frontier();
        let is_asked_all = |tracker: &Tracker| tracker.is_asked_all(frontier);
        let is_acknowledged = self.server.acknowledged >= frontier;
        let room = 2 * u64::from(self.client.mss);
        let has_room =
            self.server.right_edge.since(frontier) >= room && u64::from(self.client.window) >= room;
        let knows = endpoint.unacknowledged.is_empty() && u64::from(endpoint.send_window) >= room;
        self.client.acknowledged >= self.output.frontier()
            && (is_acknowledged || self.follower.tracker().is_some_and(is_asked_all))
            && self.client.heard
            && !self.input.has_holes()
            && !self.output.has_holes()
            && (self.input.fin(), self.output.fin()) == (None, None)
            && has_room
            && knows
    }

    /// Whether a takeover can continue the connection, including every reply.
    pub fn protection(&self) -> Protection {
        if let Some(spoiled) = &self.spoiled {
            return spoiled.clone();
        }
        if self.probation.is_some() {
            return Protection::Unprotected(UnprotectedCause::Older(RestartPolicy::Http));
        }
        match self.follower.protection().and_then(|()| self.bridges_hole()) {
            Ok(()) => Protection::Protected,
            Err(reason) => Protection::Unprotected(UnprotectedCause::Policy(reason)),
        }
    }

    /// Whether the replica lacks input that the primary has accepted, or has not yet sent all output that the primary has sent.
    pub(crate) fn is_owed_to_replica(&self) -> bool {
        let acknowledged = self.input_acknowledged();
        let ended = self.input.fin() == Some(acknowledged);
        let is_behind = |replica: &Replica| replica.is_behind(acknowledged, ended);
        self.spoiled.is_none() && self.follower.replica().is_some_and(is_behind)
    }

    /// Number of input bytes that the primary has accepted and the replica did not get.
    pub(crate) fn unfed(&self) -> u64 {
        let acknowledged = self.input_acknowledged();
        let replica = self.follower.replica();
        replica.map_or(0, |replica| acknowledged.since(replica.fed().min(acknowledged)))
    }

    /// How the application's side continues after a takeover. A connection that is not protected may continue too, if the client
    /// only loses one reply.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn restart(&self) -> Result<Restart, String> {
        self.restarts()?;
        self.follower.restart()
    }

    /// Whether the connection continues at all. Cheaper than [`restart`](Self::restart), which says how.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restarts(&self) -> Result<(), String> {
        if let Some(spoiled) = &self.spoiled {
            return Err(spoiled.to_string());
        }
        if self.probation.is_some() {
            return Err(UnprotectedCause::Older(RestartPolicy::Http).to_string());
        }
        self.bridges_hole()?;
        self.follower.restarts()
    }

    /// Whether the connection can move to another node without harm. A connection may continue after its server's death although a request
    /// that must not be executed twice is then refused; nothing forces such a connection to move now.
    ///
    /// # Errors
    /// Why not now.
    pub fn moves(&self) -> Result<(), String> {
        match self.protection() {
            Protection::Protected => Ok(()),
            Protection::Ambiguous => Err("its client has sent different bytes at the same place".to_owned()),
            Protection::Unprotected(cause) => Err(cause.to_string()),
        }
    }

    /// Whether the application can continue with a socket that was made from `endpoint`. It cannot if output was logged since:
    /// the application's next byte would stand where the client has another byte.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn restarts_on(&self, endpoint: &Endpoint) -> Result<(), String> {
        self.restarts()?;
        if self.sends_directly {
            return Ok(()); // what was sent meanwhile is regenerated
        }
        let (has, logged) = (endpoint.unacknowledged.end, self.output.frontier());
        let (has_ended, is_ended) = (endpoint.output != OutputEnd::Open, self.output.is_complete());
        if has != logged || has_ended != is_ended {
            return Err(format!(
                "its socket has output up to byte {has}, the log up to byte {logged}"
            ));
        }
        Ok(())
    }

    /// The input that was logged since a socket was made from `endpoint`. The socket is fed with it before it goes live.
    ///
    /// # Errors
    /// Why the application cannot go on with that socket.
    pub fn late_input(&self, endpoint: &Endpoint) -> Result<impl Iterator<Item = &[u8]>, String> {
        self.restarts_on(endpoint)?;
        Ok(self.input.slices(endpoint.input_frontier..self.input.frontier()))
    }

    /// Whether a restored socket can get past the holes in the out-log. Segments behind a hole were released, so the client may
    /// have them. Then the client acknowledges these segments as soon as the hole is filled. A socket that has not sent them yet ignores
    /// that acknowledgement for ever. So before any acknowledgement comes, the socket must be able to send up to the end of these segments,
    /// and it must send the same bytes.
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
        // One MSS is added, because the socket may hold back a last segment that is shorter than the MSS.
        if self.output.end() + mss > window.min(unasked) {
            return Err("the client may have bytes beyond what a restored socket can send at once".into());
        }
        let to_fin = self.output.fin().map(|fin| fin.since(self.output.frontier()));
        self.follower.fills_holes(to_fin)
    }
}
