//! The modelled wire: what `proto::service` and the kernel do with the answers of [`Annexes`].

use proto::Instant;
use proto::annex::{AnnexId, Annexes, MovingConnection, ServingNode};
use proto::carried::TakeBackNumber;
use proto::hosting::Greeting;
use steadfast_proto as proto;

use super::link::{LinkPhase, LinkSay, ModelLink};
use super::{ANNEXES, AnnexDefect, NOW, annex_id, client};

/// The way of the connection's packets through the wire's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireEntry {
    /// They pass to and from this node.
    At(ServingNode),
    /// They wait. The wire has the connection, or it is to leave this annex.
    Reserved(Option<AnnexId>),
    /// The wire's own socket has them.
    Taken,
}

/// Clocks in nanoseconds: that of the first wire's node, and by how much each later wire's is behind it.
const CLOCK_OF_FIRST: u64 = 1_000_000;
const CLOCK_BEHIND: u64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WireNode {
    pub annexes: Annexes,
    pub entry: WireEntry,
    /// The wire could go on with the connection.
    pub has_log: bool,
    /// To the primary, and to each annex.
    pub links: [ModelLink; 1 + ANNEXES],
    /// Where the links say that the connection lives.
    guest: Option<AnnexId>,
    /// The annex for which the primary carries it, as the primary has said.
    expected: Option<AnnexId>,
    /// The content of the next greetings.
    pub greeting: Greeting,
    /// The other node of the move has made its socket: the primary may let go.
    pub is_prepared: bool,
    /// The connection is nobody's, because the wire could not go on with it.
    pub has_lost: bool,
}

pub const fn index_of(node: ServingNode) -> usize {
    match node {
        ServingNode::Primary => 0,
        ServingNode::Annex(annex) => annex.0 as usize,
    }
}

pub fn node_of(index: usize) -> ServingNode {
    index
        .checked_sub(1)
        .map_or(ServingNode::Primary, |annex| ServingNode::Annex(annex_id(annex)))
}

impl WireNode {
    /// The wire's agent with this number. `found`: the annex of the connection's entry in the kernel.
    pub fn new(agent: u64, epoch: u64, found: Option<AnnexId>, has_log: bool) -> Self {
        // The clock of the node that is the wire later is behind.
        let began = Instant::from_nanos(CLOCK_OF_FIRST - epoch * CLOCK_BEHIND + agent * 100);
        let annexes = Annexes::new(began, found.map(|annex| (client(), annex)));
        let mut wire = Self {
            greeting: Greeting {
                epoch,
                take_back: TakeBackNumber::default(),
                asks: false,
            },
            annexes,
            entry: WireEntry::At(found.into()),
            has_log,
            links: Default::default(),
            guest: found,
            expected: None,
            is_prepared: false,
            has_lost: false,
        };
        wire.greeting.take_back = wire.number().unwrap_or_default();
        wire
    }

    pub fn link(&mut self, node: ServingNode) -> &mut ModelLink {
        &mut self.links[index_of(node)]
    }

    /// The number of its last take-back.
    pub fn number(&self) -> Option<TakeBackNumber> {
        let epoch = self.greeting.epoch;
        let given = self.annexes.take_back()?;
        Some(TakeBackNumber { epoch, given })
    }

    /// The annex of the connection's entry, which the next agent finds.
    pub const fn found(&self) -> Option<AnnexId> {
        match self.entry {
            WireEntry::At(node) => node.annex(),
            WireEntry::Reserved(annex) => annex,
            WireEntry::Taken => None,
        }
    }

    /// Whether a greeting to this node names the connection.
    pub fn names(&self, node: ServingNode) -> bool {
        match node.annex() {
            None => self.annexes.unconfirmed().next().is_some(),
            annex => self.guest == annex || self.expected == annex,
        }
    }

    /// Tells the annexes a new number.
    pub fn follow(&mut self) {
        let take_back = self.number().unwrap_or_default();
        if self.greeting.take_back != take_back {
            self.greeting.take_back = take_back;
            for link in &mut self.links {
                link.say(LinkSay::TakeBack(take_back));
            }
        }
    }

