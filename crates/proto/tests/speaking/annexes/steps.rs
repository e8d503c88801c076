//! The model's steps and rules.

use stateright::{Model, Property};

use super::nodes::{LeadsTo, PrimaryOffer, PrimaryRole, drop_unstarted};
use super::wire::{WireEntry, WireNode, node_of};
use super::*;

impl AnnexedState {
    /// Whether the connection is on its way, and nobody may have it but its next node: nothing tells a new agent, or a new wire, of it.
    fn is_between(&self) -> bool {
        let Some(wire) = &self.wire else {
            return false;
        };
        let is_released = wire.annexes.holder(&client()).is_none();
        let is_reserved = matches!(wire.entry, WireEntry::Reserved(_)) && !wire.annexes.is_moving(&client());
        let is_dropped = wire.links.iter().any(|link| {
            let old = link.old.iter().flat_map(|(_, words)| words);
            link.to.iter().chain(old).any(|word| *word == LinkSay::Drop)
        });
        let is_started = self.primary.socket.is_some_and(|socket| socket.is_started);
        let starts = wire.annexes.unconfirmed().next().is_some() && !is_started;
        let is_nowhere = !is_started && self.host().is_none() && wire.entry != WireEntry::Taken;
        is_released || is_reserved || is_dropped || starts || is_nowhere
    }

    /// The annex that has the connection.
    fn host(&self) -> Option<usize> {
        let has = |annex: &ModelAnnex| {
            annex
                .socket
                .is_some_and(|socket| socket.is_started && !socket.is_old)
        };
        self.annexes.iter().position(has)
    }

    /// Whether the annex that has the connection knows the number of the wire's last take-back. A new agent, or a new wire, has a new number.
    fn is_told(&mut self) -> bool {
        let Some(host) = self.host() else { return true };
        let host_of = self.annexes[host].host.clone();
        let link = self
            .link(LinkName::Wire(host + 1))
            .filter(|link| host_of.obeys(link.number));
        link.map_or(host_of.is_carried(), |link| {
            link.phase == LinkPhase::Up && link.to.is_empty()
        })
    }

    fn wire_dies(&mut self, model: &AnnexModel) {
        let is_taken = self
            .wire
            .as_ref()
            .is_some_and(|wire| wire.entry == WireEntry::Taken);
        let is_unheard = self.host().is_some() && self.primary.carried.heard().is_none();
        self.may_be_lost |= is_taken || is_unheard || self.is_between() || !self.is_told();
        self.end_links(|name| matches!(name, LinkName::Wire(_)), model);
        self.wire = None;
    }

    /// The next agent finds the kernel's entry. That of a new wire may not be there yet.
    fn wire_agent_dies(&mut self, model: &AnnexModel) {
        let place = self.host().map(|host| WireEntry::At(node_of(host + 1)));
        let has_entry = |place| self.wire.as_ref().is_some_and(|wire| wire.entry == place);
        self.may_be_lost |= self.is_between() || !place.is_none_or(has_entry);
        self.end_links(|name| matches!(name, LinkName::Wire(_)), model);
        self.agent += 1;
        self.primary.offer = PrimaryOffer::None;
        if let Some(wire) = &mut self.wire {
            let entry = wire.entry;
            let next = WireNode::new(self.agent, self.epoch, wire.found(), false);
            *wire = next;
            if entry == WireEntry::Taken {
                wire.entry = entry;
            }
        }
    }

    fn primary_agent_dies(&mut self, model: &AnnexModel) {
        self.may_be_lost |= self.primary.offer == PrimaryOffer::Released;
        if let Some(host) = self.host() {
            let annex = &self.annexes[host].host;
            let obeys = annex.is_carried() && annex.epoch() == self.epoch;
            let is_known = self.primary.map == Some(annex_id(host));
            self.may_be_lost |= match (&self.wire, self.primary.role) {
                (None, PrimaryRole::Alone) => {
                    self.is_asking_again = true;
                    !obeys || !is_known
                }
                (None, _) => true,
                // A new agent does not ask on for what the last one carried behind a wire.
                (Some(_), _) => self.primary.carried.asks_with().is_some(),
            };
        }
        self.end_links(|name| matches!(name, LinkName::Primary(_)), model);
        if self.wire.is_some() {
            self.reset(LinkName::Wire(0), model);
            self.end_links(|name| name == LinkName::Wire(0), model);
        }
        if let Some(wire) = &mut self.wire
            && self.primary.offer == PrimaryOffer::Offered
        {
            wire.keep();
        }
        self.primary.restart();
    }

