//! One protected connection as the backup knows it: two logged streams, and the latest values that each side announced.

mod cap;
mod client;
mod direct;
mod endpoint;
mod learnt;
mod limit;
mod outlook;
mod protection;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::accept::{self, Receiver, Rejected, SegmentVerdict};
use crate::export::ExportPlace;
use crate::follower::Follower;
pub use crate::packet::Opening;
use crate::packet::{Segment, TcpOptions};
use crate::restart::snapshot::{Snapshot, SnapshotStanding};
pub use crate::spill::AtLimit;
use crate::spill::LogFull;
use crate::stream::{Inserted, OnShelf, Shelf, StreamLog};
use crate::{Instant, Offset};
pub(crate) use cap::CapChange;
pub use cap::{Cap, WindowPromise};
use client::{ClientState, MSS_DEFAULT};
pub use endpoint::{Endpoint, EndpointTimestamps, OutputEnd};
pub(crate) use learnt::Middle;
pub use protection::{Protection, UnprotectedCause};

/// The latest values that the server announced.
#[derive(Clone, Copy, Debug)]
struct ServerState {
    mss: u16,
    window_shift: u8,
    acknowledged: Offset,
    window_max: u32,
    /// The furthest right edge of its windows. It never moves back: a late segment may have an older window (RFC 9293 §3.8.6).
    right_edge: Offset,
    timestamp: u32,
    timestamp_at: Instant,
    /// When the server's last payload was logged.
    spoke_at: Instant,
}

/// The options that both sides' SYNs agreed on.
#[derive(Clone, Copy, Debug)]
struct NegotiatedOptions {
    window_scale: bool,
    sack: bool,
    timestamps: bool,
}

/// How input is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// Input is logged and given to the follower.
    All,
    /// Input is logged only: the wire did not release it, so the primary has not seen it.
    Unreleased,
    /// Bytes are logged as in `Unreleased`, but not the stream's end: a socket that is being restored cannot be given a FIN. The client
    /// repeats the FIN.
    Bytes,
}

/// The effect of a segment on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The connection took the segment, which may have changed nothing.
    Taken,
    /// The receiver will not take the segment.
    Rejected(Rejected),
    /// The connection is over: a reset.
    Reset,
    /// The connection is over: each end has closed, and has acknowledged the other end's FIN.
    Closed,
}

/// The state of a client that is held to a cap.
#[derive(Debug)]
struct Capped {
    edge: Offset,
    base: Offset,
    /// Bytes that the client may have been offered beyond the cap before the wire knew the cap.
    excess: u64,
    /// Since when the client has used up its cap while the log has released no bytes.
    stuck: Option<Instant>,
}

/// The probation of a connection that may have been learnt wrongly.
#[derive(Debug, Default)]
struct Probation {
    /// When the first exchange was complete.
    exchanged: Option<Instant>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    client_address: SocketAddr,
    vip: SocketAddr,
    input: StreamLog,
    output: StreamLog,
    client: ClientState,
    server: ServerState,
    agreed: NegotiatedOptions,
    follower: Follower,
    limit: u64,
    at_limit: AtLimit,
    capped: Option<Capped>,
    takes: Takes,
    /// While the wire releases no input: where the input begins that the follower was not given.
    unreleased_from: Option<Offset>,
    /// The input had more holes than the server's selective acknowledgements can report, and some holes remain.
    sack_overflow: bool,
    /// Set if the connection was learnt in its middle, until something proves that it was learnt correctly.
    probation: Option<Probation>,
    /// The connection was learnt in its middle, and could be learnt again at any segment.
    learns_anywhere: bool,
    /// The connection was learnt in its middle, and a restart needs all of its input.
    keeps_all: bool,
    /// Commit mode `pr`: the log of the output has no bytes, and knows only a lower bound of what was sent.
    sends_directly: bool,
    /// Why the connection cannot be continued. Set once and never cleared. The follower may have another reason of its own.
    spoiled: Option<Protection>,
}

