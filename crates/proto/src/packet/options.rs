//! TCP options, as a receiver reads them and a sender writes them.

use etherparse::TcpOptionElement;

use crate::Seq;

/// Option kinds (IANA, TCP Parameters).
const NO_OPERATION: u8 = 1;
const END: u8 = 0;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const MD5: u8 = 19;
const AUTHENTICATION: u8 = 29;
const MULTIPATH: u8 = 30;

/// Timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The peer's clock, echoed.
    pub echo: u32,
}

/// The options of a TCP header that a restored endpoint depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size in bytes (SYN only).
    pub mss: Option<u16>,
    /// Window scale shift (SYN only, RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are understood (SYN only, RFC 2018).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgement blocks `[left, right)`.
    pub sack: [Option<(Seq, Seq)>; 4],
    /// Any option of Multipath TCP (RFC 8684). Read only, never written.
    pub multipath: bool,
    /// A signature of the segment: TCP MD5 (RFC 2385) or TCP-AO (RFC 5925). Read only, never written.
    pub signature: bool,
    /// No option, but a fact about a copy of a segment: length in bytes of the payload that the sender has cut off the copy
    /// (docs/commit-modes.md). 0 for a whole segment. Read only, never written.
    pub cut: u32,
}

impl TcpOptions {
    /// Reads the options of a header as Linux does (`tcp_parse_options`). An unknown option, or an option with the wrong length for its
    /// kind, is skipped by its length (RFC 9293 MUST-6). An impossible length ends the list; the options before it count. If a kind occurs
    /// several times, the last one counts. An MSS of 0 is ignored. An option of Multipath TCP and a signature count with any length.
    pub(super) fn parse(mut list: &[u8]) -> Self {
        let mut options = Self::default();
        loop {
            list = match *list {
                [NO_OPERATION, ref rest @ ..] => rest,
                [kind, len, ..] if kind != END && len >= 2 => {
                    let Some((option, rest)) = list.split_at_checked(len.into()) else {
                        return options;
                    };
                    options.note(kind, &option[2..]);
                    rest
                }
                _ => return options,
            }
        }
    }

    /// Stores one option. `value` is the part after its kind and length.
    fn note(&mut self, kind: u8, value: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().expect("four bytes"));
        match (kind, value) {
            (MAXIMUM_SEGMENT_SIZE, &[high, low]) if (high, low) != (0, 0) => {
                self.mss = Some(u16::from_be_bytes([high, low]));
            }
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, [_, _, _, _, _, _, _, _]) => {
                self.timestamps = Some(Timestamps {
                    value: word(0),
                    echo: word(4),
                });
            }
            (SACK, blocks) if blocks.len().is_multiple_of(8) && !blocks.is_empty() => {
                let block = |index: usize| (Seq(word(8 * index)), Seq(word(8 * index + 4)));
                self.sack = std::array::from_fn(|index| (8 * index < blocks.len()).then(|| block(index)));
            }
            (MULTIPATH, _) => self.multipath = true,
            (MD5 | AUTHENTICATION, _) => self.signature = true,
            _ => {}
        }
    }

    /// The options in the order in which they are written.
    pub(super) fn elements(&self) -> Vec<TcpOptionElement> {
        let mut elements = Vec::new();
        elements.extend(self.mss.map(TcpOptionElement::MaximumSegmentSize));
        if self.sack_permitted {
            elements.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            if elements.is_empty() {
                // The layout for which receivers have a fast path (RFC 7323 appendix A).
                elements.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
            }
            elements.push(TcpOptionElement::Timestamp(value, echo));
        }
        elements.extend(self.window_scale.map(TcpOptionElement::WindowScale));
        let mut blocks = self.sack.iter().flatten().map(|(left, right)| (left.0, right.0));
        if let Some(first) = blocks.next() {
            let rest = [blocks.next(), blocks.next(), None];
            elements.push(TcpOptionElement::SelectiveAcknowledgement(first, rest));
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MSS, then no operation and a window scale.
    const KNOWN: [u8; 8] = [2, 4, 5, 0xb4, 1, 3, 3, 7];

    #[track_caller]
    fn assert_known(list: &[u8]) {
        let expected = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            ..TcpOptions::default()
        };
        assert_eq!(TcpOptions::parse(list), expected, "{list:?}");
    }

    #[test]
    fn unknown_options_are_skipped_by_their_length() {
        // No option, an experimental option (RFC 6994), and the two Accurate ECN options.
        for unknown in [&[][..], &[254, 4, 0, 0], &[172, 5, 0, 0, 1], &[174, 2]] {
            assert_known(&[unknown, &KNOWN].concat());
            assert_known(&[&KNOWN, unknown].concat());
        }
    }

    #[test]
    fn a_known_option_of_another_length_is_skipped() {
        for odd in [
            &[2, 2][..],
            &[2, 5, 1, 1, 1],
            &[3, 2],
            &[4, 3, 1],
            &[5, 2],
            &[5, 6, 0, 0, 0, 0],
            &[8, 4, 0, 0],
        ] {
            assert_known(&[odd, &KNOWN].concat());
        }
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_list() {
        for end in [&[0][..], &[254, 0], &[254, 1], &[2, 1, 0, 99], &[254, 200, 0, 0]] {
            assert_known(&[&KNOWN, end, &[4, 2]].concat());
        }
        assert_known(&[&KNOWN[..], &[4]].concat());
        assert_known(&[&KNOWN[..], &[8, 10, 0, 0]].concat());
    }

    #[test]
    fn the_last_of_several_counts_and_a_segment_size_of_zero_is_none() {
        assert_known(&[&[2, 4, 2, 0, 3, 3, 1], &KNOWN[..]].concat());
        assert_known(&[&KNOWN[..], &[2, 4, 0, 0]].concat());
    }

    #[test]
    fn several_paths_are_recognised() {
        let list = [&[30, 4, 1, 0], &KNOWN[..]].concat();
        let options = TcpOptions::parse(&list);
        assert!(options.multipath);
        assert_eq!(options.window_scale, Some(7));
    }

    #[test]
    fn signatures_are_recognised() {
        for signature in [&[19, 18][..], &[29, 16, 1, 2]] {
            let mut option = signature.to_vec();
            option.resize(signature[1].into(), 0xaa);
            let options = TcpOptions::parse(&[&option, &KNOWN[..]].concat());
            assert!(options.signature);
            assert_eq!(options.window_scale, Some(7));
        }
    }

    #[test]
    fn four_blocks_are_the_most() {
        let sack = TcpOptions {
            sack: [1, 2, 3, 4].map(|at| Some((Seq(10 * at), Seq(10 * at + 5)))),
            ..TcpOptions::default()
        };
        let blocks = (1..=5)
            .flat_map(|at: u32| [10 * at, 10 * at + 5])
            .flat_map(u32::to_be_bytes);
        let list = |count: u8| {
            [
                vec![5, 2 + 8 * count],
                blocks.clone().take(8 * usize::from(count)).collect(),
            ]
            .concat()
        };
        assert_eq!(TcpOptions::parse(&list(4)), sack);
        assert_eq!(TcpOptions::parse(&list(5)), sack);
    }
}
