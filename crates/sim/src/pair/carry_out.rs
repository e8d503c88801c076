//! Carries out the core's actions in the simulated world: the daemon's `carry_out` and `relay`, step for step.

use proto::Instant;
use proto::action::{Action, Gate, OperatorReport, ServiceAction};
use proto::connection::{Connection, Endpoint as Known, OutputEnd};
use proto::follower::Restart;
use proto::role::Role;
use proto::service::ServiceInput;
use proto::spill::gather;
use proto::standing::ArbiterVerdict;
use proto::table::ConnectionId;
use proto::takeover::{self, HandedOver};
use std::net::SocketAddr;
use std::rc::Rc;

use super::agent::AgentMessage;
use super::arbiter::{EpochRequest, TimedAnswer};
use super::defect::Defect;
use super::relay::{RelayAdoption, RelayPlan, SimRelay};
use super::station::{AGENTS, Address, ApplicationReplica, PROBE, PendingRestore, Station};
use super::wire::LogEnd;
use crate::host::EndpointId;
use crate::tcp::{Restore, RestoreWindow, TcpEndpoint, WindowScale};
use crate::world::Output;

/// Bytes that a replica may be ahead of the primary. Beyond this the agent does not read from the replica.
const AHEAD_MAX: usize = 1 << 20;
const READ_SIZE: usize = 16 * 1024;

impl Station {
    /// Updates what the kernel keeps for the next agent.
    fn on_role(&mut self, to: Role) {
        self.judge.borrow_mut().on_role(self.config.number, to);
        self.is_consented = to == Role::Backup;
        self.doubted = None;
    }

    /// Carries out one action. `end` is how far the log reached when the action began.
    pub(super) fn carry_out(&mut self, now: Instant, action: Action, end: LogEnd) {
        let action = match action {
            Action::Service(_, action) => action,
            Action::Probe => return self.send(AGENTS, PROBE),
            Action::Send(heartbeat) => return self.say(&AgentMessage::Heartbeat(heartbeat)),
        };
        if !matches!(
            action,
            ServiceAction::SetUntil { .. } | ServiceAction::FeedReplica { .. } | ServiceAction::Transmit(_)
        ) {
            self.outputs.push_back(Output::Note(format!("{action:?}")));
        }
        match action {
            ServiceAction::Report(OperatorReport::Unrestorable { client, reason }) => {
                self.lost.push((client, reason))
            }
            ServiceAction::Report(OperatorReport::Role { to, .. }) => self.on_role(to),
            ServiceAction::Report(OperatorReport::Doubted { is_primary, epoch }) => {
                self.doubted = Some((is_primary, epoch))
            }
            ServiceAction::Report(OperatorReport::Confirmed) => self.doubted = None,
            ServiceAction::Report(_) => {}
            ServiceAction::Assume { gate, .. } => self.assume(gate),
            ServiceAction::SetGate { gate, epoch, until } => self.change_gate(gate, epoch, until),
            ServiceAction::SetUntil { until } => self.change_until(until),
            ServiceAction::Confirm { epoch } => self.confirm(now, epoch),
            ServiceAction::Hold { .. } if self.is(Defect::NeverTold) => {}
            ServiceAction::Hold { clients } => self.wire.hold(&clients),
            ServiceAction::Settle => self.wire.settle(),
            ServiceAction::CapWindow { client, cap } => self.wire.cap(client, cap),
            ServiceAction::Destroy { clients } => self.destroy_dying(&clients),
            ServiceAction::TakeAddress => {
                self.address = Address::Interface;
                self.is_claiming = true;
            }
            ServiceAction::Announce => self.tell_neighbours(),
            ServiceAction::AskOutside { .. } => self.ask_outside(now),
            ServiceAction::StandDown { .. } => self.stand_down(),
            ServiceAction::Drain => {
                let skips = self.is(Defect::SkipSecondDrain) && !self.restoring.is_empty();
                if !skips && !self.is(Defect::SkipDrains) {
                    self.read_log(end);
                    if self.wire.check_in(now) > 0 {
                        self.tell_gap(now); // the agent may have been away since it last looked
                    }
                }
                self.core.handle(now, 0, ServiceInput::Drained);
            }
            ServiceAction::Restore { connection } => self.restore(now, connection),
            ServiceAction::MakeReady { connection } => {
                if !self.is(Defect::ReadyLast) {
                    self.make_ready(connection);
                }
            }
            ServiceAction::Activate { connection } => self.activate(now, connection),
            ServiceAction::HandOver { connection } => self.hand_over(now, connection),
            ServiceAction::AllowSpeech => self.allow_speech(),
            ServiceAction::Transmit(packet) => {
                let output = self.speak(now, packet, true);
                self.outputs.extend(output);
            }
            ServiceAction::Ask { clients } => self.say(&AgentMessage::Ask(clients)),
            ServiceAction::AskAll { query } => self.say(&AgentMessage::AskAll(query)),
            ServiceAction::OpenReplica { connection, client } => self.open_replica(connection, client),
            ServiceAction::FeedReplica { connection } => self.feed_replica(now, connection),
            ServiceAction::CloseReplica { connection } => drop(self.replicas.remove(&connection)),
            ServiceAction::RunSync { .. } | ServiceAction::HoldInput { .. } => {
                unreachable!("no server's state is copied")
            }
            ServiceAction::Mend => unreachable!("no step fails in this network"),
        }
    }

