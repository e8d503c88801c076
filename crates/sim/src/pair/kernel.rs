//! The simulated machine is the agent's [`Kernel`], in simulated time. The daemon's `Kernel` is in
//! `cli::daemon::kernel`.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use agent::{Kernel, LogReader, MessageToPeer, SyncRun, Written};
use proto::action::{Gate, OperatorReport, ServiceIndex};
use proto::annex::{AnnexId, ServingNode};
use proto::connection::{Cap, Connection, Endpoint as Known, OutputEnd};
use proto::export::{ExportOutcome, PartReceipt};
use proto::follower::Restart;
use proto::node::Node;
use proto::restart::prefix::{KeptInput, PrefixAnswer, PrefixAsk};
use proto::role::Role;
use proto::spill::{LogPart, gather};
use proto::standing::ArbiterVerdict;
use proto::table::ConnectionId;
use proto::takeover::HandedOver;
use proto::{Instant, Seq};

use super::annex::caller::number_of;
use super::annex::hosted::restore_of;
use super::annex::link::{LinkWord, StartWord};
use super::arbiter::{EpochRequest, TimedAnswer};
use super::defect::Defect;
use super::exports::ConnectionExports;
use super::machine::{AGENTS, Address, ApplicationReplica, Machine, PEER, PROBE};
use super::relay::{RelayAdoption, RelayPlan, SimRelay};
use super::thread::AgentMessage;
use crate::host::EndpointId;
use crate::tcp::{Restore, TcpEndpoint};

