//! Decides whether the primary's kernel would accept a segment of the client: one pure function (DESIGN.md §3).
//!
//! The function applies RFC 9293 §3.10.7.4, RFC 5961 (blind attacks) and RFC 7323 §5 (PAWS) as Linux does (`tcp_validate_incoming`,
//! `tcp_ack`). The backup sees each segment before the primary does, and in the same order. So the backup judges by the state that the
//! primary will have when the segment arrives there.

use crate::packet::Segment;
use crate::{Offset, Seq};

/// The receiving end's state, as far as acceptance depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    /// Number of the client's byte 0.
    pub input_first: Seq,
    /// Number of the server's byte 0.
    pub output_first: Seq,
    /// End of the input that the receiver has acknowledged (RCV.WUP).
    pub acknowledged: Offset,
    /// End of the input that the receiver will have received in order, the FIN included (RCV.NXT).
    pub next: Offset,
    /// Whether `next` includes the FIN.
    pub ended: bool,
    /// End of the data that the receiver holds out of order and reports (RFC 2018), a FIN included. `None` if the receiver holds none, or
    /// if the end is unknown.
    pub sacked_end: Option<Offset>,
    /// The furthest right edge of all windows that the receiver has offered.
    pub right_edge: Offset,
    /// Oldest output that the client has not acknowledged (SND.UNA).
    pub send_unacknowledged: Offset,
    /// End of the output that was sent, a FIN included (SND.NXT).
    pub send_next: Offset,
    /// The largest window that the client ever offered (MAX.SND.WND).
    pub send_window_max: u64,
    /// TS.Recent, if timestamps are in use. Zero means that no timestamp is known yet: some systems send zero at first,
    /// and real timestamps later.
    pub timestamp_recent: Option<u32>,
}

/// The receiver's reaction to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentVerdict {
    /// The segment is taken.
    Accept {
        /// Offset of the payload after its first `skip` bytes.
        at: Offset,
        /// Number of leading payload bytes that the receiver does not take, because it has acknowledged them or they stand in the
        /// SYN's place. In a keepalive probe these bytes may have any value (RFC 9293 §3.8.4).
        skip: usize,
        /// Cumulative acknowledgement of the output stream. May be one beyond the stream's end, if it covers the FIN.
        acknowledges: Offset,
        /// Whether payload and FIN are taken too. They are not if they lie beyond the stream's end, or below what was
        /// acknowledged.
        text: bool,
    },
    /// The connection is aborted.
    Reset,
    /// The segment is not taken: for example an old segment, a keepalive probe without data, a probe of a closed
    /// window, or a segment that is not from the client.
    Reject(Rejected),
}

/// Why a segment is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Outside the window (RFC 9293 §3.10.7.4, first check).
    OutOfWindow,
    /// Its timestamp is old (PAWS, RFC 7323 §5.3).
    OldTimestamp,
    /// A RST that is not exactly at RCV.NXT (RFC 5961 §3.2).
    BlindReset,
    /// A SYN in the middle of a connection (RFC 5961 §4.2).
    UnexpectedSyn,
    /// Without ACK (RFC 9293 §3.10.7.4, fifth check).
    NoAck,
    /// It acknowledges bytes that were never sent, or bytes from long ago (RFC 5961 §5.2).
    Acknowledgement,
}

/// The range that a segment covers in the input stream.
struct InputRange {
    at: Offset,
    skip: usize,
    end: Offset,
}

/// The segment's place, or `None` if it lies wholly before the stream.
fn place(receiver: &Receiver, segment: &Segment<'_>) -> Option<InputRange> {
    let len = segment.seq_len();
    let end = Offset::from_seq(segment.seq + len, receiver.input_first, receiver.next)?;
    let before = u64::from(len).saturating_sub(end.0);
    Some(InputRange {
        at: Offset(end.0.saturating_sub(len.into())),
        skip: segment.payload.len().min(usize::try_from(before).ok()?),
        end,
    })
}

