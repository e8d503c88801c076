//! The modelled primary and annexes: what `proto::service`, `steadfast annex` and the kernels do with the answers of
//! [`CarriedConnections`] and [`AnnexHost`].

use proto::Instant;
use proto::annex::{AnnexId, ServingNode};
use proto::carried::{CarriedConnections, PlaceChange};
use proto::hosting::{AnnexHost, Greeting, Having, HostGreeting};
use steadfast_proto as proto;

use super::link::{LinkPhase, LinkSay, ModelLink};
use super::{ANNEXES, AnnexDefect, NOW, annex_id, client};

/// The connection's socket on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelSocket {
    pub is_started: bool,
    /// Another socket has spoken to the client since.
    pub is_old: bool,
}

const RESTORED: ModelSocket = ModelSocket {
    is_started: false,
    is_old: false,
};

/// Drops a socket that was not started.
pub fn drop_unstarted(socket: &mut Option<ModelSocket>) {
    *socket = socket.filter(|socket| socket.is_started);
}

/// Makes a socket. Returns the answer.
fn restore(socket: &mut Option<ModelSocket>) -> LinkSay {
    if socket.is_some_and(|socket| socket.is_started) {
        return LinkSay::Refused;
    }
    *socket = Some(RESTORED);
    LinkSay::Restored
}

/// Lets a socket speak. Returns the answer.
fn start(socket: &mut Option<ModelSocket>) -> LinkSay {
    match socket {
        Some(socket) if !socket.is_started => {
            socket.is_started = true;
            LinkSay::Live
        }
        Some(_) | None => LinkSay::Refused,
    }
}

/// The node through which an annex sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeadsTo {
    Wire,
    Primary,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelAnnex {
    pub host: AnnexHost,
    pub socket: Option<ModelSocket>,
    pub leads_to: Option<LeadsTo>,
}

impl ModelAnnex {
    fn greet(
        &mut self,
        now: Instant,
        (number, from): (u64, LeadsTo),
        greeting: &HostGreeting,
        defect: Option<AnnexDefect>,
    ) -> Option<LinkSay> {
        if defect != Some(AnnexDefect::Unknowing) {
            self.host.check(now, greeting).ok()?;
        }
        if defect == Some(AnnexDefect::ForgottenNumber) && greeting.having == Having::Asked {
            self.host.on_take_back(greeting.take_back);
        }
        drop_unstarted(&mut self.socket);
        if self.host.take_list(greeting).contains(&client()) {
            self.socket = None;
        }
        self.leads_to = Some(from);
        self.host.obey(number, greeting);
        Some(LinkSay::Welcome {
            has: self.host.has(&client()),
            carries: None,
        })
    }

