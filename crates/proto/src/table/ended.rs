//! Connections that have ended, or were handed over to a socket: what is needed to answer their late segments.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::clients::{ClientMap, client_map};
use crate::connection::{Endpoint, EndpointTimestamps};
use crate::packet::{Flags, Segment, TcpOptions, Timestamps};
use crate::{Instant, Seq};

/// Maximum number of ended connections remembered at a time.
pub const ENDED_MAX: usize = 65_536;
/// How long an ended connection is remembered, so that its late segments are answered: twice the maximum segment lifetime, as in Linux. An
/// older one is forgotten only when another connection ends.
pub const ENDED_FOR: Duration = Duration::from_secs(60);

/// An ended connection: what is needed to repeat its last acknowledgement.
#[derive(Clone, Copy, Debug)]
struct EndedConnection {
    at: Instant,
    next: Seq,
    acknowledge: Seq,
    timestamps: Option<EndpointTimestamps>,
}

/// The ended connections of one table.
#[derive(Debug)]
pub(super) struct EndedConnections {
    by_client: ClientMap<EndedConnection>,
    /// The clients and when their connections ended, oldest first. Some of them are no longer remembered.
    order: VecDeque<(SocketAddr, Instant)>,
    /// Clients whose connections were handed over to sockets, with the server's timestamp clock.
    handed_over: ClientMap<Option<EndpointTimestamps>>,
}

impl EndedConnections {
    pub(super) fn new(seed: usize) -> Self {
        Self {
            by_client: client_map(seed),
            order: VecDeque::new(),
            handed_over: client_map(seed),
        }
    }

    /// Remembers a connection that has ended at `now`.
    pub(super) fn add(&mut self, now: Instant, endpoint: &Endpoint) {
        while self.order.len() >= ENDED_MAX
            || self
                .order
                .front()
                .is_some_and(|&(_, at)| now.since(at) > ENDED_FOR)
        {
            let Some((oldest, at)) = self.order.pop_front() else {
                break;
            };
            if self.by_client.get(&oldest).is_some_and(|ended| ended.at == at) {
                self.by_client.remove(&oldest);
            }
        }
        let ended = EndedConnection {
            at: now,
            next: endpoint.send_unacknowledged,
            acknowledge: endpoint.receive_next,
            timestamps: endpoint.timestamps,
        };
        self.order.push_back((endpoint.client, now));
        self.by_client.insert(endpoint.client, ended);
    }

    /// Remembers that a restored socket has this client's connection. `clock` is the server's timestamp clock.
    pub(super) fn hand_over(&mut self, client: SocketAddr, clock: Option<EndpointTimestamps>) {
        self.handed_over.insert(client, clock);
    }

    /// Whether a restored socket has this client's connection.
    pub(super) fn is_handed_over(&self, client: SocketAddr) -> bool {
        self.handed_over.contains_key(&client)
    }

    /// The restored socket that had this client's last connection is gone.
    pub(super) fn forget_socket(&mut self, client: SocketAddr) {
        self.handed_over.remove(&client);
    }

    /// The client begins another connection.
    pub(super) fn forget(&mut self, client: SocketAddr) {
        self.by_client.remove(&client);
        self.handed_over.remove(&client);
    }

    /// Whether a segment of `client` is late: its connection has ended, or was handed over to a socket. If the connection was handed over,
    /// a segment with data is not late: the socket may be gone, and then the client must get a RST.
    pub(super) fn is_late(&self, client: SocketAddr, segment: &Segment<'_>) -> bool {
        self.by_client.contains_key(&client) || segment.payload.is_empty() && self.is_handed_over(client)
    }

    /// Whether this client's connection ended at `asked` or later.
    pub(super) fn has_ended_since(&self, asked: Instant, client: SocketAddr) -> bool {
        self.by_client.get(&client).is_some_and(|ended| ended.at >= asked)
    }

    /// The acknowledgement that answers a late segment (TIME-WAIT, RFC 9293 §3.10.7.4). Only segments with data, SYN or FIN are answered.
    /// If the connection was handed over to a socket, only a FIN is answered. The answer's numbers are taken from that FIN.
    pub(super) fn answer(&self, now: Instant, segment: &Segment<'_>) -> Option<Segment<'static>> {
        if segment.flags.rst || segment.seq_len() == 0 {
            return None;
        }
        let handed_over = self.handed_over.get(&segment.source);
        let (ended, clock) = match (self.by_client.get(&segment.source), handed_over) {
            (Some(ended), _) => (Some(ended), ended.timestamps),
            (None, Some(&clock)) if segment.flags.fin => (None, clock),
            (None, _) => return None,
        };
        let timestamps = clock.zip(segment.options.timestamps);
        Some(Segment {
            source: segment.destination,
            destination: segment.source,
            seq: ended.map_or(segment.ack, |ended| ended.next),
            ack: ended.map_or(segment.seq + segment.seq_len(), |ended| ended.acknowledge),
            flags: Flags::ACK,
            window: u16::MAX,
            options: TcpOptions {
                timestamps: timestamps.map(|(clock, theirs)| Timestamps {
                    value: clock.value_at(now),
                    echo: theirs.value,
                }),
                ..TcpOptions::default()
            },
            payload: &[],
        })
    }
}
