//! The primary: an ordinary host behind the backup's wire, with its agent beside it.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use proto::Instant;
use proto::action::{Action, Heartbeat};
use proto::node::{Node as Core, NodeConfig};
use proto::packet::{Checksum, Flags, Segment};

use super::wire::{Fate, Side, Wire};
use crate::host::{Host, HostConfig};
use crate::tcp::{Endpoint, State};
use crate::world::{Node, Output, Port};

/// To the backup's wire.
const LAN: Port = Port(0);
/// To the backup's agent.
const HEARTBEATS: Port = Port(1);

/// The node that runs the application.
pub struct Primary {
    core: Core,
    /// Clients whose connections have lost their process: FIN and RST of these are not speech.
    dying: BTreeSet<SocketAddr>,
    wire: Wire,
    host: Host,
    outputs: VecDeque<Output>,
}

impl Primary {
    /// A primary; `listen` sets its host up.
    pub fn new(
        now: Instant,
        core: NodeConfig,
        host: HostConfig,
        seed: u64,
        listen: impl FnOnce(&mut Host),
    ) -> Self {
        let core = Core::new(core, now);
        let mut host = Host::new(host, seed);
        listen(&mut host);
        Self {
            wire: Wire::new(core.vip(0), 0, 0),
            core,
            dying: BTreeSet::new(),
            host,
            outputs: VecDeque::new(),
        }
    }

    /// The host, to be asked how it is.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The core, to be asked how it is.
    pub const fn core(&self) -> &Core {
        &self.core
    }

    /// A worker with the connections of `clients` is killed: its kernel closes them, as the program `death` sees.
    pub fn kill_worker(&mut self, now: Instant, clients: &[SocketAddr]) {
        let vip = self.core.vip(0);
        for &client in clients {
            let id = self.host.find(vip, client).filter(|&id| {
                let state = self.host.endpoint(id).map(Endpoint::state);
                state.is_some_and(|state| state != State::SynReceived) // those are the listener's
            });
            let Some((endpoint, _)) = id.and_then(|id| self.host.take(id)) else {
                continue;
            };
            self.dying.insert(client);
            let nobody = Box::new(|_: Instant, _: &mut Endpoint| None);
            let id = self.host.adopt(now, endpoint, nobody);
            self.host.with(now, id, Endpoint::shutdown);
            self.core.handle_orphans(now, 0, [client]);
        }
        self.carry_out();
    }

    /// What a dying socket says, without its FIN or RST: the egress guard's part. `None`: nothing is left.
    fn silence_death(&self, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        let segment = Segment::parse(&packet, Checksum::Trusted).ok()?;
        if !self.dying.contains(&segment.destination) || !(segment.flags.fin || segment.flags.rst) {
            return Some(packet);
        }
        if segment.flags.rst || segment.payload.is_empty() {
            return None;
        }
        let quiet = Segment {
            flags: Flags {
                fin: false,
                ..segment.flags
            },
            ..segment
        };
        packet = quiet.emit();
        Some(packet)
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::SetGate { gate, .. } => self.wire.set_gate(gate),
                Action::Probe => {}
                Action::Send(heartbeat) => self.outputs.push_back(send(&heartbeat, HEARTBEATS)),
                Action::Report(report) => self.outputs.push_back(Output::Note(format!("{report:?}"))),
                _ => {} // a primary's network is as it should be
            }
        }
    }
}

/// A heartbeat as a packet: no IP packet, on a cable of its own.
pub(super) fn send(heartbeat: &Heartbeat, port: Port) -> Output {
    let packet = serde_json::to_vec(heartbeat).expect("a heartbeat has a JSON form");
    Output::Transmit { port, packet }
}

impl Node for Primary {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        if port == HEARTBEATS {
            if let Ok(heartbeat) = serde_json::from_slice(&packet) {
                self.core.handle_heartbeat(now, heartbeat);
                self.carry_out();
            }
        } else if self.wire.on_packet(now, Side::Peer, &packet, |_| true) == Fate::Local {
            self.host.handle(now, Port(0), packet);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.host.handle_timeout(now);
        if now >= self.core.poll_timeout() {
            self.core.handle_timeout(now);
            self.carry_out();
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        loop {
            match self.host.poll_output(now)? {
                Output::Transmit { packet, .. } if !self.wire.lets_out(&packet) => {}
                Output::Transmit { packet, .. } => {
                    if let Some(packet) = self.silence_death(packet) {
                        return Some(Output::Transmit { port: LAN, packet });
                    }
                }
                note @ Output::Note(_) => return Some(note),
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.host
            .poll_timeout()
            .into_iter()
            .chain([self.core.poll_timeout()])
            .min()
    }
}
