//! A takeover, step by step (DESIGN.md §3, "The primary dies").
//!
//! ```text
//!   declared ─▶ gate closed ─▶ log drained ─▶ for each connection, the busy ones first, mere handshakes last:
//!                                               restore ─▶ make ready ─▶ drain ─▶ activate ─▶ hand over
//!                                             ─▶ all decided: speech allowed, one RST to each that is lost
//! ```
//!
//! When only some connections have lost their server's process, the same is done for them alone: the gate is closed for each of them
//! ([`Action::Hold`]), and for the others the node goes on being the wire.
//!
//! *Make ready, then drain*: from the moment a socket is ready, the wire passes packets to it; what the wire logged before
//! is found by the drain. So every byte reaches the socket exactly by one of the two ways.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use crate::action::{Action, Report, ServiceIndex};
use crate::connection::{Connection, Endpoint, Opening};
use crate::follower::Policy;
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

/// So many connections go on before the wire is told which ones are being decided. Until then nobody's SYN passes, so it may be
/// told late; with ten thousand of them it takes milliseconds.
const BEFORE_HOLD: usize = 64;

/// For each connection on which a client waits, the others wait so long, but never longer than [`HEAD_START_MAX`]: the keeper and the
/// application need the CPUs for its answer, and nobody needs the others.
const HEAD_START_EACH: Duration = Duration::from_micros(250);
/// See [`HEAD_START_EACH`].
const HEAD_START_MAX: Duration = Duration::from_millis(150);

/// What is taken over.
#[derive(Debug)]
enum Scope {
    /// The service.
    Service,
    /// The connections of these clients.
    Clients(Vec<SocketAddr>),
}

/// A takeover under way.
#[derive(Debug)]
pub(crate) struct Takeover {
    scope: Scope,
    declared: Instant,
    drained: Option<Instant>,
    undecided: BTreeSet<ConnectionId>,
    /// Those of them whose steps are not planned yet.
    unplanned: BTreeSet<ConnectionId>,
    /// Of these, who waits for something, in order; and who has been planned meanwhile.
    hurried: VecDeque<ConnectionId>,
    /// The others, likewise.
    unhurried: VecDeque<ConnectionId>,
    /// Until then these wait.
    rest_from: Option<Instant>,
    /// Connections whose client may not have got the SYN-ACK, with that.
    half_open: BTreeMap<ConnectionId, Vec<u8>>,
    connections: usize,
    reset: usize,
    live: Vec<(ConnectionId, Instant)>,
    refusals: Vec<Vec<u8>>,
}

impl Takeover {
    /// The gate is closed: asks for the log.
    pub(crate) fn begin(now: Instant, service: ServiceIndex, actions: &mut VecDeque<Action>) -> Self {
        actions.push_back(Action::Drain { service });
        Self::declared(now, Scope::Service)
    }

    /// The same for the connections of `clients`.
    pub(crate) fn begin_for(
        now: Instant,
        service: ServiceIndex,
        clients: Vec<SocketAddr>,
        actions: &mut VecDeque<Action>,
    ) -> Self {
        actions.push_back(Action::Hold {
            service,
            clients: clients.clone(),
        });
        actions.push_back(Action::Drain { service });
        Self::declared(now, Scope::Clients(clients))
    }