/// Judges `segment` as the receiver would.
pub fn judge(receiver: &Receiver, segment: &Segment<'_>) -> SegmentVerdict {
    let flags = segment.flags;
    if !flags.ack && !flags.rst && !flags.syn {
        return SegmentVerdict::Reject(Rejected::NoAck);
    }
    let Some(place) = place(receiver, segment) else {
        return SegmentVerdict::Reject(Rejected::OutOfWindow);
    };
    if flags.rst {
        return judge_reset(receiver, &place);
    }
    if flags.syn {
        return SegmentVerdict::Reject(Rejected::UnexpectedSyn);
    }
    if is_old_timestamp(receiver, segment) {
        return SegmentVerdict::Reject(Rejected::OldTimestamp);
    }
    if !is_in_window(receiver, &place, segment.payload.is_empty() && flags.fin) {
        return SegmentVerdict::Reject(Rejected::OutOfWindow);
    }
    let Some(acknowledges) = acknowledged(receiver, segment.ack) else {
        return SegmentVerdict::Reject(Rejected::Acknowledgement);
    };
    let InputRange { at, skip, end } = place;
    let data_end = at + (segment.payload.len() - skip) as u64;
    let is_whole = end <= receiver.right_edge.max(receiver.next);
    if receiver.ended && at < receiver.next && data_end > receiver.next && is_whole {
        return SegmentVerdict::Reset; // data in the place of the FIN that the client has sent
    }
    let taken = receiver.acknowledged.min(receiver.next);
    let old = skip.saturating_add(usize::try_from(taken.since(at)).unwrap_or(usize::MAX));
    let old = old.min(segment.payload.len());
    SegmentVerdict::Accept {
        at: at + (old - skip) as u64,
        skip: old,
        acknowledges,
        text: !receiver.ended && end > taken,
    }
}

/// Judges a RST by RFC 5961 §3.2. Like Linux, accepts a RST at two more places. One is the FIN's place, because some
/// systems send a FIN and then a RST there (`tcp_reset_check`). The other is exactly the end of the data that is held
/// out of order. An old timestamp does not matter for a RST. A RST whose payload leaves the window is refused, as in
/// newer kernels.
fn judge_reset(receiver: &Receiver, place: &InputRange) -> SegmentVerdict {
    let at = place.at;
    if place.skip > 0 {
        return SegmentVerdict::Reject(Rejected::BlindReset);
    }
    if receiver.ended && at + 1 == receiver.next {
        return SegmentVerdict::Reset;
    }
    if place.end < receiver.acknowledged || place.end > receiver.right_edge.max(receiver.next) {
        return SegmentVerdict::Reject(Rejected::OutOfWindow);
    }
    if at == receiver.next || Some(at) == receiver.sacked_end {
        return SegmentVerdict::Reset;
    }
    SegmentVerdict::Reject(Rejected::BlindReset)
}

/// The first check of RFC 9293 §3.10.7.4, as loose as in Linux (`tcp_sequence`, `tcp_data_queue`): the window's left edge is RCV.WUP. A
/// segment that begins in the window and ends beyond the window passes, although newer kernels take it only if the application has read
/// everything. A segment that ends beyond the window is refused if no new byte of it is in the window. So if the window is closed, a
/// segment with new bytes is refused. A bare FIN at RCV.NXT is the exception: it passes although the window is closed.
fn is_in_window(receiver: &Receiver, place: &InputRange, is_bare_fin: bool) -> bool {
    let edge = receiver.right_edge.max(receiver.next);
    let has_room = place.end <= edge || place.at.max(receiver.next) < edge;
    let exact = place.at == receiver.next;
    place.end >= receiver.acknowledged && place.at <= edge && (has_room || (is_bare_fin && exact))
}

/// RFC 7323 §5.3, with Linux's tolerance of one tick (`TCP_PAWS_WINDOW`).
fn is_old_timestamp(receiver: &Receiver, segment: &Segment<'_>) -> bool {
    let (Some(recent), Some(timestamps)) = (receiver.timestamp_recent, segment.options.timestamps) else {
        return false;
    };
    recent != 0 && recent.wrapping_sub(timestamps.value).cast_signed() > 1
}

