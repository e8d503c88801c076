//! A node of the pair: a machine and its agent. The agent is the same code that the daemon runs (the crate `agent`). It runs on a simulated
//! thread, whose work takes time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use agent::{Core, Executor, TurnStep, is_superseded};
use proto::Instant;
use proto::action::{Gate, Heartbeat};
use proto::node::{Node, NodeConfig};
use proto::pause::ClockReading;
use proto::role::Role;
use proto::service::{BrokenRule, InheritedService, ServiceInput};
use proto::standing::ArbiterVerdict;

use super::arbiter::TimedAnswer;
use super::defect::Defect;
use super::judge::Judge;
use super::machine::{ApplicationReplica, Machine, StationConfig};
use super::relay::SimRelay;
use super::thread::{AgentMessage, AgentThread};

/// Bytes of output by which a replica may be ahead of the primary. The agent does not read from a replica that is further ahead.
const AHEAD_MAX: usize = 1 << 20;
const READ_SIZE: usize = 16 * 1024;

/// A node of the pair.
pub struct Station {
    pub(super) core: Core,
    pub(super) executor: Executor<Machine>,
    pub(super) machine: Machine,
}

/// The core of an agent that starts.
fn core_of(config: &StationConfig, core: NodeConfig, now: Instant) -> Core {
    let mut core = Core::new(core, now, None);
    core.handle(now, 0, ServiceInput::HasLink(config.service_link));
    let broken = match config.defect {
        Some(Defect::DecideMute) => Some(BrokenRule::DecideMute),
        Some(Defect::ClaimInDoubt) => Some(BrokenRule::ClaimInDoubt),
        Some(Defect::AdoptMoving) => Some(BrokenRule::AdoptMoving),
        _ => None,
    };
    if let Some(rule) = broken {
        core.break_rule(rule);
    }
    core
}

impl Station {
    /// A node that has just started. The node reports its events to `judge`.
    pub fn new(now: Instant, config: StationConfig, seed: u64, judge: Rc<RefCell<Judge>>) -> Self {
        let machine = Machine::new(now, config, seed, judge);
        Self {
            core: core_of(&machine.config, machine.config.core.clone(), machine.at),
            executor: Executor::default(),
            machine,
        }
    }

    /// Starts the node again after a loss of power.
    pub fn boot(&mut self, now: Instant) {
        let machine = self.machine.booted(now);
        *self = Self {
            core: core_of(&machine.config, machine.config.core.clone(), machine.at),
            executor: Executor::default(),
            machine,
        };
    }

    /// The machine.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The machine, for changes.
    pub const fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// The core, for inspection.
    pub fn core(&self) -> &Node {
        &self.core
    }

    /// Whether the agent is deciding which connections it restores and which are lost: in a takeover of all connections, or in an adoption
    /// of a dead worker's connections.
    pub fn is_deciding(&self) -> bool {
        self.core.service(0).role() == Role::TakingOver || self.machine.wire.is_deciding()
    }

    fn is_primary(&self) -> bool {
        self.core.service(0).role() == Role::Primary
    }

    /// Kills the agent. A new agent starts at `restart`. The state of the kernel and of the keeper stays.
    pub fn kill_agent(&mut self, now: Instant, restart: Instant) {
        self.executor.drop_unfinished(&mut self.machine, 0);
        self.machine.replicas.clear();
        self.machine.verdicts.clear();
        self.machine.hook.kill();
        self.machine.exports.clear();
        let stopped = self.machine.clock.read(now);
        self.machine.close_links(stopped);
        self.machine
            .judge
            .borrow_mut()
            .on_log_lost(self.machine.config.number);
        let now = self.machine.clock.read(now);
        self.start_agent(now);
        self.machine.agent.is_dead = true;
        self.machine.pause(restart);
    }

    /// Starts a new agent, which finds what the kernel has kept.
    fn start_agent(&mut self, now: Instant) {
        let mut config = self.machine.config.core.clone();
        let number = self.machine.agent.number + 1;
        config.incarnation = number;
        let (gate, epoch) = self.machine.wire.gate();
        self.machine.wire.settle_for_the_dead();
        config.services[0].found = Some(InheritedService {
            gate,
            epoch,
            is_consented: self.machine.is_consented,
            is_confirmed: self.machine.until.is_none(),
            doubted: self
                .machine
                .doubted
                .filter(|doubt| doubt.1 == epoch)
                .map(|(is_primary, _)| is_primary),
            seen: if self.machine.is(Defect::TrustGate) {
                now
            } else {
                self.machine.wire.agent_seen()
            },
            taken: self.machine.wire.held(),
            reversed_here: self.machine.wire.reversed_here(),
            reversed_there: self.machine.wire.reversed_there(),
            frozen: self.machine.wire.frozen(),
            moved: self.machine.wire.left(),
            annexed: self.machine.annexed(),
            orphans: self.machine.remembered_orphans(),
        });
        self.machine.wire.forget_caps();
        self.machine.agent = AgentThread::new(now, number);
        self.machine.open_links(now);
        self.machine.turns_unaware = 0;
        self.core = core_of(&self.machine.config, config, now);
        if self.machine.is(Defect::TrustLease) && gate == Gate::Wire {
            self.forge_echo(now);
        }
    }

