//! Connections that are older than the log. The primary's kernel tells the terms of their handshakes. Once a connection is learnt, it
//! can be continued as if it had been logged from its beginning.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use proto::action::Gate;
use proto::census::Terms;
use proto::census::{CensusPage, PAGE_MAX};
use proto::connection::{AtLimit, Connection, Endpoint};
use proto::follower::RestartPolicy;
use proto::packet::Segment;
use proto::restart::http::Rules;
use proto::stream::{OnShelf, Shelf};
use proto::table::{Direction, Table, TableConfig};
use proto::{Instant, takeover};
use socket2::{Domain, Socket, Type};
use steadfast_linux::clock;
use steadfast_linux::network::sockets;
use steadfast_linux::raw::RawSender;
use steadfast_linux::repair::{Pool, RestoredSocket, offered_window};
use steadfast_linux::wire::{self, Record, Rings, checksum_of};

use crate::support::lan::{Family, Lan, LanHost, accept, patient};
use crate::support::log::LogThread;
use crate::support::socket::{set_tcp, tcp_info};
use crate::support::testbed::{Offer, say};
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually, stream};

fn offer(client: &LanHost, offer: Offer) {
    for (name, on) in [
        ("timestamps", offer.timestamps),
        ("sack", offer.sack),
        ("window_scaling", offer.scaling),
    ] {
        client.sysctl(&format!("ipv4/tcp_{name}"), if on { "1" } else { "0" });
    }
    client.sysctl("ipv4/tcp_rmem", "4096 16384 200000"); // another window scale than the server's
}

fn offers() -> impl Iterator<Item = Offer> {
    (0..8).map(|bits| Offer {
        timestamps: bits & 1 != 0,
        sack: bits & 2 != 0,
        scaling: bits & 4 != 0,
    })
}

fn terms(lan: &Lan, family: Family, client: SocketAddr) -> Option<Terms> {
    let told = lan.primary.run(|| sockets::terms(family.vip(), &[client]));
    let told = told.expect("the kernel answers");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, client);
    told[0].1
}

fn open(lan: &Lan, family: Family) -> Vec<(SocketAddr, Terms)> {
    let open = lan.primary.run(|| sockets::open_behind(family.vip(), None));
    open.expect("the kernel answers")
}

/// The terms that a log knows after it has seen the handshake.
fn agreed(endpoint: &Endpoint) -> Terms {
    Terms {
        mss: endpoint.mss,
        window_scale: endpoint.window_scale,
        sack: endpoint.sack,
        timestamps: endpoint.timestamps.is_some(),
        microseconds: false,
    }
}

#[test]
fn the_kernel_tells_what_the_handshake_agreed_on() {
    let Some(lan) = Lan::new("the_kernel_tells_what_the_handshake_agreed_on") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    for family in Family::BOTH {
        let listener = lan.primary.listen(family.vip());
        for offered in offers() {
            offer(&lan.client, offered);
            let (client, server) = lan.client.connect_pair(&listener);
            let address = client.local_addr().expect("connected");
            (&client).write_all(b"x").expect("write");
            (&server).read_exact(&mut [0]).expect("read");
            let logged = agreed(&reading.now().connection(address).1.endpoint());
            assert!(logged.window_scale.is_none_or(|(theirs, ours)| theirs != ours));
            assert_eq!(
                terms(&lan, family, address),
                Some(logged),
                "{family:?} {offered:?}"
            );
            let mut other = address;
            other.set_port(address.port() ^ 1);
            assert_eq!(terms(&lan, family, other), None, "only a listener is there");
        }
        drop(listener);
        assert_eq!(terms(&lan, family, (family.address(1), 9).into()), None);
    }
}

#[test]
fn a_socket_for_both_families_is_found_by_an_ipv4_client() {
    let Some(lan) = Lan::new("a_socket_for_both_families_is_found_by_an_ipv4_client") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.run(|| TcpListener::bind("[::]:80").expect("listen"));
    let client = lan
        .client
        .run(|| TcpStream::connect(Family::V4.vip()).expect("connect"));
    patient(&client);
    let server = accept(&listener);
    let address = client.local_addr().expect("connected");
    (&client).write_all(b"x").expect("write");
    (&server).read_exact(&mut [0]).expect("read");
    let logged = agreed(&reading.now().connection(address).1.endpoint());
    assert_eq!(terms(&lan, Family::V4, address), Some(logged));
    assert_eq!(open(&lan, Family::V4), [(address, logged)]);
}

/// The state of an agent that was started after the connections began.
struct LateAgent<'a> {
    lan: &'a Lan,
    wire: &'a WireOn,
    rings: Rings,
    family: Family,
    table: Table,
}

/// Passes the records of one service to its table.
struct TableReader<'a>(u16, &'a mut Table);

