//! The network segment of the two nodes, as the clients see it: a neighbour table that says which node gets the VIP's packets,
//! an outside host that answers pings, and the place where the judge reads all packets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;

use super::judge::Judge;
use super::machine::{Address, Machine};
use crate::world::{Output, Port, SimNode};

/// "The VIP is here": a gratuitous ARP, or the answer to [`WHO`].
pub(super) const ANNOUNCE: &[u8] = b"announce";
/// "Who has the VIP?"
pub(super) const WHO: &[u8] = b"who";
/// Asks an outside host, from the VIP.
pub(super) const PING: &[u8] = b"ping";
/// The answer to [`PING`], sent to where the VIP is.
pub(super) const PONG: &[u8] = b"pong";

/// Asks an outside host, from a node's own address. The time of the question by that node's clock follows, in nanoseconds.
pub(super) const KNOCK: &[u8] = b"knock";
/// The answer to [`KNOCK`], with the same time.
pub(super) const KNOCKED: &[u8] = b"knocked";

/// Port to the clients. The nodes' ports follow.
const CLIENTS: Port = Port(0);
/// Age at which an unconfirmed entry is asked for again (RFC 4861 §7.3, shortened).
const STALE: Duration = Duration::from_secs(1);

/// Between the clients and the nodes.
pub(super) struct Neighbours {
    /// Port that the VIP's packets go to.
    vip_at: Port,
    confirmed: Instant,
    asked: Instant,
    judge: Rc<RefCell<Judge>>,
    outputs: VecDeque<Output>,
}

impl Neighbours {
    /// A table whose entry is `vip_at` at first. `judge` sees what clients send and get.
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

/// A machine's messages to and from the neighbours.
impl Machine {
    /// Handles what is not IP: messages of the neighbours and of the outside host.
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

    /// Asks an outside host from this node's own address. Returns false if there is none.
    pub(super) fn ask_outside_host(&mut self) -> bool {
        if self.config.outside {
            self.send(CLIENTS, &[KNOCK, &self.at.as_nanos().to_be_bytes()].concat());
        }
        self.config.outside
    }

    fn send_announcement(&mut self) {
        self.send(CLIENTS, ANNOUNCE);
    }

    /// Tells the neighbours where the address is. For a claimed address, also asks an outside host.
    pub(super) fn tell_neighbours(&mut self) {
        self.send_announcement();
        if self.is_claiming {
            self.send(CLIENTS, PING);
        }
    }
}
