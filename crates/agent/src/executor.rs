//! Carries out a node's actions on a kernel. The node gets the result of each action before the next action is carried out.

use std::net::SocketAddr;

use proto::Instant;
use proto::action::{Action, AnnexStep, ServiceAction, ServiceIndex, StateSyncPhase};
use proto::service::ServiceInput;
use proto::table::ConnectionId;

use crate::connection::Unfinished;
use crate::{Core, Kernel, MessageToPeer, SyncRun, Written};

/// Carries out actions. Has the sockets of unfinished connections.
pub struct Executor<K: Kernel> {
    unfinished: Unfinished<K>,
}

impl<K: Kernel> Default for Executor<K> {
    fn default() -> Self {
        let unfinished = Unfinished::default();
        Self { unfinished }
    }
}

impl<K: Kernel> Executor<K> {
    /// Whether no connection is unfinished. An unfinished connection is on its way from the log to the relay.
    pub fn is_settled(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Drops the sockets of a service's unfinished connections.
    pub fn drop_unfinished(&mut self, kernel: &mut K, service: ServiceIndex) {
        self.unfinished.drop_all(kernel, service);
    }

    fn stand_down(&mut self, kernel: &mut K, service: ServiceIndex, is_deposed: bool) {
        self.drop_unfinished(kernel, service);
        kernel.stand_down(service, is_deposed);
    }

    /// Carries out one action, which [`Node::admit`](proto::node::Node::admit) has returned. If the action fails, only its connection or
    /// its service is affected.
    pub fn carry_out(&mut self, kernel: &mut K, core: &mut Core, action: Action) {
        match action {
            Action::Service(service, action) => self.carry_out_for(kernel, core, service, action),
            Action::Send(heartbeat) => kernel.say(MessageToPeer::Heartbeat(heartbeat)),
            Action::Probe => kernel.probe(),
        }
    }

    /// Carries out a step of a connection's move from one node to another, of which this node is the wire.
    fn move_elsewhere(&mut self, kernel: &mut K, core: &mut Core, service: ServiceIndex, step: AnnexStep) {
        match step {
            AnnexStep::RestoreAt { connection, node } => {
                self.unfinished
                    .restore_at(kernel, core, (service, connection), node);
            }
            AnnexStep::StartAt { connection, node } => {
                self.unfinished
                    .start_at(kernel, core, (service, connection), node);
            }
            AnnexStep::Guide { client, node } => kernel.guide(service, client, node),
            AnnexStep::DropAt { client, node } => self.unfinished.drop_at(kernel, service, client, node),
            AnnexStep::Ask { annex, clients } => kernel.ask_annex(service, annex, clients),
            AnnexStep::Receipt { annex, receipt } => kernel.answer_part(service, annex, receipt),
        }
    }

    fn carry_out_for(
        &mut self,
        kernel: &mut K,
        core: &mut Core,
        service: ServiceIndex,
        action: ServiceAction,
    ) {
        let key = |connection| (service, connection);
        match action {
            ServiceAction::Assume { gate, peer_mac } => {
                let outcome = kernel.assume(service, gate, peer_mac);
                note(kernel, core, service, outcome);
            }
            ServiceAction::SetGate { gate, epoch, until } => kernel.set_gate(service, gate, epoch, until),
            ServiceAction::SetUntil { until } => kernel.set_until(service, until),
            ServiceAction::SetDirect { until } => kernel.set_direct(service, until),
            ServiceAction::PassUnlogged { may } => kernel.pass_unlogged(service, may),
            ServiceAction::Confirm { epoch } => kernel.confirm(service, epoch),
            ServiceAction::Hold { clients } => hold(kernel, core, service, clients),
            ServiceAction::Reserve { clients } => reserve(kernel, core, service, &clients),
            ServiceAction::GiveBack { connection, client } => {
                self.unfinished.abandon(kernel, key(connection));
                kernel.give_back(service, client);
            }
            ServiceAction::Release { clients } => kernel.release(service, &clients),
            ServiceAction::Freeze { clients, ended } => kernel.freeze(service, &clients, &ended),
            ServiceAction::Thaw { clients } => thaw(kernel, core, service, clients),
            ServiceAction::LookFor { clients } => look_for(kernel, core, service, &clients),
            ServiceAction::Reverse { clients } => kernel.reverse(service, &clients),
            ServiceAction::Settle => kernel.settle(service),
            ServiceAction::CapWindow { client, cap } => kernel.cap_window(service, client, cap),
            ServiceAction::Destroy { clients } => kernel.destroy(service, &clients),
            ServiceAction::ShowEnds { clients } => kernel.show_ends(service, &clients),
            ServiceAction::TakeAddress => {
                let outcome = kernel.take_address(service);
                note(kernel, core, service, outcome);
            }
            ServiceAction::Mend => match kernel.mend(service) {
                Ok(mac) => core.handle(kernel.now(), service, ServiceInput::Mended { mac }),
                Err(why) => note(kernel, core, service, Err(why)),
            },
            ServiceAction::Announce => kernel.announce(service),
            ServiceAction::AskOutside { since } => {
                if !kernel.ask_outside(service, since) {
                    core.handle(kernel.now(), service, ServiceInput::NoOutside);
                }
            }
            ServiceAction::StandDown { is_deposed } => self.stand_down(kernel, service, is_deposed),
            ServiceAction::Drain => drain(kernel, core, service),
            ServiceAction::Restore { connection } => self.unfinished.restore(kernel, core, key(connection)),
            ServiceAction::MakeReady { connection } => {
                self.unfinished.make_ready(kernel, core, key(connection))
            }
            ServiceAction::Activate { connection } => self.unfinished.activate(kernel, core, key(connection)),
            ServiceAction::HandOver { connection } => {
                self.unfinished.hand_over(kernel, core, key(connection))
            }
            ServiceAction::Elsewhere(step) => self.move_elsewhere(kernel, core, service, step),
            ServiceAction::AllowSpeech => kernel.allow_speech(service),
            ServiceAction::Transmit(packet) => kernel.transmit(&packet),
            ServiceAction::Ask { clients } => kernel.say(MessageToPeer::Ask { service, clients }),
            ServiceAction::AskAll { query } => kernel.say(MessageToPeer::AskAll { service, query }),
            ServiceAction::OpenReplica { connection, client } => {
                let outcome = kernel.open_replica(service, connection, client);
                outcome.unwrap_or_else(|reason| refuse_replica(kernel, core, service, connection, reason));
            }
            ServiceAction::FeedReplica { connection } => feed_replica(kernel, core, service, connection),
            ServiceAction::CloseReplica { connection } => kernel.close_replica(service, connection),
            ServiceAction::RunSync { phase, run, until } => run_sync(kernel, service, phase, (run, until)),
            ServiceAction::HoldInput { until } => kernel.hold_input(service, until),
            ServiceAction::SendPart(part) => kernel.say(MessageToPeer::Part { service, part }),
            ServiceAction::SendReceipt(receipt) => kernel.say(MessageToPeer::Receipt { service, receipt }),
            ServiceAction::AskPrefix(ask) => kernel.say(MessageToPeer::AskPrefix { service, ask }),
            ServiceAction::Exported { calls, outcome } => kernel.exported(service, &calls, &outcome),
            ServiceAction::Report(report) => kernel.report(core, service, &report),
        }
    }
}

fn run_sync<K: Kernel>(
    kernel: &mut K,
    service: ServiceIndex,
    phase: StateSyncPhase,
    (number, until): (u64, Option<Instant>),
) {
    kernel.run_sync(SyncRun {
        service,
        phase,
        number,
        until,
    });
}

/// Holds clients, and tells the node which earlier ones are released because their connections have ended.
fn hold<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, clients: Vec<SocketAddr>) {
    let ended = kernel.hold(service, clients);
    if !ended.is_empty() {
        core.handle(kernel.now(), service, ServiceInput::Forgotten(ended));
    }
}

