//! Processes of the application that die, and the packets that their kernel sends for them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proto::Instant;
use proto::action::{ApplicationState, Gate};
use proto::packet::{Checksum, Flags, Segment};
use proto::service::ServiceInput;

use super::application::Served;
use super::defect::Defect;
use super::machine::Machine;
use super::relay::SimRelay;
use super::station::Station;
use crate::host::EndpointId;
use crate::tcp::{self, EndpointState};

impl Station {
    /// Kills a worker that has the connections of `clients`. The node's kernel closes these connections, and the eBPF program `death`
    /// notices this.
    pub fn kill_worker(&mut self, now: Instant, clients: &[SocketAddr]) {
        let now = self.machine.clock.read(now);
        self.machine.kill_processes(now, clients);
        self.hear_of_deaths(now);
    }

    /// Tells the core of the deaths. While no agent exists, the deaths wait in the kernel's ring.
    pub(super) fn hear_of_deaths(&mut self, now: Instant) {
        if !self.machine.has_agent() {
            return;
        }
        let server = if self.machine.is_server_dead {
            ApplicationState::Dead
        } else {
            ApplicationState::Alive
        };
        let deaths = std::mem::take(&mut self.machine.deaths);
        self.core.handle(now, 0, ServiceInput::Orphans(deaths));
        self.core.handle(now, 0, ServiceInput::Server(server));
        self.machine.agent.wake(now);
    }

    /// Kills the process that listens, with all its connections.
    pub fn kill_server(&mut self, now: Instant) {
        let now = self.machine.clock.read(now);
        self.machine.is_server_dead = true;
        self.machine.config.server.borrow_mut().clear();
        let number = self.machine.config.number;
        self.machine.judge.borrow_mut().on_state_lost(number);
        self.machine.host.unlisten(self.machine.vip.port());
        let served = |(id, endpoint): (EndpointId, &tcp::TcpEndpoint)| {
            self.machine.has_process(id).then(|| endpoint.remote())
        };
        let clients: Vec<_> = self.machine.host.endpoints().filter_map(served).collect();
        self.machine.drop_handshakes();
        self.machine.kill_processes(now, &clients);
        self.hear_of_deaths(now);
    }

    /// Starts the server again.
    pub fn start_server(&mut self, now: Instant) {
        if std::mem::take(&mut self.machine.is_server_dead) {
            self.machine.listen_again();
            let now = self.machine.clock.read(now);
            self.hear_of_deaths(now);
        }
    }
}

impl Machine {
    /// Whether a process of the application has this socket's connection, directly or behind the relay.
    fn has_process(&self, id: EndpointId) -> bool {
        self.host.app::<Served>(id).is_some() || self.host.app::<SimRelay>(id).is_some()
    }

    /// Kills the processes that have these clients' connections.
    fn kill_processes(&mut self, now: Instant, clients: &[SocketAddr]) {
        let vip = self.vip;
        let number = self.config.number;
        for &client in clients {
            let id = self.host.find(vip, client).filter(|&id| {
                let state = self.host.endpoint(id).map(tcp::TcpEndpoint::state);
                let is_accepted = state.is_some_and(|state| state != EndpointState::SynReceived); // the listener owns half-open connections
                is_accepted && self.has_process(id)
            });
            let Some((endpoint, _)) = id.and_then(|id| self.host.take(id)) else {
                continue;
            };
            self.judge.borrow_mut().on_process_lost(number, client);
            // A death is hidden from the client only if the connection has a wire: the peer can adopt the connection then. On any other node
            // the connection just ends.
            let has_wire = match self.wire.gate().0 {
                Gate::Primary => true,
                Gate::Wire => self.wire.is_via_peer(client),
                Gate::Off | Gate::Mute | Gate::Takeover | Gate::Sole => false,
            };
            if has_wire && !self.is(Defect::DeathSpeaks) {
                self.dying.insert(client);
            }
            let nobody = Box::new(|_: Instant, _: &mut tcp::TcpEndpoint| None);
            self.relayed.retain(|relayed| Some(*relayed) != id);
            let id = self.host.adopt(now, endpoint, nobody);
            self.host.with(now, id, tcp::TcpEndpoint::shutdown);
            self.deaths.extend(has_wire.then_some(client));
        }
    }

