//! A station as a node of the world: packets in, packets out, and the next deadline.

use proto::Instant;

use super::annex::link::LinkDatagram;
use super::machine::{AGENTS, ANNEXES, CLIENTS, Machine};
use super::station::Station;
use super::wire::WireSide;
use crate::world::{Output, Port, SimNode};

/// Maximum number of packets that wait while a machine stands still. Further packets are lost.
const BACKLOG_MAX: usize = 256;

impl Machine {
    fn receive(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        let is_ip = packet.first().is_some_and(|first| first >> 4 == 4);
        if let Some(datagram) = LinkDatagram::read(&packet) {
            return self.on_link(now, port, datagram);
        }
        match port {
            AGENTS => self.on_agents(now, AGENTS, &packet),
            CLIENTS if is_ip => self.on_packet(now, WireSide::Clients, packet),
            CLIENTS => self.on_neighbour(&packet),
            _ if port >= ANNEXES => {
                self.on_packet(now, WireSide::Annex(port.0 - ANNEXES.0), packet);
            }
            _ if !is_ip => self.on_agents_here(now, &packet),
            _ => self.on_packet(now, WireSide::Peer, packet),
        }
    }
}

impl SimNode for Station {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        self.machine.judge.borrow_mut().look_at_clock(now);
        let now = self.machine.clock.read(now);
        if now >= self.machine.frozen_until {
            self.machine.receive(now, port, packet);
        } else if self.machine.backlog.len() < BACKLOG_MAX {
            self.machine.backlog.push((port, packet));
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.machine.judge.borrow_mut().look_at_clock(now);
        let now = self.machine.clock.read(now);
        if now < self.machine.frozen_until {
            return;
        }
        for (port, packet) in std::mem::take(&mut self.machine.backlog) {
            self.machine.receive(now, port, packet);
        }
        self.machine.host.handle_timeout(now);
        self.machine.continue_hook(now);
        self.machine.work_on_links(now);
        while self.machine.agent.due <= now {
            self.step(now);
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        self.machine.judge.borrow_mut().look_at_clock(now);
        let now = self.machine.clock.read(now);
        if now < self.machine.frozen_until {
            return None;
        }
        if let Some(output) = self.machine.outputs.pop_front() {
            return Some(output);
        }
        while let Some(output) = self.machine.host.poll_output(now) {
            match output {
                Output::Transmit { packet, .. } => {
                    if let Some(output) = self.machine.speak(now, packet, false) {
                        return Some(output);
                    }
                }
                note @ Output::Note(_) => return Some(note),
            }
        }
        self.machine.remove_vanishing();
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = self
            .machine
            .host
            .poll_timeout()
            .into_iter()
            .chain([self.machine.agent.due])
            .chain(self.machine.hook.poll_timeout())
            .chain(self.machine.links_due())
            .min()?;
        Some(self.machine.clock.when(due.max(self.machine.frozen_until)))
    }
}