    /// Prepares the network for the gate `next`. Meanwhile a node whose gate was off is mute, and a node that speaks
    /// goes on speaking.
    pub(super) fn assume(&mut self, next: Gate) {
        let (gate, epoch) = self.wire.gate();
        if gate == Gate::Off {
            self.wire.set_gate(Gate::Mute, epoch);
        }
        (self.is_claiming, self.is_reached) = (false, false);
        match next {
            Gate::Off | Gate::Mute => {}
            Gate::Primary => {
                self.address = Address::Loopback;
                self.may_speak = true;
            }
            Gate::Wire | Gate::Takeover | Gate::Sole => self.address = Address::Interface,
        }
    }

    fn change_gate(&mut self, gate: Gate, epoch: u64, until: Option<Instant>) {
        self.set_until(until);
        if until.is_none() && matches!(gate, Gate::Takeover | Gate::Sole) {
            self.judge.borrow_mut().on_given(self.config.number, epoch);
        }
        if !(self.is(Defect::GateLast) && gate == Gate::Takeover) {
            self.set_gate(gate, epoch);
        }
    }

    /// The right to speak ends at another time; the gate stays as it is.
    fn change_until(&mut self, until: Option<Instant>) {
        self.set_until(until);
        let (gate, epoch) = self.wire.gate();
        if until.is_none() && matches!(gate, Gate::Takeover | Gate::Sole) {
            self.judge.borrow_mut().on_given(self.config.number, epoch);
        }
    }

    fn set_until(&mut self, until: Option<Instant>) {
        let is_earlier = until.is_some_and(|until| Some(until) < self.until);
        let is_wire = self.wire.gate().0 == Gate::Wire;
        if is_earlier && is_wire && self.is(Defect::LeaveLate) {
            return;
        }
        let has_no_end = self.is(Defect::SpeakOn) || is_wire && self.is(Defect::AdoptForever);
        self.until = until.filter(|_| !has_no_end);
    }

    fn set_gate(&mut self, gate: Gate, epoch: u64) {
        self.wire.set_gate(gate, epoch);
        let is_alone = matches!(gate, Gate::Takeover | Gate::Sole);
        self.judge
            .borrow_mut()
            .on_gate(self.config.number, is_alone.then_some(epoch));
        if gate == Gate::Primary {
            self.judge.borrow_mut().on_behind(self.config.number);
        }
        if !matches!(gate, Gate::Wire | Gate::Takeover) {
            self.judge.borrow_mut().on_log_lost(self.config.number);
        }
    }

    /// The peer speaks alone. The gate is closed, so all sockets end, and no packet says so.
    fn stand_down(&mut self) {
        self.may_speak = false;
        (self.is_claiming, self.is_reached) = (false, false);
        self.address = Address::Nowhere;
        self.destroy_sockets();
    }

