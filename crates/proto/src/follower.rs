//! The restart policy of one connection, following its two streams while the primary lives.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::Offset;
use crate::action::{Action, ServiceIndex};
use crate::restart::http::{Feed, Position, Resume, Resumer, Rules, Switched, Tracker, Volatile};
use crate::restart::replica::{self, Comparison};
use crate::spill::Full;
use crate::table::{Change, ConnectionId, Table};

/// Which restart policy a service has (DESIGN.md §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The restart point moves at message boundaries of HTTP/1.
    Http,
    /// A second application runs along; its output is compared and dropped.
    Replica,
}

/// A connection of policy `http` that speaks another protocol, or changes to one, is followed by a replica (`opaque`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opaque {
    /// Bytes that the replica may be behind.
    pub bound: usize,
    /// What it may say differently in the reply that upgrades the connection.
    pub volatile: Volatile,
}

/// What follows a connection.
#[derive(Debug)]
pub enum Follower {
    /// Policy `http`, and what becomes of a connection that is not HTTP/1: without an answer it is unprotected.
    Http(Tracker, Option<Arc<Opaque>>),
    /// Policy `replica`.
    Replica(Box<Replica>),
    /// The connection cannot be restarted any more; nothing is followed.
    GivenUp,
}

/// How the application's side goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // there is one at a time, while a connection is being decided
pub enum Restart {
    /// Feed a fresh application connection with the in-log; recognise what was said.
    Http {
        /// What of the in-log.
        feed: Feed,
        /// What of the replies was said.
        resume: Resume,
    },
    /// Go on with the replica's connection.
    Replica {
        /// The replica has been fed up to here.
        input_from: Offset,
        /// Its output or the primary's is ahead by this.
        resume: replica::Resume,
    },
}

/// A replica application and how far it is.
#[derive(Debug)]
pub struct Replica {
    /// It began in the midst of its connection, and nobody has opened it yet.
    is_late: bool,
    /// What recognises the reply that upgraded the connection, until the replica has said it.
    upgrade: Option<Box<Resumer>>,
    comparison: Comparison,
    fed: Offset,
    fed_end: bool,
    feeding: bool,
}

impl Replica {
    /// One that begins with its connection and may be `bound` bytes behind.
    fn new(bound: usize) -> Self {
        Self {
            is_late: false,
            upgrade: None,
            comparison: Comparison::new(bound),
            fed: Offset::ZERO,
            fed_end: false,
            feeding: false,
        }
    }

    /// One that begins where the connection has changed to another protocol.
    fn switched(from: Offset, reply: Option<Resume>, opaque: &Opaque) -> Self {
        let resumer = |resume| Resumer::with_volatile(resume, opaque.volatile.clone()).0;
        Self {
            is_late: true,
            upgrade: reply.map(resumer).map(Box::new),
            fed: from,
            ..Self::new(opaque.bound)
        }
    }

    /// Whether it must be opened now: once.
    fn opens(&mut self) -> bool {
        std::mem::take(&mut self.is_late)
    }

    /// The input up to here was given to the replica.
    pub fn fed(&self) -> Offset {
        self.fed
    }

    /// Whether it should be given more now: input is acknowledged up to `acknowledged` (`ended`: the end included), and
    /// nobody is at it.
    pub fn wants(&mut self, acknowledged: Offset, ended: bool) -> bool {
        let wants = !self.feeding && (acknowledged > self.fed || ended && !self.fed_end);
        self.feeding |= wants;
        wants
    }

    /// Whether it lacks input up to `acknowledged` (`ended`: the end included), or has not said yet what the primary has said. One that
    /// was never opened lacks nothing: nobody is going to give it anything.
    pub(crate) fn is_behind(&self, acknowledged: Offset, ended: bool) -> bool {
        let lacks = acknowledged > self.fed || ended && !self.fed_end;
        !self.is_late && !self.comparison.has_failed() && (lacks || self.comparison.is_behind())
    }

    /// All input up to `to` was given to it, and its end if `ended`.
    pub fn on_fed(&mut self, to: Offset, ended: bool) {
        self.fed = self.fed.max(to);
        self.fed_end |= ended;
        self.feeding = false;
    }

