//! Model check of who may speak, on the real [`Standing`]. Within small bounds, the check explores all interleavings of the steps of two
//! nodes. The nodes exchange words ([`StandingBeat`]), which may be lost, late or reordered. Their clocks tick, their detectors are
//! unreliable, nodes crash, agents die, and the arbiter may not answer.
//!
//! A detector may declare the other node dead at any moment, right or wrong, so the checked properties do not rest on detection.
//! The two clocks run at the same rate here; [`Standing`]'s margin covers clocks that do not. The kernel is modelled: a node's right to
//! speak alone ends at [`Standing::until`], whether its agent runs or not.
//!
//! `STEADFAST_BOUNDS=more` explores more combinations, some of them with tens of millions of states.
//! `STEADFAST_BOUNDS=large` also raises the bounds and takes much longer.

mod annexes;
mod bounds;
mod exploration;
mod output;
mod ownership;
mod paths;
mod words;

use std::fmt::Write;
use std::time::Duration;

use arrayvec::ArrayVec;
use bounds::{SpeakingBounds, bounds, crashed, cut, directly, failed, operated, restarted, wanted};
use output::OutputPastWire;
use paths::Knows;
use proto::Instant;
use proto::path::{Reachability, fitness};
use proto::role::{Role, RoleEvent};
use proto::standing::{
    Arbiter, ArbiterVerdict, InheritedStanding, RoleChange, Standing, StandingBeat, StandingConfig,
};
use stateright::{Checker, HasDiscoveries, Model, Path, Property};
use steadfast_proto as proto;
use words::{SentWord, TICK, WordOrigin};

/// The lease: one tick. With its margin, the lease has ended after two ticks.
const LEASE: Duration = Duration::from_millis(100);

/// Number of rounds within which the service must be served again. In each round, words and answers arrive.
const ROUNDS: usize = 12;