    fn annex_dies(&mut self, index: usize) {
        let is_protected = self.wire.as_ref().is_some_and(|wire| wire.has_log);
        self.may_be_lost |= self.host() == Some(index) && !is_protected;
        self.annexes[index] = ModelAnnex::default();
        for name in Self::names().filter(|name| Self::annex_of(*name) == Some(index)) {
            if let Some(link) = self.link(name) {
                link.die();
            }
        }
    }

    fn join(&mut self) {
        // With a wire, a primary believes an annex only what the wire before has told it, and what it has carried.
        let is_told = self
            .host()
            .is_none_or(|host| self.primary.map == Some(annex_id(host)));
        let is_unasked = self
            .host()
            .is_some_and(|host| !self.primary.carried.is_carried(annex_id(host)));
        self.may_be_lost |= !is_told || self.is_asking_again && is_unasked;
        self.is_asking_again = false;
        self.epoch += 1;
        self.agent += 1;
        self.primary.begin(PrimaryRole::Serving);
        self.wire = Some(WireNode::new(self.agent, self.epoch, None, false));
    }

    /// The consequences that follow each step at once.
    fn follow(&mut self, model: &AnnexModel) {
        if let Some(wire) = &mut self.wire {
            wire.follow();
            self.may_be_lost |= wire.has_lost;
            if self.primary.offer == PrimaryOffer::Offered && !wire.annexes.is_moving(&client()) {
                self.primary.offer = PrimaryOffer::None; // it hears that the connection stays
            }
        }
        if self.primary.follow(self.epoch) {
            for annex in 0..ANNEXES {
                let name = LinkName::Primary(annex);
                if self.primary.links[annex].phase != LinkPhase::Idle {
                    self.reset(name, model);
                }
            }
        }
        self.note_voices();
    }

    fn order(&mut self, to: usize) {
        let node = node_of(to);
        let Some(wire) = &mut self.wire else { return };
        let is_here = wire.annexes.place(&client()) == ServingNode::Primary;
        let is_offered = self.primary.socket.is_some_and(|socket| socket.is_started)
            && self.primary.map.is_none()
            && self.primary.offer == PrimaryOffer::None;
        let is_at_rest = matches!(wire.entry, WireEntry::At(_)) && !wire.annexes.is_moving(&client());
        let may_move = is_at_rest && wire.has_log && wire.annexes.is_up(node);
        if !may_move || wire.annexes.place(&client()) == node || is_here && !is_offered {
            return;
        }
        self.orders += 1;
        if is_here {
            self.primary.offer = PrimaryOffer::Offered;
        }
        wire.begin(node);
    }

    /// Whether the annexes that live have answered the primary, or have refused its greeting. They have enough time for that.
    fn have_answered(&self, annexes: usize) -> bool {
        let has_answered =
            |link: &ModelLink| link.phase != LinkPhase::Idle && link.is_quiet() || link.is_dead;
        self.primary.links[..annexes].iter().all(has_answered)
    }

    /// The wire learns the connection. It asks the node that has the connection for the terms of its handshake.
    fn protect(&mut self) {
        let speakers = self.speakers();
        if let Some(wire) = &mut self.wire {
            let place = wire.annexes.place(&client());
            wire.has_log |= speakers == [Some(place)] && wire.annexes.is_up(place);
        }
    }

    /// If the time of a start in doubt is over, the primary counts as the owner, whether it has started the connection or not.
    fn expire_steps(&mut self) {
        let is_started = self.primary.socket.is_some_and(|socket| socket.is_started);
        if let Some(wire) = &mut self.wire {
            let is_in_doubt = wire.expire(LATE);
            self.may_be_lost |= is_in_doubt && !is_started;
        }
    }