    /// Reads a message. Returns the answer.
    pub fn on_call(
        &mut self,
        now: Instant,
        (number, from): (u64, LeadsTo),
        word: &LinkSay,
        defect: Option<AnnexDefect>,
    ) -> Option<LinkSay> {
        if let LinkSay::Hello(greeting) = word {
            return self.greet(now, (number, from), greeting, defect);
        }
        if !self.host.obeys(number) {
            return None;
        }
        match word {
            LinkSay::TakeBack(take_back) => {
                self.host.on_take_back(*take_back);
                None
            }
            LinkSay::Restore => Some(restore(&mut self.socket)),
            LinkSay::Start => {
                let answer = start(&mut self.socket);
                if answer == LinkSay::Live {
                    self.host.on_started(client());
                }
                Some(answer)
            }
            LinkSay::Drop => {
                drop_unstarted(&mut self.socket);
                if self.host.forget(&client()) {
                    self.socket = None;
                }
                Some(LinkSay::Dropped)
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrimaryRole {
    Serving,
    Claiming,
    Alone,
}

/// The phases of a move that the primary was ordered to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrimaryOffer {
    None,
    Offered,
    /// It has destroyed its socket. The wire has not heard it.
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrimaryNode {
    pub role: PrimaryRole,
    pub carried: CarriedConnections,
    /// The annex to which the kernel leads the connection's packets.
    pub map: Option<AnnexId>,
    pub socket: Option<ModelSocket>,
    pub host: AnnexHost,
    pub offer: PrimaryOffer,
    /// To each annex.
    pub links: [ModelLink; ANNEXES],
    pub greeting: Option<Greeting>,
}

impl PrimaryNode {
    pub fn new() -> Self {
        let socket = Some(ModelSocket {
            is_started: true,
            ..RESTORED
        });
        Self {
            role: PrimaryRole::Serving,
            carried: CarriedConnections::default(),
            map: None,
            socket,
            host: AnnexHost::default(),
            offer: PrimaryOffer::None,
            links: Default::default(),
            greeting: None,
        }
    }

    /// A new agent starts.
    pub fn restart(&mut self) {
        drop_unstarted(&mut self.socket);
        let places = self.map.map(|annex| (client(), annex));
        let is_alone = self.role == PrimaryRole::Alone;
        self.carried = CarriedConnections::new(NOW, is_alone, places);
        (self.host, self.offer, self.greeting) = (AnnexHost::default(), PrimaryOffer::None, None);
    }

    pub fn guide(&mut self, changes: impl IntoIterator<Item = PlaceChange>) {
        for (_, node) in changes {
            self.map = node.annex();
        }
    }

    /// The primary speaks alone, or has a new wire.
    pub fn begin(&mut self, role: PrimaryRole) {
        self.role = role;
        self.offer = PrimaryOffer::None;
        self.carried.begin(NOW);
    }

    /// The greetings that annexes have refused do not count any more: there is time for others.
    pub fn ask_again(&mut self) {
        for link in &mut self.links {
            if link.phase == LinkPhase::Greeting
                && link.to.is_empty()
                && link.from.is_empty()
                && !link.is_dead
            {
                link.phase = LinkPhase::Idle;
            }
        }
    }

    /// Follows the greeting for annexes. Returns whether links that ask are over.
    pub fn follow(&mut self, epoch: u64) -> bool {
        let take_back = self.carried.asks_with();
        let greeting = take_back.map(|take_back| Greeting {
            epoch,
            take_back,
            asks: true,
        });
        if let (Some(_), Some(greeting)) = (self.greeting, greeting)
            && self.greeting != Some(greeting)
        {
            for link in &mut self.links {
                link.say(LinkSay::TakeBack(greeting.take_back));
            }
        }
        self.greeting = greeting;
        greeting.is_none()
    }

    /// Reads a message of its wire. Returns the answer.
    pub fn on_call(&mut self, number: u64, word: &LinkSay) -> Option<LinkSay> {
        if let LinkSay::Hello(greeting) = word {
            drop_unstarted(&mut self.socket);
            self.host.take_list(greeting);
            self.host.obey(number, greeting);
            let has = greeting.having == Having::Known(vec![client()]) && self.socket.is_some();
            let carries = self.carried.offered().next().map(|(_, annex)| annex);
            return Some(LinkSay::Welcome { has, carries });
        }
        if !self.host.obeys(number) {
            return None;
        }
        match *word {
            LinkSay::Lives(node, is_all) => {
                if self.role == PrimaryRole::Serving {
                    let is_said = !is_all || node != ServingNode::Primary;
                    let said: Vec<_> = is_said.then_some((client(), node)).into_iter().collect();
                    let changes = self.carried.note(&said, is_all);
                    self.guide(changes);
                }
                None
            }
            LinkSay::Restore if self.role != PrimaryRole::Serving => Some(LinkSay::Refused),
            LinkSay::Restore => Some(restore(&mut self.socket)),
            LinkSay::Start => Some(start(&mut self.socket)),
            LinkSay::Drop => {
                drop_unstarted(&mut self.socket);
                Some(LinkSay::Dropped)
            }
            _ => None,
        }
    }

    /// An annex answers.
    pub fn on_answer(&mut self, index: usize, word: &LinkSay) {
        let annex = annex_id(index);
        match *word {
            LinkSay::Welcome { has, .. } => {
                self.links[index].phase = LinkPhase::Up;
                let claimed: Vec<_> = has.then(client).into_iter().collect();
                let may_claim = self.carried.asks_with().is_some();
                let (changes, drops) = if may_claim {
                    let is_alone = self.role == PrimaryRole::Alone;
                    self.carried.claim(annex, &claimed, is_alone)
                } else {
                    (Vec::new(), claimed)
                };
                self.guide(changes);
                if !drops.is_empty() {
                    self.links[index].say(LinkSay::Drop);
                }
            }
            LinkSay::Refused => {
                let lost = self.carried.lose(client(), annex);
                self.guide(lost);
            }
            _ => {}
        }
    }
}