/// Reserves connections. If that fails, tells the node that they cannot move here.
fn reserve<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, clients: &[SocketAddr]) {
    let Err(reason) = kernel.reserve(service, clients) else {
        return;
    };
    for &client in clients {
        if let Some(connection) = core.service(service).table().find(client) {
            let reason = reason.clone();
            let refused = ServiceInput::Unrestorable { connection, reason };
            core.handle(kernel.now(), service, refused);
        }
    }
}

/// Lets frozen sockets go on, and tells the node which ones do.
fn thaw<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, clients: Vec<SocketAddr>) {
    let spoken = kernel.thaw(service, &clients);
    let mut thawed = clients;
    thawed.retain(|client| !spoken.contains(client));
    core.handle(kernel.now(), service, ServiceInput::Thawed { thawed, spoken });
}

/// Tells the node which connections are here that an earlier agent may have taken.
fn look_for<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, clients: &[SocketAddr]) {
    for &client in clients {
        let is_here = kernel.look_for(service, client);
        core.handle(kernel.now(), service, ServiceInput::LookedFor { client, is_here });
    }
}

/// Tells the node about a failed step in a service's network. Does nothing if `outcome` is a success.
fn note<K: Kernel>(kernel: &K, core: &mut Core, service: ServiceIndex, outcome: Result<(), String>) {
    if let Err(why) = outcome {
        core.handle(kernel.now(), service, ServiceInput::Failed { why });
    }
}

