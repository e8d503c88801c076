//! Recorded order (docs/recorded-order.md): what a server on the primary learnt in which order, so that the same server on the backup
//! learns the same in the same order.
//!
//! ```text
//!   server ── calls ──▶ OrderRecorder ── record, a stream of bytes ──▶ OrderPlayback ◀── calls ── server
//!   (primary)                         ◀── receipts ───                               (backup)
//! ```
//!
//! The record has no data of connections, because the backup has the log of their input. It has the sizes of reads, the order of all
//! calls, and the results of calls that differ from machine to machine.

mod datagram;
mod encoding;
mod event;
pub mod frames;
mod playback;
mod recorder;
mod streams;
#[cfg(test)]
mod tests;
mod transfer;

pub use self::datagram::{DatagramSeal, PassedDatagram, RECEIPT_LEN, passed};
pub use self::encoding::{BadRecord, OrderDecoder, OrderEncoder};
pub use self::event::{CLOCKS, COARSE_CLOCKS, OrderCall, OrderEvent, Outcome, RANDOM_MAX, Source};
pub use self::playback::{OnDivergence, OrderCounts, OrderPlayback, OrderStep};
pub use self::recorder::OrderRecorder;
pub use self::streams::{
    SERVER_STREAM, StreamArrivals, StreamCause, StreamMerger, StreamPiece, StreamReceipts, StreamSplitter,
};
pub use self::transfer::{LinkRefusal, OrderArrivals, OrderTransfer, RecordId, RecordPosition};
