//! Packets that are sent for connections without a socket: SYN-ACKs and RSTs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::action::ServiceAction;
use crate::connection::{Connection, Opening};
use crate::packet::{Flags, Segment, TcpOptions};
use crate::{Instant, Seq};

/// A copy of the SYN-ACK, because the client may not have got it.
pub fn repeat(vip: SocketAddr, client: SocketAddr, syn: &Opening, syn_ack: &Opening) -> Segment<'static> {
    Segment {
        source: vip,
        destination: client,
        seq: syn_ack.seq,
        ack: syn.seq + 1,
        flags: Flags::SYN_ACK,
        window: syn_ack.window,
        options: syn_ack.options,
        payload: &[],
    }
}

/// A connection that leaves the table for the relay.
#[derive(Debug)]
pub struct HandedOver {
    /// The connection, with its logs.
    pub connection: Box<Connection>,
    /// The SYN-ACK, if the client was not heard since the SYN-ACK was sent. The restored socket does not repeat it, so the node does. The
    /// keeper also stores the SYN-ACK, so that the node can go on repeating it after the agent was restarted
    /// ([`Unheard`](crate::service::ServiceInput::Unheard)).
    pub syn_ack: Option<Vec<u8>>,
}

/// Packets that are sent repeatedly.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Vec<Retransmission>);

#[derive(Debug)]
struct Retransmission {
    packet: Vec<u8>,
    due: Instant,
    wait: Duration,
    left: u32,
}

/// Wait before the first repetition. Each further wait is twice as long. Linux repeats a SYN-ACK at the same times.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Number of repetitions: Linux's default of `tcp_synack_retries`.
const REPEATS: u32 = 5;

impl Repeats {
    /// Sends `packet` now, and again later.
    pub(crate) fn add(&mut self, now: Instant, packet: Vec<u8>, actions: &mut VecDeque<ServiceAction>) {
        actions.push_back(ServiceAction::Transmit(packet.clone()));
        self.0.push(Retransmission {
            packet,
            due: now + FIRST_WAIT,
            wait: FIRST_WAIT,
            left: REPEATS,
        });
    }

    /// Sends the packets that are due.
    pub(crate) fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<ServiceAction>) {
        self.0.retain_mut(|repeat| {
            if now >= repeat.due {
                actions.push_back(ServiceAction::Transmit(repeat.packet.clone()));
                repeat.wait *= 2;
                repeat.due = now + repeat.wait;
                repeat.left -= 1;
            }
            repeat.left > 0
        });
    }

    /// Stops repeating all packets.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|repeat| repeat.due).min()
    }
}

/// A RST whose sequence number is the end of all output that the client may have. A client that has less output answers
/// with the sequence number that it expects (RFC 5961 §3.2). The node then sends a RST with exactly that number
/// ([`refuse`]). A client ignores a RST whose sequence number is below the one that it expects.
pub(super) fn reset_of(connection: &Connection) -> Segment<'static> {
    let endpoint = connection.endpoint();
    Segment {
        source: endpoint.vip,
        destination: endpoint.client,
        seq: connection.output().end_seq(),
        ack: endpoint.receive_next,
        flags: Flags {
            ack: true,
            ..Flags::RST
        },
        window: 0,
        options: TcpOptions::default(),
        payload: &[],
    }
}

/// The answer to a segment that belongs to no connection (RFC 9293 §3.10.7.1).
pub(crate) fn refuse(segment: &Segment<'_>) -> Option<Segment<'static>> {
    if segment.flags.rst {
        return None;
    }
    let (seq, ack, flags) = if segment.flags.ack {
        (segment.ack, Seq(0), Flags::RST)
    } else {
        (
            Seq(0),
            segment.seq + segment.seq_len(),
            Flags {
                ack: true,
                ..Flags::RST
            },
        )
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