    fn declared(now: Instant, scope: Scope) -> Self {
        Self {
            scope,
            declared: now,
            drained: None,
            undecided: BTreeSet::new(),
            unplanned: BTreeSet::new(),
            hurried: VecDeque::new(),
            unhurried: VecDeque::new(),
            rest_from: None,
            half_open: BTreeMap::new(),
            connections: 0,
            reset: 0,
            live: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// After the first drain, everything is known: puts the connections in order and plans the steps of the first ones.
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
        let mut connections: Vec<ConnectionId> = match &self.scope {
            Scope::Service => {
                self.open_pending(service, table, actions);
                table.iter().map(|(id, _)| id).collect()
            }
            Scope::Clients(clients) => clients.iter().filter_map(|&client| table.find(client)).collect(),
        };
        // Who is known to be there comes first: of a flood, only handshakes are.
        connections.sort_by_cached_key(|id| {
            let is_busy = table.get(*id).is_some_and(Connection::is_busy);
            (self.half_open.contains_key(id), !is_busy, *id)
        });
        self.connections = connections.len();
        self.undecided = connections.iter().copied().collect();
        let hold = self.is_whole().then(|| {
            let clients = table.iter().map(|(_, connection)| connection.client()).collect();
            Action::Hold { service, clients }
        });
        for connection in connections {
            let entry = table.get_mut(connection).expect("in the table");
            entry.hold_input();
            match entry.restart() {
                Ok(_) => {
                    let is_hurried = entry.is_busy() && !self.half_open.contains_key(&connection);
                    let place = if is_hurried {
                        &mut self.hurried
                    } else {
                        &mut self.unhurried
                    };
                    place.push_back(connection);
                    self.unplanned.insert(connection);
                }
                Err(reason) => self.on_unrestorable(service, connection, table, reason, actions),
            }
        }
        let at_work = u32::try_from(self.hurried.len()).unwrap_or(u32::MAX);
        let head_start = HEAD_START_EACH.saturating_mul(at_work).min(HEAD_START_MAX);
        for _ in 0..BEFORE_HOLD {
            self.plan_next(service, actions);
        }
        self.rest_from = (at_work > 0).then(|| now + head_start);
        actions.extend(hold);
    }

    /// Plans the steps of the next connection; false if there is none. One at a time: the steps of ten thousand are megabytes, and
    /// the first of them would wait until the last is written down.
    pub(crate) fn plan_next(&mut self, service: ServiceIndex, actions: &mut VecDeque<Action>) -> bool {
        let mut next = || match self.hurried.pop_front() {
            None if self.rest_from.is_none() => self.unhurried.pop_front(),
            hurried => hurried,
        };
        let Some(connection) = std::iter::from_fn(&mut next).find(|id| self.unplanned.remove(id)) else {
            return false;
        };
        actions.extend([
            Action::Restore { service, connection },
            Action::MakeReady { service, connection },
            Action::Drain { service },
            Action::Activate { service, connection },
            Action::HandOver { service, connection },
        ]);
        true
    }

    /// A client has said something on a connection: if that is not planned yet, it comes next.
    pub(crate) fn on_client(&mut self, connection: ConnectionId) {
        if self.unplanned.contains(&connection) {
            self.hurried.push_back(connection);
        }
    }

    /// When those on which nobody waits are to be taken over, if that is still to come.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.rest_from
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.rest_from = self.rest_from.filter(|&from| now < from);
    }

    /// Handshakes whose SYN-ACK may have reached the client are connections.
    fn open_pending(&mut self, service: ServiceIndex, table: &mut Table, actions: &mut VecDeque<Action>) {
        for (connection, client, syn, syn_ack) in table.open_pending() {
            let syn_ack = repeat(table.config().vip, client, &syn, &syn_ack).emit();
            self.half_open.insert(connection, syn_ack);
            if table.config().policy == Policy::Replica {
                actions.push_back(Action::OpenReplica {
                    service,
                    connection,
                    client,
                });
            }
        }
    }

