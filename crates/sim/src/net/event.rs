//! The events of a trace. Defines the text of each event, and the TCP segment that represents each packet.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::net::{Ipv4Addr, SocketAddr};

use proto::packet::{self, Segment, TcpOptions};
use proto::{Instant, Seq};

use super::{FlowNetwork, LinkEnd, SwitchId};
use crate::flow::{FlowDirection, FlowFlags, FlowId, FlowPacket};
use crate::notation::{Notation, SynNumbers};

/// Place of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventPlace {
    /// At a flow's sending end.
    Sender(FlowId),
    /// At a flow's receiving end.
    Receiver(FlowId),
    /// At a switch, or at another place that the scenario names.
    Node(&'static str),
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happening {
    /// A packet leaves. The text is the packet's fate. If the text is empty, the packet is on its way. If the text is `twice`, two copies
    /// are on their way.
    Sent(FlowPacket, &'static str),
    /// A packet arrives, if the text is empty. Otherwise the text says why the packet does not arrive.
    Received(FlowPacket, &'static str),
    /// A note in words.
    Note(&'static str),
}

/// An event: something happens at a place and a time.
///
/// As text, an event is a line in packetdrill's notation. Numbers are relative to the SYN. Windows appear as in a header: divided by 128
/// except on SYNs, as if both ends had agreed on a window scale of 7.
///
/// ```text
/// 2.000320000 sender-7 > 10.0.0.8:40000 198.18.0.8:80 S 0:0(0) win 65535 <wscale 7>
/// 2.001323200 R1 > 10.0.0.8:40000 198.18.0.8:80 S 0:0(0) win 65535 <wscale 7> [down]
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceEvent {
    /// Time of the event.
    pub at: Instant,
    /// Place of the event.
    pub place: EventPlace,
    /// Kind of the event.
    pub what: Happening,
}

/// Window scale in trace lines and frames. Without it, a window of 64 segments would not fit 16 bits.
const WINDOW_SCALE: u8 = 7;
/// Payload of frames. Packets of this engine have no bytes, so frames carry zeros.
static ZEROS: [u8; u16::MAX as usize] = [0; u16::MAX as usize];

impl Display for EventPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sender(flow) => write!(f, "sender-{}", flow.0),
            Self::Receiver(flow) => write!(f, "receiver-{}", flow.0),
            Self::Node(name) => f.write_str(name),
        }
    }
}

impl TraceEvent {
    /// The flow of the event, if it has one.
    pub const fn flow(&self) -> Option<FlowId> {
        match (&self.what, self.place) {
            (Happening::Sent(packet, _) | Happening::Received(packet, _), _) => Some(packet.flow),
            (Happening::Note(_), EventPlace::Sender(flow) | EventPlace::Receiver(flow)) => Some(flow),
            (Happening::Note(_), EventPlace::Node(_)) => None,
        }
    }
}

impl Display for TraceEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nanos = self.at.as_nanos();
        let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "{seconds}.{nanos:09} {}", self.place)?;
        let (way, packet, fate) = match &self.what {
            Happening::Sent(packet, fate) => ('>', packet, fate),
            Happening::Received(packet, fate) => ('<', packet, fate),
            Happening::Note(text) => return write!(f, ": {text}"),
        };
        let origins: SynNumbers = BTreeMap::new(); // empty: numbers already begin at 0 at the SYN
        let segment = &packet.segment();
        let origins = &origins;
        write!(f, " {way} {}", Notation { segment, origins })?;
        if fate.is_empty() {
            return Ok(());
        }
        write!(f, " [{fate}]")
    }
}

impl FlowPacket {
    /// The segment that a real network would carry for this packet: with addresses made from the flow's number, zeros for data, and the
    /// options that the packet's fields need.
    pub fn segment(&self) -> Segment<'static> {
        let source = SocketAddr::from((Ipv4Addr::from_bits(SOURCES | (self.flow.0 + 1)), 40_000));
        let destination = DESTINATIONS | ((self.flow.0 + 1) & DESTINATIONS_MASK);
        let destination = SocketAddr::from((Ipv4Addr::from_bits(destination), 80));
        let (source, destination) = match self.direction {
            FlowDirection::Forward => (source, destination),
            FlowDirection::Backward => (destination, source),
        };
        let is_syn = self.flags.has(FlowFlags::SYN);
        let shift = if is_syn { 0 } else { WINDOW_SCALE };
        let mut sack = [None; 4];
        for (slot, (left, right)) in sack.iter_mut().zip(self.sack.iter(self.ack)) {
            *slot = Some((seq(left), seq(right)));
        }
        Segment {
            source,
            destination,
            seq: seq(self.seq),
            ack: seq(self.ack),
            flags: packet::Flags {
                syn: is_syn,
                ack: self.flags.has(FlowFlags::ACK),
                fin: self.flags.has(FlowFlags::FIN),
                ..packet::Flags::default()
            },
            window: u16::try_from(self.window >> shift).unwrap_or(u16::MAX),
            options: TcpOptions {
                window_scale: is_syn.then_some(WINDOW_SCALE),
                sack,
                ..TcpOptions::default()
            },
            payload: &ZEROS[..usize::from(self.len)],
        }
    }
}

impl FlowNetwork {
    /// Calls `trace` for every event from now on.
    pub fn set_trace(&mut self, trace: impl FnMut(&TraceEvent) + 'static) {
        self.trace = Some(Box::new(trace));
    }

    /// Puts a note into the trace, if a trace is set.
    pub fn note(&mut self, place: EventPlace, text: &'static str) {
        self.tell(place, Happening::Note(text));
    }

    fn tell(&mut self, place: EventPlace, what: Happening) {
        if let Some(trace) = &mut self.trace {
            let at = self.now;
            trace(&TraceEvent { at, place, what });
        }
    }

    #[cold]
    pub(super) fn tell_sent(&mut self, from: Option<SwitchId>, packet: FlowPacket, fate: &'static str) {
        let place = match (from, packet.direction) {
            (Some(switch), _) => EventPlace::Node(self.switches[switch.0 as usize].name),
            (None, FlowDirection::Forward) => EventPlace::Sender(packet.flow),
            (None, FlowDirection::Backward) => EventPlace::Receiver(packet.flow),
        };
        self.tell(place, Happening::Sent(packet, fate));
    }

    #[cold]
    pub(super) fn tell_received(&mut self, end: LinkEnd, packet: FlowPacket, fate: &'static str) {
        let place = match (end, packet.direction) {
            (LinkEnd::Switch(switch), _) => EventPlace::Node(self.switches[switch.0 as usize].name),
            (LinkEnd::Hosts, FlowDirection::Forward) => EventPlace::Receiver(packet.flow),
            (LinkEnd::Hosts, FlowDirection::Backward) => EventPlace::Sender(packet.flow),
        };
        self.tell(place, Happening::Received(packet, fate));
    }
}

/// Base of the senders' addresses, 10.0.0.0/8.
const SOURCES: u32 = 10 << 24;
/// Base of the receivers' addresses, 198.18.0.0/15, for benchmarks (RFC 2544).
const DESTINATIONS: u32 = 198 << 24 | 18 << 16;
const DESTINATIONS_MASK: u32 = (1 << 17) - 1;

/// The lower 32 bits of a sequence number, as a header carries them.
const fn seq(number: u64) -> Seq {
    Seq(number as u32)
}
