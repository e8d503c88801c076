//! Two hosts with two cables between them. Each host has one end of an SCTP association.
//!
//! ```text
//!   near   10.1.0.1, fd01::1 ───── p0 ───── 10.1.0.2, fd01::2   far
//!          10.2.0.1, fd02::1 ───── p1 ───── 10.2.0.2, fd02::2
//! ```

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use proto::sctp::association::{Association, AssociationEvent, CloseReason};
use proto::sctp::endpoint::AssociationId;
use proto::sctp::{SctpConfig, SctpMessage, UserData};
use steadfast_linux::clock;
use steadfast_linux::sctp::{SctpWire, WirePlan};

use super::PATIENCE;
use super::lan::{Family, LanHost, is_root};

/// SCTP port of all ends.
pub const PORT: u16 = 5000;
/// UDP port of the ends. Ends with port 0 use raw IP, without UDP.
pub const UDP_PORT: u16 = 9899;
/// Bytes of a message.
pub const MESSAGE: usize = 16_000;

/// Byte `at` of the stream that every end sends.
pub fn pattern(at: u64) -> u8 {
    (at * 7 + at / 251) as u8
}

/// The two hosts.
pub struct TwoCables {
    pub near: LanHost,
    pub far: LanHost,
}

impl TwoCables {
    /// Connects the hosts. `None`, with a message, if that is not possible on this machine.
    pub fn new(test: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let (near, far) = (LanHost::new(1), LanHost::new(2));
        near.ip(&format!(
            "link add p0 type veth peer name p0 netns {far}\nlink add p1 type veth peer name p1 netns {far}",
            far = far.path()
        ));
        for (host, last) in [(&near, 1), (&far, 2)] {
            host.ip(&format!(
                "link set lo up\nlink set p0 up\nlink set p1 up
                 addr add 10.1.0.{last}/24 dev p0\naddr add 10.2.0.{last}/24 dev p1
                 addr add fd01::{last}/64 dev p0 nodad\naddr add fd02::{last}/64 dev p1 nodad"
            ));
        }
        near.wait_for_addresses();
        far.wait_for_addresses();
        Some(Self { near, far })
    }

    /// Disables UDP segmentation offload, so that a rule judges each packet and not a batch.
    fn cut_batches_early(&self) {
        for host in [&self.near, &self.far] {
            for device in ["p0", "p1"] {
                let words = ["-K", device, "tx-udp-segmentation", "off"];
                let done = host.run(|| Command::new("ethtool").args(words).output());
                assert!(
                    done.expect("ethtool").status.success(),
                    "{device}: segmentation off"
                );
            }
        }
    }

    /// Drops each UDP packet with a probability of 1 %, in both directions.
    pub fn lose_one_percent(&self) {
        self.cut_batches_early();
        let rules = "table inet loss { chain in { type filter hook input priority 0\n\
                     meta l4proto udp numgen random mod 100 == 0 counter drop\n}\n}\n";
        for host in [&self.near, &self.far] {
            host.run(|| nft(rules));
        }
    }

    /// From now on, packets above 1400 bytes do not reach the far host, and nobody is told: a black hole (RFC 8899 §4.3). IPv4 packets that
    /// may be fragmented do arrive, because a router would fragment them.
    pub fn swallow_large_packets(&self) {
        self.cut_batches_early();
        let rules = "table inet hole { chain in { type filter hook prerouting priority -450\n\
                     ip frag-off & 0x4000 != 0 meta length > 1400 counter drop\n\
                     meta protocol ip6 meta length > 1400 counter drop\n\
                     }\n}\n";
        self.far.run(|| nft(rules));
    }

    /// Number of packets that the rules of a table (`loss`, `cut` or `hole`) have dropped at `host` so far.
    pub fn dropped(host: &LanHost, table: &str) -> u64 {
        let words = ["list", "table", "inet", table];
        let listed = host.run(|| Command::new("nft").args(words).output().expect("nft"));
        let text = String::from_utf8_lossy(&listed.stdout);
        let words: Vec<&str> = text.split_whitespace().collect();
        let counters = words.windows(2).filter(|pair| pair[0] == "packets");
        counters
            .map(|pair| pair[1].parse::<u64>().expect("a counter"))
            .sum()
    }

    /// From now on no packet is lost.
    pub fn lose_nothing(&self) {
        for host in [&self.near, &self.far] {
            host.run(|| nft("delete table inet loss"));
        }
    }

    /// Packets of path 0 are lost from now on, without any error at either end.
    pub fn cut_first(&self) {
        for host in [&self.near, &self.far] {
            host.run(|| {
                nft("table inet cut { chain in { type filter hook input priority 0\niifname p0 counter drop\n}\n}\n");
            });
        }
    }
}

/// The two addresses of a host.
pub fn addresses(family: Family, last: u8) -> Vec<IpAddr> {
    let text = |path| match family {
        Family::V4 => format!("10.{path}.0.{last}"),
        Family::V6 => format!("fd0{path}::{last}"),
    };
    [1, 2]
        .map(|path| text(path).parse().expect("an address"))
        .to_vec()
}

