//! Reading the log, and the calls that change how the agent runs.

use agent::LogReader;
use proto::Instant;
use proto::packet::Checksum;
use proto::stream::{OnShelf, Shelf};

use super::defect::Defect;
use super::machine::Machine;
use super::wire::{LogEnd, LoggedPacket};

/// Number of records that are read from the log at once.
const BATCH: usize = 64;

/// The packets of one batch of records. The upper half of a place is the packet's index, and the lower half is an
/// offset in that packet.
struct RecordBatch<'a>(Vec<&'a [u8]>);

impl Shelf for RecordBatch<'_> {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let index = |part: u64| usize::try_from(part).expect("few packets, short ones");
        &self.0[index(place >> 32)][index(place & 0xffff_ffff)..][..len]
    }
}

impl Machine {
    /// Stops the agent's thread until `until`. The wire goes on.
    pub fn pause(&mut self, until: Instant) {
        let until = self.clock.read(until);
        self.agent.paused_until = self.agent.paused_until.max(until);
        self.agent.due = self.agent.due.max(until);
    }

    /// Until `until`, everything takes the agent `times` as long.
    pub fn delay(&mut self, until: Instant, times: u32) {
        self.agent.late = (self.clock.read(until), times);
    }

    /// From now on the node's clock is faster by `drift` millionths.
    pub fn set_drift(&mut self, now: Instant, drift: i32) {
        self.clock.set_drift(now, drift);
    }

    /// Whether the agent exists and runs.
    pub(super) fn runs(&self, now: Instant) -> bool {
        !self.agent.is_dead && now >= self.agent.paused_until && !self.is_frozen(now)
    }

    /// Whether an agent exists that could be told something.
    pub(super) const fn has_agent(&self) -> bool {
        !self.agent.is_dead
    }

    /// Hands the log to `reader`, up to `end`, batch by batch, as the daemon's agent does.
    pub(super) fn read_log(&mut self, end: LogEnd, reader: &mut dyn LogReader) {
        loop {
            let records: Vec<LoggedPacket> = std::iter::from_fn(|| self.wire.read(end)).take(BATCH).collect();
            if records.is_empty() {
                return;
            }
            let batch = RecordBatch(records.iter().map(|record| &record.packet[..]).collect());
            for (index, record) in (0..).zip(&records) {
                let source = OnShelf {
                    shelf: &batch,
                    place: index << 32,
                };
                record.tell(reader, Some(source));
                if self.is(Defect::TrustSyn) {
                    self.repeat_handshake(record, reader);
                }
            }
            reader.keep(&batch);
        }
    }
}

impl LoggedPacket {
    /// Passes this record to `reader`.
    pub fn tell(&self, reader: &mut dyn LogReader, source: Option<OnShelf<'_>>) {
        let checksum = Checksum::Trusted;
        reader.packet(self.at, 0, self.direction, &self.packet, checksum, source);
    }
}
