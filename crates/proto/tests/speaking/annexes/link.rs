//! Links between the modelled nodes: ordered messages, which are lost when the link is reset.

use proto::annex::{AnnexId, ServingNode};
use proto::carried::TakeBackNumber;
use proto::hosting::HostGreeting;
use steadfast_proto as proto;

/// A message about the connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkSay {
    // From the caller.
    Hello(HostGreeting),
    TakeBack(TakeBackNumber),
    Restore,
    Start,
    Drop,
    /// Where the connection lives; `is_all`: the list of all connections, which names it if it is on an annex.
    Lives(ServingNode, bool),

    // Answers.
    Welcome {
        has: bool,
        /// The primary carries the connection for this annex.
        carries: Option<AnnexId>,
    },
    Restored,
    Refused,
    Live,
    Dropped,
    Superseded,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkPhase {
    #[default]
    Idle,
    /// The caller has sent its greeting.
    Greeting,
    Up,
}

/// A link of a caller to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelLink {
    pub phase: LinkPhase,
    /// Its number at the node that is called.
    pub number: u64,
    /// Whether the caller asks for connections on this link.
    pub asks: bool,
    pub to: Vec<LinkSay>,
    pub from: Vec<LinkSay>,
    /// The called node has died, and the caller has not noticed it.
    pub is_dead: bool,
    /// The caller believes that the called node is there, and calls it again.
    pub is_called_again: bool,
    /// Number of the link before, and what the called node has not read of it.
    pub old: Option<(u64, Vec<LinkSay>)>,
}

impl ModelLink {
    /// The link is reset. Answers are lost. The called node has still to read what came before. Returns whether the link was up.
    pub fn reset(&mut self) -> bool {
        let Self {
            number,
            to,
            phase,
            is_dead,
            ..
        } = std::mem::take(self);
        self.is_called_again = false;
        if phase != LinkPhase::Idle && !is_dead {
            self.old = Some((number, to));
        }
        phase == LinkPhase::Up
    }

    /// The called node, or its process, has died.
    pub fn die(&mut self) {
        self.to.clear();
        self.from.clear();
        self.old = None;
        self.is_dead = self.phase != LinkPhase::Idle;
    }

    /// The caller sends a message. It is lost if the link is not up.
    pub fn say(&mut self, word: LinkSay) {
        if self.phase == LinkPhase::Up && !self.is_dead {
            self.to.push(word);
        }
    }

    pub fn answer(&mut self, word: LinkSay) {
        self.from.push(word);
    }

    /// Whether nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.to.is_empty() && self.from.is_empty() && self.old.is_none()
    }
}