impl wire::RecordReader for TableReader<'_> {
    fn record(&mut self, record: &Record, packet: &[u8], source: OnShelf<'_>) {
        if record.service != self.0 {
            return;
        }
        let direction = match record.direction {
            0 => Direction::In,
            _ => Direction::Out,
        };
        let segment = Segment::parse(packet, checksum_of(record)).expect("a segment");
        let payload_at = (segment.payload.as_ptr() as usize).wrapping_sub(packet.as_ptr() as usize);
        let source = Some(source).filter(|_| payload_at < packet.len());
        let source = source.map(|source| source.skip(payload_at));
        let now = Instant::from_nanos(record.time_ns);
        self.1.on_packet(now, direction, &segment, source);
    }

    fn keep(&mut self, shelf: &dyn Shelf) {
        self.1.keep(shelf);
    }
}

impl<'a> LateAgent<'a> {
    fn new(lan: &'a Lan, wire: &'a WireOn, family: Family) -> Self {
        let empty = || {
            let mut table = Table::new(TableConfig {
                vip: family.vip(),
                policy: RestartPolicy::Http,
                rules: Rules::default(),
                opaque: None,
                connection_bytes_max: 1 << 24,
                bytes_max: 1 << 30,
                at_limit: AtLimit::Unprotect,
                sends_directly: false,
                is_immediate: false,
                keep_input: false,
                hash_seed: 1,
            });
            table.set_wire(true);
            table
        };
        let mut late = Self {
            lan,
            wire,
            rings: wire.rings().expect("rings"),
            family,
            table: empty(),
        };
        late.read();
        late.table = empty(); // what came before is lost
        late.table.begin_census(clock::now());
        late
    }

    fn read(&mut self) {
        let mut reader = TableReader(self.family.service(), &mut self.table);
        self.rings.drain(usize::MAX, true, &mut reader);
    }

    /// Reads the log, and asks the primary the table's pending questions.
    fn catch_up(&mut self) {
        self.catch_up_at(clock::now());
    }

    fn catch_up_at(&mut self, now: Instant) {
        self.read();
        self.table.prove(now);
        let vip = self.family.vip();
        if let Some(clients) = self.table.poll_question(now) {
            let told = self.lan.primary.run(|| sockets::terms(vip, &clients));
            told.expect("the kernel answers")
                .into_iter()
                .for_each(|told| self.table.on_told(told));
        }
    }

    /// Asks the primary for its open connections. Returns the number of pages.
    fn count(&mut self) -> usize {
        let mut pages = 0;
        while let Some(query) = self.table.poll_census(clock::now()) {
            let vip = self.family.vip();
            let behind = self.lan.primary.run(|| sockets::open_behind(vip, query.after));
            let mut connections = behind.expect("the kernel answers");
            let is_last = connections.len() <= PAGE_MAX;
            connections.truncate(PAGE_MAX);
            self.read();
            self.table.on_page(CensusPage {
                query,
                connections,
                is_last,
            });
            pages += 1;
        }
        pages
    }

    fn older(&self) -> Vec<SocketAddr> {
        let mut older: Vec<_> = self.table.older(clock::now()).map(|(client, _)| client).collect();
        older.sort_unstable();
        older
    }

    fn connection(&self, client: SocketAddr) -> Option<&Connection> {
        self.table.find(client).and_then(|id| self.table.get(id))
    }

    fn is_protected(&self, client: SocketAddr) -> bool {
        self.connection(client)
            .is_some_and(|connection| connection.restart().is_ok())
    }

    /// Takes over a connection that owes the client output.
    fn take_over(&mut self, client: SocketAddr) -> TcpStream {
        let backup = &self.lan.backup;
        let mut pool = Pool::new(self.family.vip());
        backup.run(|| pool.fill(1, 1)).expect("a socket");
        let raw = backup.run(RawSender::open).expect("raw sockets");
        self.wire.set_gates(Gate::Takeover);
        self.catch_up();
        assert!(self.is_protected(client));
        let connection = self.connection(client).expect("protected");
        let endpoint = connection.endpoint();
        let unacknowledged = connection.output().slices(endpoint.unacknowledged.clone());
        let restored = RestoredSocket::new(&mut pool, &endpoint, unacknowledged).expect("restore");
        restored.make_ready().expect("make ready");
        let socket = TcpStream::from(restored.activate(false).expect("activate"));
        let offered = offered_window(&socket).expect("a window");
        let wake = takeover::wake(connection, offered, clock::now());
        wake.iter().for_each(|packet| raw.send(packet).expect("wake"));
        socket.set_nonblocking(false).expect("blocking");
        patient(&socket);
        socket
    }
}

/// Number of silent connections: more than fit on two pages.
const SILENT: usize = 2 * PAGE_MAX + 5;

fn addresses(pairs: &[(TcpStream, TcpStream)]) -> Vec<SocketAddr> {
    let address = |(client, _): &(TcpStream, TcpStream)| client.local_addr().expect("connected");
    let mut addresses: Vec<_> = pairs.iter().map(address).collect();
    addresses.sort_unstable();
    addresses
}

/// Ends a socket without sending a packet.
fn vanish(socket: TcpStream) {
    set_tcp(&socket, libc::TCP_REPAIR, 1);
}

