//! Reads the records in the wire's log and passes them to the agent.

use agent::LogReader;
use proto::packet::Checksum;
use proto::stream::{OnShelf, Shelf};

use super::commit::is_cut;
use super::defect::Defect;
use super::machine::Machine;
use super::wire::{LogEnd, LoggedPacket};

/// Maximum number of records in one batch.
const BATCH: usize = 64;

/// The packets of one batch of records. A place ([`Shelf::bytes`]) has the packet's index in its upper 32 bits, and an offset in that
/// packet in its lower 32 bits.
struct RecordBatch<'a>(Vec<&'a [u8]>);

impl Shelf for RecordBatch<'_> {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let index = |part: u64| usize::try_from(part).expect("index and offset fit usize");
        &self.0[index(place >> 32)][index(place & 0xffff_ffff)..][..len]
    }
}

impl Machine {
    /// Reads the log up to `end` and passes its records to `reader`, batch by batch, as the daemon does.
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
    /// Passes this record to `reader`. `source` is the place of the packet in the batch, or `None` if the packet is in no batch.
    pub fn tell(&self, reader: &mut dyn LogReader, source: Option<OnShelf<'_>>) {
        let checksum = if is_cut(&self.packet) {
            Checksum::Cut
        } else {
            Checksum::Trusted
        };
        reader.packet(self.at, 0, self.direction, &self.packet, checksum, source);
    }
}
