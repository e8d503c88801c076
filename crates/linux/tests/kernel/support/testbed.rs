//! A connection from a client through the wire to a primary that is about to lose its power.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;

use proto::Seq;
use proto::action::Gate;
use proto::packet::Segment;

use super::fields::assert_continued;
use super::frame::FrameTap;
use super::lan::{Family, Lan};
use super::log::LogThread;
use super::socket::tcp_info;
use super::takeover::{TakenOver, take_over};
use super::wire_on::{WireOn, options};
use super::{assert_same_stream, eventually};

/// The options that the client's kernel offers in its SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub timestamps: bool,
    pub sack: bool,
    pub scaling: bool,
}

impl Offer {
    pub const ALL: Self = Self {
        timestamps: true,
        sack: true,
        scaling: true,
    };
}

/// A connection from the client through the wire to the primary.
pub struct WireTestbed {
    pub lan: Lan,
    pub family: Family,
    pub wire: WireOn,
    pub reading: LogThread,
    pub listener: TcpListener,
    pub client: TcpStream,
    pub server: TcpStream,
    /// A tap where packets from the backup arrive.
    pub tap: FrameTap,
    /// TCP_INFO of the old server's socket when the power went off.
    old: OnceLock<libc::tcp_info>,
}

impl WireTestbed {
    pub fn new(test: &str, family: Family, offer: Offer) -> Option<Self> {
        let lan = Lan::new(test)?;
        for (name, on) in [
            ("timestamps", offer.timestamps),
            ("sack", offer.sack),
            ("window_scaling", offer.scaling),
        ] {
            lan.client
                .sysctl(&format!("ipv4/tcp_{name}"), if on { "1" } else { "0" });
        }
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let tap = FrameTap::on(&lan.client, "port2");
        let listener = lan.primary.listen(family.vip());
        let (client, server) = lan.client.connect_pair(&listener);
        Some(Self {
            lan,
            family,
            wire,
            reading,
            listener,
            client,
            server,
            tap,
            old: OnceLock::new(),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.client.local_addr().expect("connected")
    }

    /// Waits until every byte is acknowledged and the acknowledgements are in the log.
    #[track_caller]
    pub fn settle(&self) {
        eventually("all is acknowledged", || {
            let log = self.reading.now();
            let (_, connection) = log.connection(self.address());
            let endpoint = connection.endpoint();
            let (input, output) = (connection.input_acknowledged(), endpoint.unacknowledged);
            (input == endpoint.input_frontier && output.is_empty()).then_some(())
        });
    }

    /// Cuts the primary off, as a power failure would: no packet of it arrives any more. Then shuts the old server's socket down, so that
    /// threads that wait for it end.
    pub fn power_off(&self) {
        self.power_off_only();
        self.server.shutdown(Shutdown::Both).expect("shutdown");
    }

    /// As [`power_off`](Self::power_off), but does not shut the old server's socket down. For tests where no thread waits for it.
    pub fn power_off_only(&self) {
        let _ = self.old.set(tcp_info(&self.server)); // an error means that the power is off already
        self.lan.power_off_primary();
    }

    /// Continues the connection after the primary's end, and asserts that the new socket is like the old one.
    #[track_caller]
    pub fn take_over(&self) -> TakenOver {
        self.take_over_in(&[])
    }

    /// As [`take_over`](Self::take_over), but the fields `may_differ` of the two sockets may differ too.
    #[track_caller]
    pub fn take_over_in(&self, may_differ: &[&[&str]]) -> TakenOver {
        let taken = take_over(
            &self.lan.backup,
            &self.wire,
            &self.reading,
            self.address(),
            self.family,
        );
        let old = self.old.get().expect("the power is off");
        assert_continued(old, &tcp_info(&taken.socket), may_differ);
        taken
    }

    /// Drops the client's packets to the VIP from now on.
    pub fn gag_client(&self) {
        self.change_route("add");
    }

    pub fn ungag_client(&self) {
        self.change_route("del");
    }

    /// Undoes [`gag_client`](Self::gag_client), if `gagged`.
    pub fn ungag_client_if(&self, gagged: bool) {
        if gagged {
            self.ungag_client();
        }
    }

    fn change_route(&self, verb: &str) {
        let route = format!("route {verb} blackhole {}", self.family.vip().ip());
        match self.family {
            Family::V4 => self.lan.client.ip(&route),
            Family::V6 => self.lan.client.ip6(&route),
        }
    }

    /// Sets whether packets that the backup releases reach the client.
    pub fn deliver(&self, delivered: bool) {
        let last = if delivered { 1 } else { 99 };
        let client = self.family.address(1);
        let neighbour =
            format!("neigh replace {client} lladdr 02:00:00:00:00:{last:02x} dev eth0 nud permanent");
        self.lan.backup.ip(&neighbour);
    }

    /// Asserts that neither server has shrunk the window that it offers to the client. Exception: a kernel that has no
    /// memory for a segment closes the window (Linux 6.6), and counts this.
    #[track_caller]
    pub fn assert_window_kept(&mut self) {
        let (client, vip) = (self.address(), self.family.vip());
        let shift = self.shift();
        let mut view: Option<ClientWindow> = None;
        self.tap.take_segments(|segment| {
            if (segment.source, segment.destination) == (vip, client)
                && !segment.flags.syn
                && segment.flags.ack
            {
                match &mut view {
                    Some(view) => view.hear(segment, shift),
                    None => view = Some(ClientWindow::beginning_with(segment, shift)),
                }
            }
        });
        let view = view.expect("the client heard something");
        let hosts = [&self.lan.primary, &self.lan.backup];
        let wants: u64 = hosts.iter().map(|host| host.wants_of_memory()).sum();
        let (closed, pulled_back): (Vec<_>, Vec<_>) = view.pulled_back.iter().partition(|one| one.is_closed);
        assert!(
            pulled_back.is_empty() && closed.len() as u64 <= wants,
            "the kernels had no memory for {wants} segments: {pulled_back:?} {closed:?}"
        );
    }

    /// The server's window scale.
    fn shift(&self) -> u8 {
        let endpoint = self.reading.now().connection(self.address()).1.endpoint();
        endpoint.window_scale.map_or(0, |(_, ours)| ours)
    }
}

/// The window as a client knows it (RFC 9293 §3.10.7.4). Old segments and old acknowledgements do not change it.
struct ClientWindow {
    expected: Seq,
    acknowledged: Seq,
    edge: Seq,
    pulled_back: Vec<PulledBack>,
}

/// A window that became smaller than an earlier offer.
#[derive(Debug)]
#[expect(dead_code, reason = "for messages")]
struct PulledBack {
    from: Seq,
    to: Seq,
    is_closed: bool,
}

impl ClientWindow {
    fn edge_of(segment: &Segment<'_>, shift: u8) -> Seq {
        segment.ack + (u32::from(segment.window) << shift)
    }

    fn beginning_with(segment: &Segment<'_>, shift: u8) -> Self {
        Self {
            expected: segment.seq + segment.seq_len(),
            acknowledged: segment.ack,
            edge: Self::edge_of(segment, shift),
            pulled_back: Vec::new(),
        }
    }

    fn hear(&mut self, segment: &Segment<'_>, shift: u8) {
        let end = segment.seq + segment.seq_len();
        if end.distance_from(self.expected) < 0 || segment.ack.distance_from(self.acknowledged) < 0 {
            return;
        }
        (self.expected, self.acknowledged) = (end, segment.ack);
        let edge = Self::edge_of(segment, shift);
        if edge.distance_from(self.edge) < 0 {
            self.pulled_back.push(PulledBack {
                from: self.edge,
                to: edge,
                is_closed: segment.window == 0,
            });
        }
        self.edge = edge;
    }
}

/// Sends `bytes` from one end to the other and checks that they arrive.
#[track_caller]
pub fn say(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(move || from.write_all(bytes).expect("write"));
        to.read_exact(&mut received).expect("read");
    });
    assert_same_stream("said", &received, bytes);
}
