//! A switch, which forwards packets, and the interface for further logic in it.

use std::any::Any;

use proto::Instant;

use super::queue::EventKey;
use crate::flow::{FlowDirection, FlowId, FlowPacket};

/// A link of a network: one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(super) u32);

/// The logic of a switch. The logic sees each packet that reaches the switch. It may forward, delay, change, repeat or drop the packet.
pub trait Logic: Any {
    /// Handles a packet that came in. The logic adds to `out` the packets that leave the switch. These packets follow the switch's routes.
    fn handle(&mut self, now: Instant, packet: FlowPacket, out: &mut SwitchOutbox);

    /// Called at the time that `poll_timeout` returned. A call before that time does nothing.
    fn handle_timeout(&mut self, now: Instant, out: &mut SwitchOutbox);

    /// When to call `handle_timeout`, unless something else happens before.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// The packets that leave a switch.
#[derive(Debug, Default)]
pub struct SwitchOutbox {
    pub(super) packets: Vec<FlowPacket>,
}

impl SwitchOutbox {
    /// Sends a packet.
    pub fn send(&mut self, packet: FlowPacket) {
        self.packets.push(packet);
    }
}

pub(super) struct Switch {
    /// Routes by flow and direction.
    routes: Vec<[Option<LinkId>; 2]>,
    pub logic: Option<Box<dyn Logic>>,
    /// The event queue's entry for the logic's timer.
    pub scheduled: EventKey,
    pub name: &'static str,
}

impl Switch {
    pub const fn new(name: &'static str) -> Self {
        Self {
            routes: Vec::new(),
            logic: None,
            scheduled: EventKey::NEVER,
            name,
        }
    }

    pub fn set_route(&mut self, flow: FlowId, direction: FlowDirection, link: LinkId) {
        let index = flow.0 as usize;
        if index >= self.routes.len() {
            self.routes.resize(index + 1, [None; 2]);
        }
        self.routes[index][direction as usize] = Some(link);
    }

    pub fn route(&self, flow: FlowId, direction: FlowDirection) -> Option<LinkId> {
        self.routes.get(flow.0 as usize)?[direction as usize]
    }
}