    /// The replica said this.
    pub fn on_output(&mut self, bytes: &[u8]) {
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
        if self.upgrade.is_some() {
            self.on_failure("the replica closed before it upgraded".into());
        }
        self.comparison.on_replica_end();
    }

    /// Bytes that the replica is ahead of the primary: a reason to stop reading from it.
    pub fn ahead(&self) -> usize {
        self.comparison.replica_surplus()
    }

    /// The replica's connection failed.
    pub fn on_failure(&mut self, reason: String) {
        self.comparison.fail(reason);
    }

    fn protection(&self) -> Result<(), String> {
        self.comparison
            .protection()
            .map_err(|reason| reason.to_string())?;
        if self.upgrade.is_some() {
            return Err("its replica has not upgraded yet".into());
        }
        Ok(())
    }
}

impl Follower {
    /// The follower for a new connection; `rules` and `opaque` are for policy `http`, and a replica may be `bound` bytes behind.
    pub fn new(policy: Policy, rules: Rules, opaque: Option<Arc<Opaque>>, bound: usize) -> Self {
        match policy {
            Policy::Http => Self::Http(Tracker::new(rules), opaque),
            Policy::Replica => Self::Replica(Box::new(Replica::new(bound))),
        }
    }

    /// The follower of a connection that is learnt between two exchanges, with policy `http`.
    pub fn learnt(rules: Rules) -> Self {
        Self::Http(Tracker::between(rules, Offset::LEARNT), None)
    }

    /// The tracker of policy `http`.
    pub fn tracker(&self) -> Option<&Tracker> {
        match self {
            Self::Http(tracker, _) => Some(tracker),
            Self::Replica(_) | Self::GivenUp => None,
        }
    }

    /// The replica, if the policy has one.
    pub fn replica(&self) -> Option<&Replica> {
        match self {
            Self::Replica(replica) => Some(replica),
            Self::Http(..) | Self::GivenUp => None,
        }
    }

    /// The same, to be changed.
    pub fn replica_mut(&mut self) -> Option<&mut Replica> {
        match self {
            Self::Replica(replica) => Some(replica),
            Self::Http(..) | Self::GivenUp => None,
        }
    }

    /// Input that is new and contiguous. It is given as soon as it is logged: it has been released to the primary, which
    /// may act on it before it says so.
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

    /// Output that is new and contiguous.
    pub fn on_output(&mut self, bytes: &[u8]) {
        match self {
            Self::Http(tracker, _) => {
                tracker.on_output(bytes);
                self.switch(bytes);
            }
            Self::Replica(replica) => replica.comparison.on_primary(bytes),
            Self::GivenUp => {}
        }
    }