    fn guide(&mut self, node: ServingNode) {
        self.entry = WireEntry::At(node);
        self.link(ServingNode::Primary).say(LinkSay::Lives(node, false));
        (self.expected, self.guest) = (None, node.annex());
    }

    fn drop_at(&mut self, node: ServingNode) {
        if self.guest == node.annex() {
            self.guest = None;
        }
        self.link(node).say(LinkSay::Drop);
    }

    fn reserve(&mut self) {
        self.entry = WireEntry::Reserved(self.found());
    }

    /// The connection is to move.
    pub fn begin(&mut self, to: ServingNode) {
        let drain = self.annexes.ask_drain();
        self.annexes.begin(NOW, client(), to, drain);
        self.reserve();
        for one in self.annexes.on_drained().restore {
            if self.annexes.is_up(one.to) {
                self.link(one.to).say(LinkSay::Restore);
            } else {
                self.keep();
            }
        }
    }

    /// The connection stays where it is, if it was not released.
    pub fn keep(&mut self) {
        if let Some(one) = self.annexes.give_back(client()) {
            self.stay(one);
        }
    }

    fn stay(&mut self, MovingConnection { from, to, .. }: MovingConnection) {
        self.is_prepared = false;
        self.drop_at(to);
        self.guide(from);
    }

    fn reserve_lost(&mut self) {
        self.reserve();
        for node in self.annexes.forget(&client()) {
            self.drop_at(node);
        }
        self.is_prepared = false;
        self.has_lost |= !self.has_log;
    }

    fn take_from_annex(&mut self) {
        self.reserve_lost();
        self.adopt();
    }

    /// The wire goes on with the connection.
    fn adopt(&mut self) {
        if self.annexes.place(&client()) != ServingNode::Primary {
            return;
        }
        if let Some(MovingConnection { to, .. }) = self.annexes.give_back(client()) {
            self.drop_at(to);
        }
        if !self.annexes.is_moving(&client()) {
            self.entry = if self.has_log {
                WireEntry::Taken
            } else {
                WireEntry::At(ServingNode::Primary)
            };
        }
    }

    /// The primary's heartbeat says which take-back it has heard of.
    /// The primary has heard this number, maybe of an earlier wire.
    pub fn hear(&mut self, number: Option<TakeBackNumber>) {
        let is_own = |number: TakeBackNumber| number.epoch == self.greeting.epoch;
        let number = number.map(|number| if is_own(number) { number.given } else { 0 });
        if !self.annexes.on_heard(number).is_empty() {
            self.adopt();
        }
    }

    fn settle(&mut self, has: bool) {
        let has = if has { vec![client()] } else { Vec::new() };
        let starts = self.annexes.settle(&has);
        if !starts.live.is_empty() {
            self.guide(ServingNode::Primary);
        }
        if !starts.lost.is_empty() {
            self.take_from_annex();
        }
    }

    /// The time of a start in doubt, or of a socket to be made, is over. Returns whether it was that of a start.
    pub fn expire(&mut self, late: Instant) -> bool {
        let is_in_doubt = !self.annexes.end_doubt(late).is_empty();
        if is_in_doubt {
            self.guide(ServingNode::Primary);
        }
        if !self.annexes.late(late).is_empty() {
            self.keep();
        }
        is_in_doubt
    }

    /// The link to a node is over.
    pub fn on_down(&mut self, node: ServingNode, defect: Option<AnnexDefect>) {
        if node == ServingNode::Primary && !self.annexes.doubt(NOW).is_empty() {
            self.reserve();
        }
        let (mut lost, ended) = self.annexes.on_down(node);
        for (one, is_released) in ended {
            if is_released {
                lost.push(one.client);
            } else {
                self.stay(one);
            }
        }
        if !lost.is_empty() {
            self.take_back(defect);
        }
    }

    /// An annex may still have the connection, but is not to have it any more.
    fn take_back(&mut self, defect: Option<AnnexDefect>) {
        self.reserve_lost();
        self.annexes.await_hearing(NOW, vec![client()]);
        if defect == Some(AnnexDefect::Unheard) {
            self.hear(None);
        }
    }

