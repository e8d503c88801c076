//! The record on its way between the agents. The primary's agent keeps what the backup's agent has not confirmed, so that a broken link can
//! be resumed. Before the first link, it keeps the whole record, because a replica needs the record from its beginning.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use super::streams::StreamArrivals;
use crate::Instant;

/// Bytes that an agent keeps: the primary's without a receipt, and the backup's while its server does not take them.
const KEPT_MAX: usize = 64 << 20;

/// Longest time without a receipt. Then writes do not wait for the backup any more, until a link is up again.
const RECEIPT_MAX: Duration = Duration::from_secs(1);

/// Names a record. Each server that is recorded begins a record of its own. The number is random, so that no two agents use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId(pub NonZeroU64);

/// How much of which record a backup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    /// The record that the backup's server follows. `None`: its server has just started, and can follow any record from its beginning.
    pub record: Option<RecordId>,
    /// Bytes of this record that have arrived.
    pub have: u64,
}

/// Why a backup does not get the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefusal {
    /// The primary's server is not recorded now.
    #[error("the primary's server is not recorded")]
    NoRecord,
    /// A server that has just started cannot follow, because the record has no beginning any more.
    #[error(
        "the record's beginning is not kept any more: this server started after another one had followed the record, or too late"
    )]
    NoBeginning,
    /// The record that the backup's server follows never continues.
    #[error("the record has ended, because the primary's server or its agent was started again")]
    Ended,
}

impl LinkRefusal {
    /// Whether the backup's server must go on without a record. Otherwise, it waits for a record that it can follow.
    #[must_use]
    pub fn is_final(self) -> bool {
        self == Self::Ended
    }
}

/// The primary's half.
#[derive(Debug, Default)]
pub struct OrderTransfer {
    /// The last record that was begun. `None`: no server was recorded yet.
    record: Option<RecordId>,
    /// The record is complete.
    has_ended: bool,
    /// Bytes that the backup has, and that [`Self::poll_confirmed`] has not returned.
    confirmed: Vec<u8>,
    /// The record from `base` on.
    kept: VecDeque<u8>,
    /// Bytes of the record before `kept`.
    base: u64,
    /// Bytes of the record that were sent over the link. `None`: there is no link.
    sent: Option<u64>,
    /// The record is too long for a backup that has not come. No backup can follow it any more.
    is_given_up: bool,
    /// Writes wait for receipts: a link has come up, and the backup has answered since.
    waits: bool,
    /// When the backup last answered, or was asked first after an answer.
    answered: Instant,
}

impl OrderTransfer {
    /// The record of a server that has just started. It follows no other record.
    #[must_use]
    pub fn of(record: RecordId) -> Self {
        Self {
            record: Some(record),
            ..Self::default()
        }
    }

