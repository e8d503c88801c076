//! The simulated network segment between the clients and the two nodes. Its neighbour table decides which node gets the VIP's packets. Its
//! outside host answers pings. The judge reads the clients' packets here, in both directions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;

use super::judge::Judge;
use super::machine::{Address, Machine};
use crate::world::{Output, Port, SimNode};

/// From a node: "the VIP is here". Stands for a gratuitous ARP, or for the answer to [`WHO`].
pub(super) const ANNOUNCE: &[u8] = b"announce";
/// To the nodes: "which node has the VIP?". Stands for an ARP request.
pub(super) const WHO: &[u8] = b"who";
/// From a node to an outside host: a ping with the VIP as its source.
pub(super) const PING: &[u8] = b"ping";
/// The outside host's answer to [`PING`]. It goes to the node that has the VIP according to the neighbour table.
pub(super) const PONG: &[u8] = b"pong";

/// From a node to an outside host: a ping with the node's own address as its source. After these bytes comes the time of the ping by the
/// node's clock, in nanoseconds.
pub(super) const KNOCK: &[u8] = b"knock";
/// The outside host's answer to [`KNOCK`], with the same time. It goes to the node that asked.
pub(super) const KNOCKED: &[u8] = b"knocked";

/// Port to the clients. Ports 1 and 2 lead to the nodes.
const CLIENTS: Port = Port(0);
/// If the neighbour table's entry has not been confirmed for this time, both nodes are asked again which of them has the VIP. As RFC 4861
/// §7.3, but with a shorter time.
const STALE: Duration = Duration::from_secs(1);

/// The network segment between the clients and the nodes.
pub(super) struct Neighbours {
    /// The neighbour table's only entry: the port to which the VIP's packets go.
    vip_at: Port,
    confirmed: Instant,
    asked: Instant,
    judge: Rc<RefCell<Judge>>,
    outputs: VecDeque<Output>,
}

impl Neighbours {
    /// A network segment whose neighbour table has `vip_at` as its first entry. `judge` gets each packet that clients send or receive.
    pub fn new(vip_at: Port, judge: Rc<RefCell<Judge>>) -> Self {
        Self {
            vip_at,
            confirmed: Instant::ZERO,
            asked: Instant::ZERO,
            judge,
            outputs: VecDeque::new(),
        }
    }

    /// The number of the node that gets the VIP's packets: 0 or 1.
    pub const fn vip_at(&self) -> usize {
        self.vip_at.0 - 1
    }

    fn send(&mut self, port: Port, packet: Vec<u8>) {
        self.outputs.push_back(Output::Transmit { port, packet });
    }

    fn ask_if_stale(&mut self, now: Instant) {
        if now.since(self.confirmed) >= STALE && now.since(self.asked) >= STALE / 4 {
            self.asked = now;
            self.send(Port(1), WHO.to_vec());
            self.send(Port(2), WHO.to_vec());
        }
    }
}

impl SimNode for Neighbours {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        if port == CLIENTS {
            self.judge.borrow_mut().on_sent(now, &packet);
            self.ask_if_stale(now);
            self.send(self.vip_at, packet);
        } else if packet == ANNOUNCE {
            (self.vip_at, self.confirmed) = (port, now);
        } else if packet == PING {
            self.send(self.vip_at, PONG.to_vec());
        } else if let Some(asked) = packet.strip_prefix(KNOCK) {
            self.send(port, [KNOCKED, asked].concat());
        } else {
            if port == self.vip_at {
                self.confirmed = now;
            }
            self.judge.borrow_mut().on_delivered(now, &packet);
            self.send(CLIENTS, packet);
        }
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_output(&mut self, _: Instant) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The messages between a machine and the network segment.
impl Machine {
    /// Handles `word`, a message that is no IP packet. It comes from the network segment or its outside host.
    pub(super) fn on_neighbour(&mut self, word: &[u8]) {
        let has_address = self.address == Address::Interface;
        if word == WHO && has_address {
            self.send_announcement();
        }
        self.is_reached |= word == PONG && has_address && self.is_claiming;
        let asked = word.strip_prefix(KNOCKED).and_then(|asked| asked.try_into().ok());
        if let Some(asked) = asked.map(u64::from_be_bytes) {
            self.agent.reached_outside = self.agent.reached_outside.max(Some(Instant::from_nanos(asked)));
        }
    }

    /// Asks the outside host, from this node's own address. Returns false if the simulated network has no outside host.
    pub(super) fn ask_outside_host(&mut self) -> bool {
        if self.config.outside {
            self.send(CLIENTS, &[KNOCK, &self.at.as_nanos().to_be_bytes()].concat());
        }
        self.config.outside
    }

    fn send_announcement(&mut self) {
        self.send(CLIENTS, ANNOUNCE);
    }

    /// Announces that this node has the VIP. While the node claims the VIP, also pings the outside host, with the VIP as the source.
    pub(super) fn tell_neighbours(&mut self) {
        self.send_announcement();
        if self.is_claiming {
            self.send(CLIENTS, PING);
        }
    }
}
