//! Who comes first while some clients wait for their first byte: after a takeover hundreds do at once, and whoever is served speaks again
//! before the last of them is, so that the longest wait is that of all of them together.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::kept::Kept;

/// Who gives way goes on when none of those who wait has come or been served for so long: their application is slow, or they are.
pub(super) const STUCK: Duration = Duration::from_millis(5);
/// And in any case after so long.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// Where a connection stands in that order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// Outside of it: nobody waits on it, or a replica has its reply already.
    #[default]
    Any,
    /// Its client waits for its first byte.
    Waits,
    /// Its client has had that.
    Served,
}

/// The order of turns.
pub(super) struct Turns {
    /// Clients that wait for their first byte.
    waiting: Cell<usize>,
    /// When the last one of them came or was served.
    moved: Cell<Instant>,
    /// None of them is left.
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

    /// The client of `kept` begins to wait for its first byte.
    pub fn begin(&self, kept: &Kept) {
        if kept.turn.replace(Turn::Waits) != Turn::Waits {
            self.waiting.set(self.waiting.get() + 1);
            self.moved.set(Instant::now());
        }
    }

    /// It waits no longer.
    pub fn end(&self, kept: &Kept) {
        if kept.turn.get() == Turn::Waits {
            kept.turn.set(Turn::Served);
            self.waiting.set(self.waiting.get() - 1);
            self.moved.set(Instant::now());
            if self.waiting.get() == 0 {
                self.all_served.notify_waiters();
            }
        }
    }

    /// Whether clients wait for their first byte, and it is not only for a slow application.
    pub fn somebody_waits(&self) -> bool {
        self.waiting.get() > 0 && Instant::now() < self.moved.get() + STUCK
    }

    /// Whether the client of `kept` has been served, and others have not.
    fn is_behind(&self, kept: &Kept) -> bool {
        kept.turn.get() == Turn::Served && self.somebody_waits()
    }

    /// Lets those go first who have not been served yet, if the client of `kept` has.
    pub async fn give_way(&self, kept: &Kept) {
        if self.is_behind(kept) {
            Box::pin(self.wait(kept)).await; // in a place of its own: most never wait
        }
    }

    async fn wait(&self, kept: &Kept) {
        let limit = Instant::now() + PATIENCE;
        while self.is_behind(kept) && Instant::now() < limit {
            let due = limit.min(self.moved.get() + STUCK);
            let _ = timeout_at(due, self.all_served.notified()).await; // looked at again
        }
    }
}
