//! Output of the primary that bypasses the wire (docs/commit-modes.md): the work of `go_directly` in `bpf/steadfast.bpf.c`, and what
//! the judge makes of it.

use proto::Instant;
use proto::packet::{Checksum, Flags, Segment};

use super::commit::cut;
use super::defect::Defect;
use super::judge::Judge;
use super::ledger::{Most, PacketSpeaker};
use super::machine::{CLIENTS, Machine, PEER};
use crate::world::Output;

impl Machine {
    /// Sets until when the kernel sends a primary's output directly.
    pub(super) fn keep_direct(&mut self, until: Option<Instant>) {
        let goes_on = self.is(Defect::SendDirectlyOn);
        self.direct_until = if goes_on {
            self.direct_until.max(until)
        } else {
            until
        };
    }

    /// Whether the primary's kernel sends output directly at the node's time `now`.
    pub(super) fn is_direct(&self, now: Instant) -> bool {
        let goes_on = self.is(Defect::SendDirectlyOn);
        self.direct_until.is_some_and(|until| now < until || goes_on)
    }

    /// Sends a packet of the primary to the wire. If the packet may go directly to its client, a copy goes to the wire instead.
    pub(super) fn send_as_primary(&mut self, now: Instant, packet: Vec<u8>) -> Option<Output> {
        let segment = Segment::parse(&packet, Checksum::Trusted).ok()?;
        let Flags { syn, fin, rst, .. } = segment.flags;
        let is_dying = self.dying.contains(&segment.destination);
        if syn || fin || rst || is_dying || !self.is_direct(now) {
            return Some(Output::Transmit { port: PEER, packet });
        }
        let copy = cut(&segment);
        let voice = PacketSpeaker {
            node: self.config.number,
            epoch: self.wire.gate().1,
            is_alone: false,
            is_lent: true,
            is_outlasted: self.direct_until.is_some_and(|until| until <= self.outlasted),
        };
        self.judge.borrow_mut().on_direct(voice, &segment);
        self.outputs.push_back(Output::Transmit {
            port: PEER,
            packet: copy,
        });
        let port = CLIENTS;
        Some(Output::Transmit { port, packet })
    }
}

impl Judge {
    /// A primary sends a segment directly to its client. By then the other node must not have the right to speak alone.
    fn on_direct(&mut self, voice: PacketSpeaker, segment: &Segment<'_>) {
        let client = segment.destination;
        let is_late = self.alone_now[1 - voice.node].is_some_and(|epoch| epoch > voice.epoch);
        if is_late && !voice.is_outlasted {
            self.two_voices(client, &format!("{voice:?} sends past the wire"));
        }
        self.on_voice(client, voice);
    }

    /// A wire has logged a copy of a segment that the primary has sent directly.
    pub(super) fn on_copy(&mut self, packet: &[u8]) {
        let Ok(segment) = Segment::parse(packet, Checksum::Cut) else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&segment.destination)
            && let Some(place) = flow.place(&segment)
        {
            flow.released = flow.released.or(Most::of(&segment, place, flow.shift));
        }
    }
}