impl Machine {
    /// Prepares the network for the gate `next`. Meanwhile a node whose gate was off is mute, and a node that speaks
    /// goes on speaking.
    pub(super) fn prepare(&mut self, next: Gate) {
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

    /// Returns an error if the network refuses changes.
    fn check_network(&self) -> Result<(), String> {
        if self.refuses_changes {
            Err("the network refuses changes".to_owned())
        } else {
            Ok(())
        }
    }

    fn keep_until(&mut self, until: Option<Instant>) {
        let is_earlier = until.is_some_and(|until| Some(until) < self.until);
        let is_wire = self.wire.gate().0 == Gate::Wire;
        if is_earlier && is_wire && self.is(Defect::LeaveLate) {
            return;
        }
        let has_no_end = self.is(Defect::SpeakOn) || is_wire && self.is(Defect::AdoptForever);
        self.until = until.filter(|_| !has_no_end);
    }

    fn change_gate(&mut self, gate: Gate, epoch: u64) {
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

    /// Sends the peer the first input of a relayed connection.
    pub(super) fn tell_prefix(&mut self, ask: &PrefixAsk) {
        let relays = self.relayed.iter().filter(|&&socket| {
            let endpoint = self.host.endpoint(socket);
            endpoint.is_some_and(|endpoint| endpoint.remote() == ask.client)
        });
        let answer = relays
            .filter_map(|&socket| self.host.app::<SimRelay>(socket)?.answer(ask))
            .next_back();
        let answer =
            answer.unwrap_or_else(|| PrefixAnswer::refused(ask, "the other node has not kept its input"));
        for answer in answer.split() {
            self.say_word(&AgentMessage::Prefix(answer));
        }
    }

    /// Number of relayed connections whose whole input is kept.
    pub fn keeps_inputs(&self) -> usize {
        let relays = self
            .relayed
            .iter()
            .filter_map(|&socket| self.host.app::<SimRelay>(socket));
        relays.filter(|relay| relay.keeps_input()).count()
    }

    /// Number of snapshots that the peer has kept for this machine, and of states that applications have imported, since its boot.
    pub fn snapshot_counts(&self) -> (u64, u64) {
        self.exports.counts()
    }

    /// Whether the relay has reset the connection of this client.
    pub(super) fn was_reset_by_relay(&self, client: SocketAddr) -> bool {
        self.relayed.iter().any(|&socket| {
            let is_reset = |relay: &SimRelay| matches!(relay.ending(), Some(super::RelayEnding::Reset(_)));
            self.host
                .endpoint(socket)
                .is_some_and(|endpoint| endpoint.remote() == client)
                && self.host.app::<SimRelay>(socket).is_some_and(is_reset)
        })
    }

    /// Tells the judge that the node's socket of a client's connection is gone.
    fn lose_socket(&mut self, client: SocketAddr) {
        let number = self.config.number;
        self.judge.borrow_mut().on_sockets_lost(number, &[client]);
    }
}

impl Kernel for Machine {
    type Restored = EndpointId;
    type Live = EndpointId;

    fn now(&self) -> Instant {
        self.at
    }

    fn assume(&mut self, _: ServiceIndex, gate: Gate, _: [u8; 6]) -> Result<(), String> {
        self.check_network()?;
        self.prepare(gate);
        Ok(())
    }

    fn set_gate(&mut self, _: ServiceIndex, gate: Gate, epoch: u64, until: Option<Instant>) {
        self.keep_until(until);
        if until.is_none() && matches!(gate, Gate::Takeover | Gate::Sole) {
            self.judge.borrow_mut().on_given(self.config.number, epoch);
        }
        if self.is(Defect::GateLast) && gate == Gate::Takeover {
            self.late_gate = epoch;
        } else {
            self.change_gate(gate, epoch);
        }
    }

    /// Changes the time at which the right to speak ends. The gate stays as it is.
    fn set_until(&mut self, _: ServiceIndex, until: Option<Instant>) {
        self.keep_until(until);
        let (gate, epoch) = self.wire.gate();
        if until.is_none() && matches!(gate, Gate::Takeover | Gate::Sole) {
            self.judge.borrow_mut().on_given(self.config.number, epoch);
        }
    }

    fn set_direct(&mut self, _: ServiceIndex, until: Option<Instant>) {
        self.keep_direct(until);
    }

    fn pass_unlogged(&mut self, _: ServiceIndex, may: bool) {
        self.wire.is_immediate = may;
    }

    /// Asks the arbiter, whose answer comes later. As in the daemon, no second question about an epoch is sent before the answer to the
    /// first one has been read.
    fn confirm(&mut self, _: ServiceIndex, epoch: u64) {
        let Some(arbiter) = self.config.arbiter.clone() else {
            return;
        };
        if self.verdicts.iter().any(|answer| answer.epoch == epoch) {
            return;
        }
        let node = self.config.number;
        let question = EpochRequest { node, epoch };
        let at = self.clock.when(self.at);
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

    fn hold(&mut self, _: ServiceIndex, clients: Vec<SocketAddr>) -> Vec<SocketAddr> {
        if !self.is(Defect::NeverTold) {
            self.wire.hold(&clients);
        }
        Vec::new()
    }

    fn reserve(&mut self, _: ServiceIndex, clients: &[SocketAddr]) -> Result<(), String> {
        if !self.is(Defect::MoveUnreserved) {
            self.wire.reserve(clients);
        }
        Ok(())
    }

    fn give_back(&mut self, _: ServiceIndex, client: SocketAddr) {
        self.wire.give_back(client);
    }

    fn release(&mut self, _: ServiceIndex, clients: &[SocketAddr]) {
        self.release_sockets(clients);
        self.wire.release(clients);
    }

    fn freeze(&mut self, _: ServiceIndex, clients: &[SocketAddr], ended: &[SocketAddr]) {
        self.wire.freeze(clients, ended);
    }

    fn thaw(&mut self, _: ServiceIndex, clients: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut spoken = clients.to_vec();
        spoken.retain(|&client| !self.wire.thaw(client));
        spoken
    }

    fn look_for(&mut self, _: ServiceIndex, client: SocketAddr) -> bool {
        let is_here = self.wire.has_moved_here(client) && self.host.find(self.vip, client).is_some();
        if !is_here {
            self.wire.give_back(client);
        }
        is_here
    }

    fn reverse(&mut self, _: ServiceIndex, clients: &[SocketAddr]) {
        self.wire.reverse(clients);
    }

    fn settle(&mut self, _: ServiceIndex) {
        self.wire.settle();
    }

    fn cap_window(&mut self, _: ServiceIndex, client: SocketAddr, cap: Option<Cap>) {
        self.wire.cap(client, cap);
    }

    fn destroy(&mut self, _: ServiceIndex, clients: &[SocketAddr]) {
        self.destroy_dying(clients);
    }

    fn show_ends(&mut self, _: ServiceIndex, clients: &[SocketAddr]) {
        let gone = self.show_ends_of(clients);
        self.wire.release(&gone);
    }

    fn take_address(&mut self, _: ServiceIndex) -> Result<(), String> {
        self.check_network()?;
        self.address = Address::Interface;
        self.is_claiming = true;
        Ok(())
    }

    fn mend(&mut self, _: ServiceIndex) -> Result<[u8; 6], String> {
        self.check_network()?;
        Ok(self.config.core.services[0].mac)
    }

    fn announce(&mut self, _: ServiceIndex) {
        self.tell_neighbours();
    }

    fn ask_outside(&mut self, _: ServiceIndex, _: Option<Instant>) -> bool {
        self.ask_outside_host()
    }

    /// The gate is closed, so all sockets are removed without sending a packet.
    fn stand_down(&mut self, _: ServiceIndex, is_deposed: bool) {
        if !is_deposed {
            self.judge.borrow_mut().on_given_up(self.config.number);
        }
        self.may_speak = false;
        (self.is_claiming, self.is_reached) = (false, false);
        self.address = Address::Nowhere;
        self.wire.end_holds();
        self.destroy_sockets();
    }

    fn allow_speech(&mut self, _: ServiceIndex) {
        self.may_speak = true;
        if self.is(Defect::GateLast) {
            self.change_gate(Gate::Takeover, self.late_gate);
        }
    }

    fn transmit(&mut self, packet: &[u8]) {
        let output = self.speak(self.at, packet.to_vec(), true);
        self.outputs.extend(output);
    }

    fn run_sync(&mut self, run: SyncRun) {
        self.start_hook(run);
    }

    fn exported(&mut self, _: ServiceIndex, _: &[u64], outcome: &ExportOutcome) {
        self.exports.finish(outcome);
    }

    fn hold_input(&mut self, _: ServiceIndex, until: Option<Instant>) {
        let number = self.config.number;
        match until.map(|until| self.clock.when(until)) {
            Some(until) => self.judge.borrow_mut().on_hold(number, until),
            None => self.judge.borrow_mut().on_hold_end(number),
        }
        self.wire
            .hold_input(until.filter(|_| !self.is(Defect::ReleaseInput)));
    }

    /// Updates what the kernel keeps for the next agent.
    fn report(&mut self, _: &Node, _: ServiceIndex, report: &OperatorReport) {
        match report {
            OperatorReport::Unrestorable { client, reason } => self.lost.push((*client, reason.clone())),
            OperatorReport::Migrated { connections } => self.migrated += connections,
            OperatorReport::Role { to, .. } => {
                self.judge.borrow_mut().on_role(self.config.number, *to);
                self.is_consented = *to == Role::Backup;
                self.doubted = None;
            }
            OperatorReport::Doubted { is_primary, epoch } => self.doubted = Some((*is_primary, *epoch)),
            OperatorReport::Confirmed => self.doubted = None,
            OperatorReport::Synced { .. } => self.judge.borrow_mut().on_synced(self.config.number),
            _ => {}
        }
    }

    fn say(&mut self, message: MessageToPeer) {
        self.say_word(&match message {
            MessageToPeer::Heartbeat(heartbeat) => AgentMessage::Heartbeat(heartbeat),
            MessageToPeer::Ask { clients, .. } => AgentMessage::Ask(clients),
            MessageToPeer::AskAll { query, .. } => AgentMessage::AskAll(query),
            MessageToPeer::Part { part, .. } => AgentMessage::Part(part),
            MessageToPeer::Receipt { receipt, .. } => AgentMessage::Receipt(receipt),
            MessageToPeer::AskPrefix { ask, .. } => AgentMessage::AskPrefix(ask),
        });
    }

    fn probe(&mut self) {
        self.send(AGENTS, PROBE);
        if self.config.service_link {
            self.send(PEER, PROBE);
        }
    }

    fn take_unlogged(&mut self, _: ServiceIndex) -> u64 {
        let packets = self.wire.take_unlogged();
        if packets > 0 {
            self.log_end = self.wire.end(); // the agent must first read the log up to the unlogged packets
        }
        packets
    }

    fn read_all(&mut self, reader: &mut dyn LogReader) {
        let skips = self.is(Defect::SkipSecondDrain) && self.restoring > 0;
        if !skips && !self.is(Defect::SkipDrains) {
            self.read_log(self.log_end, reader);
        }
    }

    fn restore<'a>(
        &mut self,
        _: ServiceIndex,
        endpoint: &Known,
        output: impl Iterator<Item = &'a [u8]>,
    ) -> Result<EndpointId, String> {
        let sent = output.flatten().copied().collect();
        let restore = self.distort(restore_of(endpoint, sent, self.at));
        if self.host.find(self.vip, endpoint.client).is_some() {
            return Err("the address is in use".to_owned());
        }
        let made = TcpEndpoint::restore(self.tcp().clone(), &restore, self.at);
        let made = made.map_err(|error| error.to_string())?;
        self.deaf.insert(endpoint.client);
        self.restoring += 1;
        let nobody = Box::new(|_: Instant, _: &mut TcpEndpoint| None);
        Ok(self.host.adopt(self.at, made, nobody))
    }

    fn make_ready(&mut self, socket: &EndpointId) -> Result<(), String> {
        let client = self.host.endpoint(*socket).map(TcpEndpoint::remote);
        let Some(client) = client.filter(|_| !self.is(Defect::ReadyLast)) else {
            return Ok(());
        };
        self.deaf.remove(&client);
        let mut judge = self.judge.borrow_mut();
        judge.on_ready(self.config.number, client);
        judge.on_socket(self.config.number, client);
        Ok(())
    }

    fn feed<'a>(
        &mut self,
        socket: &EndpointId,
        endpoint: &Known,
        input: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        if self.is(Defect::ForgetLateInput) {
            return Ok(());
        }
        let has = self.host.endpoint(*socket);
        let has = has.map_or(endpoint.receive_next, TcpEndpoint::receive_next);
        let came = usize::try_from(has.distance_from(endpoint.receive_next)).unwrap_or(0);
        let late: Vec<u8> = input.flatten().copied().skip(came).collect();
        self.host.with(self.at, *socket, |socket| socket.feed(&late));
        Ok(())
    }

    fn activate(
        &mut self,
        _: ServiceIndex,
        endpoint: &Known,
        socket: EndpointId,
        is_quiet: bool,
    ) -> Result<EndpointId, String> {
        self.restoring -= 1;
        if !is_quiet {
            self.host.with(self.at, socket, TcpEndpoint::probe);
        }
        let (gate, epoch) = self.wire.gate();
        let is_lent = gate == Gate::Takeover && self.until.is_some_and(|until| self.at < until);
        let mut judge = self.judge.borrow_mut();
        judge.on_live(self.config.number, endpoint.client, is_lent.then_some(epoch));
        if self.wire.is_via_peer(endpoint.client) {
            judge.on_reversed(self.config.number, &[endpoint.client]);
        }
        if self.is(Defect::ReadyLast) {
            self.deaf.remove(&endpoint.client);
        }
        drop(judge);
        Ok(socket)
    }

    fn offered_window(&self, socket: &EndpointId) -> u32 {
        self.host.endpoint(*socket).map_or(0, TcpEndpoint::offered_window)
    }

    fn drop_restored(&mut self, _: ServiceIndex, endpoint: &Known, socket: EndpointId) {
        self.restoring -= 1;
        self.deaf.remove(&endpoint.client);
        self.host.take(socket);
        self.lose_socket(endpoint.client);
    }

    fn drop_live(&mut self, _: ServiceIndex, endpoint: &Known, socket: EndpointId) {
        self.host.take(socket);
        self.lose_socket(endpoint.client);
    }

    fn close_live(
        &mut self,
        _: ServiceIndex,
        id: ConnectionId,
        endpoint: &Known,
        socket: EndpointId,
        has_ended: bool,
    ) {
        self.replicas.remove(&id);
        if has_ended {
            self.host.with(self.at, socket, TcpEndpoint::shutdown);
        } else {
            self.host.with(self.at, socket, TcpEndpoint::abort);
            self.lose_socket(endpoint.client);
        }
    }

    fn relay(
        &mut self,
        _: ServiceIndex,
        id: ConnectionId,
        endpoint: Known,
        socket: EndpointId,
        taken: HandedOver,
    ) {
        let replica = self.replicas.remove(&id);
        let HandedOver { connection, syn_ack } = taken;
        let begins_at = begins_at(&connection);
        let adoption = match adoption(&connection, &endpoint, replica) {
            Ok(adoption) => adoption,
            Err(reason) => {
                self.lost.push((endpoint.client, reason));
                self.host.with(self.at, socket, TcpEndpoint::abort); // the daemon drops the socket, which sends a RST
                return;
            }
        };
        if adoption.imports() {
            self.exports.note_import();
        }
        let (program, client) = (Rc::clone(&self.config.program), endpoint.client);
        let exports = begins_at.filter(|_| self.config.exports());
        let exports =
            exports.map(|begins_at| ConnectionExports::new(self.exports.clone(), client, begins_at));
        let keeps = self.config.core.services[0].table.keep_input
            && matches!(adoption.plan, RelayPlan::Replay(..))
            && adoption.output == OutputEnd::Open
            && !adoption.input_ended;
        let kept = begins_at
            .filter(|_| keeps)
            .map(|begins_at| KeptInput::new(Arc::clone(&self.kept), begins_at));
        let mut relay = SimRelay::new(self.at, adoption, exports, move || program(client));
        kept.into_iter().for_each(|kept| relay.keep(kept));
        if let Some((endpoint, _)) = self.host.take(socket) {
            let socket = self.host.adopt(self.at, endpoint, Box::new(relay));
            self.relayed.push(socket);
            self.unheard.extend(syn_ack.map(|syn_ack| (socket, syn_ack)));
        }
    }

    fn restore_at<'a>(
        &mut self,
        _: ServiceIndex,
        node: ServingNode,
        endpoint: &Known,
        output: impl Iterator<Item = &'a [u8]>,
    ) {
        let word = LinkWord::Restore {
            endpoint: Box::new(endpoint.clone()),
            output: output.flatten().copied().collect(),
            now: self.at.as_nanos(),
        };
        self.annexes.links.send(node, word);
    }