    /// A step of the primary and the wire that a heartbeat causes.
    fn beat(&mut self, action: AnnexAction) {
        let Self { primary, wire, .. } = self;
        let Some(wire) = wire else { return };
        match (action, primary.offer) {
            (AnnexAction::Release, PrimaryOffer::Offered) if wire.is_prepared => {
                primary.socket = None;
                primary.offer = PrimaryOffer::Released;
            }
            (AnnexAction::Withdraw, PrimaryOffer::Offered) => {
                primary.offer = PrimaryOffer::None;
                wire.keep();
            }
            (AnnexAction::HearRelease, PrimaryOffer::Released) => {
                primary.offer = PrimaryOffer::None;
                wire.release();
            }
            (AnnexAction::HearWire, _) => {
                primary.carried.hear(wire.number());
            }
            (AnnexAction::HearPrimary, _) => wire.hear(primary.carried.heard()),
            _ => {}
        }
    }

    /// Whether nothing is under way, whatever a node may still try in vain.
    fn is_quiet(&self, model: &AnnexModel) -> bool {
        let has_voice = self.wire.is_some() || self.primary.role == PrimaryRole::Alone;
        let mut steps = Vec::new();
        model.progress(self, &mut steps);
        has_voice
            && steps.into_iter().all(|step| {
                let mut next = self.clone();
                model.act(&mut next, step);
                if let AnnexAction::Begin(name) = step {
                    model.act(&mut next, AnnexAction::Call(name));
                    if let (Some(link), Some(before)) = (next.link(name), self.clone().link(name)) {
                        (link.phase, link.number) = (before.phase, before.number);
                    }
                }
                next == *self
            })
    }
}

impl AnnexModel {
    fn act(&self, state: &mut AnnexedState, action: AnnexAction) {
        use AnnexAction::*;
        match action {
            Order(to) => state.order(to),
            Release | Withdraw | HearRelease | HearWire | HearPrimary => state.beat(action),
            Protect => state.protect(),
            Begin(name) => {
                if state.may_begin(name) {
                    state.begin(name);
                }
            }
            Call(name) => state.call(name, self),
            Answer(name) => state.answer(name, self),
            Old(name) => state.read_old(name, self),
            Notice(name) => {
                if state.link(name).is_some_and(|link| link.is_dead) {
                    state.reset(name, self);
                    state.give_up(name, self);
                }
            }
            GiveUp(name) => {
                state.reset(name, self);
                state.give_up(name, self);
            }
            Miss if state.wire.is_none() && state.primary.role == PrimaryRole::Serving => {
                state.primary.role = PrimaryRole::Claiming;
                state.primary.offer = PrimaryOffer::None;
                drop_unstarted(&mut state.primary.socket);
            }
            GoAlone if state.wire.is_none() && state.primary.role == PrimaryRole::Claiming => {
                state.epoch += 1;
                state.primary.begin(PrimaryRole::Alone);
                state.primary.ask_again();
            }
            Join if state.wire.is_none() => state.join(),
            ExpireClaims if state.have_answered(self.annexes) => {
                let lost = state.primary.carried.on_timeout(LATE);
                state.primary.guide(lost);
            }
            ExpireSteps => state.expire_steps(),
            Reset(_) | AnnexDies(_) | WireDies | WireAgentDies | PrimaryAgentDies => {
                state.faults += 1;
                self.fail(state, action);
            }
            Miss | GoAlone | Join | ExpireClaims => {}
        }
        state.follow(self);
    }

    fn fail(&self, state: &mut AnnexedState, failure: AnnexAction) {
        match failure {
            AnnexAction::Reset(name) => state.reset(name, self),
            AnnexAction::AnnexDies(index) => state.annex_dies(index),
            AnnexAction::WireDies => state.wire_dies(self),
            AnnexAction::WireAgentDies => state.wire_agent_dies(self),
            AnnexAction::PrimaryAgentDies => state.primary_agent_dies(self),
            _ => {}
        }
    }

    /// Whether both nodes of the link are there.
    fn has(&self, name: LinkName) -> bool {
        AnnexedState::annex_of(name).is_none_or(|annex| annex < self.annexes)
    }

