//! The phase of a pair, seen from outside. Phases are the rows of the coverage table.

use proto::role::Role;
use serde::{Deserialize, Serialize};

use crate::pair::{SimPair, Station};
use crate::world::{NodeId, World};

/// Phase of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairPhase {
    /// The nodes have not agreed on their roles yet.
    Pairing,
    /// Duplex, and a client waits for the end of its handshake.
    Handshake,
    /// Duplex for the first time.
    Duplex,
    /// A failure has happened, and no node has declared it yet.
    Detection,
    /// Connections are being decided.
    Takeover,
    /// A primary waits for the right to speak without its wire.
    Claiming,
    /// One node serves alone, or no node serves.
    Simplex,
    /// A node that was away is becoming the wire.
    Returning,
    /// Duplex again, after a period without duplex.
    DuplexAgain,
}

impl PairPhase {
    /// All phases.
    pub const ALL: [Self; 9] = [
        Self::Pairing,
        Self::Handshake,
        Self::Duplex,
        Self::Detection,
        Self::Takeover,
        Self::Claiming,
        Self::Simplex,
        Self::Returning,
        Self::DuplexAgain,
    ];

    /// The phase's name, as in a scenario.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pairing => "pairing",
            Self::Handshake => "handshake",
            Self::Duplex => "duplex",
            Self::Detection => "detection",
            Self::Takeover => "takeover",
            Self::Claiming => "claiming",
            Self::Simplex => "simplex",
            Self::Returning => "returning",
            Self::DuplexAgain => "duplex-again",
        }
    }
}

/// Determines the phase of the pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observer {
    nodes: [NodeId; 2],
    was_paired: bool,
    was_broken: bool,
}

/// State of one node as seen from outside.
#[derive(Clone, Copy)]
struct ObservedNode {
    role: Role,
    is_there: bool,
    is_deciding: bool,
    finds_peer_late: bool,
}

impl Observer {
    pub const fn new(pair: &SimPair) -> Self {
        Self {
            nodes: [pair.primary, pair.backup],
            was_paired: false,
            was_broken: false,
        }
    }

    /// The phase now, given what was seen before.
    pub fn look(&mut self, world: &World, has_handshakes: bool) -> PairPhase {
        let phase = self.see(world, has_handshakes);
        match phase {
            PairPhase::Pairing | PairPhase::Returning => {}
            PairPhase::Handshake | PairPhase::Duplex | PairPhase::Detection | PairPhase::DuplexAgain => {
                self.was_paired = true
            }
            PairPhase::Takeover | PairPhase::Claiming | PairPhase::Simplex => {
                self.was_broken = self.was_paired
            }
        }
        phase
    }

    fn see(&self, world: &World, has_handshakes: bool) -> PairPhase {
        let nodes = self.nodes.map(|id| seen(world, id));
        let has = |role| nodes.iter().any(|node| node.is_there && node.role == role);
        if nodes.iter().any(|node| node.is_there && node.is_deciding) {
            PairPhase::Takeover
        } else if has(Role::Claiming) {
            PairPhase::Claiming
        } else if has(Role::Returning) {
            PairPhase::Returning
        } else if has(Role::Sole) || has(Role::TakingOver) {
            PairPhase::Simplex
        } else if has(Role::Primary) || has(Role::Backup) {
            let is_whole = has(Role::Primary) && has(Role::Backup);
            let is_late = nodes.iter().any(|node| node.finds_peer_late || !node.is_there);
            match () {
                () if !is_whole && !self.was_paired => PairPhase::Pairing,
                () if !is_whole || is_late => PairPhase::Detection,
                () if has_handshakes => PairPhase::Handshake,
                () if self.was_broken => PairPhase::DuplexAgain,
                () => PairPhase::Duplex,
            }
        } else if self.was_paired {
            PairPhase::Simplex
        } else {
            PairPhase::Pairing
        }
    }
}

fn seen(world: &World, id: NodeId) -> ObservedNode {
    let station: &Station = world.node(id);
    let now = station.machine().time(world.now());
    ObservedNode {
        role: station.core().service(0).role(),
        is_there: world.is_powered(id),
        is_deciding: station.is_deciding(),
        finds_peer_late: station.core().wants_link(now),
    }
}
