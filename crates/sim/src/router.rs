//! Nodes between the hosts: a router, and a tap on a cable.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use proto::Instant;

use crate::world::{Output, Port, SimNode};

/// Forwards each packet by its destination address. Drops packets for unknown destinations.
#[derive(Debug, Default)]
pub struct Router {
    routes: BTreeMap<IpAddr, Port>,
    outputs: VecDeque<Output>,
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on packets to `address` leave through `port`.
    pub fn set_route(&mut self, address: IpAddr, port: Port) {
        self.routes.insert(address, port);
    }
}

impl SimNode for Router {
    fn handle(&mut self, _: Instant, _: Port, packet: Vec<u8>) {
        let port = destination(&packet).and_then(|address| self.routes.get(&address));
        self.outputs
            .extend(port.map(|port| Output::Transmit { port: *port, packet }));
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_output(&mut self, _: Instant) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The destination of an IP packet (RFC 791 §3.1, RFC 8200 §3); `None` if it is no IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => <[u8; 4]>::try_from(packet.get(16..20)?).ok().map(IpAddr::from),
        6 => <[u8; 16]>::try_from(packet.get(24..40)?).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A node in the middle of a cable, with port 0 at one side and port 1 at the other. The tap sees every packet and decides which
/// packets continue.
pub struct Tap {
    judge: TapRule,
    outputs: VecDeque<Output>,
}

type TapRule = Box<dyn FnMut(Instant, Port, &[u8]) -> Pass>;

/// Decision of a [`Tap`] about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The packet leaves at the other side.
    Forward,
    /// The packet is dropped.
    Drop,
}

impl Tap {
    /// A tap that asks `judge` about each packet. `judge` gets the port through which the packet came in.
    pub fn new(judge: impl FnMut(Instant, Port, &[u8]) -> Pass + 'static) -> Self {
        Self {
            judge: Box::new(judge),
            outputs: VecDeque::new(),
        }
    }
}

impl SimNode for Tap {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        if (self.judge)(now, port, &packet) == Pass::Forward {
            let port = Port(1 - port.0);
            self.outputs.push_back(Output::Transmit { port, packet });
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