    /// The steps of nodes that nothing disturbs.
    fn progress(&self, state: &AnnexedState, actions: &mut Vec<AnnexAction>) {
        use AnnexAction::*;
        for name in AnnexedState::names().filter(|name| self.has(*name)) {
            let mut state = state.clone();
            if state.may_begin(name) {
                actions.push(Begin(name));
            }
            let Some(link) = state.link(name) else { continue };
            actions.extend((!link.to.is_empty()).then_some(Call(name)));
            actions.extend((!link.from.is_empty()).then_some(Answer(name)));
            actions.extend(link.old.is_some().then_some(Old(name)));
            actions.extend(link.is_dead.then_some(Notice(name)));
            actions.extend(link.is_called_again.then_some(GiveUp(name)));
        }
        actions.extend([HearWire, HearPrimary, Release, HearRelease]);
        actions.extend([Miss, GoAlone, ExpireClaims, ExpireSteps]);
    }
}

impl Model for AnnexModel {
    type State = AnnexedState;
    type Action = AnnexAction;

    /// The wire's links are up, and the connection lives on the primary.
    fn init_states(&self) -> Vec<AnnexedState> {
        let mut state = AnnexedState {
            epoch: 1,
            primary: PrimaryNode::new(),
            wire: Some(WireNode::new(1, 1, None, true)),
            annexes: Default::default(),
            agent: 1,
            orders: 0,
            faults: 0,
            may_be_lost: false,
            is_asking_again: false,
            has_moved: false,
            was_carried: false,
            had_two_owners: false,
            had_old_state: false,
        };
        for name in (0..=self.annexes).map(LinkName::Wire) {
            use AnnexAction::{Answer, Begin, Call};
            for action in [Begin(name), Call(name), Answer(name), Call(name)] {
                self.act(&mut state, action);
            }
        }
        self.act(&mut state, AnnexAction::HearWire);
        vec![state]
    }

    fn actions(&self, state: &AnnexedState, actions: &mut Vec<AnnexAction>) {
        use AnnexAction::*;
        self.progress(state, actions);
        actions.extend([Withdraw, Join]);
        if state.wire.as_ref().is_some_and(|wire| !wire.has_log) {
            actions.push(Protect);
        }
        if state.orders < self.orders {
            actions.extend((0..=self.annexes).map(Order));
        }
        if state.faults < self.faults && state.has_moved {
            let up = |name: &LinkName| {
                let link = state.clone().link(*name).map(|link| link.phase);
                link.is_some_and(|phase| phase != LinkPhase::Idle)
            };
            actions.extend(AnnexedState::names().filter(up).map(Reset));
            actions.extend((0..self.annexes).map(AnnexDies));
            actions.extend(state.wire.is_some().then_some(WireDies));
            actions.extend(state.wire.is_some().then_some(WireAgentDies));
            actions.push(PrimaryAgentDies);
        }
    }

    fn next_state(&self, last: &AnnexedState, action: AnnexAction) -> Option<AnnexedState> {
        let mut state = last.clone();
        self.act(&mut state, action);
        (state != *last).then_some(state)
    }

    /// After several failures, a connection may have no owner, but never two.
    fn properties(&self) -> Vec<Property<Self>> {
        let safe = [
            Property::always("no connection has two owners", |_, state: &AnnexedState| {
                !state.had_two_owners
            }),
            Property::always("no old state speaks", |_, state: &AnnexedState| {
                !state.had_old_state
            }),
        ];
        if self.faults > 1 && self.defect.is_none() {
            return safe.into();
        }
        let alive = [
            Property::always(
                "each connection has an owner",
                |model: &Self, state: &AnnexedState| {
                    state.may_be_lost || !state.speakers().is_empty() || !state.is_quiet(model)
                },
            ),
            Property::sometimes("it moves on or back", |model: &Self, state: &AnnexedState| {
                let wire = state.wire.as_ref();
                let has_moved = wire.is_some_and(|wire| wire.annexes.report().moved > 0);
                has_moved && (state.host().is_some() || model.annexes == 1)
            }),
            Property::sometimes("it moves back", |_, state: &AnnexedState| {
                state.has_moved && state.speakers() == [Some(ServingNode::Primary)]
            }),
            Property::sometimes("the wire takes it over", |_, state: &AnnexedState| {
                state.has_moved && state.speakers() == [None]
            }),
            Property::sometimes("a new wire passes what was carried", |_, state: &AnnexedState| {
                let leads = state.host().and_then(|host| state.annexes[host].leads_to);
                state.was_carried && leads == Some(LeadsTo::Wire) && state.speakers().len() == 1
            }),
        ];
        safe.into_iter().chain(alive).collect()
    }
}