/// One end, and the data that it sends or has received.
pub struct WireEnd {
    /// The endpoint and its sockets.
    pub wire: SctpWire,
    /// The association, as soon as there is one.
    pub id: Option<AssociationId>,
    /// All events of the association so far.
    pub events: Vec<AssociationEvent>,
    /// Number of bytes to send.
    pub to_send: u64,
    /// Number of bytes that the association has accepted for sending so far.
    pub handed: u64,
    /// Number of bytes that have arrived. Each of them was correct.
    pub received: u64,
    /// Whether this end reads messages.
    pub reads: bool,
    /// This end shuts the association down after this many bytes have arrived. 0: this end does not shut it down.
    pub wanted: u64,
}

impl WireEnd {
    pub fn open(
        host: &LanHost,
        last: u8,
        family: Family,
        udp_port: u16,
        change: fn(&mut SctpConfig),
    ) -> Self {
        let plan = WirePlan {
            addresses: addresses(family, last),
            udp_port,
            peer_udp_port: udp_port,
            port: PORT,
            associations_max: 4,
        };
        let mut config = SctpConfig::wire(SctpWire::lower_headers(&plan));
        change(&mut config);
        let wire = host.run(|| SctpWire::open(config, &plan)).expect("sockets");
        Self {
            wire,
            id: None,
            events: Vec::new(),
            to_send: 0,
            handed: 0,
            received: 0,
            reads: true,
            wanted: 0,
        }
    }

    /// Opens an association to the host whose addresses end in `last`.
    pub fn call(&mut self, family: Family, last: u8) {
        let called = self
            .wire
            .endpoint
            .connect(clock::now(), &addresses(family, last), PORT);
        self.id = Some(called.expect("a call"));
        self.wire.flush(clock::now());
    }

    pub fn association(&self) -> Option<&Association> {
        self.wire.endpoint.association(self.id?)
    }

    /// Whether the association has ended, and why.
    pub fn end(&self) -> Option<&CloseReason> {
        self.events.iter().find_map(|event| match event {
            AssociationEvent::Closed(reason) => Some(reason),
            _ => None,
        })
    }

    /// One turn of the event loop: handles received packets and expired timers, then sends what can be sent.
    pub fn turn(&mut self) {
        let now = clock::now();
        self.wire.receive(now, 16);
        self.wire.endpoint.handle_timeout(now);
        if self.reads {
            self.read();
        }
        self.send(now);
        self.wire.flush(now);
        while let Some((id, event)) = self.wire.endpoint.poll_event() {
            self.id.get_or_insert(id);
            self.events.push(event);
        }
    }

    fn read(&mut self) {
        let Some(id) = self.id.filter(|id| {
            self.wire
                .endpoint
                .association(*id)
                .is_some_and(Association::has_unread)
        }) else {
            return;
        };
        let association = self.wire.endpoint.association_mut(id).expect("it exists");
        while let Some(message) = association.receive() {
            let UserData::Bytes(bytes) = message.data else {
                panic!("data of a real network are bytes");
            };
            for byte in &bytes {
                assert_eq!(*byte, pattern(self.received), "byte {}", self.received);
                self.received += 1;
            }
        }
        if self.wanted > 0 && self.received >= self.wanted {
            self.wanted = 0;
            association.shutdown(clock::now());
        }
    }

    fn send(&mut self, _now: proto::Instant) {
        while self.handed < self.to_send
            && let Some(id) = self.id
            && let Some(association) = self.wire.endpoint.association_mut(id)
        {
            let length = (self.to_send - self.handed).min(MESSAGE as u64);
            let bytes: Vec<u8> = (self.handed..self.handed + length).map(pattern).collect();
            let message = SctpMessage {
                stream: 1,
                protocol: 0,
                is_unordered: false,
                data: UserData::from(bytes),
            };
            if association.send(message).is_err() {
                break;
            }
            self.handed += length;
        }
    }
}

fn nft(rules: &str) {
    let done = Command::new("nft").arg(rules).output().expect("nft");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Runs the ends until `is_done` returns true.
#[track_caller]
pub fn run(what: &str, ends: &mut [&mut WireEnd], mut is_done: impl FnMut(&[&mut WireEnd]) -> bool) {
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        for end in ends.iter_mut() {
            end.turn();
        }
        if is_done(ends) {
            return;
        }
        if Instant::now() > deadline {
            for end in ends.iter() {
                eprintln!(
                    "events {:?}\nreceived {} handed {} {:?}\n{:?}\n{:?}",
                    end.events,
                    end.received,
                    end.handed,
                    end.wire.counts(),
                    end.wire.endpoint.counts(),
                    end.association()
                        .map(|association| (association.destinations().to_vec(), association.counts()))
                );
            }
            panic!("never: {what}");
        }
        let now = clock::now();
        let due = ends
            .iter()
            .filter_map(|end| end.wire.endpoint.poll_timeout())
            .min();
        let wait = due
            .map_or(Duration::from_millis(50), |at| at.since(now))
            .min(Duration::from_millis(50));
        let fds: Vec<_> = ends.iter().flat_map(|end| end.wire.fds()).collect();
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN))
            .collect();
        let millis = u16::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(50);
        poll(&mut fds, millis).expect("poll");
    }
}