    /// Whether the service as a whole is taken over.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.scope, Scope::Service)
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
        // A client that may still be waiting for the SYN-ACK is not refused: it asks again.
        if entry.has_heard_client() || !self.half_open.contains_key(&connection) {
            self.refusals.push(reset_of(&entry).emit());
        }
        self.reset += 1;
        self.undecided.remove(&connection);
        let client = entry.client();
        actions.push_back(Action::Report(Report::Unrestorable {
            service,
            client,
            reason,
        }));
    }

    /// The connection is the relay's, or ended by itself.
    pub(crate) fn on_decided(&mut self, connection: ConnectionId) {
        self.undecided.remove(&connection);
    }

    /// The SYN-ACK to be repeated for a connection that is the relay's now, if its client was not heard of since.
    pub(crate) fn half_open(&mut self, id: ConnectionId, connection: &Connection) -> Option<Vec<u8>> {
        let syn_ack = self.half_open.remove(&id)?;
        (!connection.has_heard_client()).then_some(syn_ack)
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.drained.is_some() && self.undecided.is_empty()
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

/// What is said for connections that have no socket to repeat it: SYN-ACKs, and RSTs.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Vec<Repeat>);

#[derive(Debug)]
struct Repeat {
    packet: Vec<u8>,
    due: Instant,
    wait: Duration,
    left: u32,
}

/// As Linux does with a SYN-ACK: after a second, then twice as long each time, five times (`tcp_synack_retries`).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const REPEATS: u32 = 5;

impl Repeats {
    /// Says it now, and again later.
    pub(crate) fn add(&mut self, now: Instant, packet: Vec<u8>, actions: &mut VecDeque<Action>) {
        actions.push_back(Action::Transmit(packet.clone()));
        self.0.push(Repeat {
            packet,
            due: now + FIRST_WAIT,
            wait: FIRST_WAIT,
            left: REPEATS,
        });
    }

    /// Says again what is due.
    pub(crate) fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<Action>) {
        self.0.retain_mut(|repeat| {
            if now >= repeat.due {
                actions.push_back(Action::Transmit(repeat.packet.clone()));
                repeat.wait *= 2;
                repeat.due = now + repeat.wait;
                repeat.left -= 1;
            }
            repeat.left > 0
        });
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|repeat| repeat.due).min()
    }
}

/// A RST at the end of all that the client may have. If it has less, it answers with the number that it expects, and that
/// is refused (RFC 5961 §3.2); a RST behind what it has, it would ignore.
fn reset_of(connection: &Connection) -> Segment<'static> {
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

/// Segments that a sender begins with (RFC 6928).
const FIRST: usize = 10;
/// Bytes that the timestamps option takes of each segment, with its padding (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;

/// The packets that wake a client.
///
/// First a duplicate acknowledgement, for one whose retransmission timer has backed off (KERNEL: a raw one with seq = SND.NXT works, a
/// window probe does not). It promises what the old primary did, or the `offered` bytes of the restored socket, if that is more: a window
/// that was closed is not opened by anyone else.
///
/// Then the first of the output that the client has not acknowledged: what was on its way when the primary died is lost, and the
/// restored socket, which has no estimate of the path yet, would wait for its first timeout. A client that has these bytes drops them.
pub fn wake(connection: &Connection, offered: u32, now: Instant) -> Vec<Vec<u8>> {
    let endpoint = connection.endpoint();
    let acknowledgement = acknowledgement(&endpoint, offered, now);
    let options = endpoint.timestamps.map_or(0, |_| TIMESTAMPS);
    let size = usize::from(endpoint.mss).saturating_sub(options).max(1);
    let Range { start, end } = endpoint.unacknowledged;
    let first = start..end.min(start + (FIRST * size) as u64);
    let bytes: Vec<u8> = connection.output().slices(first).flatten().copied().collect();
    let mut seq = endpoint.send_unacknowledged;
    let segments = bytes.chunks(size).map(|payload| {
        let segment = Segment {
            seq,
            payload,
            ..acknowledgement
        };
        seq = seq + u32::try_from(payload.len()).unwrap_or(0);
        segment.emit()
    });
    std::iter::once(acknowledgement.emit()).chain(segments).collect()
}

fn acknowledgement(endpoint: &Endpoint, offered: u32, now: Instant) -> Segment<'static> {
    let shift = endpoint.window_scale.map_or(0, |(_, ours)| ours);
    let sent = endpoint.unacknowledged.end.since(endpoint.unacknowledged.start);
    let edge = endpoint.receive_window_from + endpoint.receive_window;
    let left = u32::try_from(edge.distance_from(endpoint.receive_next)).unwrap_or(0);
    let window = left.div_ceil(1 << shift).max(offered >> shift);
    Segment {
        source: endpoint.vip,
        destination: endpoint.client,
        seq: endpoint.send_unacknowledged + u32::try_from(sent).unwrap_or(0),
        ack: endpoint.receive_next,
        flags: Flags::ACK,
        window: u16::try_from(window).unwrap_or(u16::MAX),
        options: Options {
            timestamps: endpoint.timestamps.map(|clock| Timestamps {
                value: clock_at(clock.value, clock.at, now),
                echo: clock.echo,
            }),
            ..Options::default()
        },
        payload: &[],
    }
}