    /// Asks the arbiter, whose answer comes later. As in the daemon, an epoch is not asked again before its answer has been read.
    fn confirm(&mut self, now: Instant, epoch: u64) {
        let Some(arbiter) = self.config.arbiter.clone() else {
            return;
        };
        if self.verdicts.iter().any(|answer| answer.epoch == epoch) {
            return;
        }
        let node = self.config.number;
        let question = EpochRequest { node, epoch };
        let at = self.clock.when(now);
        let answer = if self.is_cut_off {
            let verdict = ArbiterVerdict::Failed;
            Some(TimedAnswer { at, epoch, verdict })
        } else {
            arbiter.borrow_mut().ask(at, question, self.agent.number)
        };
        if let Some(answer) = answer {
            self.expect_verdict(answer);
        }
    }

    fn allow_speech(&mut self) {
        self.may_speak = true;
        if self.is(Defect::GateLast) {
            let epoch = self.core.service(0).epoch();
            self.set_gate(Gate::Takeover, epoch);
        }
    }

    fn open_replica(&mut self, connection: ConnectionId, client: SocketAddr) {
        let replica = ApplicationReplica {
            application: (self.config.program)(client),
            ended: false,
            reads_at: Instant::ZERO,
        };
        let before = self.replicas.insert(connection, replica);
        assert!(before.is_none(), "{client} has a replica already");
    }

    fn restore(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.core.service(0).table().get(id) else {
            return;
        }; // it ended meanwhile
        let endpoint = connection.endpoint();
        let sent = connection
            .output()
            .slices(endpoint.unacknowledged.clone())
            .flatten()
            .copied()
            .collect();
        let restore = self.distort(restore_of(&endpoint, sent, now));
        let made = if self.host.find(self.vip, endpoint.client).is_some() {
            Err("the address is in use".to_owned())
        } else {
            TcpEndpoint::restore(self.tcp().clone(), &restore, now).map_err(|error| error.to_string())
        };
        match made {
            Ok(made) => {
                self.deaf.insert(endpoint.client);
                let socket = self
                    .host
                    .adopt(now, made, Box::new(|_: Instant, _: &mut TcpEndpoint| None));
                self.restoring.insert(id, PendingRestore { endpoint, socket });
            }
            Err(reason) => self.core.handle(
                now,
                0,
                ServiceInput::Unrestorable {
                    connection: id,
                    reason,
                },
            ),
        }
    }

    fn distort(&self, mut restore: Restore) -> Restore {
        match self.config.defect {
            Some(Defect::SendUnacknowledgedAhead) => restore.snd_una = restore.snd_una + 1,
            Some(Defect::SendUnacknowledgedBehind) => restore.snd_una = restore.snd_una - 1,
            Some(Defect::ForgetSentTail) => restore.sent.truncate(restore.sent.len() * 3 / 4),
            Some(Defect::TimestampBehind) => {
                restore.timestamp = restore.timestamp.map(|value| value.wrapping_sub(1000));
            }
            Some(Defect::ForgetWindow) => restore.window.rcv_wnd = 0,
            _ => {}
        }
        restore
    }

    fn make_ready(&mut self, id: ConnectionId) {
        let Some(PendingRestore { endpoint, .. }) = self.restoring.get(&id) else {
            return;
        };
        self.deaf.remove(&endpoint.client);
        let mut judge = self.judge.borrow_mut();
        judge.on_ready(endpoint.client);
        judge.on_socket(self.config.number, endpoint.client);
    }