impl Connection {
    /// A connection whose handshake was logged; it may keep `limit` bytes of log.
    pub fn new(
        client_address: SocketAddr,
        vip: SocketAddr,
        syn: &Opening,
        syn_ack: &Opening,
        follower: Follower,
        limit: u64,
    ) -> Self {
        let (theirs, ours) = (&syn.options, &syn_ack.options);
        let agreed = NegotiatedOptions {
            window_scale: theirs.window_scale.is_some() && ours.window_scale.is_some(),
            sack: theirs.sack_permitted && ours.sack_permitted,
            timestamps: theirs.timestamps.is_some() && ours.timestamps.is_some(),
        };
        let shift = |options: &TcpOptions| {
            options
                .window_scale
                .filter(|_| agreed.window_scale)
                .unwrap_or(0)
                .min(14)
        };
        let mut connection = Self {
            client_address,
            vip,
            input: StreamLog::new(syn.seq + 1),
            output: StreamLog::new(syn_ack.seq + 1),
            client: ClientState::opening(syn, shift(theirs)),
            server: ServerState {
                mss: ours.mss.unwrap_or(MSS_DEFAULT),
                window_shift: shift(ours),
                acknowledged: Offset::ZERO,
                window_max: syn_ack.window.into(),
                right_edge: Offset(syn_ack.window.into()),
                timestamp: ours.timestamps.map_or(0, |timestamps| timestamps.value),
                timestamp_at: syn_ack.at,
                spoke_at: syn_ack.at,
            },
            agreed,
            follower,
            limit,
            at_limit: AtLimit::Unprotect,
            capped: None,
            takes: Takes::All,
            unreleased_from: None,
            sack_overflow: false,
            probation: None,
            learns_anywhere: false,
            keeps_all: false,
            sends_directly: false,
            spoiled: None,
        };
        connection.note_signature(theirs);
        connection.note_options(ours);
        connection
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.client_address
    }

    /// The in-log.
    pub fn input(&self) -> &StreamLog {
        &self.input
    }

    /// The out-log.
    pub fn output(&self) -> &StreamLog {
        &self.output
    }

    /// The restart policy's view.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// The restart policy's view, mutable.
    pub fn follower_mut(&mut self) -> &mut Follower {
        &mut self.follower
    }

    /// End of the input that the server has acknowledged, and so has certainly accepted.
    pub fn input_acknowledged(&self) -> Offset {
        self.server.acknowledged.min(self.input.frontier())
    }

    fn spoil(&mut self, protection: Protection) {
        if self.spoiled.is_none() {
            self.spoiled = Some(protection);
            self.follower.give_up();
        }
    }