    /// The relay tells a new agent of clients that have sent nothing since their SYN.
    fn hear_of_unheard(&mut self, now: Instant) {
        let host = &self.machine.host;
        let is_silent = |relay: &SimRelay| relay.is_silent();
        self.machine
            .unheard
            .retain(|(socket, _)| host.app(*socket).is_some_and(is_silent));
        for (_, syn_ack) in &self.machine.unheard {
            let syn_ack = syn_ack.clone();
            self.core.handle(now, 0, ServiceInput::Unheard { syn_ack });
        }
    }

    /// Continues the agent's work: finishes one action and begins the next, or takes the next step of its turn.
    pub(super) fn step(&mut self, now: Instant) {
        if self.machine.agent.is_dead {
            self.start_agent(now);
            let gate = self.machine.wire.gate().0;
            self.machine.prepare(gate); // the previous agent may have died while it prepared this gate
            self.hear_of_deaths(now);
            self.hear_of_unheard(now);
        }
        self.machine.agent.is_asleep = false;
        self.machine.at = now;
        if let Some(action) = self.machine.agent.doing.take()
            && let Some(action) = self.core.admit(now, action)
        {
            self.machine.note(&action);
            self.executor.carry_out(&mut self.machine, &mut self.core, action);
        }
        self.machine.log_end = self.machine.wire.end();
        if let Some(action) = self.core.next_action() {
            let unread = self.machine.wire.unread(self.machine.log_end);
            let cost = self.machine.config.costs.of(&action, unread);
            self.machine.agent.due = now + self.machine.agent.slowed(now, cost);
            self.machine.agent.doing = Some(action);
            return;
        }
        let step = self.machine.agent.turn;
        if !self.take_step(now, step) {
            self.machine.agent.turn = step.next();
        }
    }

    /// Takes one step of a turn. Returns whether the same step is to be taken again.
    fn take_step(&mut self, now: Instant, step: TurnStep) -> bool {
        match step {
            TurnStep::LookForPause => self.look_for_pause(now),
            TurnStep::CheckIn => self.check_in(now),
            TurnStep::ReadLog => {
                let unread = self.machine.wire.unread(self.machine.log_end);
                let records = u32::try_from(unread).unwrap_or(u32::MAX);
                self.machine.read_log(self.machine.log_end, &mut self.core);
                let cost = self.machine.config.costs.other + self.machine.config.costs.record * records;
                self.machine.agent.due = now + self.machine.agent.slowed(now, cost);
            }
            TurnStep::HearPeer => {
                if let Some(word) = self.machine.agent.words.pop_front() {
                    let agent_of = |word: &AgentMessage| match word {
                        AgentMessage::Heartbeat(heartbeat) => Some(heartbeat.incarnation),
                        _ => None,
                    };
                    if !is_superseded(&word, &self.machine.agent.words, agent_of) {
                        self.hear(now, word);
                    }
                    return true;
                }
                if std::mem::take(&mut self.machine.agent.is_answered) {
                    self.core.handle_answer(now);
                }
            }
            TurnStep::Watch if self.machine.agent.answers_wire => {
                self.machine.agent.answers_wire = self.answer_wire(now);
                return self.machine.agent.answers_wire;
            }
            TurnStep::Watch => {
                self.watch(now);
                self.machine.agent.answers_wire = self.machine.annexes.server.has_calls();
                return self.machine.agent.answers_wire;
            }
            TurnStep::PassTime => {
                if now >= self.core.poll_timeout() {
                    self.core.handle_timeout(now);
                }
                self.feed_slow_replicas(now);
                self.serve_replicas(now);
            }
            TurnStep::AnswerCalls | TurnStep::LookForUpgrade => {} // `orders` gives orders between turns
            TurnStep::Rest => self.rest(now),
        }
        false
    }

    fn look_for_pause(&mut self, now: Instant) {
        let (counter, clock) = (self.machine.clock.counter(now), now);
        let (before, after) = (counter, counter);
        if self.machine.turns_unaware > 0 {
            self.machine.turns_unaware -= 1;
            if self.machine.turns_unaware == 0 {
                self.machine.outlasted = Instant::ZERO; // the agent has had the time to notice that the machine stood still
            }
        }
        let was_paused = self
            .machine
            .agent
            .pauses
            .look(ClockReading { before, clock, after })
            .is_some();
        if was_paused && !self.machine.is(Defect::IgnorePause) {
            self.core.handle_pause(now);
        }
    }

