//! An agent begins where another one has ended.

use std::net::SocketAddr;

use super::Node;
use crate::action::{Action, Gate};
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
    /// Clients whose last connection it had taken over, while the service was not.
    pub taken: Vec<SocketAddr>,
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
        Gate::Mute => Role::Standby,
    };
    Left {
        role,
        epoch: found.epoch,
        is_confirmed: found.is_confirmed,
    }
}

impl Node {
    /// The agent before this one may have died between the gate and the right that goes with it.
    pub(super) fn speak_as_found(&mut self) {
        for service in self.indices() {
            if self.service(service).role().may_speak() {
                self.actions.push_back(Action::AllowSpeech { service });
            }
        }
    }
}