/// RFC 5961 §5.2: SND.UNA − MAX.SND.WND ≤ SEG.ACK ≤ SND.NXT. An acknowledgement below the first output byte is too old: it
/// acknowledges no output.
fn acknowledged(receiver: &Receiver, ack: Seq) -> Option<Offset> {
    let unacknowledged = receiver.send_unacknowledged;
    let acknowledges = Offset::from_seq(ack, receiver.output_first, unacknowledged)?;
    let oldest = unacknowledged.0.saturating_sub(receiver.send_window_max);
    (oldest <= acknowledges.0 && acknowledges <= receiver.send_next).then_some(acknowledges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Flags, TcpOptions, Timestamps};

    const RECEIVER: Receiver = Receiver {
        input_first: Seq(u32::MAX - 50),
        output_first: Seq(1000),
        acknowledged: Offset(100),
        next: Offset(150),
        ended: false,
        sacked_end: None,
        right_edge: Offset(1100),
        send_unacknowledged: Offset(5000),
        send_next: Offset(9000),
        send_window_max: 3000,
        timestamp_recent: Some(77),
    };

    fn segment(at: u64, ack: u64, flags: Flags, payload: &[u8]) -> Segment<'_> {
        Segment {
            source: "10.1.0.2:40000".parse().unwrap(),
            destination: "10.2.0.100:80".parse().unwrap(),
            seq: Offset(at).to_seq(RECEIVER.input_first),
            ack: Offset(ack).to_seq(RECEIVER.output_first),
            flags,
            window: 1,
            options: TcpOptions {
                timestamps: Some(Timestamps { value: 77, echo: 0 }),
                ..TcpOptions::default()
            },
            payload,
        }
    }

    fn verdict(at: u64, ack: u64, flags: Flags, payload: &[u8]) -> SegmentVerdict {
        judge(&RECEIVER, &segment(at, ack, flags, payload))
    }

    #[test]
    fn in_order_ahead_and_overlapping_data_is_taken() {
        for at in [150, 120, 160, 1099] {
            let expected = SegmentVerdict::Accept {
                at: Offset(at),
                skip: 0,
                acknowledges: Offset(6000),
                text: true,
            };
            assert_eq!(verdict(at, 6000, Flags::ACK, b"data"), expected, "{at}");
        }
    }

    #[test]
    fn bytes_and_an_end_below_what_was_acknowledged_are_not_taken() {
        let accept = |at, skip, text| SegmentVerdict::Accept {
            at: Offset(at),
            skip,
            acknowledges: Offset(6000),
            text,
        };
        assert_eq!(verdict(98, 6000, Flags::ACK, b"data"), accept(100, 2, true));
        assert_eq!(verdict(99, 6000, Flags::ACK, b"x"), accept(100, 1, false));
        assert_eq!(verdict(99, 6000, Flags::FIN_ACK, b""), accept(99, 0, false));
        assert_eq!(verdict(100, 6000, Flags::FIN_ACK, b""), accept(100, 0, true));
    }

    #[test]
    fn a_keepalive_probe_below_what_was_acknowledged_is_old() {
        assert_eq!(
            verdict(98, 5000, Flags::ACK, b"x"),
            SegmentVerdict::Reject(Rejected::OutOfWindow)
        );
        assert_eq!(
            verdict(1101, 5000, Flags::ACK, b"x"),
            SegmentVerdict::Reject(Rejected::OutOfWindow)
        );
    }

    #[test]
    fn a_blind_reset_does_nothing() {
        assert_eq!(verdict(150, 0, Flags::RST, b""), SegmentVerdict::Reset);
        for at in [120, 151, 1000] {
            assert_eq!(
                verdict(at, 0, Flags::RST, b""),
                SegmentVerdict::Reject(Rejected::BlindReset),
                "{at}"
            );
        }
        assert_eq!(
            verdict(1200, 0, Flags::RST, b""),
            SegmentVerdict::Reject(Rejected::OutOfWindow)
        );
    }

    #[test]
    fn blind_data_needs_a_credible_acknowledgement() {
        for ack in [1999, 9001, 4_000_000] {
            assert_eq!(
                verdict(150, ack, Flags::ACK, b"evil"),
                SegmentVerdict::Reject(Rejected::Acknowledgement),
                "{ack}"
            );
        }
        assert!(matches!(
            verdict(150, 2000, Flags::ACK, b""),
            SegmentVerdict::Accept { .. }
        ));
        let without_ack = Flags {
            psh: true,
            ack: false,
            ..Flags::ACK
        };
        assert_eq!(
            verdict(150, 5000, without_ack, b"x"),
            SegmentVerdict::Reject(Rejected::NoAck)
        );
    }

    /// A receiver that has the client's FIN, at 149.
    const ENDED: Receiver = Receiver {
        acknowledged: Offset(150),
        ended: true,
        ..RECEIVER
    };

    #[test]
    fn a_reset_in_the_place_of_the_fin_counts() {
        let reset = |at| judge(&ENDED, &segment(at, 0, Flags::RST, b""));
        assert_eq!(reset(149), SegmentVerdict::Reset);
        assert_eq!(reset(150), SegmentVerdict::Reset);
        assert_eq!(reset(148), SegmentVerdict::Reject(Rejected::OutOfWindow));
        assert_eq!(
            verdict(149, 0, Flags::RST, b""),
            SegmentVerdict::Reject(Rejected::BlindReset)
        );
    }

    #[test]
    fn a_reset_behind_what_is_held_out_of_order_counts() {
        let receiver = Receiver {
            sacked_end: Some(Offset(700)),
            ..RECEIVER
        };
        let reset = |at| judge(&receiver, &segment(at, 0, Flags::RST, b""));
        assert_eq!(reset(700), SegmentVerdict::Reset);
        for at in [699, 701] {
            assert_eq!(reset(at), SegmentVerdict::Reject(Rejected::BlindReset), "{at}");
        }
    }

    #[test]
    fn a_reset_with_a_payload_that_leaves_the_window_is_none() {
        assert_eq!(verdict(150, 0, Flags::RST, &[0; 950]), SegmentVerdict::Reset);
        assert_eq!(
            verdict(150, 0, Flags::RST, &[0; 951]),
            SegmentVerdict::Reject(Rejected::OutOfWindow)
        );
    }

    #[test]
    fn behind_the_fin_nothing_is_taken_and_data_over_it_is_an_abort() {
        let at = |at, payload| judge(&ENDED, &segment(at, 6000, Flags::ACK, payload));
        let text = |verdict| matches!(verdict, SegmentVerdict::Accept { text: true, .. });
        assert!(!text(at(150, b"more")) && !text(at(149, b"x")));
        assert!(text(verdict(150, 6000, Flags::ACK, b"more")));
        assert_eq!(at(149, b"xy"), SegmentVerdict::Reset);
        assert_ne!(at(149, &[0; 1000]), SegmentVerdict::Reset); // leaves the window
    }

    #[test]
    fn a_probe_of_a_closed_window_is_refused_but_a_fin_alone_may_enter() {
        let closed = Receiver {
            right_edge: Offset(150),
            ..RECEIVER
        };
        let at = |at, flags, payload| judge(&closed, &segment(at, 6000, flags, payload));
        let refused = SegmentVerdict::Reject(Rejected::OutOfWindow);
        assert_eq!(at(150, Flags::ACK, b"x"), refused);
        assert_eq!(at(140, Flags::ACK, &[0; 11]), refused);
        assert_eq!(at(150, Flags::FIN_ACK, b"x"), refused);
        assert_eq!(at(151, Flags::FIN_ACK, b""), refused);
        for flags in [Flags::ACK, Flags::FIN_ACK] {
            assert!(matches!(
                at(150, flags, b""),
                SegmentVerdict::Accept { text: true, .. }
            ));
        }
    }

    #[test]
    fn a_probe_in_the_place_of_the_syn_acknowledges() {
        let fresh = Receiver {
            acknowledged: Offset::ZERO,
            next: Offset::ZERO,
            ..RECEIVER
        };
        let mut probe = segment(0, 6000, Flags::ACK, b"xyz");
        probe.seq = probe.seq - 1;
        let expected = SegmentVerdict::Accept {
            at: Offset::ZERO,
            skip: 1,
            acknowledges: Offset(6000),
            text: true,
        };
        assert_eq!(judge(&fresh, &probe), expected);
        probe.payload = b"";
        assert_eq!(
            judge(&fresh, &probe),
            SegmentVerdict::Reject(Rejected::OutOfWindow)
        );
        probe.flags = Flags::RST;
        probe.payload = b"x";
        assert_eq!(
            judge(&fresh, &probe),
            SegmentVerdict::Reject(Rejected::BlindReset)
        );
    }

    #[test]
    fn an_acknowledgement_older_than_all_output_is_too_old() {
        let fresh = Receiver {
            send_unacknowledged: Offset::ZERO,
            ..RECEIVER
        };
        let mut old = segment(150, 0, Flags::ACK, b"x");
        assert!(matches!(judge(&fresh, &old), SegmentVerdict::Accept { .. }));
        old.ack = old.ack - 1;
        assert_eq!(
            judge(&fresh, &old),
            SegmentVerdict::Reject(Rejected::Acknowledgement)
        );
    }

    #[test]
    fn no_timestamp_is_older_than_none() {
        let receiver = Receiver {
            timestamp_recent: Some(0),
            ..RECEIVER
        };
        let mut first = segment(150, 5000, Flags::ACK, b"x");
        let value = 0xffff_0000;
        first.options.timestamps = Some(Timestamps { value, echo: 0 });
        assert!(matches!(judge(&receiver, &first), SegmentVerdict::Accept { .. }));
    }

    #[test]
    fn a_syn_in_a_connection_changes_nothing() {
        assert_eq!(
            verdict(160, 5000, Flags::SYN, b""),
            SegmentVerdict::Reject(Rejected::UnexpectedSyn)
        );
    }

    #[test]
    fn old_timestamps_are_refused_by_more_than_one_tick() {
        let mut old = segment(150, 5000, Flags::ACK, b"x");
        old.options.timestamps = Some(Timestamps { value: 75, echo: 0 });
        assert_eq!(
            judge(&RECEIVER, &old),
            SegmentVerdict::Reject(Rejected::OldTimestamp)
        );
        old.options.timestamps = Some(Timestamps { value: 76, echo: 0 });
        assert!(matches!(judge(&RECEIVER, &old), SegmentVerdict::Accept { .. }));
        old.options.timestamps = None;
        assert!(matches!(judge(&RECEIVER, &old), SegmentVerdict::Accept { .. }));
    }
}
