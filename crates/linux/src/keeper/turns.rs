//! Lets clients that wait for their first byte go first. After a takeover, hundreds of clients wait at the same time. The clients that get
//! their first bytes early cause more traffic while others still wait. Without turns, the last client would wait for all that traffic too.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Stop yielding when no client has begun or ended its wait for this long: the application is slow, or the clients are.
pub(super) const STUCK: Duration = Duration::from_millis(5);
/// Longest time for which one read yields.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// The place of a connection in the order of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClientTurn {
    /// The connection is outside the order: its client does not wait, or a replica has the reply already.
    #[default]
    Any,
    /// The client waits for its first byte.
    Waits,
    /// The client has had its first byte.
    Served,
}

/// The order of turns.
pub(super) struct Turns {
    /// Clients that wait for their first byte.
    waiting: Cell<usize>,
    /// When a client last began to wait, or ended its wait.
    moved: Cell<Instant>,
    /// Wakes the tasks that gave way, as soon as no client waits for its first byte.
    all_served: Notify,
}

impl Turns {
    pub fn new() -> Self {
        Self {
            waiting: Cell::new(0),
            moved: Cell::new(Instant::now()),
            all_served: Notify::new(),
        }
    }

    /// The client of `turn` begins to wait for its first byte.
    pub fn begin(&self, turn: &Cell<ClientTurn>) {
        if turn.replace(ClientTurn::Waits) != ClientTurn::Waits {
            self.waiting.set(self.waiting.get() + 1);
            self.moved.set(Instant::now());
        }
    }

    /// The client of `turn` waits no longer.
    pub fn end(&self, turn: &Cell<ClientTurn>) {
        if turn.get() == ClientTurn::Waits {
            turn.set(ClientTurn::Served);
            self.waiting.set(self.waiting.get() - 1);
            self.moved.set(Instant::now());
            if self.waiting.get() == 0 {
                self.all_served.notify_waiters();
            }
        }
    }

    /// Whether clients wait for their first byte, and a client has begun or ended such a wait within [`STUCK`].
    pub fn somebody_waits(&self) -> bool {
        self.waiting.get() > 0 && Instant::now() < self.moved.get() + STUCK
    }

    /// Whether the client of `turn` has been served, and another client still waits ([`somebody_waits`](Self::somebody_waits)).
    fn is_behind(&self, turn: &Cell<ClientTurn>) -> bool {
        turn.get() == ClientTurn::Served && self.somebody_waits()
    }

    /// If the client of `turn` has been served, lets clients that still wait for their first byte go first.
    pub async fn give_way(&self, turn: &Cell<ClientTurn>) {
        if self.is_behind(turn) {
            Box::pin(self.wait(turn)).await; // boxed, so that a connection that never waits needs no memory for this future
        }
    }

    async fn wait(&self, turn: &Cell<ClientTurn>) {
        let limit = Instant::now() + PATIENCE;
        while self.is_behind(turn) && Instant::now() < limit {
            let due = limit.min(self.moved.get() + STUCK);
            let _ = timeout_at(due, self.all_served.notified()).await; // the loop decides whether to wait on
        }
    }
}
