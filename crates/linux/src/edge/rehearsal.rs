//! Runs the edge's program on a frame without sending the frame.

use super::{EdgeWire, PROGRAM};
use crate::bpf::error::{WireError, WireStep};
use crate::bpf::run::{RunData, run};

/// Length in bytes of a `struct __sk_buff`, and offsets of its fields.
const SK_BUFF: usize = 192;
const SK_BUFF_IFINDEX: usize = 40;
const SK_BUFF_GSO_SEGS: usize = 164;
const SK_BUFF_GSO_SIZE: usize = 176;

/// Maximum number of bytes that the program may add to a frame.
const ADDED_MAX: usize = 256;

/// Verdicts of tc programs (`linux/pkt_cls.h`).
const TC_ACT_OK: u32 = 0;
const TC_ACT_REDIRECT: u32 = 7;

/// The program's verdict on a frame, and the frame afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rehearsed {
    /// The program passed the frame to the stack. The frame is unchanged.
    Stack,
    /// The program dropped the frame.
    Dropped,
    /// The program sent this frame on. The kernel would fill in the addresses of the Ethernet header later.
    Sent(Vec<u8>),
}

impl EdgeWire {
    /// Runs the program on an untagged frame, as if the frame arrived at the interface `ifindex` of the calling thread's network namespace.
    /// The frame is not sent, but the program changes its flows and counters, and may copy the frame for the agent. `gso_size`: payload in
    /// bytes of each segment into which the frame would be cut. 0: the frame is one segment.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn rehearse(&self, ifindex: u32, frame: &[u8], gso_size: u16) -> Result<Rehearsed, WireError> {
        let mut context = [0; SK_BUFF];
        context[SK_BUFF_IFINDEX..][..4].copy_from_slice(&ifindex.to_ne_bytes());
        if gso_size > 0 {
            let segments = u32::try_from(frame.len())
                .unwrap_or(0)
                .div_ceil(u32::from(gso_size));
            context[SK_BUFF_GSO_SEGS..][..4].copy_from_slice(&segments.to_ne_bytes());
            context[SK_BUFF_GSO_SIZE..][..4].copy_from_slice(&u32::from(gso_size).to_ne_bytes());
        }
        let mut output = vec![0; frame.len() + ADDED_MAX];
        let data = RunData {
            input: frame,
            output: &mut output,
        };
        let verdict = run(&self.object, PROGRAM, &mut context, Some(data))
            .step(|| "running the edge's program on a frame".into())?;
        Ok(match verdict {
            TC_ACT_OK => Rehearsed::Stack,
            TC_ACT_REDIRECT => Rehearsed::Sent(output),
            _ => Rehearsed::Dropped,
        })
    }
}
