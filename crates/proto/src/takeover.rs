//! A takeover, step by step (DESIGN.md §3, "The primary dies").
//!
//! ```text
//!   declared ─▶ gate closed ─▶ log drained ─▶ for each connection, the busy ones first:
//!                                               restore ─▶ make ready ─▶ drain ─▶ activate ─▶ hand over
//!                                             ─▶ all decided: speech allowed, one RST to each that is lost
//! ```
//!
//! *Make ready, then drain*: from the moment a socket is ready, the wire passes packets to it; what the wire logged before
//! is found by the drain. So every byte reaches the socket exactly by one of the two ways.

use std::collections::VecDeque;
use std::time::Duration;

use crate::action::{Action, Gate, Report, ServiceIndex};
use crate::connection::{Connection, Opening, Protection};
use crate::packet::{Flags, Options, Segment, Timestamps};
use crate::table::{ConnectionId, Table};
use crate::{Instant, Seq};

/// What a takeover did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeoverReport {
    /// The peer was declared dead.
    pub declared: Instant,
    /// The gate was closed, and the log read to its end behind it.
    pub gate_closed: Instant,
    /// The first connection's socket was live.
    pub first_live: Option<Instant>,
    /// The last one's was.
    pub last_live: Option<Instant>,
    /// Everything was decided.
    pub decided: Instant,
    /// How many connections there were.
    pub connections: usize,
    /// How many of them go on.
    pub restored: usize,
    /// How many got a RST.
    pub reset: usize,
    /// Which ones went live, and when.
    pub live: Vec<(ConnectionId, Instant)>,
}

/// A takeover under way.
#[derive(Debug)]
pub(crate) struct Takeover {
    declared: Instant,
    drained: Option<Instant>,
    undecided: usize,
    connections: usize,
    reset: usize,
    live: Vec<(ConnectionId, Instant)>,
    refusals: Vec<Vec<u8>>,
}

impl Takeover {
    /// Closes the gate and asks for the log.
    pub(crate) fn begin(now: Instant, service: ServiceIndex, actions: &mut VecDeque<Action>) -> Self {
        actions.push_back(Action::SetGate {
            service,
            gate: Gate::Takeover,
        });
        actions.push_back(Action::Drain { service });
        Self {
            declared: now,
            drained: None,
            undecided: 0,
            connections: 0,
            reset: 0,
            live: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// After the first drain, everything is known: plans the steps for every connection.
    pub(crate) fn on_drained(
        &mut self,
        now: Instant,
        service: ServiceIndex,
        table: &mut Table,
        actions: &mut VecDeque<Action>,
    ) {
        if self.drained.is_some() {
            return;
        }
        self.drained = Some(now);
        let pending = table.open_pending();
        let mut order: Vec<(bool, ConnectionId)> = table
            .iter()
            .map(|(id, connection)| (!connection.is_busy(), id))
            .collect();
        order.sort_unstable();
        (self.connections, self.undecided) = (order.len(), order.len());
        for (_, connection) in order {
            let entry = table.get(connection).expect("in the table");
            let lost = match entry.protection() {
                Protection::Protected => entry.follower().restart().err(),
                Protection::Ambiguous => Some("the log is ambiguous".into()),
                Protection::Unprotected(cause) => Some(cause.to_string()),
            };
            if let Some(reason) = lost {
                self.on_unrestorable(service, connection, table, reason, actions);
                continue;
            }
            actions.extend([
                Action::Restore { service, connection },
                Action::MakeReady { service, connection },
                Action::Drain { service },
                Action::Activate { service, connection },
                Action::HandOver { service, connection },
            ]);
        }
        for (_, client, syn, syn_ack) in pending {
            let vip = table.config().vip;
            actions.push_back(Action::Transmit(repeat(vip, client, &syn, &syn_ack).emit()));
        }
    }

    pub(crate) fn on_live(&mut self, now: Instant, connection: ConnectionId) {
        self.live.push((connection, now));
    }

    pub(crate) fn on_unrestorable(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        table: &mut Table,
        reason: String,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(entry) = table.remove(connection) else {
            return;
        };
        self.refusals.push(reset_of(&entry).emit());
        self.reset += 1;
        self.undecided -= 1;
        let client = entry.client();
        actions.push_back(Action::Report(Report::Unrestorable {
            service,
            client,
            reason,
        }));
    }

    pub(crate) fn on_decided(&mut self) {
        self.undecided -= 1;
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.drained.is_some() && self.undecided == 0
    }

    pub(crate) fn report(&self, now: Instant) -> TakeoverReport {
        TakeoverReport {
            declared: self.declared,
            gate_closed: self.drained.unwrap_or(now),
            first_live: self.live.first().map(|&(_, at)| at),
            last_live: self.live.last().map(|&(_, at)| at),
            decided: now,
            connections: self.connections,
            restored: self.live.len(),
            reset: self.reset,
            live: self.live.clone(),
        }
    }

    pub(crate) fn into_refusals(self) -> impl Iterator<Item = Vec<u8>> {
        self.refusals.into_iter()
    }
}

/// The SYN-ACK again: the client may not have got it.
fn repeat(
    vip: std::net::SocketAddr,
    client: std::net::SocketAddr,
    syn: &Opening,
    syn_ack: &Opening,
) -> Segment<'static> {
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

/// A RST that the client will take: exactly at the next number that it expects (RFC 5961 §3.2).
fn reset_of(connection: &Connection) -> Segment<'static> {
    let endpoint = connection.endpoint();
    Segment {
        source: endpoint.vip,
        destination: endpoint.client,
        seq: endpoint.send_unacknowledged,
        ack: endpoint.receive_next,
        flags: Flags {
            ack: true,
            ..Flags::RST
        },
        window: 0,
        options: Options::default(),
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
        options: Options::default(),
        payload: &[],
    })
}

/// The segment that wakes a client whose retransmission timer has backed off: a duplicate acknowledgement
/// (KERNEL: a raw one with seq = SND.NXT works, a window probe does not).
pub fn wake(connection: &Connection, now: Instant) -> Segment<'static> {
    let endpoint = connection.endpoint();
    let shift = endpoint.window_scale.map_or(0, |(_, ours)| ours);
    let sent = endpoint.unacknowledged.end.since(endpoint.unacknowledged.start);
    let window = endpoint.receive_window >> shift;
    Segment {
        source: endpoint.vip,
        destination: endpoint.client,
        seq: endpoint.send_unacknowledged + u32::try_from(sent).unwrap_or(0),
        ack: endpoint.receive_next,
        flags: Flags::ACK,
        window: u16::try_from(window).unwrap_or(u16::MAX),
        options: Options {
            timestamps: endpoint.timestamps.map(|clock| Timestamps {
                value: timestamp_at(clock.value, clock.at, now),
                echo: clock.echo,
            }),
            ..Options::default()
        },
        payload: &[],
    }
}

/// The server's timestamp clock, continued to `now`: it must never fall behind what the client has seen, or PAWS drops
/// everything (RFC 7323 §5). It ticks in milliseconds; bit 0 is kept clear, since for Linux's TCP_TIMESTAMP it
/// means another unit.
#[allow(clippy::cast_possible_truncation)] // the clock wraps
pub fn timestamp_at(value: u32, seen: Instant, now: Instant) -> u32 {
    let elapsed = now.since(seen) + TICK;
    (value.wrapping_add(elapsed.as_millis() as u32) + 1) & !1
}

const TICK: Duration = Duration::from_millis(1);
