//! Finds the connections that exist when a log begins: asks the primary's kernel, which knows them all, page by page.
//!
//! ```text
//!   wire     ── after: – ─▶            ── after: c ─▶          (no answer: again)
//!   primary                ◀─ a, b, c ─              ◀─ d, e; the last ─
//! ```
//!
//! Pages are in the order of the clients' addresses. So a connection that exists all the time is on exactly one page, whatever
//! other connections begin or end meanwhile. A page counts once, and only as the answer to the open question. Each census has a
//! number of its own, so no page of an earlier census counts.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;

/// Maximum number of clients in one question. The question and its answer must be short datagrams.
pub const QUESTION_MAX: usize = 32;
/// Maximum number of connections on a page. A page must be a short datagram.
pub const PAGE_MAX: usize = QUESTION_MAX;
/// Time after which a missing page is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Number of unanswered questions after which questions become rarer. The primary has no agent now, or its agent cannot answer.
const ASKED_OFTEN: u32 = 20;
/// Time between two questions after [`ASKED_OFTEN`] unanswered questions.
const ASK_LATER: Duration = Duration::from_secs(1);

/// The options that both sides' SYNs agreed on, as reported by the primary's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The maximum segment size in use, including the space for TCP options. At most the smaller of the two sizes that were offered.
    pub mss: u16,
    /// Window scale shifts: the client's, the server's.
    pub window_scale: Option<(u8, u8)>,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// The timestamps count microseconds. A restored socket's timestamps never count microseconds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub microseconds: bool,
}

/// The answer of the primary's kernel about a client's open or half-closed connection. `None`: the client has no such
/// connection.
pub type ClientTerms = (SocketAddr, Option<Terms>);

/// Asks for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageQuery {
    /// The number of the census.
    pub census: u64,
    /// The page begins after this client; `None`: the first page.
    pub after: Option<SocketAddr>,
}

/// Some of the primary's connections, in the order of their clients' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusPage {
    /// The query that this page answers.
    pub query: PageQuery,
    /// The clients, and the terms of their handshakes.
    pub connections: Vec<(SocketAddr, Terms)>,
    /// No client comes after these.
    pub is_last: bool,
}

/// The census of one service.
#[derive(Debug, Default)]
pub(crate) struct Census {
    began: Instant,
    progress: CensusProgress,
    /// When the last question was asked.
    asked_at: Option<Instant>,
}

#[derive(Debug, Default)]
enum CensusProgress {
    /// Not begun.
    #[default]
    None,
    /// The page after `after` is wanted.
    Asking {
        after: Option<SocketAddr>,
        asked: u32,
        at: Instant,
    },
    Complete,
}

impl Census {
    /// Begins, or begins again. If it begins again and again, because packets keep passing unlogged, the primary is not asked more often
    /// than with one census.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = now;
        let recent = self.asked_at.filter(|at| now.since(*at) < ASK_AGAIN);
        self.progress = CensusProgress::Asking {
            after: None,
            asked: u32::from(recent.is_some()),
            at: recent.unwrap_or(Instant::ZERO),
        };
    }

    fn ask_behind(&mut self, after: Option<SocketAddr>) {
        self.progress = CensusProgress::Asking {
            after,
            asked: 0,
            at: Instant::ZERO,
        };
    }

    /// Whether every page has come.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.progress, CensusProgress::Complete)
    }

    /// Whether pages are still to come.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.progress, CensusProgress::Asking { .. })
    }

    /// When the census began. The primary's answers are no older than this.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    fn query(&self, after: Option<SocketAddr>) -> PageQuery {
        PageQuery {
            census: self.began.as_nanos(),
            after,
        }
    }

    /// The question to ask now, if any.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<PageQuery> {
        let CensusProgress::Asking { after, asked, at } = &mut self.progress else {
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
        self.asked_at = Some(now);
        let after = *after;
        Some(self.query(after))
    }

    /// If `page` answers the open question, takes it and goes on to the next page. Returns whether the page was taken.
    pub(crate) fn takes(&mut self, page: &CensusPage) -> bool {
        let CensusProgress::Asking { after, .. } = self.progress else {
            return false;
        };
        let last = page.connections.last().map(|(client, _)| *client);
        let goes_on = page.is_last || last > after;
        if page.query != self.query(after) || !goes_on {
            return false;
        }
        if page.is_last {
            self.progress = CensusProgress::Complete;
        } else {
            self.ask_behind(last);
        }
        true
    }
}

#[cfg(test)]
mod tests;
