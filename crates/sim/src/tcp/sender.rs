//! Our stream: the bytes that the application wrote, from the first byte that the peer has not acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use proto::{Instant, Offset, Seq};

use super::congestion::NewReno;

/// The sending half of a connection. Positions count data bytes, and the FIN as one more.
///
/// ```text
///        una          nxt            max           end
///  acked  │ in flight  │ to be sent   │ never sent  │ (FIN)
/// ────────┼────────────┼──────────────┼─────────────┼──────▶
///         │            │ again, after │             │
///         └ queue[0]     a timeout
/// ```
#[derive(Clone, Debug)]
pub(super) struct TcpSender {
    /// Sequence number of byte 0.
    first: Seq,
    queue: VecDeque<u8>,
    capacity: usize,
    fin: Fin,
    una: Offset,
    nxt: Offset,
    max: Offset,
    /// The peer's window in bytes, counted from `una`.
    window: u64,
    /// The largest window that the peer ever had, in bytes.
    window_max: u64,
    /// Sequence number of the segment that announced `window`.
    window_from: Seq,
    /// Shift of the windows that the peer advertises.
    shift: u8,
    /// Largest segment in bytes, options included.
    mss: u16,
    congestion: NewReno,
    /// The first unacknowledged segment is to be sent again.
    resend: bool,
    /// One byte whose round trip is measured, and when the byte was sent. Never a byte that was sent twice (Karn).
    timed: Option<(Offset, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    Open,
    Queued,
    Acked,
}

/// The parts of an acknowledgement that matter to the sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedAck {
    pub up_to: Offset,
    /// The segment's own sequence number.
    pub seq: Seq,
    /// The window field, not scaled.
    pub window: u16,
    /// Nothing but an acknowledgement, so it may be a duplicate one.
    pub pure: bool,
    pub has_sack: bool,
}

/// Effects of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// `una` moved.
    pub advanced: bool,
    /// The FIN is acknowledged, for the first time.
    pub fin: bool,
    /// A round trip was measured.
    pub round_trip: Option<Duration>,
}

/// A piece of the stream for one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub seq: Seq,
    pub payload: Vec<u8>,
    pub fin: bool,
    /// Nothing follows this piece for now.
    pub last: bool,
}

impl TcpSender {
    /// A stream whose byte 0 has the number `first`. The peer's windows and segment size are not known yet.
    pub fn new(first: Seq, capacity: usize, mss: u16) -> Self {
        Self {
            first,
            queue: VecDeque::new(),
            capacity,
            fin: Fin::Open,
            una: Offset::ZERO,
            nxt: Offset::ZERO,
            max: Offset::ZERO,
            window: 0,
            window_max: 0,
            window_from: Seq(0),
            shift: 0,
            mss,
            congestion: NewReno::new(u64::from(mss)),
            resend: false,
            timed: None,
        }
    }

    /// Sets what the handshake agreed: the segment size and the shift of the peer's windows.
    pub fn set_peer(&mut self, mss: u16, shift: u8) {
        self.mss = mss;
        self.shift = shift;
        self.congestion = NewReno::new(u64::from(mss));
    }

    /// Sets the peer's window to `window` bytes. The segment with the sequence number `from` announced it. The largest
    /// window so far is at least `largest` bytes.
    pub fn set_window(&mut self, window: u64, from: Seq, largest: u64) {
        self.window = window;
        self.window_from = from;
        self.window_max = self.window_max.max(window).max(largest);
    }

