//! Follows the two streams of one connection while the primary lives, and tells how the restart policy continues the connection after a
//! takeover.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Offset;
use crate::restart::http::{BodyPosition, Feed, HttpResume, HttpResumer, Rules, Switched, Tracker, Volatile};
use crate::restart::kept::KeptOutput;
use crate::restart::replay::{EarlierOutput, Repetition, ReplayTracker};
use crate::restart::replica::{self, Comparison};
use crate::restart::snapshot::{Snapshot, SnapshotStanding, SnapshotTracker};
use crate::spill::LogFull;

/// The restart policy of a service (DESIGN.md §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartPolicy {
    /// The restart point moves at message boundaries of HTTP/1.
    Http,
    /// A second application gets the same input. Output that repeats the primary's is compared with it, and dropped.
    Replica,
    /// At a takeover an application gets the connection's input from its start. Output that repeats the primary's is compared with it, and
    /// dropped.
    Replay,
    /// As `Replay`, but from the last state on that the primary's application has exported. The application imports this state.
    Snapshot,
}

impl RestartPolicy {
    /// Whether a connection that began before the log can be learnt, that is, be protected from some later moment on.
    pub const fn learns(self) -> bool {
        match self {
            Self::Http | Self::Snapshot => true,
            Self::Replica | Self::Replay => false,
        }
    }

    /// Whether an annex's application can go on with a connection that it has not followed.
    pub const fn moves_to_annex(self) -> bool {
        match self {
            Self::Http | Self::Replay | Self::Snapshot => true,
            Self::Replica => false,
        }
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Http => "http",
            Self::Replica => "replica",
            Self::Replay => "replay",
            Self::Snapshot => "snapshot",
        })
    }
}

/// The setting `opaque`: how a replica follows a connection of policy `http` that does not speak HTTP/1, or changes to another protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opaque {
    /// Number of bytes by which the replica may lag behind.
    pub bound: usize,
    /// Header fields that may differ in the replica's reply to the upgrade request.
    pub volatile: Volatile,
}

/// The follower of a connection.
#[derive(Debug)]
pub enum Follower {
    /// Policy `http`, and how a connection that is not HTTP/1 is followed. If `None`, such a connection is unprotected.
    Http(Tracker, Option<Arc<Opaque>>),
    /// Policy `replica`.
    Replica(Box<Replica>),
    /// Policy `replay`.
    Replay(Box<ReplayTracker>),
    /// Policy `snapshot`.
    Snapshot(Box<SnapshotTracker>),
    /// The connection can no longer be restarted; nothing is followed.
    GivenUp,
}

/// How the application's side goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // there is one at a time, while a connection is being decided
pub enum Restart {
    /// Feed a fresh application connection from the in-log, and recognise the output that was already sent.
    Http {
        /// The part of the in-log to feed.
        feed: Feed,
        /// The part of the replies that was sent.
        resume: HttpResume,
    },
    /// Continue with the replica's connection.
    Replica {
        /// The replica has been fed up to here.
        input_from: Offset,
        /// How much the replica's output is ahead of the primary's, or behind it.
        resume: replica::ReplicaResume,
    },
    /// Feed a fresh application connection the in-log from the restart point on, and compare the output that it repeats.
    Replay {
        /// The restart point in the input.
        input_from: Offset,
        /// The restart point in the output.
        output_from: Offset,
        /// The output that the application must repeat.
        resume: Repetition,
        /// The output that the application must repeat before that.
        earlier: Option<EarlierOutput>,
        /// The state that the application imports first. `None`: the restart point is the connection's start.
        state: Option<Arc<[u8]>>,
    },
}

/// A replica application and its progress.
#[derive(Debug)]
pub struct Replica {
    /// The replica begins in the middle of its connection, and has not been opened yet.
    is_late: bool,
    /// Recognises the reply that upgraded the connection, until the replica has sent that reply.
    upgrade: Option<Box<HttpResumer>>,
    comparison: Comparison,
    /// With commit mode `pr`: the replica's output, which is not compared.
    kept: Option<Box<KeptOutput>>,
    fed: Offset,
    fed_end: bool,
    feeding: bool,
}

impl Replica {
    /// A replica that begins with its connection and may be `bound` bytes behind.
    fn new(bound: usize) -> Self {
        Self {
            is_late: false,
            upgrade: None,
            comparison: Comparison::new(bound),
            kept: None,
            fed: Offset::ZERO,
            fed_end: false,
            feeding: false,
        }
    }

