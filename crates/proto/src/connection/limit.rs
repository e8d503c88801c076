//! The memory that a connection's log may hold, and what happens at the bound.

use super::{AtLimit, Connection, UnprotectedCause};
use crate::Offset;
use crate::spill::LogFull;
use crate::stream::OnShelf;

/// Extra memory, in bytes, that is freed each time input is spilled.
const ROOM: usize = 256 << 10;

impl Connection {
    /// Sets what happens when the log is full.
    pub fn set_at_limit(&mut self, at_limit: AtLimit) {
        self.at_limit = at_limit;
    }

    /// Memory held by the logs and by the follower, in bytes.
    pub fn memory(&self) -> usize {
        self.input.memory() + self.kept()
    }

    /// The part of [`memory`](Self::memory) that cannot be spilled.
    fn kept(&self) -> usize {
        self.output.memory() + self.follower.memory()
    }

    /// Bytes of the in-log that are not in memory.
    pub fn spilled(&self) -> u64 {
        self.input.spilled()
    }

    /// Bytes of memory that the logs may hold. Unacknowledged bytes do not count, in either direction: a takeover needs all of them, and
    /// they cannot be spilled. The windows and send buffers of both sides bound these bytes. The follower's memory has a bound of its own.
    fn bound(&self) -> usize {
        let input = self.input.end().since(self.input_acknowledged());
        let output = self.output.end().since(self.output.base());
        let excess = self.capped.as_ref().map_or(0, |capped| capped.excess);
        let followed = self.follower.memory() as u64;
        usize::try_from(self.limit.saturating_add(input + output + excess + followed)).unwrap_or(usize::MAX)
    }

    /// Whether output up to `end` may be logged. A server never sends more than its client had room for, so the log spends no
    /// memory on output beyond that.
    pub(super) fn has_room_for(&self, end: Offset) -> bool {
        end.since(self.output.base()) <= self.limit.max(self.client.window_max.into())
    }

    pub(super) fn hold_limit(&mut self) {
        if self.memory() > self.bound() {
            self.hold(self.bound(), LogFull::Memory);
        }
    }

    /// Brings the logs down to `bound` bytes of memory. Spills input if possible. Otherwise gives up the input that is kept for a reply
    /// only. If this does not suffice, gives up the whole connection, for the reason `why`.
    pub fn hold(&mut self, bound: usize, why: LogFull) {
        let full = match self.spill(bound) {
            Ok(()) => return,
            Err(LogFull::Memory) => why,
            Err(full) => full,
        };
        let has_shed = self.input.memory() > self.kept() && self.shed(full);
        if !has_shed || self.memory() > bound {
            self.unprotect(UnprotectedCause::Full(full));
        }
    }

    /// Called when input may not be kept. Gives up the input that is kept for a reply only, or else the whole connection.
    pub(super) fn give_up_input(&mut self, full: LogFull) {
        if !self.shed(full) {
            self.unprotect(UnprotectedCause::Full(full));
        }
    }

    /// Called before input is logged. Makes room if the log keeps more accepted input than it may. Some of that input may lie on
    /// the shelf of `source`.
    pub(super) fn make_room(&mut self, source: Option<OnShelf<'_>>) {
        if self.input_acknowledged().since(self.input.resident()) <= self.limit {
            return;
        }
        if let Some(source) = source.filter(|_| self.input.is_shelved()) {
            self.input.keep(source.shelf);
        }
        self.hold_limit();
    }

    /// Spills input that the server has accepted, until the logs hold at most `bound` bytes of memory. If possible, they then hold
    /// [`ROOM`] bytes less.
    fn spill(&mut self, bound: usize) -> Result<(), LogFull> {
        let spills = self.at_limit.spills().ok_or(LogFull::Memory)?;
        let input = bound.saturating_sub(self.kept() + ROOM);
        self.input.spill(spills, self.server.acknowledged, input)?;
        if self.memory() > bound {
            return Err(LogFull::Memory);
        }
        Ok(())
    }