    fn activate(&mut self, now: Instant, id: ConnectionId) {
        let Some(restoring) = self.restoring.remove(&id) else {
            return;
        };
        let PendingRestore { endpoint, socket } = &restoring;
        let connection = self.core.service(0).table().get(id);
        let late = match connection.map(|connection| self.late_input(connection, endpoint, *socket)) {
            Some(Err(reason)) => {
                self.host.take(*socket);
                let (node, client) = (self.config.number, endpoint.client);
                self.judge.borrow_mut().on_sockets_lost(node, &[client]);
                self.core.handle(
                    now,
                    0,
                    ServiceInput::Unrestorable {
                        connection: id,
                        reason,
                    },
                );
                return;
            }
            Some(Ok(late)) => late,
            None => Vec::new(),
        };
        let is_quiet = self
            .core
            .service(0)
            .table()
            .get(id)
            .is_some_and(Connection::is_quiet);
        self.host.with(now, *socket, |socket| {
            socket.feed(&late);
            if !is_quiet {
                socket.probe();
            }
        });
        let (gate, epoch) = self.wire.gate();
        let is_lent = gate == Gate::Takeover && self.until.is_some_and(|until| now < until);
        self.judge
            .borrow_mut()
            .on_live(self.config.number, endpoint.client, is_lent.then_some(epoch));
        let offered = self.host.endpoint(*socket).map_or(0, TcpEndpoint::offered_window);
        if let Some(connection) = self.core.service(0).table().get(id).filter(|_| !is_quiet) {
            for packet in takeover::wake(connection, offered, now) {
                let output = self.speak(now, packet, true);
                self.outputs.extend(output);
            }
        }
        self.core.handle(now, 0, ServiceInput::Live { connection: id });
        if self.is(Defect::ReadyLast) {
            self.deaf.remove(&endpoint.client);
        }
        self.live.insert(id, restoring);
    }

    /// The input that was logged since the socket was made, without what the ready socket has received itself.
    fn late_input(
        &self,
        connection: &Connection,
        endpoint: &Known,
        socket: EndpointId,
    ) -> Result<Vec<u8>, String> {
        let late = connection.late_input(endpoint)?;
        if self.is(Defect::ForgetLateInput) {
            return Ok(Vec::new());
        }
        let has = self
            .host
            .endpoint(socket)
            .map_or(endpoint.receive_next, TcpEndpoint::receive_next);
        let came = usize::try_from(has.distance_from(endpoint.receive_next)).unwrap_or(0);
        Ok(late.flatten().copied().skip(came).collect())
    }

    fn hand_over(&mut self, now: Instant, id: ConnectionId) {
        let Some(PendingRestore { endpoint, socket }) = self.live.remove(&id) else {
            return;
        };
        let replica = self.replicas.remove(&id);
        let has_ended = self.core.service(0).table().get(id).is_none();
        let Some(HandedOver { connection, syn_ack }) = self.core.hand_over(now, 0, id, &endpoint) else {
            let close = if has_ended {
                TcpEndpoint::shutdown
            } else {
                TcpEndpoint::abort
            };
            self.host.with(now, socket, close);
            if !has_ended {
                let (node, client) = (self.config.number, endpoint.client);
                self.judge.borrow_mut().on_sockets_lost(node, &[client]);
            }
            return;
        };
        let adoption = match adoption(&connection, &endpoint, replica) {
            Ok(adoption) => adoption,
            Err(reason) => {
                self.lost.push((endpoint.client, reason));
                self.host.with(now, socket, TcpEndpoint::abort); // the daemon drops the socket, which sends a RST
                return;
            }
        };
        let (program, client) = (Rc::clone(&self.config.program), endpoint.client);
        let relay = SimRelay::new(adoption, move || program(client));
        if let Some((endpoint, _)) = self.host.take(socket) {
            let socket = self.host.adopt(now, endpoint, Box::new(relay));
            self.relayed.push(socket);
            self.unheard.extend(syn_ack.map(|syn_ack| (socket, syn_ack)));
        }
    }

    /// Removes the endpoints that must end without sending anything.
    pub(super) fn remove_vanishing(&mut self) {
        let host = &mut self.host;
        self.relayed.retain(|&socket| {
            let vanishes = host.app::<SimRelay>(socket).is_some_and(SimRelay::is_to_vanish);
            if vanishes {
                host.take(socket);
            }
            !vanishes
        });
    }

    /// The endings of the relayed connections that have ended.
    pub fn relay_endings(&self) -> impl Iterator<Item = &super::RelayEnding> {
        self.relayed
            .iter()
            .filter_map(|&socket| self.host.app::<SimRelay>(socket)?.ending())
    }