    fn check_in(&mut self, now: Instant) {
        self.machine.wire.check_in(self.core.ran());
        if self.core.wants_link(now) {
            self.core.handle_carrier(now, 0, self.machine.has_carrier);
        }
        let seen = self.machine.agent.seen_here.take();
        if let Some(seen) = seen.or_else(|| self.machine.is(Defect::IgnoreMeet).then_some(now)) {
            self.core.handle(now, 0, ServiceInput::Sign { at: seen });
        }
        agent::check_log(&mut self.machine, &mut self.core, 0);
    }

    /// Tells the core what was heard from outside hosts, the arbiter and the hook.
    fn watch(&mut self, now: Instant) {
        let mut asked = self.machine.agent.reached_outside.take();
        if self.machine.is(Defect::TrustOutside) && self.machine.config.outside {
            asked = Some(now);
        }
        if let Some(asked) = asked {
            self.core.handle(now, 0, ServiceInput::Outside { asked });
        }
        if std::mem::take(&mut self.machine.is_reached) {
            self.core.handle(now, 0, ServiceInput::Reached);
        }
        let is_due = |answer: &TimedAnswer| answer.at <= now;
        while self.machine.verdicts.front().is_some_and(is_due) {
            let Some(answer) = self.machine.verdicts.pop_front() else {
                break;
            };
            let verdict = if self.machine.is(Defect::IgnoreVerdict) {
                ArbiterVerdict::Granted
            } else {
                answer.verdict
            };
            let epoch = answer.epoch;
            self.core.handle(now, 0, ServiceInput::Verdict { epoch, verdict });
        }
        while let Some(call) = self.machine.exports.take() {
            self.core.handle(now, 0, ServiceInput::Export(call));
        }
        for (run, outcome) in std::mem::take(&mut self.machine.hook.outcomes) {
            self.core.handle(now, 0, ServiceInput::Synced { run, outcome });
        }
        self.hear_annexes(now);
    }

    /// Handles a message of the peer's agent. The log has been read before.
    fn hear(&mut self, now: Instant, word: AgentMessage) {
        match word {
            AgentMessage::Heartbeat(heartbeat) => self.hear_heartbeat(now, heartbeat),
            AgentMessage::Ask(clients) if self.is_primary() || self.core.service(0).has_reversed_here() => {
                self.machine.look_up(clients)
            }
            AgentMessage::AskAll(query) if self.is_primary() => self.machine.list(query),
            AgentMessage::Ask(_) | AgentMessage::AskAll(_) => {}
            AgentMessage::Told(told) => self.core.handle(now, 0, ServiceInput::Told(told)),
            AgentMessage::Page(page) => self.core.handle(now, 0, ServiceInput::Page(page)),
            AgentMessage::Part(part) => self.core.handle(now, 0, ServiceInput::Part(part)),
            AgentMessage::Receipt(receipt) => self.core.handle(now, 0, ServiceInput::Receipt(receipt)),
            AgentMessage::AskPrefix(ask) => self.machine.tell_prefix(&ask),
            AgentMessage::Prefix(answer) => self.core.handle(now, 0, ServiceInput::Prefix(answer)),
        }
    }

    fn hear_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        let last = self.machine.is(Defect::WithoutConsent).then(|| heartbeat.clone());
        let heartbeat = self.distort_heartbeat(now, heartbeat);
        self.core.handle_heartbeat(now, heartbeat);
        if let Some(last) = last.filter(|_| self.core.service(0).role() == Role::Returning) {
            let heartbeat = self.distort_heartbeat(now, last);
            self.core.handle_heartbeat(now, heartbeat);
        }
    }

    /// Feeds the slow replicas that may read again.
    fn feed_slow_replicas(&mut self, now: Instant) {
        if self.machine.config.replica_pace.is_none() {
            return;
        }
        let due = |replica: &ApplicationReplica| replica.reads_at <= now;
        let replicas = self.machine.replicas.iter();
        let ids: Vec<_> = replicas
            .filter(|(_, replica)| due(replica))
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            agent::feed_replica(&mut self.machine, &mut self.core, 0, id);
        }
    }

    /// Passes the replicas' output to the core.
    fn serve_replicas(&mut self, now: Instant) {
        for (&id, replica) in &mut self.machine.replicas {
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

    /// Sets when the agent continues: after a nap if the log has unread records, otherwise at the next deadline.
    fn rest(&mut self, now: Instant) {
        const LEAST: Duration = Duration::from_micros(1);
        let replicas = self.machine.replicas.values().flat_map(|replica| {
            replica
                .application
                .wakes_at()
                .into_iter()
                .chain([replica.reads_at])
        });
        let timeout = self.core.poll_timeout();
        let answers = self.machine.verdicts.front().map(|answer| answer.at);
        let due = replicas
            .filter(|at| *at > now)
            .chain(answers)
            .fold(timeout, Instant::min);
        self.machine.agent.is_asleep = self.machine.wire.is_empty();
        let due = if self.machine.agent.is_asleep {
            due
        } else {
            due.min(now + self.machine.config.nap)
        };
        self.machine.agent.due = due.max(now + LEAST).max(self.machine.agent.paused_until);
    }
}