    /// The old node has released the connection.
    pub fn release(&mut self) {
        let Some((MovingConnection { to, .. }, _)) = self.annexes.on_released(client()) else {
            return;
        };
        self.is_prepared = false;
        if !self.annexes.is_up(to) {
            return self.take_from_annex();
        }
        self.guide(to);
        self.annexes.ask_drain();
        if !self.annexes.on_drained().start.is_empty() {
            self.link(to).say(LinkSay::Start);
            self.annexes.on_started(client());
        }
    }

    /// A node answers.
    pub fn on_answer(&mut self, node: ServingNode, word: LinkSay, defect: Option<AnnexDefect>) {
        match word {
            LinkSay::Welcome { has, carries } => {
                let link = self.link(node);
                link.phase = LinkPhase::Up;
                let is_again = std::mem::take(&mut link.is_called_again);
                if node == ServingNode::Primary {
                    let lives = LinkSay::Lives(self.guest.into(), true);
                    self.link(node).say(lives);
                    self.expected = carries;
                }
                self.annexes.on_up(node);
                match node.annex() {
                    None => self.settle(has),
                    Some(annex) if is_again => self.on_relinked(annex, has),
                    Some(annex) => self.on_claimed(annex, has),
                }
            }
            LinkSay::Restored => {
                let Some(one) = self.annexes.on_restored(client(), node, 0) else {
                    return self.drop_at(node);
                };
                match one.from {
                    ServingNode::Primary => self.is_prepared = true,
                    from @ ServingNode::Annex(_) if defect == Some(AnnexDefect::Undropped) => {
                        self.on_answer(from, LinkSay::Dropped, None);
                    }
                    from @ ServingNode::Annex(_) => self.drop_at(from),
                }
            }
            LinkSay::Dropped if node != ServingNode::Primary && self.annexes.place(&client()) == node => {
                if self.annexes.is_moving(&client()) {
                    self.release();
                } else {
                    self.take_back(defect);
                }
            }
            LinkSay::Refused => self.on_refused(node),
            LinkSay::Live if node == ServingNode::Primary => drop(self.annexes.on_answer(&client())),
            _ => {}
        }
    }

    fn on_refused(&mut self, node: ServingNode) {
        if self.annexes.is_moving_to(&client(), node) {
            match self.annexes.give_back(client()) {
                Some(one) => self.stay(one),
                None => self.take_from_annex(),
            }
        } else if node == ServingNode::Primary && self.annexes.on_answer(&client())
            || node != ServingNode::Primary && self.annexes.place(&client()) == node
        {
            self.take_from_annex();
        }
    }

    /// There is a new link to an annex in the place of one that has ended.
    fn on_relinked(&mut self, annex: AnnexId, has: bool) {
        let clients = if has { vec![client()] } else { Vec::new() };
        let relinked = self.annexes.on_relinked(annex, &clients);
        for one in relinked.stay {
            self.stay(one);
        }
        if !relinked.undropped.is_empty() {
            self.drop_at(ServingNode::Annex(annex));
        }
        if !relinked.dropped.is_empty() {
            self.release();
        }
        if !relinked.lost.is_empty() {
            self.take_from_annex();
        }
        self.on_claimed(annex, has);
    }

    /// An annex says whether it has the connection.
    fn on_claimed(&mut self, annex: AnnexId, has: bool) {
        let place = self.annexes.place(&client());
        if place == ServingNode::Annex(annex) {
            if !has && !self.has_log {
                // The wire asks the annex's kernel about connections that it has not logged, and hears that it has ended.
                self.annexes.forget(&client());
                self.guide(ServingNode::Primary);
            }
        } else if has {
            if place == ServingNode::Primary && !self.has_log && self.entry != WireEntry::Taken {
                self.annexes.adopt(client(), annex);
                self.guide(ServingNode::Annex(annex));
            } else {
                self.drop_at(ServingNode::Annex(annex));
            }
        }
    }
}
