//! An agent begins where another one has ended.

use std::net::SocketAddr;

use super::Node;
use crate::Instant;
use crate::action::{Action, Gate};
use crate::orphans::Telling;
use crate::role::Role;
use crate::standing::Found as Left;

/// What an agent that is gone left of a service.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its gate.
    pub gate: Gate,
    /// The epoch in which that was set.
    pub epoch: u64,
    /// Whether the primary had taken it for its backup: else a wire was only returning, and knows of nobody.
    pub is_consented: bool,
    /// Whether the right to speak had no end: nobody needs to be asked for it again.
    pub is_confirmed: bool,
    /// Whether that agent waited for the other node's word that it had not gone on alone ([`Report::Doubted`]). A primary's gate is
    /// closed meanwhile.
    ///
    /// [`Report::Doubted`]: crate::action::Report::Doubted
    pub is_doubted: bool,
    /// When that agent was there last.
    pub seen: Instant,
    /// Clients whose last connection it had taken over, while the service was not.
    pub taken: Vec<SocketAddr>,
    /// Clients whose connections lost their process here, and were not adopted by the peer as far as that agent knew: its kernel has
    /// remembered them.
    pub orphans: Vec<SocketAddr>,
}

impl Found {
    /// The orphans that the peer is to be told of, again if need be.
    pub(super) fn telling(&self, role: Role) -> Telling {
        let mut telling = Telling::default();
        if role == Role::Primary {
            for &client in &self.orphans {
                telling.add(client);
            }
        }
        telling
    }
}

/// The role of an agent that left `gate` behind. One that died while it decided connections has lost those; it speaks alone.
pub(super) fn behind(found: &Found) -> Left {
    let role = match found.gate {
        Gate::Off => Role::Joining,
        Gate::Mute if found.epoch == 0 => Role::Joining,
        Gate::Wire if found.is_consented => Role::Backup,
        Gate::Wire => Role::Returning,
        Gate::Takeover | Gate::Sole => Role::Sole,
        Gate::Primary => Role::Primary,
        Gate::Mute if found.is_doubted => Role::Primary,
        Gate::Mute => Role::Standby,
    };
    Left {
        role,
        epoch: found.epoch,
        is_confirmed: found.is_confirmed,
    }
}

impl Node {
    /// The agent before this one may have died between the gate and the right that goes with it; or between a gate that it closed and
    /// the end of the connections behind that.
    pub(super) fn speak_as_found(&mut self) {
        for service in self.indices() {
            let role = self.service(service).role();
            if role.may_speak() {
                self.actions.push_back(Action::AllowSpeech { service });
            } else if role == Role::Standby {
                let is_deposed = false;
                self.actions.push_back(Action::StandDown { service, is_deposed });
            }
        }
    }
}