    /// A replica follows what is not HTTP from where it begins, if that is wanted; `bytes` are the output that was given last.
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
            Self::GivenUp => {}
        }
    }

    /// Bytes that the primary has accepted or said and the restart policy has not followed yet, input being acknowledged up to
    /// `acknowledged`.
    pub fn behind(&self, acknowledged: Offset) -> u64 {
        match self {
            Self::Http(..) | Self::GivenUp => 0, // it follows what is logged at once, or nothing
            Self::Replica(replica) => {
                let unsaid = replica.comparison.surplus() - replica.comparison.replica_surplus();
                acknowledged.since(replica.fed.min(acknowledged)) + unsaid as u64
            }
        }
    }

    /// Bytes of memory beside the logs: what is known of unanswered requests, or what one of two servers has said and the other one
    /// has not. Each has a bound of its own.
    pub fn memory(&self) -> usize {
        match self {
            Self::Http(tracker, _) => tracker.memory(),
            Self::Replica(replica) => replica.comparison.memory(),
            Self::GivenUp => 0,
        }
    }

    /// Nothing will be restarted.
    pub fn give_up(&mut self) {
        *self = Self::GivenUp;
    }

    /// The input from here on is needed for a restart; `frontier` if none of what was logged.
    pub fn restart_input(&self, frontier: Offset) -> Offset {
        match self {
            Self::Http(tracker, _) => tracker.restart_input(),
            Self::Replica(replica) => replica.fed,
            Self::GivenUp => frontier,
        }
    }

    /// Whether a restart will need less of the input if no more of it comes.
    pub fn drains(&self) -> bool {
        match self {
            Self::Http(tracker, _) => tracker.drains(),
            Self::Replica(replica) => !replica.comparison.has_failed(),
            Self::GivenUp => false,
        }
    }

    /// The log may not grow, for this reason: gives up input that is kept for a reply only. False if there is none.
    pub fn shed(&mut self, full: Full) -> bool {
        match self {
            Self::Http(tracker, _) => tracker.shed(full),
            Self::Replica(_) | Self::GivenUp => false,
        }
    }

    /// Why a restart just now would cost the client a reply, if it would.
    ///
    /// # Errors
    /// The reason, as a phrase.
    pub fn protection(&self) -> Result<(), String> {
        match self {
            Self::Http(tracker, _) => tracker.protection().map_err(|reason| reason.to_string()),
            Self::Replica(replica) => replica.protection(),
            Self::GivenUp => Err("given up".into()),
        }
    }

    /// Whether a restart says the same bytes at the same places as the primary did behind a hole in the out-log. Nobody
    /// could compare them: a hole that is not filled is all that a resumer sees. `to_fin`: bytes from the hole's start to the server's FIN,
    /// if the log has the FIN.
    ///
    /// # Errors
    /// Why not, as a phrase.
    pub fn fills_holes(&self, to_fin: Option<u64>) -> Result<(), String> {
        let Self::Http(tracker, _) = self else {
            return Ok(());
        };
        let body = match tracker.resume().map_err(|reason| reason.to_string())? {
            Resume::Again { said, .. } if tracker.unanswered() == 1 => said.body,
            Resume::Finished | Resume::Idle | Resume::Again { .. } | Resume::Refused(_) => None,
        };
        match body {
            // A client that has the FIN acknowledges it with the hole's last byte. The restored socket must have sent a FIN to take that.
            Some(_) if to_fin.is_some_and(|bytes| !tracker.ends_after(bytes)) => {
                Err("the client may have the server's FIN, and the reply is not the connection's last".into())
            }
            // All that is not said yet is the body's, and that is the same.
            Some(body) if !matches!(body.position, Position::Chunked(_)) => Ok(()),
            _ => Err("the client may have more of the reply than the log, in another form".into()),
        }
    }

    /// Whether it can go on.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn restarts(&self) -> Result<(), String> {
        match self {
            Self::Http(tracker, _) => tracker.resumes().map_err(|reason| reason.to_string()),
            Self::Replica(replica) => {
                replica.protection()?;
                let comparison = replica.comparison.protection();
                comparison.map_err(|reason| reason.to_string())
            }
            Self::GivenUp => Err("given up".into()),
        }
    }

    /// How to go on.
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
            Self::GivenUp => Err("given up".into()),
        }
    }
}

/// Keeps a connection's replica in step with what the primary has accepted.
pub(crate) fn follow_replica(
    table: &mut Table,
    index: ServiceIndex,
    change: Change,
    actions: &mut VecDeque<Action>,
) {
    match change {
        Change::Ended(connection) if !table.lingers(connection) => actions.push_back(Action::CloseReplica {
            service: index,
            connection,
        }),
        Change::Opened(connection) | Change::Connection(connection) | Change::Ended(connection) => {
            let Some(entry) = table.followed_mut(connection) else {
                return;
            };
            let client = entry.client();
            let is_new = matches!(change, Change::Opened(_));
            let opens = |replica: &mut Replica| replica.opens() || is_new;
            if entry.follower_mut().replica_mut().is_some_and(opens) {
                actions.push_back(open(index, connection, client));
            }
            let acknowledged = entry.input_acknowledged();
            let ended = entry.input().fin() == Some(acknowledged);
            if let Some(replica) = entry.follower_mut().replica_mut()
                && replica.wants(acknowledged, ended)
            {
                actions.push_back(Action::FeedReplica {
                    service: index,
                    connection,
                });
            }
        }
        Change::Handshake | Change::Old | Change::Unknown => {}
    }
}

const fn open(service: ServiceIndex, connection: ConnectionId, client: SocketAddr) -> Action {
    Action::OpenReplica {
        service,
        connection,
        client,
    }
}

#[cfg(test)]
mod tests;