    /// Removes the sockets of those connections whose process has died. Sends nothing: another node continues the connections, or no
    /// node can.
    pub(super) fn destroy_dying(&mut self, clients: &[SocketAddr]) {
        for &client in clients {
            if self.dying.remove(&client)
                && let Some(id) = self.host.find(self.vip, client)
            {
                self.host.take(id);
            }
        }
    }

    /// Hides the ends of these connections no longer: no node can continue them. Returns the clients whose sockets are gone.
    pub(super) fn show_ends_of(&mut self, clients: &[SocketAddr]) -> Vec<SocketAddr> {
        for client in clients {
            self.dying.remove(client);
        }
        let is_gone = |client: &&SocketAddr| self.host.find(self.vip, **client).is_none();
        clients.iter().filter(is_gone).copied().collect()
    }

    /// Removes the sockets of these clients' connections, which the other node has now. Sends nothing.
    pub(super) fn release_sockets(&mut self, clients: &[SocketAddr]) {
        for &client in clients {
            self.dying.remove(&client);
            if let Some(id) = self.host.find(self.vip, client) {
                self.host.take(id);
                self.relayed.retain(|relayed| *relayed != id);
                self.unheard.retain(|(unheard, _)| *unheard != id);
            }
        }
        let number = self.config.number;
        self.judge.borrow_mut().on_sockets_lost(number, clients);
    }

    /// Connections whose process died and that are not known to be adopted. The kernel remembers them for a new agent.
    pub(super) fn remembered_orphans(&self) -> Vec<SocketAddr> {
        if self.is(Defect::ForgetOrphans) {
            return Vec::new();
        }
        self.dying.iter().copied().collect()
    }

    /// Reports the half-open connections as lost. They belong to the listener, so only a wire can continue them.
    fn drop_handshakes(&mut self) {
        let half_open = self.host.endpoints();
        let half_open = half_open.filter(|(_, endpoint)| endpoint.state() == EndpointState::SynReceived);
        let clients: Vec<_> = half_open.map(|(_, endpoint)| endpoint.remote()).collect();
        let number = self.config.number;
        self.judge.borrow_mut().on_sockets_lost(number, &clients);
    }

    /// Does what the egress guard does ([`silence`]).
    pub(super) fn silence_death(&self, packet: Vec<u8>) -> Option<Vec<u8>> {
        silence(&self.dying, packet)
    }

    /// Removes all sockets. Sends nothing.
    pub(super) fn destroy_sockets(&mut self) {
        self.replicas.clear();
        let sockets: Vec<_> = self
            .host
            .endpoints()
            .map(|(id, endpoint)| (id, endpoint.remote()))
            .collect();
        for (id, _) in &sockets {
            self.host.take(*id);
        }
        self.relayed.clear();
        self.unheard.clear();
        self.dying.clear();
        self.deaths.clear();
        let clients: Vec<_> = sockets.into_iter().map(|(_, client)| client).collect();
        let number = self.config.number;
        self.judge.borrow_mut().on_sockets_lost(number, &clients);
    }
}

/// Does what the egress guard does: a dying socket's data passes without the FIN, and the socket's other segments are dropped (`None`).
/// Other sockets' packets pass unchanged.
pub(super) fn silence(dying: &BTreeSet<SocketAddr>, packet: Vec<u8>) -> Option<Vec<u8>> {
    let segment = Segment::parse(&packet, Checksum::Trusted).ok()?;
    if !dying.contains(&segment.destination) {
        return Some(packet);
    }
    // Drops every RST, a FIN without data, and every later segment without data: its sequence number is past the FIN, which the client
    // never gets.
    if segment.flags.rst || segment.payload.is_empty() {
        return None;
    }
    if !segment.flags.fin {
        return Some(packet);
    }
    let quiet = Segment {
        flags: Flags {
            fin: false,
            ..segment.flags
        },
        ..segment
    };
    Some(quiet.emit())
}