    fn guide(&mut self, _: ServiceIndex, client: SocketAddr, node: ServingNode) {
        self.annexes.links.note_guest(client, node);
        self.wire.guide(client, node.annex().map(number_of));
    }

    fn start_at<'a>(
        &mut self,
        _: ServiceIndex,
        node: ServingNode,
        endpoint: &Known,
        connection: &Connection,
        late: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        let adoption = adoption(connection, endpoint, None)?;
        let word = StartWord {
            client: endpoint.client,
            late: late.flatten().copied().collect(),
            is_quiet: connection.is_quiet(endpoint),
            acknowledged: connection.endpoint().send_unacknowledged,
            begins_at: begins_at(connection),
            adoption: serde_json::to_string(&adoption).map_err(|error| error.to_string())?,
        };
        self.annexes.links.send(node, LinkWord::Start(Box::new(word)));
        Ok(())
    }

    fn drop_at(&mut self, _: ServiceIndex, node: ServingNode, client: SocketAddr) {
        if !self.is(Defect::NameTakenBack) {
            self.annexes.links.forget_guest(client, node);
        }
        if self.is(Defect::LeaveUndropped) && node != ServingNode::Primary {
            self.annexes.links.forge_dropped(client, node);
            return;
        }
        self.annexes.links.send(node, LinkWord::Drop(client));
    }

    fn ask_annex(&mut self, _: ServiceIndex, annex: AnnexId, clients: Vec<SocketAddr>) {
        self.annexes
            .links
            .send(ServingNode::Annex(annex), LinkWord::Ask(clients));
    }

    fn answer_part(&mut self, _: ServiceIndex, annex: AnnexId, receipt: PartReceipt) {
        self.annexes
            .links
            .send(ServingNode::Annex(annex), LinkWord::Receipt(receipt));
    }

    fn open_replica(&mut self, _: ServiceIndex, id: ConnectionId, client: SocketAddr) -> Result<(), String> {
        if self.is_server_dead {
            self.judge
                .borrow_mut()
                .on_replica_refused(self.config.number, client);
            return Err("the server refuses connections".to_owned());
        }
        self.judge.borrow_mut().on_replica(self.config.number, client);
        let replica = ApplicationReplica {
            application: (self.config.program)(client),
            ended: false,
            reads_at: Instant::ZERO,
        };
        let before = self.replicas.insert(id, replica);
        assert!(before.is_none(), "{client} has a replica already");
        Ok(())
    }

    fn write_replica<'a>(
        &mut self,
        _: ServiceIndex,
        id: ConnectionId,
        input: impl Iterator<Item = LogPart<'a>>,
        ends: bool,
    ) -> Option<Result<Written, String>> {
        let (now, pace) = (self.at, self.config.replica_pace);
        let replica = self.replicas.get_mut(&id)?;
        let mut input = gather(input).expect("memory can be read");
        let all = input.len();
        if let Some(pace) = pace {
            input.truncate(if now < replica.reads_at { 0 } else { pace.bytes });
            if !input.is_empty() {
                replica.reads_at = now + pace.every;
            }
        }
        replica.application.on_input(now, &input);
        let is_ended = ends && input.len() == all;
        if is_ended {
            replica.application.on_input_end(now);
        }
        Some(Ok(Written {
            bytes: input.len() as u64,
            is_ended,
        }))
    }

    fn close_replica(&mut self, _: ServiceIndex, id: ConnectionId) {
        self.replicas.remove(&id);
    }
}

