//! The latest values that the client announced, as the server's kernel keeps them (`tcp_ack`, RFC 9293 §3.10.7.4, fifth check).

use crate::packet::{Opening, Segment};
use crate::{Offset, Seq};

/// Maximum segment size in bytes if the option is missing (RFC 9293 §3.7.1).
pub(crate) const MSS_DEFAULT: u16 = 536;

/// The latest values that the client announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientState {
    /// Whether a segment of the client was taken since the handshake began.
    pub heard: bool,
    pub mss: u16,
    pub window_shift: u8,
    /// End of the output that the client has acknowledged (SND.UNA).
    pub acknowledged: Offset,
    /// SND.WND, in bytes.
    pub window: u32,
    /// MAX.SND.WND, in bytes.
    pub window_max: u32,
    /// Sequence number of the segment that announced the window (SND.WL1). SND.WL2 is SND.UNA.
    pub window_seq: Seq,
    /// The server's TS.Recent; zero means none.
    pub timestamp: u32,
}

impl ClientState {
    /// The state after the client's SYN, with the window shift that was agreed on.
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

    /// The client's state in a connection that is learnt in its middle. `next` is the client's next sequence number. `mss` and
    /// `window_shift` are those of the handshake. The client's window and timestamp are unknown until its first segment.
    pub fn learnt(mss: u16, window_shift: u8, next: Seq) -> Self {
        Self {
            heard: false,
            mss,
            window_shift,
            acknowledged: Offset::LEARNT,
            window: 0,
            window_max: 0,
            window_seq: next,
            timestamp: 0,
        }
    }

    /// Notes the header values of an accepted segment that begins at `at`. The server has acknowledged input up to
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

    /// The client's first segment after its SYN announces the window. A later segment announces it if the segment acknowledges
    /// more, or is newer than the last segment that announced the window. An equally new segment announces it only if it enlarges or closes
    /// the window (`tcp_may_update_window`).
    fn note_window(&mut self, segment: &Segment<'_>, acknowledges_more: bool) {
        let window = u32::from(segment.window) << self.window_shift;
        if !self.heard {
            self.window_max = window; // the SYN's window is not counted
        }
        let ahead = segment.seq.distance_from(self.window_seq);
        let says_more = window > self.window || window == 0;
        if !self.heard || acknowledges_more || ahead > 0 || (ahead == 0 && says_more) {
            self.window = window;
            self.window_max = self.window_max.max(window);
            self.window_seq = segment.seq;
        }
    }

    /// TS.Recent never moves back (RFC 7323 §4.3).
    pub fn note_timestamp(&mut self, value: u32) {
        if self.timestamp == 0 || self.timestamp.wrapping_sub(value).cast_signed() <= 0 {
            self.timestamp = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instant;
    use crate::packet::{Flags, TcpOptions, Timestamps};

    const FIRST: Seq = Seq(u32::MAX - 10);

    fn segment(at: u32, window: u16, value: u32) -> Segment<'static> {
        Segment {
            source: "10.1.0.2:40000".parse().unwrap(),
            destination: "10.2.0.100:80".parse().unwrap(),
            seq: FIRST + at,
            ack: Seq(0),
            flags: Flags::ACK,
            window,
            options: TcpOptions {
                timestamps: Some(Timestamps { value, echo: 0 }),
                ..TcpOptions::default()
            },
            payload: b"",
        }
    }

    /// The client after a SYN with timestamp `value` and a first acknowledgement with window 500.
    fn client(value: u32) -> ClientState {
        let syn = Opening::of(&segment(0, 65_535, value), Instant::ZERO);
        let mut client = ClientState::opening(&syn, 0);
        client.note(&segment(0, 500, value), Offset(0), Offset(0), Offset(0));
        client
    }

    #[test]
    fn the_window_of_a_syn_is_not_the_largest() {
        assert_eq!((client(1).window, client(1).window_max), (500, 500));
    }

    #[test]
    fn an_older_segment_does_not_tell_the_window() {
        let mut client = client(1);
        let mut told = |at: u32, window, acknowledges| {
            let segment = segment(at, window, 1);
            client.note(&segment, Offset(at.into()), Offset(acknowledges), Offset(0));
            client.window
        };
        assert_eq!(told(100, 700, 0), 700);
        assert_eq!(told(99, 900, 0), 700, "an older one");
        assert_eq!(told(100, 600, 0), 700, "not newer, and less");
        assert_eq!(told(100, 800, 0), 800, "not newer, but more");
        assert_eq!(told(100, 0, 0), 0, "closed");
        assert_eq!(told(20, 300, 1), 300, "acknowledges more");
        assert_eq!(told(200, 400, 0), 300, "acknowledges less");
        assert_eq!(client.window_max, 800);
    }

    #[test]
    fn the_clock_is_that_of_what_fills_the_first_gap() {
        let mut client = client(0);
        let mut recent = |at: u32, value, acknowledges| {
            let segment = segment(at, 500, value);
            client.note(&segment, Offset(at.into()), Offset(acknowledges), Offset(50));
            client.timestamp
        };
        assert_eq!(recent(10, u32::MAX, 5), u32::MAX, "none before");
        assert_eq!(recent(51, 4, 5), u32::MAX, "ahead of what was acknowledged");
        assert_eq!(recent(50, 4, 4), u32::MAX, "an old acknowledgement");
        assert_eq!(recent(50, 4, 5), 4);
        assert_eq!(recent(50, 3, 5), 4, "older");
    }
}