    /// Takes bytes from the application, as many as fit. Takes none after [`finish`](Self::finish). Returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.fin != Fin::Open {
            return 0;
        }
        let count = bytes.len().min(self.free());
        self.queue.extend(&bytes[..count]);
        count
    }

    /// Takes bytes as if they had been sent (TCP_REPAIR), even beyond the buffer's capacity.
    pub fn load_sent(&mut self, bytes: &[u8]) {
        self.queue.extend(bytes);
        self.nxt = self.end();
        self.max = self.nxt;
    }

    /// Takes bytes to be sent, even beyond the buffer's capacity.
    pub fn load_unsent(&mut self, bytes: &[u8]) {
        self.queue.extend(bytes);
    }

    /// Ends the stream after what was written.
    pub fn finish(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Queued;
        }
    }

    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.queue.len())
    }

    pub const fn is_finished(&self) -> bool {
        !matches!(self.fin, Fin::Open)
    }

    pub const fn mss(&self) -> u16 {
        self.mss
    }

    pub const fn shift(&self) -> u8 {
        self.shift
    }

    pub const fn window(&self) -> u64 {
        self.window
    }

    pub const fn window_max(&self) -> u64 {
        self.window_max
    }

    pub const fn window_from(&self) -> Seq {
        self.window_from
    }

    pub const fn una(&self) -> Seq {
        self.una.to_seq(self.first)
    }

    /// The number after the last byte or FIN that was ever sent. A segment that carries nothing has this number.
    pub const fn next_seq(&self) -> Seq {
        self.max.to_seq(self.first)
    }

    /// Number of bytes, and FIN, that were sent and not yet acknowledged or given up.
    pub const fn in_flight(&self) -> u64 {
        self.nxt.since(self.una)
    }

    /// Whether something waits to be sent, for the first time or again.
    pub fn is_pending(&self) -> bool {
        self.nxt < self.stop()
    }

    /// The bytes in the queue, divided into those that were sent and those that never were.
    pub fn queued(&self) -> (Vec<u8>, Vec<u8>) {
        let sent = usize::try_from(self.max.min(self.end()).since(self.una)).expect("part of the queue");
        (
            self.queue.range(..sent).copied().collect(),
            self.queue.range(sent..).copied().collect(),
        )
    }

    /// The position of `ack`; `None` if `ack` lies before the stream.
    pub fn position(&self, ack: Seq) -> Option<Offset> {
        Offset::from_seq(ack, self.first, self.una)
    }

    /// Whether `ack` is before `una` by more than the peer's largest window, and so not acceptable (RFC 5961 §5).
    pub fn is_too_old(&self, ack: Offset) -> bool {
        ack + self.window_max < self.una
    }

    /// Whether `ack` acknowledges something that was never sent.
    pub fn is_unsent(&self, ack: Offset) -> bool {
        ack > self.max
    }

    /// Handles an acknowledgement that is neither too old nor unsent.
    pub fn on_ack(&mut self, now: Instant, ack: &ReceivedAck) -> Acked {
        let in_flight = self.in_flight();
        let window_before = self.window;
        if ack.up_to >= self.una {
            self.update_window(ack);
        }
        if ack.up_to > self.una {
            let acked = ack.up_to.since(self.una);
            let (fin, round_trip) = self.advance(now, ack.up_to);
            let left = self.max.since(self.una);
            self.resend = self.congestion.on_ack(self.una, acked, in_flight, left);
            return Acked {
                advanced: true,
                fin,
                round_trip,
            };
        }
        let repeated = ack.up_to == self.una && ack.pure && in_flight > 0;
        // A window update is no duplicate, unless its SACK blocks also say that something is missing.
        if repeated && (ack.has_sack || self.window == window_before) {
            self.resend |= self.congestion.on_duplicate(self.una, self.max, in_flight);
        }
        Acked::default()
    }

    /// The retransmission timer expired: everything in flight counts as lost and is sent again in slow start.
    pub fn on_timeout(&mut self, repeated: bool) {
        let in_flight = self.in_flight();
        if in_flight > 0 {
            self.congestion.on_timeout(self.max, in_flight, repeated);
            self.nxt = self.una;
            self.timed = None;
            self.resend = false;
        }
    }

    /// The next piece to be sent with at most `limit` bytes of payload, if the windows allow one now.
    pub fn next_chunk(&mut self, now: Instant, limit: usize) -> Option<Chunk> {
        if std::mem::take(&mut self.resend)
            && let Some((chunk, _)) = self.chunk(self.una, self.max.since(self.una), limit)
        {
            self.timed = None;
            return Some(chunk);
        }
        // As Linux does: a FIN alone need not wait for the congestion window.
        let only_fin = self.nxt == self.end() && self.fin == Fin::Queued;
        let allowance = if only_fin {
            u64::MAX
        } else {
            self.congestion.allowance()
        };
        let room = (self.una + self.window.min(allowance)).since(self.nxt);
        let (chunk, after) = self.chunk(self.nxt, room, limit)?;
        if !self.is_worth_sending(&chunk, limit) {
            return None;
        }
        if self.nxt >= self.max && self.timed.is_none() {
            self.timed = Some((self.nxt, now));
        }
        self.nxt = after;
        self.max = self.max.max(after);
        Some(chunk)
    }

    /// The piece at `from` with at most `limit` bytes in at most `room` sequence numbers, and the position after it.
    fn chunk(&self, from: Offset, room: u64, limit: usize) -> Option<(Chunk, Offset)> {
        let len = self.end().since(from).min(room).min(limit as u64);
        let after = from + len;
        let last = after == self.end();
        let fin = last && self.fin == Fin::Queued && room > len;
        if len == 0 && !fin {
            return None;
        }
        let start = usize::try_from(from.since(self.una)).expect("part of the queue");
        let len = usize::try_from(len).expect("at most the limit");
        let payload = if len == 0 {
            Vec::new()
        } else {
            self.queue.range(start..start + len).copied().collect()
        };
        let chunk = Chunk {
            seq: from.to_seq(self.first),
            payload,
            fin,
            last,
        };
        Some((chunk, after + u64::from(fin)))
    }

    /// Avoids the silly window (RFC 9293 §3.8.6.2.1): a short piece waits while other data is in flight. The exceptions are the last piece
    /// of the queue, and a piece of at least half of the peer's largest window.
    fn is_worth_sending(&self, chunk: &Chunk, limit: usize) -> bool {
        let len = chunk.payload.len();
        len >= limit || chunk.last || self.in_flight() == 0 || len as u64 >= self.window_max / 2
    }

    /// Segments may overtake each other, so not every segment sets the window. As in Linux, a segment sets it if it acknowledges more,
    /// comes later in the peer's stream, opens the window further, or closes it.
    fn update_window(&mut self, ack: &ReceivedAck) {
        let window = u64::from(ack.window) << self.shift;
        let later = ack.seq.distance_from(self.window_from);
        let opens_or_closes = later == 0 && (window > self.window || window == 0);
        if ack.up_to > self.una || later > 0 || opens_or_closes {
            self.set_window(window, ack.seq, 0);
        }
    }

    /// Forgets what is acknowledged. Returns whether this includes the FIN, and a round trip if one was being measured.
    fn advance(&mut self, now: Instant, to: Offset) -> (bool, Option<Duration>) {
        let fin = to > self.end();
        let bytes = to.min(self.end()).since(self.una);
        self.queue
            .drain(..usize::try_from(bytes).expect("part of the queue"));
        self.una = to;
        self.nxt = self.nxt.max(to);
        if fin {
            self.fin = Fin::Acked;
        }
        let measured = self.timed.take_if(|(byte, _)| *byte < to);
        (fin, measured.map(|(_, sent)| now.since(sent)))
    }

    /// The position after the last byte that was written.
    fn end(&self) -> Offset {
        match self.fin {
            Fin::Open | Fin::Queued => self.una + self.queue.len() as u64,
            Fin::Acked => Offset(self.una.0 - 1),
        }
    }

    /// The position after the last byte or FIN to be sent.
    fn stop(&self) -> Offset {
        self.end() + u64::from(self.fin != Fin::Open)
    }
}
