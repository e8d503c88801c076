//! The wire's half for all connections of a service: which connection's input is asked for, when it is asked for again, and when it is
//! given up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::{JoinStep, PrefixAnswer, PrefixAsk};
use crate::table::ConnectionId;
use crate::{Instant, Seq};

/// Number of connections whose input is transferred at the same time.
const ACTIVE_MAX: usize = 4;
/// Time without an answer after which a question is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Time after which the survivor is asked for what it did not have yet. Its relay may have to read it first.
const LATER: Duration = Duration::from_millis(20);
/// Time without progress after which a connection is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection whose input is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixQuestion {
    pub connection: ConnectionId,
    ask: PrefixAsk,
    again: Instant,
    progress: Instant,
}

/// The connections of one service whose input is asked for.
#[derive(Debug, Default)]
pub(crate) struct PrefixAsks {
    active: Vec<PrefixQuestion>,
    /// Connections whose survivor did not have more input yet. They are asked for again when they are due and there is room.
    parked: Vec<PrefixQuestion>,
    waiting: VecDeque<(ConnectionId, SocketAddr, Seq)>,
    joined: u64,
    given_up: u64,
}

impl PrefixAsks {
    /// A connection of `client` was learnt. Its log begins with the sequence number `input`.
    pub fn begin(&mut self, connection: ConnectionId, client: SocketAddr, input: Seq) {
        self.waiting.push_back((connection, client, input));
    }

    /// Forgets all questions, because this node is no longer the wire.
    pub fn clear(&mut self) {
        self.active.clear();
        self.parked.clear();
        self.waiting.clear();
    }

    /// Number of connections that were joined, and of those that were given up.
    pub const fn counts(&self) -> (u64, u64) {
        (self.joined, self.given_up)
    }

    /// Drops the questions about connections that are gone, and begins others. Returns the connections that are given up, because the
    /// survivor's input has not come.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        is_open: impl Fn(ConnectionId) -> bool,
    ) -> Vec<ConnectionId> {
        let mut late = Vec::new();
        for questions in [&mut self.active, &mut self.parked] {
            questions.retain(|question| {
                let is_late = now.since(question.progress) >= PATIENCE;
                if is_late {
                    late.push(question.connection);
                }
                !is_late && is_open(question.connection)
            });
        }
        while self.active.len() < ACTIVE_MAX
            && let Some(question) = self.next(now)
        {
            if is_open(question.connection) {
                self.active.push(question);
            }
        }
        self.given_up += late.len() as u64;
        late
    }

    /// The question that becomes active next.
    fn next(&mut self, now: Instant) -> Option<PrefixQuestion> {
        if let Some(due) = self.parked.iter().position(|question| now >= question.again) {
            return Some(self.parked.remove(due));
        }
        let (connection, client, input) = self.waiting.pop_front()?;
        let from = 0;
        Some(PrefixQuestion {
            connection,
            ask: PrefixAsk { client, input, from },
            again: now,
            progress: now,
        })
    }

    /// The next question to ask now.
    pub fn poll_ask(&mut self, now: Instant) -> Option<PrefixAsk> {
        let is_due = |question: &&mut PrefixQuestion| now >= question.again;
        let due = self.active.iter_mut().find(is_due)?;
        due.again = now + ASK_AGAIN;
        Some(due.ask)
    }

    /// The connection to which an answer belongs.
    pub fn find(&self, answer: &PrefixAnswer) -> Option<ConnectionId> {
        let is_meant = |question: &&PrefixQuestion| {
            (question.ask.client, question.ask.input) == (answer.client, answer.input)
        };
        self.active
            .iter()
            .find(is_meant)
            .map(|question| question.connection)
    }

    /// An answer has led to `step`. `until`: the answer's parts end there. `is_repeating`: the survivor's application still repeats output.
    /// The survivor bounds the time for this.
    pub fn on_step(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        step: &JoinStep,
        (until, is_repeating): (u64, bool),
    ) {
        let Some(index) = self
            .active
            .iter()
            .position(|question| question.connection == connection)
        else {
            return;
        };
        match step {
            JoinStep::Joined => {
                self.joined += 1;
                self.active.swap_remove(index);
            }
            JoinStep::Refused(_) => {
                self.given_up += 1;
                self.active.swap_remove(index);
            }
            JoinStep::Wants(arrived) => {
                let question = &mut self.active[index];
                let has_come = *arrived > question.ask.from;
                question.ask.from = *arrived;
                if has_come || is_repeating {
                    question.progress = now;
                }
                match (*arrived >= until, has_come) {
                    (true, true) => question.again = now,
                    (true, false) => {
                        question.again = now + LATER;
                        self.parked.push(self.active.swap_remove(index));
                    }
                    (false, true) => question.again = now + ASK_AGAIN, // the next part is on its way
                    (false, false) => {}
                }
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_ask`](Self::poll_ask) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |question: &PrefixQuestion| question.again.min(question.progress + PATIENCE);
        // Without room, those that are parked wait for an active one.
        let has_room = self.active.len() < ACTIVE_MAX;
        let parked = self.parked.iter().filter(|_| has_room);
        self.active.iter().chain(parked).map(due).min()
    }
}
