//! The wire's half for all connections of a service: which connection's input is asked for, when it is asked for again, and when it is
//! given up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::restart::prefix::{JoinStep, PrefixAnswer, PrefixAsk};
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> SocketAddr {
        ([192, 0, 2, 9], 4000).into()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn connections(count: u32) -> Vec<ConnectionId> {
        (0..count).map(ConnectionId::first_of).collect()
    }

    #[test]
    fn questions_are_repeated_and_given_up() {
        let ids = connections(6);
        let mut asks = PrefixAsks::default();
        for (port, &id) in (1..).zip(&ids) {
            asks.begin(id, ([192, 0, 2, 9], port).into(), Seq(9));
        }
        let poll = |asks: &mut PrefixAsks, millis| {
            let mut late = asks.handle_timeout(at(millis), |_| true);
            late.sort_unstable();
            let asked: Vec<_> = std::iter::from_fn(|| asks.poll_ask(at(millis))).collect();
            (asked.len(), late)
        };
        assert_eq!(poll(&mut asks, 0), (4, vec![]), "no more than four at a time");
        assert_eq!(poll(&mut asks, 49), (0, vec![]));
        assert_eq!(poll(&mut asks, 50), (4, vec![]), "no answer has come");
        // Two windows of the first connection's input come, then nothing more.
        asks.on_step(at(60), ids[0], &JoinStep::Wants(100), (100, false));
        assert_eq!(asks.poll_ask(at(60)).map(|ask| ask.from), Some(100));
        asks.on_step(at(70), ids[0], &JoinStep::Wants(200), (200, false));
        asks.on_step(at(80), ids[1], &JoinStep::Joined, (0, false));
        assert_eq!(asks.counts(), (1, 0));
        assert_eq!(poll(&mut asks, 29_999).1, vec![]);
        let (_, late) = poll(&mut asks, 30_000);
        assert_eq!(late, [ids[2], ids[3]], "30 s after the question");
        let (_, late) = poll(&mut asks, 30_070);
        assert_eq!(late, [ids[0]], "30 s after its last bytes");
        asks.on_step(at(30_100), ids[4], &JoinStep::Refused(String::new()), (0, false));
        assert_eq!(asks.counts(), (1, 4));
        // While the survivor's application repeats output, nothing is given up.
        asks.on_step(at(59_000), ids[5], &JoinStep::Wants(0), (0, true));
        assert_eq!(poll(&mut asks, 60_100).1, vec![]);
        assert_eq!(poll(&mut asks, 89_000).1, [ids[5]]);
        assert_eq!(asks.poll_timeout(), None);
    }

    #[test]
    fn a_connection_that_has_ended_is_not_asked_for() {
        let ids = connections(2);
        let mut asks = PrefixAsks::default();
        for &id in &ids {
            asks.begin(id, client(), Seq(9));
        }
        assert!(asks.handle_timeout(at(0), |id| id == ids[1]).is_empty());
        assert!(asks.poll_ask(at(0)).is_some() && asks.poll_ask(at(0)).is_none());
        assert!(asks.handle_timeout(at(1), |_| false).is_empty());
        assert_eq!((asks.poll_ask(at(1)), asks.poll_timeout()), (None, None));
        assert_eq!(asks.counts(), (0, 0));
    }

    #[test]
    fn a_connection_whose_survivor_is_behind_gives_way_to_others() {
        let ids = connections(5);
        let mut asks = PrefixAsks::default();
        for (port, &id) in (1..).zip(&ids) {
            asks.begin(id, ([192, 0, 2, 9], port).into(), Seq(9));
        }
        let ports = |asks: &mut PrefixAsks, millis| {
            asks.handle_timeout(at(millis), |_| true);
            let asked = std::iter::from_fn(|| asks.poll_ask(at(millis)));
            asked.map(|ask| ask.client.port()).collect::<Vec<_>>()
        };
        assert_eq!(ports(&mut asks, 0), [1, 2, 3, 4]);
        asks.on_step(at(1), ids[0], &JoinStep::Wants(0), (0, false));
        assert_eq!(ports(&mut asks, 1), [5]);
        assert!(ports(&mut asks, 21).is_empty(), "four are active");
        asks.on_step(at(22), ids[4], &JoinStep::Joined, (0, false));
        assert_eq!(asks.poll_timeout(), Some(at(21)), "there is room again");
        assert_eq!(ports(&mut asks, 22), [1]);
    }
}
