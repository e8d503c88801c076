//! The world of these tests: client – router – tap – server, and a spare host at the router.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proto::{Instant, Seq};
use steadfast_sim::exchange::{Close, Exchange, SeededStream};
use steadfast_sim::host::{App, EndpointId, Host, HostConfig};
use steadfast_sim::link::LinkConfig;
use steadfast_sim::router::{Pass, Router, Tap};
use steadfast_sim::tcp::{Initial, TcpConfig};
use steadfast_sim::world::{NodeId, Port, World};

pub const MS: Duration = Duration::from_millis(1);

pub fn at(duration: Duration) -> Instant {
    Instant::ZERO + duration
}

pub fn client_address() -> IpAddr {
    "10.1.0.2".parse().unwrap()
}

pub fn server_address() -> IpAddr {
    "10.2.0.100".parse().unwrap()
}

pub fn server_socket() -> SocketAddr {
    SocketAddr::new(server_address(), 80)
}

pub struct RoutedNetwork {
    pub world: World,
    pub client: NodeId,
    pub router: NodeId,
    pub server: NodeId,
    pub spare: NodeId,
    pub config: HostConfig,
    next_port: u16,
}

impl RoutedNetwork {
    /// `wan` lies between client and router; the rest is fast.
    pub fn new(seed: u64, wan: &LinkConfig, tcp: &TcpConfig, initial: Option<Initial>) -> Self {
        let mut world = World::new(seed);
        let config = |address| HostConfig {
            addresses: vec![address],
            tcp: tcp.clone(),
            initial,
        };
        let (client_seed, server_seed) = (world.random(), world.random());
        let client = Box::new(Host::new(config(client_address()), client_seed));
        let server = Box::new(Host::new(config(server_address()), server_seed));
        let spare = Box::new(Host::new(config(server_address()), 0));
        let mut routes = Router::new();
        routes.set_route(client_address(), Port(0));
        routes.set_route(server_address(), Port(1));
        let client = world.add("client", client);
        let router = world.add("router", Box::new(routes));
        let tap = world.add("tap", Box::new(Tap::new(|_, _, _| Pass::Forward)));
        let server = world.add("server", server);
        let spare = world.add("spare", spare);
        let lan = LinkConfig {
            rate_bits_per_s: Some(1_000_000_000),
            delay: Duration::from_micros(20),
            ..LinkConfig::default()
        };
        world.connect(client, router, wan).unwrap();
        world.connect(router, tap, &lan).unwrap();
        world.connect(tap, server, &lan).unwrap();
        world.connect(router, spare, &lan).unwrap();
        Self {
            world,
            client,
            router,
            server,
            spare,
            config: config(server_address()),
            next_port: 40_000,
        }
    }

    /// Every connection to the server gets an application made by `make`.
    pub fn serve<A: App>(&mut self, mut make: impl FnMut() -> A + 'static) {
        self.world.with(self.server, |host: &mut Host, _| {
            host.listen(80, move |_| Box::new(make()));
        });
    }

    /// Opens one more connection. Returns the client's endpoint, and the client's address and port.
    pub fn connect<A: App>(&mut self, app: A) -> (EndpointId, SocketAddr) {
        let local = SocketAddr::new(client_address(), self.next_port);
        self.next_port += 1;
        let id = self.world.with(self.client, |host: &mut Host, now| {
            host.connect(now, local, server_socket(), Box::new(app))
        });
        (id, local)
    }

    pub fn host(&self, node: NodeId) -> &Host {
        self.world.node(node)
    }

    /// The first endpoint of a host and its application.
    pub fn first<A: App>(&self, node: NodeId) -> (EndpointId, &A) {
        let (id, _) = self.host(node).endpoints().next().expect("an endpoint");
        (id, self.host(node).app(id).expect("this kind of application"))
    }

    /// From now on the router sends packets for the server's address to the spare host.
    pub fn switch_to_spare(&mut self) {
        self.world.with(self.router, |router: &mut Router, _| {
            router.set_route(server_address(), Port(2));
        });
    }
}

/// A link with a rate, a delay, losses, reordering and duplicates, drawn from `seed`. About one link in 200 has none of the last three.
pub fn rough_link(seed: u64) -> LinkConfig {
    let draw = |salt: u64, choices: u64| u64::from(SeededStream::new(seed, 0).byte(salt)) % choices;
    let chance = |salt, largest: f64| {
        let share = draw(salt, 6) as f64 / 5.0;
        largest * share
    };
    LinkConfig {
        rate_bits_per_s: [None, Some(10_000_000), Some(100_000_000)][usize::try_from(draw(1, 3)).unwrap()],
        delay: Duration::from_micros(100) * [1, 10, 100][usize::try_from(draw(2, 3)).unwrap()],
        queue_packets: (draw(3, 2) == 0).then_some(30),
        queue_bytes: None,
        loss: chance(4, 0.05),
        reorder: chance(5, 0.1),
        reorder_delay: 3 * MS,
        duplicate: chance(6, 0.05),
    }
}

/// Options of the endpoints, drawn from `seed`.
pub fn any_config(seed: u64) -> TcpConfig {
    let draw = |salt: u64| SeededStream::new(!seed, 0).byte(salt);
    TcpConfig {
        mss: [1460, 536, 1400][usize::from(draw(1) % 3)],
        window_scale: [None, Some(0), Some(4), Some(7)][usize::from(draw(2) % 4)],
        sack: draw(3).is_multiple_of(2),
        timestamps: draw(4).is_multiple_of(2),
        send_buffer: [4_000, 65_536, 500_000][usize::from(draw(5) % 3)],
        receive_buffer: [3_000, 65_535, 300_000][usize::from(draw(6) % 3)],
        ..TcpConfig::default()
    }
}

/// A sequence number that wraps after 20 kB, and a timestamp that wraps after 50 ticks.
pub fn wrapping() -> Initial {
    Initial {
        seq: Seq(u32::MAX - 20_000),
        timestamp: u32::MAX - 50,
    }
}

/// A client that sends `up` bytes and a server that sends `down`.
pub fn exchange(up: u64, down: u64, client: Close, server: Close) -> (Exchange, Exchange) {
    let (up, down) = (SeededStream::new(1, up), SeededStream::new(2, down));
    (Exchange::new(up, down, client), Exchange::new(down, up, server))
}