    /// Whether nothing can make the connection continuable again.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.is_some()
    }

    /// Makes the connection unprotected, for a reason that is outside the connection.
    pub fn unprotect(&mut self, cause: UnprotectedCause) {
        self.spoil(Protection::Unprotected(cause));
        self.release();
    }

    /// Whether a segment of the client was taken since the handshake began.
    pub fn has_heard_client(&self) -> bool {
        self.client.heard
    }

    /// Notes options of the server that rule out a restored socket. A server sends a Multipath TCP option only if it has agreed
    /// to use Multipath TCP.
    fn note_options(&mut self, server: &TcpOptions) {
        if server.multipath {
            self.spoil(Protection::Unprotected(UnprotectedCause::Multipath));
        }
        self.note_signature(server);
    }

    /// Notes a signature. A client that signs its SYN ignores segments that are not signed.
    fn note_signature(&mut self, options: &TcpOptions) {
        if options.signature {
            self.spoil(Protection::Unprotected(UnprotectedCause::Signed));
        }
    }

    /// From now on the wire does not release input to the primary. The primary cannot have answered such input, so the restart policy
    /// does not get it.
    pub fn expect_unreleased(&mut self) {
        self.takes = Takes::Unreleased;
        self.unreleased_from.get_or_insert(self.input.frontier());
    }

    /// The primary keeps the connection, and the wire releases input to it again. The client repeats what was not released, so the primary
    /// may have it soon.
    pub(crate) fn expect_released(&mut self) {
        self.takes = Takes::All;
        let Some(from) = self.unreleased_from.take() else {
            return;
        };
        if self.spoiled.is_some() {
            return;
        }
        if from < self.input.resident() {
            self.spoil(Protection::Unprotected(UnprotectedCause::LogGap)); // these bytes are in a file already
            return;
        }
        for bytes in self.input.slices(from..self.input.frontier()) {
            self.follower.on_input(bytes);
        }
        if self.input.is_complete() {
            self.follower.on_input_end();
        }
        self.settle();
    }

    /// From now on a socket is being restored. It can be given bytes, but not the end of the stream.
    pub fn refuse_input_end(&mut self) {
        self.takes = Takes::Bytes;
        self.input.forget_incomplete_fin();
    }

    fn receiver(&self) -> Receiver {
        Receiver {
            input_first: self.input.first(),
            output_first: self.output.first(),
            acknowledged: self.server.acknowledged,
            next: self.input.frontier() + u64::from(self.input.is_complete()),
            ended: self.input.is_complete(),
            sacked_end: self.sacked_end(),
            right_edge: self.right_edge_max(),
            send_unacknowledged: self.client.acknowledged,
            send_next: self.sent_max(),
            send_window_max: self.client.window_max.into(),
            timestamp_recent: self.agreed.timestamps.then_some(self.client.timestamp),
        }
    }

    /// The offset of the client's FIN, if bytes before it are missing.
    fn early_fin(&self) -> Option<Offset> {
        self.input.fin().filter(|_| !self.input.is_complete())
    }

    /// End of the data that the server holds out of order, a FIN included. `None` if the server holds none or cannot report all
    /// of it.
    fn sacked_end(&self) -> Option<Offset> {
        let data_end = self.input.has_holes().then(|| self.input.end());
        let end = self.early_fin().map(|fin| fin + 1).or(data_end);
        end.filter(|_| self.agreed.sack && !self.sack_overflow)
    }

    /// A server that holds more ranges than it can report may forget the last range. This stays possible while the server holds any range.
    fn note_holes(&mut self) {
        let ranges = self.input.holes() + usize::from(self.early_fin().is_some());
        self.sack_overflow = ranges > SACK_RANGES || (self.sack_overflow && ranges > 0);
    }

    /// Whether the server would take this segment of the client. False for a RST.
    pub fn takes(&self, segment: &Segment<'_>) -> bool {
        matches!(
            accept::judge(&self.receiver(), segment),
            SegmentVerdict::Accept { .. }
        )
    }

    /// Handles a segment of the client. `source` is the place of the segment's payload on a [`Shelf`].
    pub fn on_client(&mut self, segment: &Segment<'_>, source: Option<OnShelf<'_>>) -> Effect {
        match accept::judge(&self.receiver(), segment) {
            SegmentVerdict::Reject(why) => Effect::Rejected(why),
            SegmentVerdict::Reset => Effect::Reset,
            SegmentVerdict::Accept {
                at,
                skip,
                acknowledges,
                text,
            } => {
                if segment.flags.urg {
                    self.spoil(Protection::Unprotected(UnprotectedCause::Urgent));
                }
                let payload = &segment.payload[skip..];
                self.client
                    .note(segment, at, acknowledges, self.server.acknowledged);
                self.note_sent(self.client.acknowledged);
                if text && !payload.is_empty() {
                    self.log_input(at, payload, source.map(|source| source.skip(skip)));
                }
                let ends = text && segment.flags.fin && self.takes != Takes::Bytes;
                if ends && !self.input.set_fin(at + payload.len() as u64) {
                    self.spoil(Protection::Ambiguous);
                }
                self.note_holes();
                if self.input.is_complete() && self.takes == Takes::All {
                    self.follower.on_input_end();
                }
                self.settle()
            }
        }
    }

    fn log_input(&mut self, at: Offset, payload: &[u8], source: Option<OnShelf<'_>>) {
        self.make_room(source);
        if self.spoiled.is_some() {
            self.input.pass(at..at + payload.len() as u64);
            return;
        }
        let before = self.input.frontier();
        match self.input.insert(at, payload, source) {
            Inserted::Conflict => self.spoil(Protection::Ambiguous),
            // `TooManyHoles`: the log does not keep these bytes. If the server takes them nevertheless, its acknowledgement shows the hole.
            Inserted::TooManyHoles | Inserted::Known => {}
            Inserted::Stored if self.takes != Takes::All => {}
            Inserted::Stored => {
                let follower = &mut self.follower;
                new_bytes(&self.input, before, at, payload, |bytes| follower.on_input(bytes));
            }
        }
    }

    /// Handles a segment of the server, logged at `now`. `source` is the place of the segment's payload on a [`Shelf`].
    pub fn on_server(&mut self, now: Instant, segment: &Segment<'_>, source: Option<OnShelf<'_>>) -> Effect {
        if segment.flags.rst {
            return Effect::Reset;
        }
        let Some(at) = self.output.offset_of(segment.seq) else {
            return Effect::Taken; // a repeated SYN-ACK
        };
        self.note_options(&segment.options);
        if segment.flags.urg {
            self.spoil(Protection::Unprotected(UnprotectedCause::Urgent));
        }
        if let Some(timestamps) = segment.options.timestamps
            && timestamps.value.wrapping_sub(self.server.timestamp).cast_signed() >= 0
        {
            self.server.timestamp = timestamps.value;
            self.server.timestamp_at = now;
            self.client.note_timestamp(timestamps.echo);
        }
        if segment.flags.ack && !segment.flags.syn {
            self.note_server(segment);
        }
        let data_end = at + u64::from(segment.data_len());
        if data_end > at {
            self.server.spoke_at = now;
            if !self.note_sent(data_end) {
                self.log_output(at, segment.payload, source);
            }
        }
        if segment.flags.fin {
            self.note_sent(data_end);
        }
        if segment.flags.fin && !self.output.set_fin(data_end) {
            self.spoil(Protection::Ambiguous);
        }
        if self.output.is_complete() {
            self.follower.on_output_end();
        }
        self.settle()
    }

    fn note_server(&mut self, segment: &Segment<'_>) {
        let Some(acknowledges) = self.input.offset_of(segment.ack) else {
            return;
        };
        let logged = self.input.frontier() + u64::from(self.input.is_complete());
        if acknowledges > logged {
            self.spoil(Protection::Unprotected(UnprotectedCause::Hole));
            self.input.pass(self.input.frontier()..acknowledges); // the server has these bytes
        }
        if acknowledges >= self.server.acknowledged {
            self.server.acknowledged = acknowledges;
            let window = u32::from(segment.window) << self.server.window_shift;
            self.server.window_max = self.server.window_max.max(window);
            self.server.right_edge = self.server.right_edge.max(acknowledges + u64::from(window));
        }
    }

    fn log_output(&mut self, at: Offset, payload: &[u8], source: Option<OnShelf<'_>>) {
        let (before, end) = (self.output.frontier(), at + payload.len() as u64);
        let is_logged = self.spoiled.is_none() && self.has_room_for(end);
        match is_logged.then(|| self.output.insert(at, payload, source)) {
            Some(Inserted::Conflict) => self.spoil(Protection::Ambiguous),
            None | Some(Inserted::TooManyHoles) => {
                self.spoil(Protection::Unprotected(UnprotectedCause::Full(LogFull::Memory)));
                self.output.pass(at..end);
            }
            Some(Inserted::Known) => {}
            Some(Inserted::Stored) => {
                let follower = &mut self.follower;
                new_bytes(&self.output, before, at, payload, |bytes| {
                    follower.on_output(bytes)
                });
            }
        }
    }

    /// Whether bytes of either log lie on a shelf.
    pub fn is_shelved(&self) -> bool {
        self.input.is_shelved() || self.output.is_shelved()
    }

    /// Copies from the shelf the bytes that are still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        self.input.keep(shelf);
        self.output.keep(shelf);
        self.hold_limit();
    }

    /// Called after every segment: forgets the bytes that nobody will need, and enforces the log's limit. Returns whether both sides have
    /// closed.
    fn settle(&mut self) -> Effect {
        self.release();
        self.hold_limit();
        let closed =
            |log: &StreamLog, acknowledged: Offset| log.is_complete() && acknowledged > log.frontier();
        if closed(&self.input, self.server.acknowledged) && closed(&self.output, self.client.acknowledged) {
            return Effect::Closed;
        }
        Effect::Taken
    }

    /// The primary's application has exported a snapshot.
    pub(crate) fn on_snapshot(
        &mut self,
        number: u64,
        place: ExportPlace,
        state: Arc<[u8]>,
    ) -> SnapshotStanding {
        let (input, output) = (
            self.input.offset_of(place.input),
            self.output.offset_of(place.output),
        );
        let (Some(input), Some(output)) = (input, output) else {
            return SnapshotStanding::Unfit("it holds before the log's beginning".into());
        };
        if input < self.input.base() {
            // An earlier snapshot has released this input, or the log was begun in the connection's middle.
            return SnapshotStanding::Unfit("the log lacks input that the application has not read".into());
        }
        let snapshot = Snapshot {
            number,
            input,
            output,
            state,
        };
        let standing = self.follower.on_snapshot(snapshot, self.input.frontier());
        self.release();
        standing
    }

    /// Forgets input that is before the restart point and that the server has acknowledged, and output that the client has acknowledged. A
    /// connection that cannot be continued keeps no bytes.
    pub fn release(&mut self) {
        if self.spoiled.is_some() {
            self.input.give_up();
            self.output.give_up();
            return;
        }
        self.forget_regenerated();
        let restart = self.follower.restart_input(self.input.frontier());
        self.input.release(restart.min(self.server.acknowledged));
        self.output.release(self.client.acknowledged);
    }
}

/// Number of out-of-order ranges that Linux remembers to report (`TCP_NUM_SACKS`).
const SACK_RANGES: usize = 4;

/// Calls `take` with the bytes between `before` and the log's frontier. If `payload` is exactly these bytes, it is passed
/// directly.
fn new_bytes(log: &StreamLog, before: Offset, at: Offset, payload: &[u8], mut take: impl FnMut(&[u8])) {
    if at == before && log.frontier() == at + payload.len() as u64 {
        take(payload);
    } else {
        log.slices(before..log.frontier()).for_each(take);
    }
}
