//! How far a client may send, so that its log does not grow beyond its limit: `at_limit = "slow"` (docs/limits.md).
//!
//! ```text
//!        base        acknowledged           cap         the primary's edge
//!   ──────┼────────────────┼─────────────────┼──────────────────┼─────▶ offset
//!   given │   to be kept   │ the client may  │  withheld from   │
//!   up    │                │ send            │  the client      │
//! ```
//!
//! A cap is an absolute right edge that never moves back. The wire withholds the part of the primary's window beyond the cap
//! ([`WindowPromise`]). The first segment after the agent set the cap passes unchanged: it shows what the client was offered before, and
//! such an offer is never taken back.

use std::time::Duration;

use super::{AtLimit, Capped, Connection, Takes};
use crate::packet::{Flags, Segment, TcpOptions, Timestamps};
use crate::spill::LogFull;
use crate::{Instant, Offset, Seq};

/// Memory, in bytes, that a log takes beyond its contents. Memory is taken in whole chunks, and the chunks at both
/// ends may be nearly empty.
const CHUNKS: u64 = 64 << 10;
/// How long a client may wait at its cap while the log releases no bytes. After that, waiting does not help.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cap of one connection, as the wire is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The first sequence number that the client may not send.
    pub edge: Seq,
    /// The furthest end of the windows in the primary's logged segments. The client may have been offered more meanwhile.
    pub promised: Seq,
    /// Window scale shift: the unit of the window field.
    pub shift: u8,
}

/// A change to a client's window. Changes are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CapChange {
    /// The wire limits the primary's window to this cap.
    Cap(Cap),
    /// A packet for the client: it announces window that the primary offered and the wire withheld.
    Update(Vec<u8>),
    /// The wire stops limiting the primary's window.
    Forget,
}

/// The window promised to the client since its connection got a cap. `withhold` in `bpf/cap.h` implements the same rules.
#[derive(Clone, Copy, Debug)]
pub struct WindowPromise {
    edge: Seq,
    /// Whether a segment has passed since the connection got its cap. Then `edge` covers every earlier promise.
    is_certain: bool,
}

impl WindowPromise {
    /// The state before any segment has passed.
    pub const fn new(cap: &Cap) -> Self {
        Self {
            edge: cap.promised,
            is_certain: false,
        }
    }

    /// The window field, in units, for a segment of the primary that acknowledges up to `ack` and offers `window` units. The
    /// first segment passes unchanged: the primary's edge never moves back, so this segment shows all that was promised before. If
    /// the field cannot express the cap exactly, the window is rounded down, but never below the promise (RFC 9293 §3.8.6, RFC 7323
    /// §2.4).
    pub fn pass(&mut self, cap: &Cap, ack: Seq, window: u16) -> u16 {
        let offered = ack + (u32::from(window) << cap.shift);
        let further = |a: Seq, b: Seq| if a.distance_from(b) > 0 { a } else { b };
        let allowed = further(self.edge, cap.edge);
        if !self.is_certain || offered.distance_from(allowed) <= 0 {
            self.is_certain = true;
            self.edge = further(self.edge, offered);
            return window;
        }
        let units = |edge: Seq, round: u32| {
            let left = u32::try_from(edge.distance_from(ack)).unwrap_or(0);
            (left + round) >> cap.shift
        };
        let least = units(self.edge, (1 << cap.shift) - 1);
        let field = units(allowed, 0).max(least).min(window.into());
        self.edge = further(self.edge, ack + (field << cap.shift));
        u16::try_from(field).unwrap_or(window)
    }
}

impl Connection {
    /// Whether the client is held to a cap.
    pub fn is_capped(&self) -> bool {
        self.capped.is_some()
    }

    /// Decides whether the client's cap must change, and passes the changes to `say`. Whether the client has waited for too long is
    /// checked only if `now` is given.
    pub(crate) fn judge_window(&mut self, now: Option<Instant>, say: &mut impl FnMut(CapChange)) {
        if !matches!(self.at_limit, AtLimit::Slow) || self.takes != Takes::All {
            return;
        }
        let drains = self.spoiled.is_none() && self.probation.is_none() && self.follower.drains();
        let room = self.limit.saturating_sub(CHUNKS).max(self.limit / 4);
        let (base, offered) = (self.input.base(), self.server.right_edge);
        let edge = base + room;
        let window = u64::from(self.server.window_max);
        match &mut self.capped {
            None if drains && offered + window > edge => {
                self.capped = Some(Capped {
                    edge,
                    base,
                    excess: (offered + window).since(edge),
                    stuck: None,
                });
                say(CapChange::Cap(self.cap(edge)));
            }
            None => {}
            Some(_) if !drains || offered + 2 * window <= edge => self.uncap(say),
            Some(capped) => {
                if base > capped.base {
                    (capped.base, capped.stuck) = (base, None);
                }
                let before = capped.edge;
                if edge >= before + (self.limit / 64) {
                    capped.edge = edge;
                    say(CapChange::Cap(self.cap(edge)));
                    self.update(before, say);
                } else if now.is_some_and(|now| self.is_stuck(now)) {
                    self.give_up_input(LogFull::Memory);
                    self.uncap(say);
                }
            }
        }
    }