    /// A replica that begins where the connection changed to another protocol.
    fn switched(from: Offset, reply: Option<HttpResume>, opaque: &Opaque) -> Self {
        let resumer = |resume| HttpResumer::with_volatile(resume, opaque.volatile.clone()).0;
        Self {
            is_late: true,
            upgrade: reply.map(resumer).map(Box::new),
            fed: from,
            ..Self::new(opaque.bound)
        }
    }

    /// Whether the replica must be opened now. True once.
    pub(crate) fn opens(&mut self) -> bool {
        std::mem::take(&mut self.is_late)
    }

    /// End of the input that was given to the replica.
    pub fn fed(&self) -> Offset {
        self.fed
    }

    /// Whether the replica should be given more input now. Input is acknowledged up to `acknowledged` (`ended`: the end included). False
    /// while the replica is being fed.
    pub fn wants(&mut self, acknowledged: Offset, ended: bool) -> bool {
        let wants = !self.feeding && (acknowledged > self.fed || ended && !self.fed_end);
        self.feeding |= wants;
        wants
    }

    /// Whether the replica lacks input up to `acknowledged` (`ended`: the end included), or has not yet sent what the primary has
    /// sent. A replica that was never opened lacks nothing, because it will not be fed.
    pub(crate) fn is_behind(&self, acknowledged: Offset, ended: bool) -> bool {
        let lacks = acknowledged > self.fed || ended && !self.fed_end;
        let is_behind = self
            .kept
            .as_ref()
            .map_or_else(|| self.comparison.is_behind(), |kept| kept.is_behind());
        !self.is_late && !self.has_failed() && (lacks || is_behind)
    }

    fn has_failed(&self) -> bool {
        self.comparison.has_failed() || self.kept.as_ref().is_some_and(|kept| kept.has_failed())
    }

    /// Input up to `to` was given to the replica, and the end of input if `ended`.
    pub fn on_fed(&mut self, to: Offset, ended: bool) {
        self.fed = self.fed.max(to);
        self.fed_end |= ended;
        self.feeding = false;
    }

    /// The replica sent these bytes.
    pub fn on_output(&mut self, bytes: &[u8]) {
        if let Some(kept) = &mut self.kept {
            return kept.on_replica(bytes);
        }
        let Some(resumer) = &mut self.upgrade else {
            return self.comparison.on_replica(bytes);
        };
        let mut behind = Vec::new();
        match resumer.on_application(bytes, &mut behind) {
            Err(mismatch) => self.on_failure(format!(
                "the replica does not upgrade as the server did: {mismatch}"
            )),
            Ok(()) if resumer.is_transparent() => {
                self.upgrade = None;
                self.comparison.on_replica(&behind);
            }
            Ok(()) => {}
        }
    }

    /// The replica closed its stream.
    pub fn on_output_end(&mut self) {
        if let Some(kept) = &mut self.kept {
            return kept.on_replica_end();
        }
        if self.upgrade.is_some() {
            self.on_failure("the replica closed before it upgraded".into());
        }
        self.comparison.on_replica_end();
    }

    /// Number of bytes by which the replica's output is ahead of the primary's. The caller stops reading from the replica while this number
    /// is large.
    pub fn ahead(&self) -> usize {
        let kept = self.kept.as_ref().map(|kept| kept.lead());
        kept.unwrap_or_else(|| self.comparison.replica_surplus())
    }

    /// The replica cannot follow, for this reason.
    pub fn on_failure(&mut self, reason: String) {
        match &mut self.kept {
            Some(kept) => kept.fail(reason),
            None => self.comparison.fail(reason),
        }
    }

    fn protection(&self) -> Result<(), String> {
        if let Some(kept) = &self.kept {
            return kept.protection();
        }
        self.comparison
            .protection()
            .map_err(|reason| reason.to_string())?;
        if self.upgrade.is_some() {
            return Err("the replica has not upgraded yet".into());
        }
        Ok(())
    }
}

impl Follower {
    /// The follower for a new connection; `rules` and `opaque` are for policy `http`, and a replica may be `bound` bytes behind.
    pub fn new(policy: RestartPolicy, rules: Rules, opaque: Option<Arc<Opaque>>, bound: usize) -> Self {
        match policy {
            RestartPolicy::Http => Self::Http(Tracker::new(rules), opaque),
            RestartPolicy::Replica => Self::Replica(Box::new(Replica::new(bound))),
            RestartPolicy::Replay => Self::Replay(Box::default()),
            RestartPolicy::Snapshot => Self::Snapshot(Box::default()),
        }
    }