    /// The record is complete, because its server has ended or is not recorded any more.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether the record is complete, or was never begun.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended || self.record.is_none()
    }

    /// Whether a server that starts on the backup now could follow the record from its beginning.
    #[must_use]
    pub fn has_beginning(&self) -> bool {
        !self.has_ended() && !self.is_given_up && self.base == 0
    }

    /// The library has handed over more of the record.
    pub fn add(&mut self, now: Instant, bytes: &[u8]) {
        if self.kept.is_empty() && self.is_linked() {
            self.answered = now;
        }
        if self.is_given_up {
            self.base += bytes.len() as u64;
            return;
        }
        self.kept.extend(bytes);
        if self.kept.len() > KEPT_MAX {
            self.base += self.kept.len() as u64;
            self.kept = VecDeque::new();
            self.sent = None;
            self.is_given_up = true;
        }
    }

    /// A link has come up to a backup that is at this position. Returns the record that the backup follows from now on.
    ///
    /// # Errors
    /// The backup cannot follow.
    pub fn link_up(&mut self, now: Instant, position: RecordPosition) -> Result<RecordId, LinkRefusal> {
        let have = position.record.map_or(0, |_| position.have);
        let Some(record) = self
            .record
            .filter(|_| position.record.is_some() || !self.has_ended)
        else {
            return Err(match position.record {
                None => LinkRefusal::NoRecord,
                Some(_) => LinkRefusal::Ended,
            });
        };
        let is_kept = !self.is_given_up && (self.base..=self.len()).contains(&have);
        match position.record {
            None if !is_kept => return Err(LinkRefusal::NoBeginning),
            Some(other) if other != record || !is_kept => return Err(LinkRefusal::Ended),
            _ => {}
        }
        self.sent = Some(have);
        self.on_receipt(now, have);
        (self.waits, self.answered) = (true, now);
        Ok(record)
    }

    /// The link is broken. The backup has time to come back.
    pub fn link_down(&mut self, now: Instant) {
        if self.kept.is_empty() && self.is_linked() {
            self.answered = now;
        }
        self.sent = None;
    }

    /// Whether there is a link.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.sent.is_some()
    }

    /// The part of the record to send now. It counts as sent.
    pub fn poll_part(&mut self) -> Option<Vec<u8>> {
        let end = self.len();
        let sent = self.sent.as_mut()?;
        let from = (*sent - self.base) as usize;
        *sent = end;
        (from < self.kept.len()).then(|| self.kept.range(from..).copied().collect())
    }

    /// The backup has the record's first `arrived` bytes. Returns whether this is news.
    pub fn on_receipt(&mut self, now: Instant, arrived: u64) -> bool {
        let is_news = arrived > self.base && self.sent.is_some_and(|sent| arrived <= sent);
        if is_news {
            let confirmed = self.kept.drain(..(arrived - self.base) as usize);
            self.confirmed.extend(confirmed);
            self.base = arrived;
            self.answered = now;
        }
        is_news
    }

    /// The next bytes of the record that the backup has.
    pub fn poll_confirmed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.confirmed)
    }

    /// Whether writes wait for receipts.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether writes must stop waiting for receipts now: there is no backup, or it has not answered for [`RECEIPT_MAX`]. True once for each
    /// link. The link has then ended.
    pub fn goes_alone(&mut self, now: Instant, has_backup: bool) -> bool {
        let is_asked = !self.is_linked() || !self.kept.is_empty();
        let is_overdue = is_asked && now.since(self.answered) >= RECEIPT_MAX;
        let goes = self.waits && (!has_backup || self.is_given_up || is_overdue);
        if goes {
            (self.waits, self.sent) = (false, None);
        }
        goes
    }

    /// Bytes of the record without a receipt.
    #[must_use]
    pub fn unconfirmed(&self) -> u64 {
        self.kept.len() as u64
    }

    /// Length of the record.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The backup's half: the record until this node's server takes it.
#[derive(Debug, Default)]
pub struct OrderArrivals {
    /// The record that this node's server follows. `None`: it has just started.
    record: Option<RecordId>,
    streams: StreamArrivals,
    arrived: u64,
    is_given_up: bool,
}

impl OrderArrivals {
    /// How much of which record has arrived.
    #[must_use]
    pub fn position(&self) -> RecordPosition {
        RecordPosition {
            record: self.record,
            have: self.arrived,
        }
    }

    /// The primary sends this record, from [`Self::position`] on. Returns whether this node's server can follow it.
    pub fn follow(&mut self, record: RecordId) -> bool {
        *self.record.get_or_insert(record) == record
    }

    /// More of the record has arrived. Returns how much has arrived in all. `None`: this node's server does not take the record.
    pub fn add(&mut self, bytes: &[u8]) -> Option<u64> {
        if self.is_given_up {
            return None;
        }
        let has_room = self.streams.waiting() + bytes.len() <= KEPT_MAX;
        if !has_room || !self.streams.add(bytes) {
            self.give_up();
            return None;
        }
        self.arrived += bytes.len() as u64;
        Some(self.arrived)
    }