    /// Whether the client has waited at its cap for [`PATIENCE`], so that waiting does not help.
    fn is_stuck(&mut self, now: Instant) -> bool {
        let (kept, mss) = (self.input.base(), u64::from(self.client.mss));
        let Some(capped) = &mut self.capped else {
            return false;
        };
        let acknowledged = self.server.acknowledged;
        let is_used_up = acknowledged > kept && acknowledged + 2 * mss > capped.edge;
        if !is_used_up || self.input.is_complete() {
            capped.stuck = None;
            return false;
        }
        now.since(*capped.stuck.get_or_insert(now)) >= PATIENCE
    }

    fn uncap(&mut self, say: &mut impl FnMut(CapChange)) {
        let Some(capped) = self.capped.take() else { return };
        if self.server.right_edge > capped.edge {
            say(CapChange::Cap(self.cap(self.server.right_edge)));
            self.update(capped.edge, say);
        }
        say(CapChange::Forget);
    }

    fn cap(&self, edge: Offset) -> Cap {
        let first = self.input.first();
        Cap {
            edge: edge.to_seq(first),
            promised: self.server.right_edge.to_seq(first),
            shift: self.server.window_shift,
        }
    }

    /// If the client may be waiting for window beyond the old cap `edge`, sends a window update. The update repeats the primary's last
    /// acknowledgement, with the window that was withheld. A client that has heard newer segments ignores the update.
    fn update(&self, edge: Offset, say: &mut impl FnMut(CapChange)) {
        let Some(window) = self.server.right_edge.0.checked_sub(self.server.acknowledged.0) else {
            return;
        };
        if self.server.right_edge <= edge {
            return;
        }
        let timestamps = Timestamps {
            value: self.server.timestamp,
            echo: self.client.timestamp,
        };
        let segment = Segment {
            source: self.vip,
            destination: self.client_address,
            seq: self.output.end_seq(),
            ack: self.server.acknowledged.to_seq(self.input.first()),
            flags: Flags::ACK,
            window: u16::try_from(window >> self.server.window_shift).unwrap_or(u16::MAX),
            options: TcpOptions {
                timestamps: self.agreed.timestamps.then_some(timestamps),
                ..TcpOptions::default()
            },
            payload: &[],
        };
        say(CapChange::Update(segment.emit()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::connection::Protection;
    use crate::follower::RestartPolicy;
    use crate::packet::Checksum;
    use crate::table::{Direction, Table, TableConfig};

    const LIMIT: u64 = 1 << 20;
    const SHIFT: u8 = 7;
    const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 4000);
    const FIRST: u32 = u32::MAX - 300_000;

    /// An upload to a primary that takes all bytes at once and always offers `window` bytes. The wire holds the client to its cap.
    struct CapUpload {
        table: Table,
        now: Instant,
        window: u64,
        wire: Option<(Cap, WindowPromise)>,
        /// The right edge that the client was told: it may send up to here.
        edge: Seq,
        sent: u64,
        kept_max: u64,
        updates: usize,
        forgotten: usize,
    }

    impl CapUpload {
        fn new(policy: RestartPolicy, window: u64) -> Self {
            let table = Table::new(TableConfig {
                policy,
                connection_bytes_max: LIMIT,
                bytes_max: u64::MAX,
                at_limit: AtLimit::Slow,
                ..TableConfig::sample()
            });
            let mut upload = Self {
                table,
                now: Instant::ZERO,
                window,
                wire: None,
                edge: Seq(FIRST),
                sent: 0,
                kept_max: 0,
                updates: 0,
                forgotten: 0,
            };
            upload.pass(Direction::In, Flags::SYN, &[]);
            upload.pass(Direction::Out, Flags::SYN_ACK, &[]);
            upload.pass(Direction::In, Flags::ACK, &[]);
            upload.acknowledge(&[]);
            upload
        }

        fn pass(&mut self, direction: Direction, flags: Flags, payload: &[u8]) {
            let (client, vip) = (CLIENT.into(), self.table.config().vip);
            let next = Seq(FIRST) + u32::try_from(self.sent).expect("small");
            let said = self
                .connection()
                .map_or(0, |connection| connection.output().end().0);
            let said = Seq(1000) + u32::from(!flags.syn) + u32::try_from(said).expect("small");
            let (source, destination, seq, ack) = match direction {
                Direction::In => (client, vip, if flags.syn { next - 1 } else { next }, said),
                Direction::Out => (vip, client, said, next),
            };
            let shift = if flags.syn { 0 } else { SHIFT };
            let segment = Segment {
                source,
                destination,
                seq,
                ack,
                flags,
                window: u16::try_from(self.window >> shift).unwrap_or(u16::MAX),
                options: TcpOptions {
                    window_scale: flags.syn.then_some(SHIFT),
                    ..TcpOptions::default()
                },
                payload,
            };
            self.table.on_packet(self.now, direction, &segment, None);
            if direction == Direction::Out && !flags.syn {
                self.tell_client(&segment);
            }
            self.carry_out();
        }

        /// The wire lets a segment of the primary's stream pass.
        fn tell_client(&mut self, segment: &Segment<'_>) {
            let window = match &mut self.wire {
                Some((cap, promise)) => promise.pass(cap, segment.ack, segment.window),
                None => segment.window,
            };
            let edge = segment.ack + (u32::from(window) << SHIFT);
            assert!(edge.distance_from(self.edge) >= 0, "a promise is taken back");
            self.edge = edge;
        }

        fn carry_out(&mut self) {
            while let Some((client, word)) = self.table.poll_word() {
                assert_eq!(client, CLIENT.into());
                match word {
                    CapChange::Cap(cap) => match &mut self.wire {
                        Some((known, _)) => {
                            assert!(cap.edge.distance_from(known.edge) >= 0, "a cap only moves on");
                            *known = cap;
                        }
                        none => *none = Some((cap, WindowPromise::new(&cap))),
                    },
                    CapChange::Update(packet) => {
                        let segment = Segment::parse(&packet, Checksum::Unverified).expect("a packet");
                        assert!((segment.flags, segment.payload) == (Flags::ACK, &[][..]));
                        self.tell_client(&segment);
                        self.updates += 1;
                    }
                    CapChange::Forget => {
                        self.wire.take().expect("there is a cap");
                        self.forgotten += 1;
                    }
                }
            }
            let kept = self.connection().map_or(0, |connection| {
                connection.input().frontier().since(connection.input().base())
            });
            self.kept_max = self.kept_max.max(kept);
        }

        fn connection(&self) -> Option<&Connection> {
            Some(self.table.iter().next()?.1)
        }

        fn protection(&self) -> Protection {
            self.connection().expect("it is open").protection()
        }

        fn send(&mut self, bytes: &[u8]) {
            self.pass(Direction::In, Flags::ACK, bytes);
            self.sent += bytes.len() as u64;
            self.acknowledge(&[]);
        }

        /// Sends as much as the client may, at most `bytes`. Returns the number of bytes.
        fn send_on(&mut self, bytes: usize) -> usize {
            let next = Seq(FIRST) + u32::try_from(self.sent).expect("small");
            let room = usize::try_from(self.edge.distance_from(next)).unwrap_or(0);
            let bytes = bytes.min(room);
            if bytes > 0 {
                self.send(&vec![7; bytes]);
            }
            bytes
        }

        fn acknowledge(&mut self, reply: &[u8]) {
            self.pass(Direction::Out, Flags::ACK, reply);
        }

        /// The replica reads.
        fn read(&mut self, bytes: u64) {
            let id = self.table.iter().next().expect("it is open").0;
            self.table.change(id, |connection| {
                let to = connection.input_acknowledged();
                let replica = connection.follower_mut().replica_mut().expect("a replica");
                let fed = replica.fed();
                replica.on_fed(to.min(fed + bytes), false);
                connection.release();
            });
            self.carry_out();
        }
    }

    #[test]
    fn the_client_of_a_slow_reader_sends_as_fast_as_that_reads() {
        for window in [60_000, 300_000, 3 << 20] {
            let mut upload = CapUpload::new(RestartPolicy::Replica, window);
            let mut waits = 0;
            for _ in 0..20 * LIMIT / 5_000 {
                // Only the wire's window updates open the window of a client that waits.
                waits += usize::from(upload.send_on(20_000) == 0);
                upload.read(5_000);
                assert_eq!(upload.protection(), Protection::Protected);
            }
            assert!(
                waits > 100 && upload.sent > 20 * LIMIT,
                "{waits}, {}",
                upload.sent
            );
            assert!(upload.updates > 16, "{}", upload.updates);
            let promised = 2 * window;
            assert!(upload.kept_max <= LIMIT + promised, "{}", upload.kept_max);
            if window < LIMIT / 2 {
                assert!(upload.kept_max <= LIMIT, "{}", upload.kept_max);
            }
            while upload.connection().expect("open").is_capped() && window < LIMIT / 4 {
                upload.read(50_000);
            }
            assert!(upload.wire.is_some() == (window > LIMIT / 4), "it opens again");
        }
    }

    #[test]
    fn one_that_keeps_up_is_not_slowed() {
        let mut upload = CapUpload::new(RestartPolicy::Replica, 100_000);
        while upload.sent < 10 * LIMIT {
            assert_eq!(upload.send_on(20_000), 20_000);
            upload.read(LIMIT);
        }
        assert_eq!((upload.updates, upload.forgotten), (0, 0));
    }

    #[test]
    fn where_waiting_does_not_help_nobody_waits_for_ever() {
        let mut upload = CapUpload::new(RestartPolicy::Replica, 300_000);
        while upload.send_on(20_000) > 0 {}
        assert_eq!(upload.protection(), Protection::Protected);
        for _ in 0..11 {
            upload.now += Duration::from_secs(1);
            upload.acknowledge(&[]); // the primary answers the client's probe
        }
        let reason = Protection::Unprotected(crate::connection::UnprotectedCause::Full(LogFull::Memory));
        assert_eq!(upload.protection(), reason);
        assert!((upload.wire.is_none(), upload.forgotten) == (true, 1));
        assert_eq!(upload.send_on(20_000), 20_000);
    }

    /// The server answers only after the request's end, so a client that is held back would wait for ever.
    #[test]
    fn a_request_that_is_not_complete_is_not_held_back() {
        let mut upload = CapUpload::new(RestartPolicy::Http, 300_000);
        upload.send(b"PUT /big HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n");
        while upload.sent < 2 * LIMIT {
            assert!(upload.send_on(20_000) > 0);
        }
        assert!((upload.wire.is_none(), upload.forgotten) == (true, 0));
        assert!(matches!(upload.protection(), Protection::Unprotected(_)));
    }

    /// Requests behind a complete request are held back, because the reply to the complete request frees memory.
    #[test]
    fn requests_behind_one_that_is_to_be_answered_are() {
        let mut upload = CapUpload::new(RestartPolicy::Http, 300_000);
        upload.send(b"GET / HTTP/1.1\r\n\r\nPUT /big HTTP/1.1\r\nContent-Length: 900000\r\n\r\n");
        let body = upload.sent + 900_000;
        while upload.sent < body {
            upload.send_on(usize::try_from(body - upload.sent).expect("small").min(20_000));
        }
        upload.send(b"PUT /big HTTP/1.1\r\nContent-Length: 900000\r\n\r\n");
        while upload.send_on(20_000) > 0 {}
        assert!(upload.wire.is_some());
        assert_eq!(upload.protection(), Protection::Protected);
        for _ in 0..2 {
            upload.acknowledge(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        assert!(upload.send_on(20_000) > 0);
        assert_eq!(upload.protection(), Protection::Protected);
    }

    proptest! {
        /// For any offers, acknowledgements and caps, no promise is taken back. A promise goes beyond the cap and beyond all earlier
        /// promises by less than one unit of the window field.
        #[test]
        fn a_promise_is_kept(
            shift in 0_u8..=14,
            first: u32,
            steps in prop::collection::vec((0_u32..30_000, 0_u32..60_000, 0_u32..20_000), 1..200),
        ) {
            let start = Seq(first);
            let (mut ack, mut offered, mut edge) = (start, start + 100_000, start + 50_000);
            let cap = |edge| Cap { edge, promised: start, shift };
            let mut promise = WindowPromise::new(&cap(edge));
            let mut told: Option<Seq> = None;
            for (acknowledges, offers, allows) in steps {
                let room = told.map_or(0, |told| told.distance_from(ack).max(0));
                ack = ack + acknowledges.min(u32::try_from(room).expect("a window"));
                offered = offered + offers;
                edge = edge + allows;
                let real = u32::try_from(offered.distance_from(ack)).expect("ahead");
                let window = u16::try_from(real.div_ceil(1 << shift)).unwrap_or(u16::MAX);
                let field = promise.pass(&cap(edge), ack, window);
                prop_assert!(field <= window);
                let now = ack + (u32::from(field) << shift);
                if let Some(told) = told {
                    // If the primary's field cannot express its window, the primary itself takes an offer back. The wire does not
                    // prevent that.
                    let kept = ack + (u32::from(window) << shift);
                    prop_assert!(now.distance_from(told) >= 0 || field == window && kept.distance_from(told) < 0);
                    let bound = if told.distance_from(edge) > 0 { told } else { edge };
                    prop_assert!(now.distance_from(bound) < 1 << shift);
                }
                told = Some(told.map_or(now, |told| if now.distance_from(told) > 0 { now } else { told }));
            }
        }
    }
}