    /// From now on, follows output without its bytes (commit mode `pr`).
    pub(crate) fn expect_no_output(&mut self) {
        if let Self::Replica(replica) = self {
            replica.kept = Some(Box::default());
        }
    }

    /// With commit mode `pr`: the primary has sent output up to `sent`. If it is certain that the client needs no byte before
    /// `acknowledged` from the replica, these bytes are forgotten.
    pub(crate) fn on_sent(&mut self, sent: Offset, acknowledged: Option<Offset>) {
        if let Some(kept) = self.replica_mut().and_then(|replica| replica.kept.as_mut()) {
            kept.on_sent(sent);
            acknowledged.into_iter().for_each(|to| kept.release(to));
        }
    }

    /// How the connection continues with commit mode `pr`, if the client's socket continues at output byte `from`.
    ///
    /// # Errors
    /// As [`restarts`](Self::restarts).
    pub(crate) fn restart_unseen(&self, from: Offset) -> Result<Restart, String> {
        match self {
            Self::Replica(replica) => {
                let kept = replica.kept.as_ref().ok_or("the replica's output is not kept")?;
                Ok(Restart::Replica {
                    input_from: replica.fed,
                    resume: kept.resume(from)?,
                })
            }
            Self::Replay(_) => Ok(Restart::Replay {
                input_from: Offset::ZERO,
                output_from: Offset::ZERO,
                resume: ReplayTracker::unseen(from),
                earlier: None,
                state: None,
            }),
            Self::Http(..) | Self::Snapshot(_) | Self::GivenUp => {
                Err("the restart policy needs the bytes of the output".to_owned())
            }
        }
    }

    /// The follower of a connection that is learnt in its middle: between two exchanges with policy `http`, anywhere with policies
    /// `snapshot` and `replay`.
    pub fn learnt(policy: RestartPolicy, rules: Rules) -> Self {
        match policy {
            RestartPolicy::Http | RestartPolicy::Replica => {
                Self::Http(Tracker::between(rules, Offset::LEARNT), None)
            }
            RestartPolicy::Replay => Self::Replay(Box::new(ReplayTracker::learnt())),
            RestartPolicy::Snapshot => Self::Snapshot(Box::new(SnapshotTracker::learnt())),
        }
    }

    /// The tracker of policy `http`.
    pub fn tracker(&self) -> Option<&Tracker> {
        match self {
            Self::Http(tracker, _) => Some(tracker),
            Self::Replica(_) | Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => None,
        }
    }

    /// The tracker of policy `replay`, mutable.
    pub(crate) fn replay_mut(&mut self) -> Option<&mut ReplayTracker> {
        match self {
            Self::Replay(tracker) => Some(tracker),
            Self::Http(..) | Self::Replica(_) | Self::Snapshot(_) | Self::GivenUp => None,
        }
    }

    /// Whether the other node has yet to send the connection's first input ([`crate::restart::prefix`]).
    pub(crate) fn is_joining(&self) -> bool {
        matches!(self, Self::Replay(tracker) if tracker.joining().is_some())
    }

    /// The replica, if one follows the connection.
    pub fn replica(&self) -> Option<&Replica> {
        match self {
            Self::Replica(replica) => Some(replica),
            Self::Http(..) | Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => None,
        }
    }

    /// The replica, mutable.
    pub fn replica_mut(&mut self) -> Option<&mut Replica> {
        match self {
            Self::Replica(replica) => Some(replica),
            Self::Http(..) | Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => None,
        }
    }

    /// Follows input that is new and contiguous. Call this as soon as the input is logged: the input was released to the primary, which may
    /// act on it before acknowledging it.
    pub fn on_input(&mut self, bytes: &[u8]) {
        if let Self::Http(tracker, _) = self {
            tracker.on_input(bytes);
            self.switch(&[]);
        }
    }

    /// The client has closed its stream.
    pub fn on_input_end(&mut self) {
        if let Self::Http(tracker, _) = self {
            tracker.on_input_end();
        }
    }

    /// Follows output that is new and contiguous.
    pub fn on_output(&mut self, bytes: &[u8]) {
        match self {
            Self::Http(tracker, _) => {
                tracker.on_output(bytes);
                self.switch(bytes);
            }
            Self::Replica(replica) => replica.comparison.on_primary(bytes),
            Self::Replay(tracker) => tracker.on_output(bytes),
            Self::Snapshot(tracker) => tracker.on_output(bytes),
            Self::GivenUp => {}
        }
    }