/// What the server's timestamp clock shows at `now`, at the least, if it showed `value` when a segment was `seen`. It must
/// never fall behind what the client has seen, or PAWS drops everything (RFC 7323 §5). It ticks in milliseconds, at the
/// same moments as a socket's clock, so that the two never drift apart.
#[allow(clippy::cast_possible_truncation)] // the clock wraps
pub(crate) fn clock_at(value: u32, seen: Instant, now: Instant) -> u32 {
    let ticks = |at: Instant| at.as_nanos() / 1_000_000;
    value
        .wrapping_add(ticks(now).wrapping_sub(ticks(seen)) as u32)
        .wrapping_add(1)
}

/// The same for a socket that is made at `now`: never behind [`wake`], at most one tick ahead. Bit 0 is kept clear, since
/// for Linux's TCP_TIMESTAMP it means another unit.
pub fn timestamp_at(value: u32, seen: Instant, now: Instant) -> u32 {
    clock_at(value, seen, now).wrapping_add(1) & !1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::AtLimit;
    use crate::packet::Checksum;
    use crate::restart::http::Reexecute;
    use crate::table::{Change, Direction, PENDING_MAX, TableConfig};

    const VIP: ([u8; 4], u16) = ([10, 0, 0, 100], 80);

    fn table() -> Table {
        Table::new(TableConfig {
            vip: VIP.into(),
            policy: Policy::Http,
            reexecute: Reexecute::default(),
            opaque: None,
            connection_bytes_max: 1 << 20,
            bytes_max: 1 << 30,
            at_limit: AtLimit::Unprotect,
            hash_seed: 1,
        })
    }

    /// The client of a port; the clients' sequence numbers begin at 0, the server's at 1000.
    fn say(table: &mut Table, port: u16, direction: Direction, flags: Flags) -> Change {
        let client: SocketAddr = ([10, 0, 0, 1], port).into();
        let opening = u32::from(!flags.syn);
        let (source, destination, seq, ack) = match direction {
            Direction::In => (client, VIP.into(), opening, 1001),
            Direction::Out => (VIP.into(), client, 1000 + opening, 1),
        };
        let segment = Segment {
            source,
            destination,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 1000,
            options: Options::default(),
            payload: &[],
        };
        table.on_packet(Instant::from_nanos(0), direction, &segment, None)
    }

    fn begin_handshake(table: &mut Table, port: u16) {
        say(table, port, Direction::In, Flags::SYN);
        say(table, port, Direction::Out, Flags::SYN_ACK);
    }

    fn open(table: &mut Table, port: u16) -> ConnectionId {
        begin_handshake(table, port);
        match say(table, port, Direction::In, Flags::ACK) {
            Change::Opened(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// What the log does not keep, the client has all the same.
    #[test]
    fn a_connection_whose_output_was_too_much_is_reset_where_its_client_is() {
        let config = TableConfig {
            connection_bytes_max: 3000,
            ..table().config().clone()
        };
        let mut table = Table::new(config);
        open(&mut table, 1);
        for seq in (1001..20_001).step_by(1000) {
            let segment = Segment {
                source: VIP.into(),
                destination: ([10, 0, 0, 1], 1).into(),
                seq: Seq(seq),
                ack: Seq(1),
                flags: Flags::ACK,
                window: 1000,
                options: Options::default(),
                payload: &[7; 1000],
            };
            table.on_packet(Instant::from_nanos(0), Direction::Out, &segment, None);
        }
        let (now, mut actions) = (Instant::from_nanos(1), VecDeque::new());
        let mut takeover = Takeover::begin(now, 0, &mut actions);
        takeover.on_drained(now, 0, &mut table, &mut actions);
        let refusals: Vec<_> = takeover.into_refusals().collect();
        let reset = Segment::parse(&refusals[0], Checksum::Trusted).expect("a packet");
        assert!(reset.flags.rst);
        assert_eq!(reset.seq, Seq(20_001));
    }

    /// Also one that just listens, and whose place in the table is behind those that others have left.
    #[test]
    fn a_connection_is_restored_before_the_handshakes_of_a_flood() {
        let mut table = table();
        let left: Vec<_> = (1..=20).map(|port| open(&mut table, port)).collect();
        let idle = open(&mut table, 21);
        for id in left {
            table.remove(id);
        }
        let flood = 2 * u16::try_from(PENDING_MAX).expect("small");
        (100..100 + flood).for_each(|port| begin_handshake(&mut table, port));

        let (now, mut actions) = (Instant::from_nanos(1), VecDeque::new());
        let mut takeover = Takeover::begin(now, 0, &mut actions);
        takeover.on_drained(now, 0, &mut table, &mut actions);
        while takeover.plan_next(0, &mut actions) {}
        let restored = restored(&actions);
        assert_eq!(restored.len(), 1 + PENDING_MAX);
        assert_eq!(restored[0], idle);
    }

    /// Not the last of thousands: until then nobody's SYN passes.
    #[test]
    fn the_wire_is_told_who_is_held_before_the_rest_is_planned() {
        let mut table = table();
        let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
        let (now, mut actions) = (Instant::from_nanos(1), VecDeque::new());
        let mut takeover = Takeover::begin(now, 0, &mut actions);
        takeover.on_drained(now, 0, &mut table, &mut actions);
        assert!(matches!(actions.back(), Some(Action::Hold { clients, .. }) if clients.len() == 100));
        assert_eq!(restored(&actions), opened[..BEFORE_HOLD]);
        while takeover.plan_next(0, &mut actions) {}
        assert_eq!(restored(&actions), opened);
    }

    /// Who owes nothing waits, until it says something.
    #[test]
    fn a_client_that_speaks_comes_next() {
        let mut table = table();
        let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
        let (now, mut actions) = (Instant::from_nanos(1), VecDeque::new());
        let mut takeover = Takeover::begin(now, 0, &mut actions);
        takeover.on_drained(now, 0, &mut table, &mut actions);
        actions.clear();
        for who in [opened[98], opened[98], opened[3]] {
            takeover.on_client(who);
        }
        while takeover.plan_next(0, &mut actions) {}
        let next = restored(&actions);
        assert_eq!(next[..2], [opened[98], opened[BEFORE_HOLD]]);
        assert_eq!(next.len(), 100 - BEFORE_HOLD);
    }

    /// Its answer needs the CPUs.
    #[test]
    fn who_waits_has_a_head_start() {
        let mut table = table();
        let opened: Vec<_> = (1..=200).map(|port| open(&mut table, port)).collect();
        let (now, mut actions) = (Instant::from_nanos(1), VecDeque::new());
        let mut takeover = Takeover::begin(now, 0, &mut actions);
        takeover.on_drained(now, 0, &mut table, &mut actions);
        assert_eq!(takeover.poll_timeout(), None, "nobody waits");
        takeover.rest_from = Some(now + HEAD_START_EACH);
        takeover.on_client(opened[150]);
        assert!(takeover.plan_next(0, &mut actions), "who speaks does not wait");
        assert!(!takeover.plan_next(0, &mut actions));
        takeover.on_timeout(now);
        assert!(!takeover.plan_next(0, &mut actions));
        takeover.on_timeout(now + HEAD_START_EACH);
        while takeover.plan_next(0, &mut actions) {}
        assert_eq!(restored(&actions).len(), opened.len());
    }

    fn restored(actions: &VecDeque<Action>) -> Vec<ConnectionId> {
        let restored = actions.iter().filter_map(|action| match action {
            Action::Restore { connection, .. } => Some(*connection),
            _ => None,
        });
        restored.collect()
    }
}
