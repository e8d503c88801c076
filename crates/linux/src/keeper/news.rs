//! Reports that tell only of the connections that have changed. The agent asks every 200 ms, and a report on ten thousand idle connections
//! would keep the clients of all others waiting for milliseconds.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::status::RelayState;

/// Maximum number of ended connections that reports still name. An asker that has missed more gets a whole report.
const GONE_MAX: usize = 1 << 16;

/// The numbers of the reports, and the connections that have ended meanwhile.
#[derive(Default)]
pub(super) struct ReportHistory {
    /// Number of the last report. The first one is 1.
    last: Cell<u64>,
    /// The ends that reports name: the number of the first report after the end, and the connection's.
    gone: RefCell<VecDeque<(u64, u64)>>,
    /// Reports with a number below this one have ends after them that are not in `gone` any more.
    complete_from: Cell<u64>,
}

impl ReportHistory {
    /// Begins a report. Returns its number.
    pub fn begin(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    /// A connection has ended.
    pub fn on_end(&self, id: u64) {
        let mut gone = self.gone.borrow_mut();
        if gone.len() == GONE_MAX
            && let Some((number, _)) = gone.pop_front()
        {
            self.complete_from.set(number);
        }
        gone.push_back((self.last.get() + 1, id));
    }

    /// Whether all changes since the report `known` can be told. 0 is no report.
    pub fn tells_all_since(&self, known: u64) -> bool {
        (self.complete_from.get().max(1)..=self.last.get()).contains(&known)
    }

    /// The connections that have ended since the report `known`.
    pub fn ends_since(&self, known: u64) -> Vec<u64> {
        let gone = self.gone.borrow();
        let later = gone.iter().rev().take_while(|(number, _)| *number > known);
        later.map(|&(_, id)| id).collect()
    }
}

/// The part of a connection's status that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangingPart {
    pub state: RelayState,
    pub to_application: u64,
    pub to_client: u64,
}

/// The last change of a connection that a report has told.
#[derive(Clone, Copy, Default)]
pub(super) struct ToldPart {
    /// The number of the report that told it first. 0: no report has named the connection.
    number: u64,
    part: Option<ChangingPart>,
}

impl ToldPart {
    /// The report `number` finds the connection like this.
    pub fn renew(&mut self, number: u64, part: ChangingPart) {
        if self.part != Some(part) {
            (self.number, self.part) = (number, Some(part));
        }
    }

    /// Whether the connection has changed since the report `known`.
    pub const fn is_news(&self, known: u64) -> bool {
        self.number > known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_to_whoever_has_not_heard_of_them() {
        let reports = ReportHistory::default();
        assert!(!reports.tells_all_since(0), "nothing is known");
        let first = reports.begin();
        reports.on_end(7);
        let second = reports.begin();
        reports.on_end(9);
        assert_eq!(reports.ends_since(first), [9, 7]);
        assert_eq!(reports.ends_since(second), [9]);
        assert!(reports.tells_all_since(first));
        assert!(!reports.tells_all_since(second + 1), "another keeper's report");
    }

    #[test]
    fn who_has_not_asked_for_long_gets_a_whole_report() {
        let reports = ReportHistory::default();
        let first = reports.begin();
        reports.on_end(1);
        let second = reports.begin();
        for id in 2..=GONE_MAX as u64 {
            reports.on_end(id);
        }
        assert!(reports.tells_all_since(first));
        reports.on_end(0);
        assert!(!reports.tells_all_since(first), "the end of 1 is forgotten");
        assert!(reports.tells_all_since(second));
        assert_eq!(reports.ends_since(second).len(), GONE_MAX);
    }

    #[test]
    fn a_connection_is_news_until_it_is_told() {
        let idle = ChangingPart {
            state: RelayState::Idle,
            to_application: 0,
            to_client: 0,
        };
        let mut told = ToldPart::default();
        told.renew(4, idle);
        assert!(told.is_news(3));
        told.renew(5, idle);
        assert!(!told.is_news(4));
        told.renew(6, ChangingPart { to_client: 1, ..idle });
        assert!(told.is_news(5) && !told.is_news(6));
    }
}