/// The sequence numbers in the client's streams at which a restarted application begins.
fn begins_at(connection: &Connection) -> Option<(Seq, Seq)> {
    match connection.follower().restart() {
        Ok(Restart::Replay {
            input_from,
            output_from,
            ..
        }) => Some((
            input_from.to_seq(connection.input().first()),
            output_from.to_seq(connection.output().first()),
        )),
        _ => None,
    }
}

/// How the relay continues a connection.
fn adoption(
    connection: &Connection,
    endpoint: &Known,
    replica: Option<ApplicationReplica>,
) -> Result<RelayAdoption, String> {
    let (log, frontier) = (connection.input(), endpoint.input_frontier);
    let restart = connection.restart_on(endpoint);
    let (plan, input) = match &restart {
        Ok(Restart::Replica { input_from, resume }) => {
            let replica = replica.ok_or("there is no replica")?;
            let input = log.parts((*input_from).min(frontier)..frontier).collect();
            (RelayPlan::Replica(resume.clone(), replica.application), input)
        }
        // This case comes before the check of `output`. An application that is started again needs the input even if the connection's
        // output is complete.
        Ok(Restart::Replay {
            input_from,
            resume,
            earlier,
            state,
            ..
        }) => {
            let input = log.parts((*input_from).min(frontier)..frontier).collect();
            (RelayPlan::Replay(resume.clone(), *earlier, state.clone()), input)
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
        sent_before: connection.sent_before(endpoint),
    })
}