/// Reads the log to its end, then tells the node that the log was read.
fn drain<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex) {
    // If the agent was away, or with commit mode `immediate`, packets may have passed unlogged since the last check.
    let unlogged = kernel.take_unlogged(service);
    read_all(kernel, core, service, unlogged);
    core.handle(kernel.now(), service, ServiceInput::Drained);
}

/// Reads the log to its end, then tells the node if packets of the service passed without being logged (`unlogged` is their number). The
/// log is read first, because the packets in it came before the unlogged packets.
fn read_all<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, unlogged: u64) {
    kernel.read_all(core);
    if unlogged > 0 {
        core.handle(kernel.now(), service, ServiceInput::LogGap);
    }
}

/// Checks whether packets of a service passed without being logged. If so, reads the log to its end, then tells the
/// node of the unlogged packets.
pub fn check_log<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex) {
    let unlogged = kernel.take_unlogged(service);
    if unlogged > 0 {
        read_all(kernel, core, service, unlogged);
    }
}

/// Writes to a replica the input that the primary has acknowledged and that the replica does not have yet.
pub fn feed_replica<K: Kernel>(kernel: &mut K, core: &mut Core, service: ServiceIndex, id: ConnectionId) {
    let Some(connection) = core.service(service).table().followed(id) else {
        return;
    };
    let Some(replica) = connection.follower().replica() else {
        return;
    };
    let (from, to) = (replica.fed(), connection.input_acknowledged());
    let ends = connection.input().fin() == Some(to);
    let input = connection.input().parts(from..to);
    match kernel.write_replica(service, id, input, ends) {
        None => {}
        Some(Ok(Written { bytes, is_ended })) => {
            let fed = ServiceInput::Fed {
                connection: id,
                to: from + bytes,
                ended: is_ended,
            };
            core.handle(kernel.now(), service, fed);
        }
        Some(Err(reason)) => {
            refuse_replica(kernel, core, service, id, reason);
            kernel.close_replica(service, id);
        }
    }
}

/// Tells the node that a replica failed.
fn refuse_replica<K: Kernel>(
    kernel: &K,
    core: &mut Core,
    service: ServiceIndex,
    connection: ConnectionId,
    reason: String,
) {
    let failed = ServiceInput::ReplicaFailed { connection, reason };
    core.handle(kernel.now(), service, failed);
}