    /// If the tracker has found that the connection stops being HTTP/1 and `opaque` is set, a replica follows the connection from that
    /// point on. `bytes` is the output that the tracker was given last.
    fn switch(&mut self, bytes: &[u8]) {
        let Self::Http(tracker, opaque) = self else { return };
        let Some(Switched {
            input_from,
            reply,
            rest,
        }) = tracker.take_switched()
        else {
            return;
        };
        if let Some(opaque) = opaque {
            *self = Self::Replica(Box::new(Replica::switched(input_from, reply, opaque)));
            self.on_output(&bytes[bytes.len() - rest..]);
        }
    }

    /// The server has closed its stream.
    pub fn on_output_end(&mut self) {
        match self {
            Self::Http(tracker, _) => tracker.on_output_end(),
            Self::Replica(replica) => replica.comparison.on_primary_end(),
            Self::Replay(tracker) => tracker.on_output_end(),
            Self::Snapshot(tracker) => tracker.on_output_end(),
            Self::GivenUp => {}
        }
    }

    /// Bytes that the primary has accepted or sent and that the restart policy has not followed yet. Input is acknowledged up to
    /// `acknowledged`.
    pub fn behind(&self, acknowledged: Offset) -> u64 {
        match self {
            Self::Http(..) | Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => 0, // follows everything at once, or nothing
            Self::Replica(replica) => {
                let unsaid = replica.comparison.surplus() - replica.comparison.replica_surplus();
                let unsaid = replica.kept.as_ref().map_or(unsaid as u64, |kept| kept.lag());
                acknowledged.since(replica.fed.min(acknowledged)) + unsaid
            }
        }
    }

    /// Bytes of memory besides the logs. With policy `http`: the state of unanswered requests. With a replica: the output by which one of
    /// the two servers is ahead. With policy `snapshot`: the snapshots. Each has a bound of its own.
    pub fn memory(&self) -> usize {
        match self {
            Self::Http(tracker, _) => tracker.memory(),
            Self::Replica(replica) => {
                replica.comparison.memory() + replica.kept.as_ref().map_or(0, |kept| kept.memory())
            }
            Self::Snapshot(tracker) => tracker.memory(),
            Self::Replay(tracker) => tracker.memory(),
            Self::GivenUp => 0,
        }
    }

    /// The primary's application has exported a snapshot. Input is logged up to `logged`.
    pub fn on_snapshot(&mut self, snapshot: Snapshot, logged: Offset) -> SnapshotStanding {
        match self {
            Self::Snapshot(tracker) => tracker.on_snapshot(snapshot, logged),
            Self::GivenUp => SnapshotStanding::Refused("the connection's log was given up".into()),
            Self::Http(..) | Self::Replica(_) | Self::Replay(_) => {
                SnapshotStanding::Refused("the service has another restart policy".into())
            }
        }
    }

    /// Whether a snapshot is the restart point.
    pub fn has_restart_point(&self) -> bool {
        matches!(self, Self::Snapshot(tracker) if tracker.state().is_some())
    }

    /// Where the snapshot with this number stands. `None`: it has not come.
    pub fn standing(&self, number: u64) -> Option<SnapshotStanding> {
        match self {
            Self::Snapshot(tracker) => tracker.standing(number),
            Self::Http(..) | Self::Replica(_) | Self::Replay(_) | Self::GivenUp => None,
        }
    }

    /// The number of the snapshot that is the restart point, if it has become that since the last call.
    pub fn take_reached(&mut self) -> Option<u64> {
        match self {
            Self::Snapshot(tracker) => tracker.take_reached(),
            Self::Http(..) | Self::Replica(_) | Self::Replay(_) | Self::GivenUp => None,
        }
    }

    /// Another node exports the connection's state from now on ([`SnapshotTracker::on_moved`]).
    pub(crate) fn on_moved(&mut self, exported: u64) {
        match self {
            Self::Snapshot(tracker) => tracker.on_moved(exported),
            Self::Http(..) | Self::Replica(_) | Self::Replay(_) | Self::GivenUp => {}
        }
    }

    /// Stops following: nothing will be restarted.
    pub fn give_up(&mut self) {
        *self = Self::GivenUp;
    }

    /// Start of the input that a restart needs; `frontier` if a restart needs no logged input.
    pub fn restart_input(&self, frontier: Offset) -> Offset {
        match self {
            Self::Http(tracker, _) => tracker.restart_input(),
            Self::Replica(replica) => replica.fed,
            Self::Replay(tracker) => tracker.begins_at().0,
            Self::Snapshot(tracker) => tracker.restart_input(),
            Self::GivenUp => frontier,
        }
    }

