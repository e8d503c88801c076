//! The state that an earlier agent left, and how a new agent goes on from it.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

use crate::Instant;
use crate::action::Gate;
use crate::annex::AnnexId;
use crate::role::Role;
use crate::standing::InheritedStanding as Left;

/// The state in which an earlier agent left a service behind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InheritedService {
    /// Its gate.
    pub gate: Gate,
    /// The epoch in which the gate was set.
    pub epoch: u64,
    /// Whether the primary had consented to have this node as its backup. If not, the wire was only returning, and knows no connections.
    pub is_consented: bool,
    /// Whether the right to speak had no end, so the arbiter need not be asked again.
    pub is_confirmed: bool,
    /// `Some` if that agent was in doubt in this epoch ([`OperatorReport::Doubted`]): it waited for the other node to confirm that the
    /// other node had not gone on alone. `Some(true)`: this node was the primary, and its gate is closed during the doubt. `Some(false)`:
    /// this node was the wire.
    ///
    /// [`OperatorReport::Doubted`]: crate::action::OperatorReport::Doubted
    pub doubted: Option<bool>,
    /// When that agent last ran.
    pub seen: Instant,
    /// Clients whose latest connection was taken over by that agent, although it did not take over the service.
    pub taken: Vec<SocketAddr>,
    /// Those of them whose segments pass the primary's log (docs/migration.md).
    #[serde(default)]
    pub reversed_here: Vec<SocketAddr>,
    /// Clients whose connections live on the backup although this node is the primary, so that this node logs their segments.
    #[serde(default)]
    pub reversed_there: Vec<SocketAddr>,
    /// Clients whose connections moved to the other node, which has said nothing on them yet. This node may still have their sockets, which say
    /// nothing either.
    #[serde(default)]
    pub frozen: Vec<SocketAddr>,
    /// Clients whose connections have moved to the other node, which has spoken on them. This node may still have their old sockets.
    #[serde(default)]
    pub moved: Vec<SocketAddr>,
    /// Clients whose connections live on annexes (docs/annex.md), on a wire or a primary.
    #[serde(default)]
    pub annexed: Vec<(SocketAddr, AnnexId)>,
    /// Clients whose connections lost their process on this node, and were not adopted by the peer as far as that agent knew. This node's
    /// kernel has remembered them.
    pub orphans: Vec<SocketAddr>,
}

impl InheritedService {
    /// Whether this node is a primary in doubt, so that its gate is closed.
    pub fn is_mute_primary(&self) -> bool {
        self.gate == Gate::Mute && self.doubted == Some(true)
    }
}

/// The role that a new agent takes from what the earlier agent left. If that agent died in a takeover, the connections that it had not
/// restored yet are lost, and this node speaks alone.
pub(super) fn behind(found: &InheritedService) -> Left {
    let role = match found.gate {
        Gate::Off => Role::Joining,
        Gate::Mute if found.epoch == 0 => Role::Joining,
        Gate::Wire if found.is_consented => Role::Backup,
        Gate::Wire => Role::Returning,
        Gate::Takeover | Gate::Sole => Role::Sole,
        Gate::Primary => Role::Primary,
        Gate::Mute if found.is_mute_primary() => Role::Primary,
        Gate::Mute => Role::Standby,
    };
    Left {
        role,
        epoch: found.epoch,
        is_confirmed: found.is_confirmed,
    }
}