    /// The kernel has taken a piece of the server's own stream. `from` is the position of its first byte. Returns how many bytes are new.
    pub fn add_ahead(&mut self, from: u64, bytes: &[u8]) -> usize {
        if self.is_given_up {
            return 0;
        }
        if self.streams.waiting() + bytes.len() > KEPT_MAX {
            self.give_up();
            return 0;
        }
        self.streams.add_ahead(from, bytes)
    }

    fn give_up(&mut self) {
        self.streams = StreamArrivals::default();
        self.is_given_up = true;
    }

    /// Bytes that have arrived in all.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Whether the record has a gap, so that the server must not follow it further.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// What this node's processes have not taken yet.
    pub fn streams(&mut self) -> &mut StreamArrivals {
        &mut self.streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{SERVER_STREAM, StreamMerger};

    fn record(number: u64) -> RecordId {
        RecordId(NonZeroU64::new(number).unwrap())
    }

    /// A record, and a backup's position in it.
    fn begun() -> (OrderTransfer, impl Fn(u64) -> RecordPosition) {
        let position = |have| RecordPosition {
            record: Some(record(1)),
            have,
        };
        (OrderTransfer::of(record(1)), position)
    }

    /// A server that has just started.
    const FRESH: RecordPosition = RecordPosition {
        record: None,
        have: 0,
    };

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_broken_link_is_resumed_where_the_backup_is() {
        let (mut transfer, position) = begun();
        transfer.add(at(0), b"abc");
        assert_eq!(transfer.poll_part(), None, "there is no link");
        assert_eq!(transfer.link_up(at(0), FRESH), Ok(record(1)));
        assert_eq!(transfer.poll_part(), Some(b"abc".to_vec()));
        assert_eq!(transfer.poll_part(), None);
        transfer.add(at(0), b"def");
        assert!(
            !transfer.on_receipt(at(0), 4),
            "a receipt for a byte that was not sent"
        );
        assert!(transfer.on_receipt(at(0), 2));
        assert!(!transfer.on_receipt(at(0), 2));
        assert_eq!(transfer.poll_confirmed(), b"ab");
        transfer.link_down(at(0));
        assert_eq!(transfer.link_up(at(0), position(3)), Ok(record(1)));
        assert_eq!(transfer.poll_part(), Some(b"def".to_vec()));
        assert_eq!(
            transfer.poll_confirmed(),
            b"c",
            "the backup has it, by its position"
        );
        transfer.link_down(at(0));
        assert_eq!(
            transfer.link_up(at(0), position(2)),
            Err(LinkRefusal::Ended),
            "a backup that starts again"
        );
        assert_eq!(
            transfer.link_up(at(0), position(7)),
            Err(LinkRefusal::Ended),
            "of another record"
        );
        assert_eq!((transfer.len(), transfer.unconfirmed()), (6, 3));
    }

    #[test]
    fn a_record_begins_again_when_both_servers_have_started() {
        let mut transfer = OrderTransfer::default();
        assert_eq!(transfer.link_up(at(0), FRESH), Err(LinkRefusal::NoRecord));
        let followed = RecordPosition {
            record: Some(record(1)),
            have: 3,
        };
        let outcome = transfer.link_up(at(0), followed);
        assert_eq!(
            outcome,
            Err(LinkRefusal::Ended),
            "an agent that was started again"
        );

        let (mut transfer, position) = begun();
        transfer.add(at(0), b"abc");
        assert!(transfer.has_beginning());
        assert_eq!(transfer.link_up(at(0), FRESH), Ok(record(1)));
        assert!(transfer.poll_part().is_some() && transfer.on_receipt(at(0), 3));
        let outcome = transfer.link_up(at(0), FRESH);
        assert_eq!(
            outcome,
            Err(LinkRefusal::NoBeginning),
            "only the backup's server was started again"
        );
        assert!(!transfer.has_beginning());
        transfer.end();
        assert_eq!(transfer.link_up(at(0), FRESH), Err(LinkRefusal::NoRecord));
        assert_eq!(
            transfer.link_up(at(0), position(3)),
            Ok(record(1)),
            "it may lack the end"
        );

        let mut transfer = OrderTransfer::of(record(2));
        transfer.add(at(0), b"defg");
        let outcome = transfer.link_up(at(0), position(3));
        assert_eq!(
            outcome,
            Err(LinkRefusal::Ended),
            "only the primary's server was started again"
        );
        assert_eq!(transfer.link_up(at(0), FRESH), Ok(record(2)));

        let mut arrivals = OrderArrivals::default();
        assert_eq!(arrivals.position(), FRESH);
        assert!(arrivals.follow(record(2)) && !arrivals.follow(record(3)));
        assert_eq!(arrivals.position().record, Some(record(2)));
    }

    #[test]
    fn writes_wait_only_for_a_backup_that_answers() {
        let (mut transfer, position) = begun();
        transfer.add(at(0), b"abc");
        assert!(
            !transfer.goes_alone(at(5000), true),
            "no write waits before the first link"
        );
        assert_eq!(transfer.link_up(at(5000), FRESH), Ok(record(1)));
        assert!(!transfer.goes_alone(at(5999), true));
        assert!(transfer.poll_part().is_some());
        assert!(transfer.on_receipt(at(5999), 1));
        assert!(!transfer.goes_alone(at(6998), true), "a part was confirmed");
        assert!(transfer.goes_alone(at(6999), true));
        assert!(!transfer.goes_alone(at(9000), true), "it is alone already");

        assert_eq!(transfer.link_up(at(9000), position(3)), Ok(record(1)));
        assert!(
            !transfer.goes_alone(at(20_000), true),
            "the backup has everything"
        );
        transfer.add(at(20_000), b"d");
        assert!(!transfer.goes_alone(at(20_999), true));
        assert!(transfer.goes_alone(at(20_999), false), "there is no backup");

        assert_eq!(transfer.link_up(at(21_000), position(4)), Ok(record(1)));
        transfer.link_down(at(30_000));
        assert!(!transfer.goes_alone(at(30_999), true));
        assert!(
            transfer.goes_alone(at(31_000), true),
            "the link has not come back"
        );
    }

    #[test]
    fn a_record_that_nobody_takes_is_given_up() {
        let (mut transfer, position) = begun();
        transfer.add(at(0), &vec![0; KEPT_MAX]);
        assert_eq!(transfer.link_up(at(0), FRESH), Ok(record(1)));
        transfer.link_down(at(0));
        transfer.add(at(0), b"a");
        assert_eq!(transfer.unconfirmed(), 0);
        assert_eq!(transfer.link_up(at(0), FRESH), Err(LinkRefusal::NoBeginning));
        assert_eq!(transfer.link_up(at(0), position(0)), Err(LinkRefusal::Ended));

        let mut arrivals = OrderArrivals::default();
        let mut merger = StreamMerger::default();
        let first = merger.add(SERVER_STREAM, b"ab");
        assert_eq!(arrivals.add(&first), Some(first.len() as u64));
        assert_eq!(arrivals.streams().take(SERVER_STREAM), b"ab");
        assert!(
            arrivals
                .add(&merger.add(SERVER_STREAM, &vec![0; KEPT_MAX - 10]))
                .is_some()
        );
        assert_eq!(arrivals.add(&merger.add(SERVER_STREAM, &[0; 20])), None);
        assert_eq!(
            arrivals.add(&merger.add(SERVER_STREAM, b"a")),
            None,
            "the record has a gap from here on"
        );
        assert!(arrivals.is_given_up() && arrivals.streams().take(SERVER_STREAM).is_empty());
    }
}