    /// Whether [`restart_input`](Self::restart_input) will advance even if no further input comes.
    pub fn drains(&self) -> bool {
        match self {
            Self::Http(tracker, _) => tracker.drains(),
            Self::Replica(replica) => !replica.has_failed(),
            Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => false,
        }
    }

    /// The log may not grow, for the reason `full`. Gives up input that is kept only to execute unanswered
    /// requests again. Returns false if there is no such input.
    pub fn shed(&mut self, full: LogFull) -> bool {
        match self {
            Self::Http(tracker, _) => tracker.shed(full),
            Self::Replica(_) | Self::Replay(_) | Self::Snapshot(_) | Self::GivenUp => false,
        }
    }

    /// Whether a restart now would deliver every reply.
    ///
    /// # Errors
    /// The reason, as a phrase.
    pub fn protection(&self) -> Result<(), String> {
        match self {
            Self::Http(tracker, _) => tracker.protection().map_err(|reason| reason.to_string()),
            Self::Replica(replica) => replica.protection(),
            Self::Replay(tracker) => tracker.restarts(),
            Self::Snapshot(tracker) => tracker.restarts(),
            Self::GivenUp => Err("the connection's log was given up".into()),
        }
    }

    /// Whether a restarted application is certain to send the same bytes as the primary from the start of a hole in the out-log on. These
    /// bytes cannot be compared: a resumer sees the output only up to the hole. `to_fin`: bytes from the hole's start to the server's FIN,
    /// if the log has the FIN.
    ///
    /// # Errors
    /// Why not, as a phrase.
    pub fn fills_holes(&self, to_fin: Option<u64>) -> Result<(), String> {
        let Self::Http(tracker, _) = self else {
            return Ok(());
        };
        let body = match tracker.resume().map_err(|reason| reason.to_string())? {
            HttpResume::Again { said, .. } if tracker.unanswered() == 1 => said.body,
            HttpResume::Finished | HttpResume::Idle | HttpResume::Again { .. } | HttpResume::Refused(_) => {
                None
            }
        };
        match body {
            // A client that has the FIN acknowledges it together with the hole's last byte. The restored socket accepts this
            // acknowledgement only if it has sent a FIN itself.
            Some(_) if to_fin.is_some_and(|bytes| !tracker.ends_after(bytes)) => {
                Err("the client may have the server's FIN, and the reply is not the connection's last".into())
            }
            // All bytes from the hole's start on belong to the reply's body, and a restarted application sends the same body.
            Some(body) if !matches!(body.position, BodyPosition::Chunked(_)) => Ok(()),
            _ => Err("the client may have reply bytes beyond the log, and a restart may send others".into()),
        }
    }

    /// Whether the connection can continue.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn restarts(&self) -> Result<(), String> {
        match self {
            Self::Http(tracker, _) => tracker.resumes().map_err(|reason| reason.to_string()),
            Self::Replica(replica) => replica.protection(),
            Self::Replay(tracker) => tracker.restarts(),
            Self::Snapshot(tracker) => tracker.restarts(),
            Self::GivenUp => Err("the connection's log was given up".into()),
        }
    }

    /// How the connection continues.
    ///
    /// # Errors
    /// As [`restarts`](Self::restarts).
    pub fn restart(&self) -> Result<Restart, String> {
        self.restarts()?;
        match self {
            Self::Http(tracker, _) => {
                let resume = tracker.resume().map_err(|reason| reason.to_string())?;
                let feed = tracker.feed();
                Ok(Restart::Http { feed, resume })
            }
            Self::Replica(replica) => {
                let resume = replica.comparison.resume().map_err(|reason| reason.to_string())?;
                Ok(Restart::Replica {
                    input_from: replica.fed,
                    resume,
                })
            }
            Self::Replay(tracker) => {
                let (input_from, output_from) = tracker.begins_at();
                Ok(Restart::Replay {
                    input_from,
                    output_from,
                    resume: tracker.repetition(),
                    earlier: tracker.earlier(),
                    state: None,
                })
            }
            Self::Snapshot(tracker) => Ok(Restart::Replay {
                input_from: tracker.restart_input(),
                output_from: tracker.restart_output(),
                resume: tracker.repetition(),
                earlier: None,
                state: tracker.state().cloned(),
            }),
            Self::GivenUp => Err("the connection's log was given up".into()),
        }
    }
}

#[cfg(test)]
mod tests;