    fn feed_replica(&mut self, now: Instant, id: ConnectionId) {
        let Some(ApplicationReplica {
            application,
            reads_at,
            ..
        }) = self.replicas.get_mut(&id)
        else {
            return;
        };
        let Some(connection) = self.core.service(0).table().followed(id) else {
            return;
        };
        let Some(replica) = connection.follower().replica() else {
            return;
        };
        let (from, acknowledged) = (replica.fed(), connection.input_acknowledged());
        let mut to = acknowledged;
        if let Some(pace) = self.config.replica_pace {
            let bytes = if now < *reads_at { 0 } else { pace.bytes };
            to = to.min(from + bytes as u64);
            if to > from {
                *reads_at = now + pace.every;
            }
        }
        let input = gather(connection.input().parts(from..to)).expect("memory can be read");
        application.on_input(now, &input);
        let ended = connection.input().fin() == Some(to) && to == acknowledged;
        if ended {
            application.on_input_end(now);
        }
        self.core.handle(
            now,
            0,
            ServiceInput::Fed {
                connection: id,
                to,
                ended,
            },
        );
        self.serve_replicas(now);
    }

    /// Feeds the slow replicas that may read again.
    pub(super) fn feed_slow_replicas(&mut self, now: Instant) {
        if self.config.replica_pace.is_none() {
            return;
        }
        let due = |replica: &ApplicationReplica| replica.reads_at <= now;
        let ids: Vec<_> = self
            .replicas
            .iter()
            .filter(|(_, replica)| due(replica))
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            self.feed_replica(now, id);
        }
    }

    /// Passes the replicas' output to the core.
    pub(super) fn serve_replicas(&mut self, now: Instant) {
        for (&id, replica) in &mut self.replicas {
            let mut said = Vec::new();
            let mut ahead = self.core.handle_replica_output(0, id, Some(&[]));
            while ahead <= AHEAD_MAX {
                said.clear();
                replica.application.speak(now, READ_SIZE, &mut said);
                if said.is_empty() {
                    break;
                }
                ahead = self.core.handle_replica_output(0, id, Some(&said));
            }
            if replica.application.is_finished() && !std::mem::replace(&mut replica.ended, true) {
                self.core.handle_replica_output(0, id, None);
            }
        }
    }
}

/// What the stack needs in order to restore a connection.
fn restore_of(endpoint: &Known, sent: Vec<u8>, now: Instant) -> Restore {
    Restore {
        local: endpoint.vip,
        remote: endpoint.client,
        snd_una: endpoint.send_unacknowledged,
        sent,
        unsent: Vec::new(),
        rcv_nxt: endpoint.receive_next,
        received: Vec::new(),
        mss: endpoint.mss,
        window_scale: endpoint.window_scale.map(|(theirs, ours)| WindowScale {
            send: theirs,
            receive: ours,
        }),
        sack: endpoint.sack,
        timestamp: endpoint.timestamps.map(|clock| clock.start_value(now)),
        window: RestoreWindow {
            snd_wl1: endpoint.send_window_seq,
            snd_wnd: endpoint.send_window,
            max_window: endpoint.send_window_max,
            rcv_wnd: endpoint.receive_window,
            rcv_wup: endpoint.receive_window_from,
        },
        window_probe: false, // `activate` probes, when the socket leaves repair mode
    }
}

/// How the relay continues a connection.
fn adoption(
    connection: &Connection,
    endpoint: &Known,
    replica: Option<ApplicationReplica>,
) -> Result<RelayAdoption, String> {
    let (log, frontier) = (connection.input(), endpoint.input_frontier);
    let restart = connection.follower().restart();
    let (plan, input) = match &restart {
        Ok(Restart::Replica { input_from, resume }) => {
            let replica = replica.ok_or("there is no replica")?;
            let input = log.parts((*input_from).min(frontier)..frontier).collect();
            (RelayPlan::Replica(resume.clone(), replica.application), input)
        }
        _ if endpoint.output != OutputEnd::Open => (RelayPlan::Silent, Vec::new()),
        Ok(Restart::Http { feed, resume }) => (RelayPlan::Http(resume.clone()), feed.logged(log, frontier)),
        Err(reason) => return Err(reason.clone()),
    };
    Ok(RelayAdoption {
        plan,
        input: gather(input).map_err(|error| error.to_string())?,
        input_ended: endpoint.input_ended,
        output: endpoint.output,
    })
}