#[test]
fn the_silent_are_found_and_who_vanishes_is_shown_no_more() {
    let Some(lan) = Lan::new("the_silent_are_found_and_who_vanishes_is_shown_no_more") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    for family in Family::BOTH {
        let listener = lan.primary.listen(family.vip());
        let pairs: Vec<_> = (0..SILENT).map(|_| lan.client.connect_pair(&listener)).collect();
        say(&pairs[0].0, &pairs[0].1, &stream(1, 1000));
        pairs[1].0.shutdown(Shutdown::Write).expect("shutdown");
        pairs[2].1.shutdown(Shutdown::Write).expect("shutdown");
        eventually("both are half closed", || {
            let states = [&pairs[1].1, &pairs[2].1].map(|server| tcp_info(server).tcpi_state);
            (states == [8, 5]).then_some(()) // CLOSE-WAIT, FIN-WAIT-2
        });

        let mut late = LateAgent::new(&lan, &wire, family);
        assert!(!late.table.is_census_complete());
        let new = lan.client.connect_pair(&listener);
        assert_eq!(late.count(), SILENT.div_ceil(PAGE_MAX));
        assert!(late.table.is_census_complete());
        assert_eq!(late.older(), addresses(&pairs), "{family:?}");
        assert!(late.connection(new.0.local_addr().expect("connected")).is_some());

        // The terms of the listed connections are known.
        let (client, server) = &pairs[3];
        let address = client.local_addr().expect("connected");
        say(client, server, b"GET / HTTP/1.1\r\n\r\n");
        say(server, client, b"HTTP/1.1 204 No\r\n\r\n");
        late.read();
        assert!(late.connection(address).is_some(), "it is learnt");
        assert_eq!(late.table.poll_question(clock::now()), None);

        // One connection ends without a packet, and one is replaced by a new connection of the same client.
        let mut pairs = pairs;
        pairs.remove(3);
        let port = pairs[11].0.local_addr().expect("connected");
        for (client, server) in pairs.drain(10..12) {
            vanish(client);
            vanish(server);
        }
        let again = eventually("the address is free", || {
            lan.client.run(|| connect_from(port, family.vip()))
        });
        let _server = accept(&listener);
        let later = clock::now() + Duration::from_secs(3);
        for step in 0..10 {
            late.catch_up_at(later + step * Duration::from_millis(50));
        }
        assert_eq!(late.older(), addresses(&pairs), "{family:?}");
        assert!(late.connection(port).is_some(), "it is known");
        drop(again);
    }
}

/// A connection from exactly this address. `None` while the previous socket is still open in a process that another
/// test has just forked.
fn connect_from(from: SocketAddr, to: SocketAddr) -> Option<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("SO_REUSEADDR");
    socket.bind(&from.into()).expect("bind");
    match socket.connect(&to.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => return None,
        outcome => outcome.expect("connect"),
    }
    Some(socket.into())
}

/// The socket's window scales, and its flags for timestamps and SACK.
fn in_use(socket: &TcpStream) -> (u8, u8) {
    let info = tcp_info(socket);
    (info.tcpi_snd_rcv_wscale, info.tcpi_options & 3)
}

#[test]
fn what_was_learnt_goes_on() {
    for family in Family::BOTH {
        for offered in offers() {
            let Some(lan) = Lan::new("what_was_learnt_goes_on") else {
                return;
            };
            offer(&lan.client, offered);
            let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
            let listener = lan.primary.listen(family.vip());
            let (client, server) = lan.client.connect_pair(&listener);
            let address = client.local_addr().expect("connected");
            say(&client, &server, &stream(1, 100_000));
            say(&server, &client, &stream(2, 100_000));

            let mut late = LateAgent::new(&lan, &wire, family);
            say(&client, &server, b"GET /1 HTTP/1.1\r\n\r\n");
            late.catch_up();
            say(
                &server,
                &client,
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK",
            );
            late.catch_up();
            assert!(!late.is_protected(address));
            let body = stream(3, 1 << 20);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let reply = [head.as_bytes(), &body].concat();
            say(&client, &server, b"GET /2 HTTP/1.1\r\n\r\n");
            say(&server, &client, &reply[..300_000]);
            eventually("the connection is learnt", || {
                late.catch_up();
                late.is_protected(address).then_some(())
            });

            let before = in_use(&server);
            lan.power_off_primary();
            server.shutdown(Shutdown::Both).expect("shutdown");
            let survivor = late.take_over(address);
            assert_eq!(in_use(&survivor), before, "{family:?} {offered:?}");
            let mut received = vec![0; reply.len() - 300_000];
            std::thread::scope(|scope| {
                let rest = &reply[300_000..];
                scope.spawn(|| (&survivor).write_all(rest).expect("the rest of the reply"));
                (&client)
                    .read_exact(&mut received)
                    .expect("the rest of the reply");
            });
            assert_same_stream("the reply", &received, &reply[300_000..]);
            say(&client, &survivor, &stream(4, 500_000));
        }
    }
}
