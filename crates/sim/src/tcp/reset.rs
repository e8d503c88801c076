//! The answer to a segment that belongs to no connection.

use proto::Seq;
use proto::packet::{Flags, Segment, TcpOptions};

/// The reset that answers a segment for which there is no endpoint (RFC 9293 §3.10.7.1). `None` if the segment is a reset.
pub fn reset_for(segment: &Segment<'_>) -> Option<Segment<'static>> {
    if segment.flags.rst {
        return None;
    }
    let (seq, ack, flags) = if segment.flags.ack {
        (segment.ack, Seq(0), Flags::RST)
    } else {
        let flags = Flags {
            ack: true,
            ..Flags::RST
        };
        (Seq(0), segment.seq + segment.seq_len(), flags)
    };
    Some(Segment {
        source: segment.destination,
        destination: segment.source,
        seq,
        ack,
        flags,
        window: 0,
        options: TcpOptions::default(),
        payload: &[],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: Flags, payload: &[u8]) -> Segment<'_> {
        Segment {
            source: "10.0.0.1:1000".parse().unwrap(),
            destination: "10.0.0.2:80".parse().unwrap(),
            seq: Seq(u32::MAX),
            ack: Seq(77),
            flags,
            window: 10,
            options: TcpOptions::default(),
            payload,
        }
    }

    #[test]
    fn a_stray_segment_draws_a_reset_that_its_sender_accepts() {
        let reset = reset_for(&segment(Flags::ACK, b"data")).unwrap();
        assert_eq!((reset.seq, reset.flags), (Seq(77), Flags::RST));
        assert_eq!(reset.source, "10.0.0.2:80".parse().unwrap());
        let reset = reset_for(&segment(Flags::SYN, b"")).unwrap();
        assert_eq!((reset.seq, reset.ack), (Seq(0), Seq(0))); // the SYN has the last sequence number, so the next number is 0
        assert!(reset.flags.rst && reset.flags.ack);
    }

    #[test]
    fn a_stray_reset_draws_nothing() {
        assert_eq!(reset_for(&segment(Flags::RST, b"")), None);
    }
}
