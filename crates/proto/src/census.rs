//! Who is there when a log begins in the middle of connections: the primary's kernel knows them all, and is asked for them page by
//! page.
//!
//! ```text
//!   wire     ── after: – ─▶            ── after: c ─▶          (nothing came: again)
//!   primary                ◀─ a, b, c ─              ◀─ d, e; the last ─
//! ```
//!
//! The order is that of the clients' addresses, so a connection that is there all the time is on exactly one page, whatever comes
//! and goes meanwhile. A page counts once, and only as the answer to the question that waits; each census has a number of its own, so
//! no page of an earlier one counts.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::learn::{QUESTION_MAX, Terms};

/// Connections on a page: it is a short datagram.
pub const PAGE_MAX: usize = QUESTION_MAX;
/// A page that does not come is asked for again after this time,
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// and after so many questions less often: the primary has no agent at this time, or one that cannot tell.
const ASKED_OFTEN: u32 = 20;
const ASK_LATER: Duration = Duration::from_secs(1);

/// Asks for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageQuery {
    /// The census' number.
    pub census: u64,
    /// The page begins behind this client; `None`: it is the first.
    pub after: Option<SocketAddr>,
}

/// Some of the primary's connections, in the order of their clients' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// What it answers.
    pub query: PageQuery,
    /// The clients, and what their handshakes agreed on.
    pub connections: Vec<(SocketAddr, Terms)>,
    /// Nobody comes behind them.
    pub is_last: bool,
}

/// The census of one service.
#[derive(Debug, Default)]
pub(crate) struct Census {
    began: Instant,
    progress: Progress,
}

#[derive(Debug, Default)]
enum Progress {
    /// Nobody has asked for it.
    #[default]
    None,
    /// A page is wanted.
    Asking {
        after: Option<SocketAddr>,
        asked: u32,
        at: Instant,
    },
    Complete,
}

impl Census {
    /// Begins, or begins anew.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = now;
        self.ask_behind(None);
    }

    fn ask_behind(&mut self, after: Option<SocketAddr>) {
        self.progress = Progress::Asking {
            after,
            asked: 0,
            at: Instant::ZERO,
        };
    }

    /// Whether every page has come.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.progress, Progress::Complete)
    }

    /// Whether pages are still to come.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.progress, Progress::Asking { .. })
    }

    /// When it began: what the primary says is not older.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    fn query(&self, after: Option<SocketAddr>) -> PageQuery {
        PageQuery {
            census: self.began.as_nanos(),
            after,
        }
    }

    /// What is to be asked now.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<PageQuery> {
        let Progress::Asking { after, asked, at } = &mut self.progress else {
            return None;
        };
        let pause = if *asked < ASKED_OFTEN {
            ASK_AGAIN
        } else {
            ASK_LATER
        };
        if *asked > 0 && now.since(*at) < pause {
            return None;
        }
        (*asked, *at) = (asked.saturating_add(1), now);
        let after = *after;
        Some(self.query(after))
    }

    /// Whether the page is the one that is waited for. The next one is wanted then.
    pub(crate) fn takes(&mut self, page: &Page) -> bool {
        let Progress::Asking { after, .. } = self.progress else {
            return false;
        };
        let last = page.connections.last().map(|(client, _)| *client);
        let goes_on = page.is_last || last > after;
        if page.query != self.query(after) || !goes_on {
            return false;
        }
        if page.is_last {
            self.progress = Progress::Complete;
        } else {
            self.ask_behind(last);
        }
        true
    }
}

#[cfg(test)]
mod tests;
