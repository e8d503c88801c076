//! What the client said last, as the server's kernel keeps it (`tcp_ack`, RFC 9293 §3.10.7.4, fifth check).

use crate::connection::Opening;
use crate::packet::Segment;
use crate::{Offset, Seq};

/// RFC 9293 §3.7.1: without the option, 536 bytes.
pub(crate) const MSS_DEFAULT: u16 = 536;

/// The client's last words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    /// A segment of it was taken since the handshake began.
    pub heard: bool,
    pub mss: u16,
    pub window_shift: u8,
    /// Output before this one (SND.UNA).
    pub acknowledged: Offset,
    /// SND.WND, in bytes.
    pub window: u32,
    /// MAX.SND.WND, in bytes.
    pub window_max: u32,
    /// Number of the segment that told the window (SND.WL1). SND.WL2 is SND.UNA.
    pub window_seq: Seq,
    /// The server's TS.Recent; zero is none.
    pub timestamp: u32,
}

impl Client {
    /// After its SYN, with the window shift that was agreed on.
    pub fn opening(syn: &Opening, window_shift: u8) -> Self {
        Self {
            heard: false,
            mss: syn.options.mss.unwrap_or(MSS_DEFAULT),
            window_shift,
            acknowledged: Offset::ZERO,
            window: syn.window.into(),
            window_max: syn.window.into(),
            window_seq: syn.seq,
            timestamp: syn.options.timestamps.map_or(0, |timestamps| timestamps.value),
        }
    }

    /// Takes over what an accepted segment says besides data. It stands at `at`; the server has acknowledged input up to
    /// `input_acknowledged`.
    pub fn note(
        &mut self,
        segment: &Segment<'_>,
        at: Offset,
        acknowledges: Offset,
        input_acknowledged: Offset,
    ) {
        if acknowledges < self.acknowledged {
            return;
        }
        if let Some(timestamps) = segment.options.timestamps
            && at <= input_acknowledged
        {
            self.note_timestamp(timestamps.value);
        }
        self.note_window(segment, acknowledges > self.acknowledged);
        self.acknowledged = acknowledges;
        self.heard = true;
    }

    /// A segment tells the window if it is newer than the one that told it last, or opens it (`tcp_may_update_window`).
    fn note_window(&mut self, segment: &Segment<'_>, acknowledges_more: bool) {
        let window = u32::from(segment.window) << self.window_shift;
        if !self.heard {
            self.window_max = window; // the SYN's is not counted
        }
        let ahead = segment.seq.distance_from(self.window_seq);
        let says_more = window > self.window || window == 0;
        if !self.heard || acknowledges_more || ahead > 0 || (ahead == 0 && says_more) {
            self.window = window;
            self.window_max = self.window_max.max(window);
            self.window_seq = segment.seq;
        }
    }

    /// TS.Recent only moves on (RFC 7323 §4.3).
    pub fn note_timestamp(&mut self, value: u32) {
        if self.timestamp == 0 || self.timestamp.wrapping_sub(value).cast_signed() <= 0 {
            self.timestamp = value;
        }
    }
}