    /// Forgets input that is kept for a reply only. Returns whether there was any.
    fn shed(&mut self, full: LogFull) -> bool {
        let has_shed = self.follower.shed(full);
        self.release();
        has_shed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::connection::{AtLimit, Protection};
    use crate::follower::{Restart, RestartPolicy};
    use crate::packet::{Flags, Segment, TcpOptions};
    use crate::restart::http::MARK;
    use crate::spill::tests::TestDepot;
    use crate::spill::{Spills, gather};
    use crate::table::{Direction, Table, TableConfig};
    use crate::{Instant, Seq};

    const LIMIT: u64 = 512 << 10;
    const PUT: &[u8] = b"PUT /big HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n";

    /// A client that uploads, and the table of a wire that may hold little memory.
    struct LimitUpload {
        table: Table,
        sent: Vec<u8>,
        acknowledged: usize,
        said: u32,
        /// Number of bytes of the reply that the client has acknowledged.
        heard: u32,
    }

    impl LimitUpload {
        fn new(total: u64, spills: Option<Arc<Spills>>) -> Self {
            let config = TableConfig {
                connection_bytes_max: LIMIT,
                bytes_max: total,
                at_limit: spills.map_or(AtLimit::Unprotect, AtLimit::Spill),
                ..TableConfig::sample()
            };
            let mut upload = Self::open(config);
            upload.send(PUT, None);
            upload.acknowledge();
            upload
        }

        fn open(config: TableConfig) -> Self {
            let mut upload = Self {
                table: Table::new(config),
                sent: Vec::new(),
                acknowledged: 0,
                said: 0,
                heard: 0,
            };
            upload.pass(Direction::In, Flags::SYN, &[], None);
            upload.pass(Direction::Out, Flags::SYN_ACK, &[], None);
            upload.pass(Direction::In, Flags::ACK, &[], None);
            upload
        }

        fn pass(&mut self, direction: Direction, flags: Flags, payload: &[u8], source: Option<OnShelf<'_>>) {
            let (client, vip) = (([10, 0, 0, 1], 4000).into(), self.table.config().vip);
            let opened = u32::from(!flags.syn);
            let numbers = (self.sent.len() as u32 + opened, self.acknowledged as u32 + 1);
            let (source_address, destination, seq, ack) = match direction {
                Direction::In => (client, vip, numbers.0, 1001 + self.heard),
                Direction::Out => (vip, client, 1000 + opened + self.said, numbers.1),
            };
            let segment = Segment {
                source: source_address,
                destination,
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window: u16::MAX,
                options: TcpOptions {
                    window_scale: flags.syn.then_some(14),
                    ..TcpOptions::default()
                },
                payload,
            };
            self.table.on_packet(Instant::ZERO, direction, &segment, source);
        }

        fn send(&mut self, bytes: &[u8], source: Option<OnShelf<'_>>) {
            self.pass(Direction::In, Flags::ACK, bytes, source);
            self.sent.extend_from_slice(bytes);
        }

        /// A part of the reply.
        fn say(&mut self, bytes: &[u8]) {
            self.pass(Direction::Out, Flags::ACK, bytes, None);
            self.said += bytes.len() as u32;
        }

        fn acknowledge(&mut self) {
            self.acknowledged = self.sent.len();
            self.pass(Direction::Out, Flags::ACK, &[], None);
        }

        fn upload(&mut self, bytes: usize) {
            for _ in 0..bytes / 1000 {
                let piece = [self.sent.len() as u8; 1000];
                self.send(&piece, None);
                self.acknowledge();
            }
        }

        fn connection(&self) -> &Connection {
            self.table.iter().next().expect("it is open").1
        }

        fn reason(&self) -> String {
            match self.connection().protection() {
                Protection::Unprotected(cause) => cause.to_string(),
                protection => format!("{protection:?}"),
            }
        }

        /// The input that an application would be given.
        fn fed(&self) -> Vec<u8> {
            let log = self.connection().input();
            let Ok(Restart::Http { feed, .. }) = self.connection().restart() else {
                panic!("{}", self.reason());
            };
            gather(feed.logged(log, log.frontier())).expect("memory can be read")
        }

        /// The input that an application should be given.
        fn due(&self) -> Vec<u8> {
            let line = self
                .sent
                .iter()
                .position(|&byte| byte == b'\n')
                .expect("a request")
                + 1;
            [&self.sent[..line], MARK, &self.sent[line..]].concat()
        }
    }

    fn files(bytes_max: u64) -> (Arc<Spills>, Arc<AtomicBool>) {
        let depot = TestDepot::default();
        let fails = Arc::clone(&depot.fails);
        (Spills::new(Box::new(depot), bytes_max), fails)
    }

    #[test]
    fn without_files_a_long_upload_is_not_executed_again() {
        let mut upload = LimitUpload::new(u64::MAX, None);
        upload.upload(2 * LIMIT as usize);
        assert_eq!(
            upload.reason(),
            "a Put request is unanswered and was not kept: the log reached its limit"
        );
    }

    #[test]
    fn with_files_it_is_and_they_are_given_up_with_the_connection() {
        let (spills, _) = files(u64::MAX);
        let mut upload = LimitUpload::new(u64::MAX, Some(Arc::clone(&spills)));
        upload.upload(10 * LIMIT as usize);
        assert_eq!(upload.connection().protection(), Protection::Protected);
        let followed = upload.connection().follower().memory() as u64;
        assert!(
            upload.table.memory() <= LIMIT + followed,
            "{}",
            upload.table.memory()
        );
        assert_eq!(upload.connection().spilled(), spills.bytes());
        assert!(upload.fed() == upload.due());
        upload.table.clear();
        assert_eq!(spills.bytes(), 0);
    }

    /// The server's window bounds unacknowledged input, and a takeover needs all of it.
    #[test]
    fn what_is_under_way_does_not_count() {
        for spills in [None, Some(files(u64::MAX).0)] {
            let mut upload = LimitUpload::new(u64::MAX, spills);
            for count in 0..3 * LIMIT / 1000 {
                upload.send(&[count as u8; 1000], None);
            }
            assert_eq!(upload.connection().protection(), Protection::Protected);
            assert!(upload.fed() == upload.due());
        }
    }

    /// The client's window bounds unacknowledged output, and none of it may be missing when the primary dies.
    #[test]
    fn output_under_way_does_not_count() {
        let mut upload = LimitUpload::new(u64::MAX, None);
        upload.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        for _ in 0..3 * LIMIT / 1000 {
            upload.say(&[7; 1000]);
        }
        let memory = upload.connection().output().memory() as u64;
        assert!(memory > 2 * LIMIT, "nothing of it is acknowledged");
        assert_eq!(upload.connection().protection(), Protection::Protected);
    }

    /// The log keeps nothing of a connection that is given up, even if bytes are missing.
    #[test]
    fn what_is_given_up_needs_no_memory() {
        let mut upload = LimitUpload::new(u64::MAX, None);
        let id = upload.table.iter().next().expect("it is open").0;
        upload
            .table
            .get_mut(id)
            .expect("open")
            .unprotect(UnprotectedCause::LogGap);
        upload.sent.push(0); // a byte that the wire has missed
        for count in 0..3 * LIMIT / 1000 {
            upload.send(&[count as u8; 1000], None);
        }
        assert!(
            upload.table.memory() <= LIMIT + 65_536,
            "{}",
            upload.table.memory()
        );
    }

    #[test]
    fn files_at_their_limit_are_a_reason() {
        let (spills, _) = files(LIMIT);
        let mut upload = LimitUpload::new(u64::MAX, Some(Arc::clone(&spills)));
        upload.upload(3 * LIMIT as usize);
        let reason = "the log in memory and the service's files have reached their limits";
        assert!(upload.reason().ends_with(reason), "{}", upload.reason());
        assert_eq!(spills.bytes(), 0, "what is given up holds no room");
    }

    #[test]
    fn a_disk_that_is_full_is_a_reason() {
        let (spills, fails) = files(u64::MAX);
        let mut upload = LimitUpload::new(u64::MAX, Some(spills));
        upload.upload(2 * LIMIT as usize);
        assert_eq!(upload.connection().protection(), Protection::Protected);
        fails.store(true, Ordering::Relaxed);
        upload.upload(LIMIT as usize);
        let reason = "the log reached its limit and is not written to a file: no storage space";
        assert!(upload.reason().ends_with(reason), "{}", upload.reason());
    }

    /// The bound on all logs together also holds for input that comes by a shelf.
    #[test]
    fn all_logs_are_bounded_together() {
        for (spills, reason) in [
            (
                None,
                "a Put request is unanswered and was not kept: all logs together reached their limit, and this client's logs are the largest",
            ),
            (Some(files(u64::MAX).0), "Protected"),
        ] {
            let mut upload = LimitUpload::new(LIMIT / 4, spills);
            for _ in 0..100 {
                let piece = vec![upload.sent.len() as u8; 2000];
                let source = Some(OnShelf {
                    shelf: &piece,
                    place: 0,
                });
                upload.send(&piece, source);
                upload.acknowledge();
                upload.table.keep(&piece);
            }
            assert_eq!(upload.reason(), reason);
            let one_more = LIMIT / 4 + (64 << 10);
            assert!(upload.table.memory() <= one_more, "{}", upload.table.memory());
        }
    }

    /// Output that the replica has not sent yet counts too, although the client has acknowledged it.
    #[test]
    fn replicas_that_lag_are_bounded_together() {
        let mut server = LimitUpload::open(TableConfig {
            policy: RestartPolicy::Replica,
            connection_bytes_max: LIMIT,
            bytes_max: LIMIT / 4,
            ..TableConfig::sample()
        });
        for said in 1..=40 {
            server.say(&[7; 5000]);
            server.heard = server.said;
            server.pass(Direction::In, Flags::ACK, &[], None);
            let limit = LIMIT / 4 + (64 << 10);
            assert!(server.table.memory() <= limit, "{}", server.table.memory());
            if said * 5000 < LIMIT / 8 {
                assert_eq!(server.connection().protection(), Protection::Protected);
            }
        }
        let reason = server.reason();
        assert!(
            reason.starts_with("all logs together reached their limit"),
            "{reason}"
        );
        assert_eq!(server.table.memory(), 0, "nothing of it is needed");
    }

    #[test]
    fn a_replica_that_has_failed_collects_nothing() {
        let mut server = LimitUpload::open(TableConfig {
            policy: RestartPolicy::Replica,
            ..TableConfig::sample()
        });
        let say = |server: &mut LimitUpload| {
            server.say(&[7; 5000]);
            server.heard = server.said;
            server.pass(Direction::In, Flags::ACK, &[], None);
        };
        say(&mut server);
        assert!(server.table.memory() >= 5000);
        let id = server.table.iter().next().expect("open").0;
        server.table.change(id, |connection| {
            let replica = connection.follower_mut().replica_mut().expect("a replica");
            replica.on_failure("it has gone".into());
        });
        assert_eq!(server.table.memory(), 0);
        say(&mut server);
        assert_eq!(server.table.memory(), 0);
    }

    proptest! {
        /// Spilled input is read back byte for byte, whether it came by a shelf or not, and whenever it was acknowledged.
        #[test]
        fn a_spilled_upload_is_what_was_sent(
            steps in prop::collection::vec((1_usize..40_000, any::<bool>(), 0_u8..4), 1..150),
        ) {
            let (spills, _) = files(u64::MAX);
            let mut upload = LimitUpload::new(u64::MAX, Some(spills));
            let shelf: Vec<u8> = (0..40_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            for (len, is_shelved, then) in steps {
                // There is one shelf at a time. While any input is on the shelf, all further input must come by it.
                let by_shelf = is_shelved || upload.connection().is_shelved();
                let source = by_shelf.then_some(OnShelf { shelf: &shelf, place: 0 });
                upload.send(&shelf[..len], source);
                if then > 0 {
                    upload.acknowledge();
                }
                if then > 1 || upload.sent.len() - upload.acknowledged > 300_000 {
                    upload.acknowledge();
                    upload.table.keep(&shelf);
                }
            }
            upload.table.keep(&shelf);
            prop_assert_eq!(upload.connection().protection(), Protection::Protected);
            let under_way = upload.sent.len() - upload.acknowledged;
            let followed = upload.connection().follower().memory();
            prop_assert!(upload.table.memory() <= LIMIT + (under_way + followed) as u64);
            prop_assert!(upload.fed() == upload.due());
        }
    }
}