#[derive(Clone, Copy, Debug)]
struct SpeakingModel {
    bounds: SpeakingBounds,
    arbiter: Arbiter,
    lease: Duration,
    /// A broken rule, which the checker must notice.
    defect: Option<SpeakingDefect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpeakingDefect {
    /// The kernel does not end an expired right to speak.
    NoEnd,
    /// The arbiter gives the same epoch to both nodes.
    Generous,
    /// A primary claims the VIP, and asks the arbiter, before the lease that it granted to its wire has ended.
    Impatient,
    /// The kernel goes on sending past the wire when the lease for that has ended.
    DirectOn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpeakingState {
    now: u64,
    nodes: [ModelledNode; 2],
    /// Words on their way to each node.
    words: [ArrayVec<SentWord, 2>; 2],
    /// For each node, the epoch that it asked for, and the arbiter's answer.
    questions: [Option<u64>; 2],
    answers: [Option<(u64, ArbiterVerdict)>; 2],
    /// The epoch that the arbiter has written down, and the node to which it granted the epoch.
    given: Option<(u64, usize)>,
    crashes: u8,
    restarts: u8,
    orders: u8,
    paths: u8,
    failures: u8,
    /// A node continued from a log that lacks output which the other node had sent alone.
    is_contradicted: bool,
}

impl SpeakingState {
    /// `node` sends a word to the other node.
    fn say(&mut self, node: usize) {
        let &ModelledNode {
            ref standing,
            agent,
            heard,
            ..
        } = &self.nodes[node];
        let word = StandingBeat {
            role: standing.role(),
            epoch: standing.epoch(),
            leaves: standing.says_that_it_leaves(),
            yields: standing.says_that_it_leaves(),
            echo: None,
            direct: standing.says_direct(),
        };
        let made = WordOrigin {
            agent,
            sent: self.now,
            is_after: true,
        };
        self.words[1 - node].push(SentWord { made, heard, word });
    }

    /// `node` becomes mute (`is_mute`) or speaks again. When `node` becomes mute, the words that it sent earlier in the same tick are
    /// marked as older. When `node` speaks again, these marks are removed.
    fn overtake(&mut self, node: usize, is_mute: bool) {
        let (own, peers) = (self.nodes[node].agent, &mut self.nodes[1 - node].heard);
        let [first, second] = &mut self.words;
        let (to_node, from_node) = if node == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let echoes = to_node.iter_mut().filter_map(|word| word.heard.as_mut());
        let made = from_node.iter_mut().map(|word| &mut word.made);
        for origin in echoes.chain(made).chain(peers.as_mut()) {
            if !is_mute {
                origin.is_after = true;
            } else if (origin.agent, origin.sent) == (own, self.now) {
                origin.is_after = false;
            }
        }
    }

    /// Counts the disturbance `action`, because the number of disturbances is bounded. A backup that had left and is the wire again does
    /// not trust its log.
    fn count(&mut self, action: SpeakingAction) {
        match action {
            SpeakingAction::Leave(..) => self.orders += 1,
            SpeakingAction::Fail(..) => self.failures += 1,
            SpeakingAction::Path(..) | SpeakingAction::TakeOver(_) | SpeakingAction::GiveWay(_) => {
                self.paths += 1
            }
            _ => {}
        }
        if let SpeakingAction::Leave(node, false) | SpeakingAction::Stay(node) = action
            && self.nodes[node].standing.role() == Role::Backup
        {
            self.nodes[node].doubts = Some(self.now);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelledNode {
    standing: Standing,
    /// Number of the node's agent. Each new agent of the node gets the next number.
    agent: u8,
    /// The last word that the node's agent heard.
    heard: Option<WordOrigin>,
    /// The last epoch in which the node said something alone.
    spoke: Option<u64>,
    /// The last epoch in which the node said something alone by right of the arbiter, not only by its lease.
    given: Option<u64>,
    /// The node knows all that was said on its connections before this epoch began. `None` if the node has no connections.
    base: Option<u64>,
    /// Tick since which the node does not trust its log. The node had left, so its primary may have gone on alone. The doubt ends when a
    /// primary of the same epoch echoes a later word of the node.
    doubts: Option<u64>,
    output: OutputPastWire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpeakingAction {
    Tick,
    /// A node sends a word.
    Say(usize),
    /// The word at this place arrives at a node. Earlier words may arrive later, or never.
    Hear(usize, usize),
    Lose(usize, usize),
    /// A node's detector declares the other node dead.
    Silent(usize),
    Ask(usize),
    Decide(usize),
    Answer(usize),
    /// The answer is lost.
    Mishear(usize),
    Reach(usize),
    Decided(usize),
    /// A backup notices that the primary can no longer send past the wire.
    Ended(usize),
    /// The operator takes a node out of service (true), or puts it back (false).
    Leave(usize, bool),
    /// A node's knowledge of its path changes.
    Path(usize, Knows),
    /// A wire takes over because it believes that clients reach it but not its primary. The belief may be wrong.
    TakeOver(usize),
    /// A wire that believes that it is cut off gives way to its primary. The belief may be wrong.
    GiveWay(usize),
    /// A node that gave way is the wire again: its path works again, or its primary's path does not.
    Stay(usize),
    /// A step that the agent must carry out for the node's role fails (true), or succeeds after all (false).
    Fail(usize, bool),
    /// A node's power fails and comes back: its connections are gone.
    Crash(usize),
    /// A node's agent dies, and another one continues from what the kernel has. The arbiter decides a question that was under way, but
    /// the answer is lost.
    Restart(usize),
}

impl SpeakingModel {
    fn config(&self, node: usize) -> StandingConfig {
        StandingConfig {
            is_primary: node == 0,
            arbiter: self.arbiter,
            lease: self.lease,
            fence_delay: Duration::ZERO,
            sends_directly: self.bounds.sends_directly,
        }
    }

    fn fresh(&self, node: usize, agent: u8, now: u64) -> ModelledNode {
        ModelledNode {
            standing: Standing::new(self.config(node), None, at(now)),
            agent,
            heard: None,
            spoke: None,
            given: None,
            base: None,
            doubts: None,
            output: OutputPastWire::default(),
        }
    }

    fn speaks_alone(&self, state: &SpeakingState, node: usize) -> bool {
        let standing = &state.nodes[node].standing;
        let is_over = standing.until().is_some_and(|until| at(state.now) >= until);
        standing.role().speaks_alone() && (!is_over || self.defect == Some(SpeakingDefect::NoEnd))
    }

    /// Whether a node's kernel sends output past the wire, and so past the other node's gate.
    fn sends_directly(&self, state: &SpeakingState, node: usize) -> bool {
        let ModelledNode { standing, output, .. } = &state.nodes[node];
        output.is_sent(
            standing,
            at(state.now),
            self.defect == Some(SpeakingDefect::DirectOn),
        )
    }

    fn hear(&self, state: &mut SpeakingState, to: usize, SentWord { made, heard, word }: SentWord) {
        let node = &mut state.nodes[to];
        if Some(made) < node.heard {
            return; // a later word has been heard
        }
        node.heard = Some(made);
        let echo = heard.filter(|word| word.agent == node.agent);
        let word = StandingBeat {
            echo: echo.map(WordOrigin::at),
            ..word
        };
        node.output.hear(&word);
        let before = node.standing.epoch();
        let is_its_primary = word.role == Role::Primary && word.epoch == before;
        if is_its_primary && node.doubts < echo.map(|word| word.sent) {
            node.doubts = None;
        }
        let mut change = node.standing.on_word(at(state.now), &word);
        // A node that the word deposes can return on the same word.
        while change.is_some() {
            self.note(state, to, before, change);
            let node = &mut state.nodes[to];
            change = node.standing.on_word(at(state.now), &word);
        }
    }

    /// Notes a contradiction if a node goes on without knowing the output that the other node sent alone. `before` is the node's epoch
    /// before its change. A backup that takes over must know all of this output. A primary that goes on must know only the output that was
    /// sent by right of the arbiter. (Output that a node sent by its lease is lost if the node dies before the arbiter grants the epoch.
    /// This is the price of `lease_ms`.)
    fn note(&self, state: &mut SpeakingState, node: usize, before: u64, change: Option<RoleChange>) {
        let begins = matches!(
            change,
            Some(RoleChange {
                from: Role::Backup,
                to: Role::TakingOver,
                ..
            })
        );
        let other = &state.nodes[1 - node];
        let other_spoke = other.spoke.is_some_and(|epoch| epoch > before);
        let trusts = state.nodes[node].doubts.is_none();
        state.is_contradicted |= begins && other_spoke && trusts;
        if let Some(RoleChange { from, to, .. }) = change
            && from.is_mute() != to.is_mute()
        {
            state.overtake(node, to.is_mute());
        }
        if change.is_some() {
            state.nodes[node].doubts = None;
        }
        let other = &state.nodes[1 - node];
        let Some(RoleChange { to, event, .. }) = change else {
            return;
        };
        let given = other.given;
        let node = &mut state.nodes[node];
        let goes_on = matches!(event, RoleEvent::PeerReturns | RoleEvent::Reached);
        let is_stale = goes_on && node.base.is_some() && given > node.base;
        let has_none = matches!(to, Role::Joining | Role::Returning | Role::Standby);
        node.base = (!has_none).then(|| node.standing.epoch());
        state.is_contradicted |= is_stale;
    }

    fn crash(&self, state: &mut SpeakingState, node: usize) {
        let ModelledNode {
            agent, spoke, given, ..
        } = state.nodes[node];
        state.nodes[node] = ModelledNode {
            spoke, // the clients remember what was said
            given,
            ..self.fresh(node, agent + 1, state.now)
        };
        (state.questions[node], state.answers[node]) = (None, None);
        state.crashes += 1;
    }

    /// Follows the right to send directly. Assumes that each node says something if it may now speak alone, and notes its epoch.
    fn note_voices(&self, state: &mut SpeakingState) {
        for ModelledNode { standing, output, .. } in &mut state.nodes {
            output.follow(standing, at(state.now));
        }
        for node in 0..2 {
            if self.speaks_alone(state, node) {
                let one = &mut state.nodes[node];
                one.spoke = Some(one.standing.epoch());
                if one.standing.until().is_none() {
                    one.given = one.spoke;
                }
            }
        }
    }

    /// The standing that a node's next agent finds in the kernel after the last agent has died.
    fn found(&self, state: &SpeakingState, node: usize) -> Option<InheritedStanding> {
        let standing = &state.nodes[node].standing;
        let role = match standing.role() {
            Role::Joining => return None,
            Role::Primary | Role::Claiming => Role::Primary,
            Role::TakingOver | Role::Sole => Role::Sole,
            role @ (Role::Returning | Role::Backup | Role::Standby) => role,
        };
        Some(InheritedStanding {
            role,
            epoch: standing.epoch(),
            is_confirmed: standing.until().is_none(),
        })
    }

    fn restart(&self, state: &mut SpeakingState, node: usize) {
        if let Some(epoch) = state.questions[node].take() {
            self.decide(state, node, epoch);
        }
        state.answers[node] = None;
        let standing = Standing::new(self.config(node), self.found(state, node), at(state.now));
        state.nodes[node].standing = standing;
        state.nodes[node].agent += 1;
        state.nodes[node].heard = None;
        state.restarts += 1;
    }

    /// The state after all paths work again and both nodes know it.
    fn mended(&self, last: &SpeakingState) -> SpeakingState {
        let mut state = last.clone();
        if self.bounds.paths > 0 {
            for node in 0..2 {
                let gave_way = state.nodes[node].standing.leaves();
                self.play(&mut state, &[SpeakingAction::Path(node, Knows::Whole)]);
                if gave_way {
                    self.play(&mut state, &[SpeakingAction::Stay(node)]);
                }
            }
        }
        state
    }

    /// Whether a node serves within some rounds after everything works again: words arrive, and the arbiter and outside
    /// hosts answer.
    /// (A node that serves here but is about to be deposed is covered by another explored state, in which it has been deposed.)
    fn someone_serves_in_the_end(&self, last: &SpeakingState) -> bool {
        let mut state = self.mended(last);
        (0..ROUNDS).any(|_| {
            for node in 0..2 {
                self.work(&mut state, node);
                self.play(
                    &mut state,
                    &[
                        SpeakingAction::Say(node),
                        SpeakingAction::Hear(1 - node, 0),
                        SpeakingAction::Tick,
                    ],
                );
            }
            is_served(&state)
        })
    }

    /// Plays some rounds in which everything works. If the pair is whole after these rounds, each of the two nodes must be
    /// able to serve alone once the other one is gone for good. Returns whether that holds.
    fn who_is_left_serves(&self, last: &SpeakingState) -> bool {
        let mut state = self.mended(last);
        for _ in 0..ROUNDS {
            for node in 0..2 {
                self.work(&mut state, node);
                self.play(
                    &mut state,
                    &[
                        SpeakingAction::Say(node),
                        SpeakingAction::Hear(1 - node, 0),
                        SpeakingAction::Tick,
                    ],
                );
            }
        }
        let is_calm = is_whole(&state, 0) || is_whole(&state, 1);
        let serves = |left: usize| {
            let mut state = state.clone();
            let is_unwanted = state.nodes[left].standing.leaves();
            is_unwanted
                || (0..ROUNDS).any(|_| {
                    self.play(&mut state, &[SpeakingAction::Silent(left)]);
                    self.work(&mut state, left);
                    self.play(&mut state, &[SpeakingAction::Tick]);
                    is_sole(&state.nodes[left])
                })
        };
        !is_calm || serves(0) && serves(1)
    }

    /// Plays the pairing, until the primary has a lease for direct output.
    fn make_whole(&self, state: &mut SpeakingState) {
        for round in 0..5 {
            for node in 0..2 {
                self.work(state, node);
                self.play(
                    state,
                    &[SpeakingAction::Say(node), SpeakingAction::Hear(1 - node, 0)],
                );
            }
            if round == 3 {
                self.play(state, &[SpeakingAction::Tick]);
            }
        }
        assert!(self.sends_directly(state, 0));
    }

    /// Plays the actions of a node that need no word of the peer.
    fn work(&self, state: &mut SpeakingState, node: usize) {
        use SpeakingAction::{Answer, Ask, Decide, Decided, Ended, Reach};
        self.play(
            state,
            &[
                Ask(node),
                Decide(node),
                Answer(node),
                Ended(node),
                Reach(node),
                Decided(node),
            ],
        );
    }

    fn play(&self, state: &mut SpeakingState, steps: &[SpeakingAction]) {
        for step in steps {
            let _ = self.apply(state, *step); // nothing happens if the action is not possible
        }
    }

    /// The time as a claiming node sees it. With [`SpeakingDefect::Impatient`], this time is two leases ahead.
    fn hasty(&self, now: Instant) -> Instant {
        let is_hasty = self.defect == Some(SpeakingDefect::Impatient);
        if is_hasty { now + LEASE * 2 } else { now }
    }

    /// Applies `action`. Returns `None`, and changes nothing, if `action` is not possible.
    fn apply(&self, state: &mut SpeakingState, action: SpeakingAction) -> Option<()> {
        let now = at(state.now);
        let changed = |state: &mut SpeakingState,
                       node: usize,
                       change: &mut dyn FnMut(&mut Standing) -> Option<RoleChange>| {
            let before = state.nodes[node].standing.epoch();
            let change = change(&mut state.nodes[node].standing);
            self.note(state, node, before, change);
        };
        match action {
            SpeakingAction::Tick => {
                state.now += 1;
                let now = at(state.now);
                state
                    .nodes
                    .iter_mut()
                    .for_each(|node| node.standing.on_timeout(now));
            }
            SpeakingAction::Say(node) => state.say(node),
            SpeakingAction::Hear(node, place) => {
                let is_there = place < state.words[node].len();
                let word = is_there.then(|| state.words[node].remove(place))?;
                self.hear(state, node, word);
            }
            SpeakingAction::Lose(node, place) => drop(state.words[node].remove(place)),
            SpeakingAction::Silent(node) => changed(state, node, &mut |standing| standing.on_silent(now)),
            SpeakingAction::Ask(node) => {
                state.questions[node] = state.nodes[node].standing.ask(self.hasty(now));
            }
            SpeakingAction::Decide(node) => {
                let epoch = state.questions[node].take()?;
                let verdict = self.decide(state, node, epoch);
                state.answers[node] = Some((epoch, verdict));
            }
            SpeakingAction::Answer(node) => {
                let (epoch, verdict) = state.answers[node].take()?;
                if state.nodes[node].standing.role() == Role::Joining {
                    state.overtake(node, true);
                }
                changed(state, node, &mut |standing| {
                    standing.on_verdict(now, epoch, verdict)
                });
            }
            SpeakingAction::Mishear(node) => state.answers[node] = None,
            SpeakingAction::Reach(node) => {
                let now = self.hasty(now);
                changed(state, node, &mut |standing| standing.on_reached(now));
            }
            SpeakingAction::Decided(node) => changed(state, node, &mut |standing| standing.on_decided(now)),
            SpeakingAction::Ended(node) => {
                changed(state, node, &mut |standing| standing.on_output_ended(now))
            }
            SpeakingAction::Leave(node, _)
            | SpeakingAction::Stay(node)
            | SpeakingAction::Path(node, _)
            | SpeakingAction::TakeOver(node)
            | SpeakingAction::GiveWay(node)
            | SpeakingAction::Fail(node, _) => {
                let trusts = state.nodes[node].doubts.is_none();
                changed(state, node, &mut |standing| {
                    disturb(standing, now, action, trusts)
                });
                state.count(action);
            }
            SpeakingAction::Crash(node) => {
                self.crash(state, node);
            }
            SpeakingAction::Restart(node) => self.restart(state, node),
        }
        self.note_voices(state);
        Some(())
    }

    fn decide(&self, state: &mut SpeakingState, node: usize, epoch: u64) -> ArbiterVerdict {
        let given = &mut state.given;
        match *given {
            Some((latest, owner)) if latest > epoch || latest == epoch && owner != node => {
                if self.defect == Some(SpeakingDefect::Generous) {
                    return ArbiterVerdict::Granted;
                }
                let is_own = owner == node;
                let epoch = latest;
                ArbiterVerdict::Refused { epoch, is_own }
            }
            _ => {
                *given = Some((epoch, node));
                ArbiterVerdict::Granted
            }
        }
    }
}

const fn at(ticks: u64) -> Instant {
    Instant::from_nanos(ticks * TICK)
}

impl Model for SpeakingModel {
    type State = SpeakingState;
    type Action = SpeakingAction;

    fn init_states(&self) -> Vec<SpeakingState> {
        let mut first = SpeakingState {
            now: 1,
            nodes: [self.fresh(0, 0, 1), self.fresh(1, 0, 1)],
            words: [ArrayVec::new(), ArrayVec::new()],
            questions: [None; 2],
            answers: [None; 2],
            given: None,
            crashes: 0,
            restarts: 0,
            orders: 0,
            paths: 0,
            failures: 0,
            is_contradicted: false,
        };
        if self.bounds.sends_directly {
            self.make_whole(&mut first);
        }
        vec![first]
    }

    fn actions(&self, state: &SpeakingState, actions: &mut Vec<SpeakingAction>) {
        actions.push(SpeakingAction::Tick);
        for node in 0..2 {
            if state.words[1 - node].len() < self.bounds.words {
                actions.push(SpeakingAction::Say(node));
            }
            for place in 0..state.words[node].len() {
                actions.extend([
                    SpeakingAction::Hear(node, place),
                    SpeakingAction::Lose(node, place),
                ]);
            }
            actions.push(SpeakingAction::Silent(node));
            if state.questions[node].is_none() && state.answers[node].is_none() {
                actions.push(SpeakingAction::Ask(node));
            }
            if state.questions[node].is_some() {
                actions.push(SpeakingAction::Decide(node));
            }
            if state.answers[node].is_some() {
                actions.extend([SpeakingAction::Answer(node), SpeakingAction::Mishear(node)]);
            }
            actions.extend([SpeakingAction::Reach(node), SpeakingAction::Decided(node)]);
            if self.bounds.sends_directly {
                actions.push(SpeakingAction::Ended(node));
            }
            if state.orders < self.bounds.orders {
                let leaves = state.nodes[node].standing.leaves();
                actions.push(SpeakingAction::Leave(node, !leaves));
            }
            if state.failures < self.bounds.failures {
                let has_failed = state.nodes[node].standing.has_failed();
                actions.push(SpeakingAction::Fail(node, !has_failed));
            }
            if state.paths < self.bounds.paths {
                actions.extend(Knows::ALL.map(|knows| SpeakingAction::Path(node, knows)));
                actions.extend([SpeakingAction::TakeOver(node), SpeakingAction::GiveWay(node)]);
            }
            if state.paths > 0 && state.orders == 0 && state.nodes[node].standing.leaves() {
                actions.push(SpeakingAction::Stay(node));
            }
            if state.crashes < self.bounds.crashes {
                actions.push(SpeakingAction::Crash(node));
            }
            if state.restarts < self.bounds.restarts && self.bounds.restarting[node] {
                actions.push(SpeakingAction::Restart(node));
            }
        }
    }

    fn next_state(&self, last: &SpeakingState, action: SpeakingAction) -> Option<SpeakingState> {
        let mut state = last.clone();
        self.apply(&mut state, action)?;
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one voice", |pair: &Self, state: &SpeakingState| {
                !(pair.speaks_alone(state, 0) && pair.speaks_alone(state, 1))
            }),
            Property::always(
                "no voice beside direct output",
                |pair: &Self, state: &SpeakingState| {
                    (0..2)
                        .all(|node| !(pair.sends_directly(state, node) && pair.speaks_alone(state, 1 - node)))
                },
            ),
            Property::always(
                "nobody goes on from an old log",
                |_: &Self, state: &SpeakingState| !state.is_contradicted,
            ),
            Property::always(
                "someone serves in the end",
                |pair: &Self, state: &SpeakingState| pair.someone_serves_in_the_end(state),
            ),
            Property::always("who is left serves", |pair: &Self, state: &SpeakingState| {
                state.restarts == 0 || pair.who_is_left_serves(state)
            }),
            Property::sometimes("the pair is whole", |_: &Self, state: &SpeakingState| {
                is_whole(state, 0)
            }),
            Property::sometimes("the backup speaks alone", |pair: &Self, state: &SpeakingState| {
                pair.speaks_alone(state, 1) && state.nodes[1].standing.until().is_none()
            }),
            Property::sometimes(
                "the pair is whole again, the other way round",
                |_: &Self, state: &SpeakingState| is_whole(state, 1),
            ),
        ]
    }

    fn within_boundary(&self, state: &SpeakingState) -> bool {
        let epochs = state.nodes.iter().map(|node| node.standing.epoch());
        state.now <= self.bounds.ticks && epochs.max() <= Some(self.bounds.epochs)
    }
}

/// Applies a disturbance to a node's standing: an order, a change of a path, or a step that fails or succeeds after all. A node that does
/// not trust its log does not take over from a peer that it hears.
fn disturb(
    standing: &mut Standing,
    now: Instant,
    action: SpeakingAction,
    trusts: bool,
) -> Option<RoleChange> {
    match action {
        SpeakingAction::Path(_, knows) => {
            let (meet, own, peer) = knows.sides();
            let is_reached = matches!(own, Reachability::Unknown | Reachability::Reached);
            standing.set_path(now, fitness(meet, own, peer), is_reached)
        }
        SpeakingAction::TakeOver(_) if trusts => standing.on_handover(now),
        SpeakingAction::GiveWay(_) if standing.role() == Role::Backup => standing.set_leaves(now, true),
        SpeakingAction::Leave(_, leaves) => standing.set_leaves(now, leaves),
        SpeakingAction::Stay(_) => standing.set_leaves(now, false),
        SpeakingAction::Fail(_, has_failed) => standing.set_failed(now, has_failed),
        _ => None,
    }
}

/// Whether a node serves, either with a wire, or alone without a time limit. Also true if both nodes left, because then neither node has to
/// serve.
fn is_served(state: &SpeakingState) -> bool {
    let [one, other] = &state.nodes;
    let is_unwanted = one.standing.leaves() && other.standing.leaves();
    is_unwanted || is_sole(one) || is_sole(other) || is_whole(state, 0) || is_whole(state, 1)
}

fn is_sole(ModelledNode { standing, .. }: &ModelledNode) -> bool {
    standing.role() == Role::Sole && standing.until().is_none()
}

/// Whether `primary` is the primary and the other node is its wire, in the same epoch.
fn is_whole(state: &SpeakingState, primary: usize) -> bool {
    let [one, other] = [primary, 1 - primary].map(|node| &state.nodes[node].standing);
    one.role() == Role::Primary && other.role() == Role::Backup && one.epoch() == other.epoch()
}

fn pair() -> SpeakingModel {
    SpeakingModel {
        bounds: bounds(),
        arbiter: Arbiter::Witness,
        lease: LEASE,
        defect: None,
    }
}

#[test]
fn with_an_arbiter_one_node_speaks_and_knows_what_was_said() {
    // One exploration per node whose agent may die. A single exploration for both nodes would need much more memory.
    let each = [[true, false], [false, true]];
    let restarted_and_cut = each.map(|restarting| SpeakingBounds {
        restarts: 1,
        restarting,
        ..cut()
    });
    let further = [
        (restarted_and_cut[0], LEASE),
        (restarted_and_cut[1], LEASE),
        (SpeakingBounds { crashes: 1, ..cut() }, LEASE),
        (cut(), Duration::ZERO),
        (failed(), Duration::ZERO),
        (crashed(), Duration::ZERO),
        (restarted(), LEASE),
        (restarted(), Duration::ZERO),
    ];
    let usual = [
        (bounds(), LEASE),
        (operated(), LEASE),
        (operated(), Duration::ZERO),
        (crashed(), LEASE),
        (cut(), LEASE),
        (failed(), LEASE),
    ];
    let further = further.into_iter().filter(|_| wanted().0);
    for (bounds, lease) in usual.into_iter().chain(further) {
        explore(bounds, lease);
    }
}

#[test]
fn a_primarys_direct_output_ends_before_another_node_speaks() {
    explore(directly(), LEASE);
}

/// The largest explorations, one per node whose agent may die.
#[test]
fn a_crash_and_an_agents_death_make_no_second_voice() {
    for restarting in [[true, false], [false, true]].into_iter().filter(|_| wanted().0) {
        let bounds = SpeakingBounds {
            crashes: 1,
            restarting,
            ..restarted()
        };
        explore(bounds, LEASE);
    }
}

/// Explores all states of a pair with an arbiter.
fn explore(bounds: SpeakingBounds, lease: Duration) {
    let pair = SpeakingModel {
        bounds,
        lease,
        ..pair()
    };
    // Depth first: few states wait to be explored, so they fit the CPU's caches.
    let checker = pair.checker().threads(2).spawn_dfs().join();
    println!(
        "{bounds:?}, lease {lease:?}: {} states, explored exhaustively",
        checker.unique_state_count()
    );
    for property in [
        "one voice",
        "no voice beside direct output",
        "nobody goes on from an old log",
        "someone serves in the end",
        "who is left serves",
    ] {
        if checker.discovery(property).is_some() {
            let path = shortest_path(pair, property).expect("it was found before");
            panic!("{property:?} does not hold:{}", told(path));
        }
    }
    checker.assert_any_discovery("the pair is whole");
    if bounds.ticks > 2 && !bounds.sends_directly {
        checker.assert_properties();
    }
}

/// States, each with the action that leads to the next one.
type SpeakingPath = Vec<(SpeakingState, Option<SpeakingAction>)>;

/// Formats a path as text, one line per step. A line shows the action, and before it each node's role, its epoch and the end of its right
/// to speak.
fn told(path: SpeakingPath) -> String {
    let mut lines = String::new();
    for (state, action) in path {
        let [one, other] = state.nodes.each_ref().map(|ModelledNode { standing, .. }| {
            let until = standing.until().map(|until| until.as_nanos() / TICK);
            format!("{:?} {} {until:?}", standing.role(), standing.epoch())
        });
        write!(lines, "\n  {}: {one}, {other}, {action:?}", state.now).expect("a string takes it");
    }
    lines
}

/// The checker notices each broken rule.
#[test]
fn a_broken_rule_is_noticed() {
    for (defect, property, bounds) in [
        (SpeakingDefect::NoEnd, "one voice", bounds()),
        (SpeakingDefect::Generous, "one voice", bounds()),
        (SpeakingDefect::Impatient, "one voice", bounds()),
        (
            SpeakingDefect::DirectOn,
            "no voice beside direct output",
            directly(),
        ),
    ] {
        let defect = Some(defect);
        let pair = SpeakingModel {
            bounds,
            defect,
            ..pair()
        };
        assert!(is_broken(pair, property), "{defect:?}");
    }
}

/// `fail-stop` is an assumption: if a living node is declared dead, both nodes speak. docs/faults.md documents and measures this.
#[test]
fn without_an_arbiter_a_false_alarm_makes_two_voices() {
    let pair = SpeakingModel {
        arbiter: Arbiter::FailStop,
        ..pair()
    };
    assert!(is_broken(pair, "one voice"));
}

/// Whether there is a state in which a property does not hold. Depth first: any such state will do.
fn is_broken(pair: SpeakingModel, property: &'static str) -> bool {
    let first = HasDiscoveries::AnyOf([property].into());
    let checker = pair.checker().threads(2).finish_when(first).spawn_dfs().join();
    checker.discovery(property).is_some()
}

/// The shortest path to a state in which a property does not hold, or nearly the shortest, because two threads search.
fn shortest_path(pair: SpeakingModel, property: &'static str) -> Option<SpeakingPath> {
    let first = HasDiscoveries::AnyOf([property].into());
    let checker = pair.checker().threads(2).finish_when(first).spawn_bfs().join();
    checker.discovery(property).map(Path::into_vec)
}
