//! The role table: what a node does for a service (DESIGN.md §3, §4).
//!
//! ```text
//!            begins                       peer silent, leaves                  outside hosts
//!  Joining ─────────▶ Primary ◀─────────────────────────────────▶ Claiming ─── reach it here ──▶ Sole
//!     │                  ▲              peer is back                 ▲ alone                      │ ▲
//!     │                  └──────────────────────── peer returns ─────┼────────────────────────────┘ │
//!     ├──────────────────────────────────────────────────────────────┘                              │
//!     │ peer serves             consented            peer silent, yields            all decided     │
//!     └────────────▶ Returning ───────────▶ Backup ─────────────────────▶ TakingOver ───────────────┘
//!                       ▲  │ peer silent, withdrawn      │ withdrawn
//!           peer serves │  ▼                             ▼
//!     Primary ◀─────── Standby ◀── peer speaks ── any role
//!              begins
//! ```
//!
//! The picture shows the usual changes. [`Role::after`] has all of them, also those after a failed step.
//!
//! Only `Primary`, `Claiming`, `TakingOver` and `Sole` have the right to speak for the whole service. In `Primary` and
//! `Claiming`, all output goes to the peer's wire. A `Backup` that has a lease may speak for orphans that it has adopted. Epochs,
//! leases and the arbiter decide which event occurs, and when ([`crate::standing`]).

mod history;

use serde::{Deserialize, Serialize};

pub(crate) use history::RoleHistory;
pub use history::RoleSince;

/// This node's part in one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Has not yet agreed with the peer.
    Joining,
    /// Runs the application behind the peer's wire.
    Primary,
    /// Runs the application like a primary, but has no wire. Waits for the right to speak without a wire.
    Claiming,
    /// Prepares to be the wire of a peer that speaks: passes packets on, and waits for the peer's consent.
    Returning,
    /// Is the wire.
    Backup,
    /// The primary is declared dead; connections are being decided.
    TakingOver,
    /// Speaks alone.
    Sole,
    /// Mute: has no part in the service. Usually the peer speaks alone.
    Standby,
}

/// An event that may change a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleEvent {
    /// Neither node serves, and this node is to begin.
    Begins,
    /// There is no peer, and the operator has allowed this node to serve without a peer.
    Alone,
    /// The peer speaks for the service in a later epoch.
    PeerSpeaks,
    /// The peer serves and has no wire, so this node can be the wire.
    PeerServes,
    /// The peer is ready to be the wire.
    PeerReturns,
    /// The peer has consented to this node as its wire: all that the peer sends to clients passes through this node.
    Consented,
    /// The peer is declared dead.
    PeerSilent,
    /// The peer is the wire again, after it was silent or had begun a later epoch.
    PeerBack,
    /// The peer is a primary that wants to be taken over: its application failed, or it stops.
    PeerYields,
    /// The peer is a wire that will be gone soon.
    PeerLeaves,
    /// A returning node gives up its part, or a backup can no longer trust its log. A backup distrusts its log if a failed step was made
    /// good, because packets may have bypassed the log. An unconfirmed backup that is to take over also distrusts its log, because the
    /// primary may have served alone.
    Withdrawn,
    /// A change of this node's network that the role needs has failed.
    Failed,
    /// This node wanted to consent to the peer's return, but a step failed. The peer has not heard of the consent.
    ConsentFailed,
    /// Outside hosts reach the VIP here.
    Reached,
    /// The last connection of a takeover is decided.
    Decided,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Joining => "joining",
            Self::Primary => "primary",
            Self::Claiming => "claiming",
            Self::Returning => "returning",
            Self::Backup => "backup",
            Self::TakingOver => "taking over",
            Self::Sole => "sole",
            Self::Standby => "standby",
        })
    }
}

impl Role {
    /// All roles, for tables.
    pub const ALL: [Self; 8] = [
        Self::Joining,
        Self::Primary,
        Self::Claiming,
        Self::Returning,
        Self::Backup,
        Self::TakingOver,
        Self::Sole,
        Self::Standby,
    ];

    /// Returns the role after `event`. Returns `None` if `event` has no effect in this role.
    pub fn after(self, event: RoleEvent) -> Option<Self> {
        use RoleEvent::{
            Alone, Begins, ConsentFailed, Consented, Decided, Failed, PeerBack, PeerLeaves, PeerReturns,
            PeerServes, PeerSilent, PeerSpeaks, PeerYields, Reached, Withdrawn,
        };
        match (self, event) {
            (Self::Joining, Begins) => Some(Self::Primary),
            (Self::Joining, Alone) => Some(Self::Claiming),
            (Self::Joining, PeerServes) => Some(Self::Returning),
            (Self::Joining, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Joining,
                PeerReturns | Consented | PeerSilent | PeerBack | PeerYields | PeerLeaves | Withdrawn
                | Failed | Reached | Decided | ConsentFailed,
            ) => None,

            // A primary's egress guard sends all output to the wire. So a primary without a wire must claim the VIP first.
            (Self::Primary, PeerSilent | PeerLeaves) => Some(Self::Claiming),
            (Self::Primary, PeerReturns | PeerBack) => Some(Self::Primary),
            (Self::Primary, PeerSpeaks | Failed) => Some(Self::Standby),
            // This node's connections are live, and the peer has none of them. So this node serves alone again.
            (Self::Primary, ConsentFailed) => Some(Self::Sole),
            (
                Self::Primary,
                Begins | Alone | PeerServes | Consented | PeerYields | Withdrawn | Reached | Decided,
            ) => None,

            (Self::Claiming, PeerBack | PeerReturns) => Some(Self::Primary),
            (Self::Claiming, Reached) => Some(Self::Sole),
            (Self::Claiming, PeerSpeaks) => Some(Self::Standby),
            // A claim that fails is made again, because no other node may serve.
            (
                Self::Claiming,
                Begins | Alone | PeerServes | Consented | PeerSilent | PeerYields | PeerLeaves | Withdrawn
                | Failed | Decided | ConsentFailed,
            ) => None,

            // A returning node has no log from which it could take over.
            (Self::Returning, PeerSilent | PeerSpeaks | Withdrawn | Failed) => Some(Self::Standby),
            (Self::Returning, Consented) => Some(Self::Backup),
            (Self::Returning, Begins) => Some(Self::Primary),
            (
                Self::Returning,
                Alone | PeerServes | PeerReturns | PeerBack | PeerYields | PeerLeaves | Reached | Decided
                | ConsentFailed,
            ) => None,

            (Self::Backup, PeerSilent | PeerYields) => Some(Self::TakingOver),
            (Self::Backup, PeerSpeaks | Withdrawn) => Some(Self::Standby),
            (
                Self::Backup,
                Begins | Alone | PeerServes | PeerReturns | Consented | PeerBack | PeerLeaves | Failed
                | Reached | Decided | ConsentFailed,
            ) => None,

            (Self::TakingOver, Decided) => Some(Self::Sole),
            (Self::TakingOver, PeerSpeaks) => Some(Self::Standby),
            (
                Self::TakingOver,
                Begins | Alone | PeerServes | PeerReturns | Consented | PeerSilent | PeerBack | PeerYields
                | PeerLeaves | Withdrawn | Failed | Reached | ConsentFailed,
            ) => None,

            (Self::Sole, PeerReturns) => Some(Self::Primary),
            (Self::Sole, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Sole,
                Begins | Alone | PeerServes | Consented | PeerSilent | PeerBack | PeerYields | PeerLeaves
                | Withdrawn | Failed | Reached | Decided | ConsentFailed,
            ) => None,

            // This node may not speak for connections that only the peer has, even when the peer falls silent.
            (Self::Standby, PeerServes) => Some(Self::Returning),
            (Self::Standby, Begins) => Some(Self::Primary),
            (
                Self::Standby,
                Alone | PeerSpeaks | PeerReturns | Consented | PeerSilent | PeerBack | PeerYields
                | PeerLeaves | Withdrawn | Failed | Reached | Decided | ConsentFailed,
            ) => None,
        }
    }

    /// Whether this node may send segments for the whole service. A backup may besides speak for orphans that it has adopted.
    pub fn may_speak(self) -> bool {
        match self {
            Self::Primary | Self::Claiming | Self::TakingOver | Self::Sole => true,
            Self::Joining | Self::Returning | Self::Backup | Self::Standby => false,
        }
    }

    /// Whether this node has no part in the service, or only wants one. A backup is not mute in this sense: it is the wire.
    pub fn is_mute(self) -> bool {
        matches!(self, Self::Joining | Self::Returning | Self::Standby)
    }

    /// Whether this node speaks without a wire beside it.
    pub fn speaks_alone(self) -> bool {
        matches!(self, Self::TakingOver | Self::Sole)
    }
}

impl RoleEvent {
    /// All events, for tables.
    pub const ALL: [Self; 15] = [
        Self::Begins,
        Self::Alone,
        Self::PeerSpeaks,
        Self::PeerServes,
        Self::PeerReturns,
        Self::Consented,
        Self::PeerSilent,
        Self::PeerBack,
        Self::PeerYields,
        Self::PeerLeaves,
        Self::Withdrawn,
        Self::Failed,
        Self::ConsentFailed,
        Self::Reached,
        Self::Decided,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::{assert_shown, graphviz};
    use std::fmt::Write;

    #[test]
    fn the_whole_matrix() {
        let mut table = String::new();
        for role in Role::ALL {
            for event in RoleEvent::ALL {
                if let Some(next) = role.after(event) {
                    writeln!(table, "{role:?} -- {event:?} --> {next:?}").unwrap();
                }
            }
        }
        insta::assert_snapshot!(table, @r"
        Joining -- Begins --> Primary
        Joining -- Alone --> Claiming
        Joining -- PeerSpeaks --> Standby
        Joining -- PeerServes --> Returning
        Primary -- PeerSpeaks --> Standby
        Primary -- PeerReturns --> Primary
        Primary -- PeerSilent --> Claiming
        Primary -- PeerBack --> Primary
        Primary -- PeerLeaves --> Claiming
        Primary -- Failed --> Standby
        Primary -- ConsentFailed --> Sole
        Claiming -- PeerSpeaks --> Standby
        Claiming -- PeerReturns --> Primary
        Claiming -- PeerBack --> Primary
        Claiming -- Reached --> Sole
        Returning -- Begins --> Primary
        Returning -- PeerSpeaks --> Standby
        Returning -- Consented --> Backup
        Returning -- PeerSilent --> Standby
        Returning -- Withdrawn --> Standby
        Returning -- Failed --> Standby
        Backup -- PeerSpeaks --> Standby
        Backup -- PeerSilent --> TakingOver
        Backup -- PeerYields --> TakingOver
        Backup -- Withdrawn --> Standby
        TakingOver -- PeerSpeaks --> Standby
        TakingOver -- Decided --> Sole
        Sole -- PeerSpeaks --> Standby
        Sole -- PeerReturns --> Primary
        Standby -- Begins --> Primary
        Standby -- PeerServes --> Returning
        ");
    }

    #[test]
    fn the_documents_show_this_table() {
        let speaking: Vec<_> = Role::ALL.into_iter().filter(|role| role.may_speak()).collect();
        let leads = |role: Role, event: RoleEvent| Some((role.after(event)?, format!("{event:?}")));
        let graph = graphviz("roles", (&Role::ALL, &speaking), &RoleEvent::ALL, leads);
        assert_shown("roles", &graph);
    }

    /// A node starts to speak alone only in three cases: it was the wire, outside hosts reach it, or the peer never
    /// heard its consent.
    #[test]
    fn only_a_backup_or_a_claimant_starts_to_speak_alone() {
        for role in Role::ALL {
            for event in RoleEvent::ALL {
                if role.after(event).is_some_and(Role::speaks_alone) {
                    assert!(
                        matches!(role, Role::Backup | Role::TakingOver | Role::Claiming)
                            || event == RoleEvent::ConsentFailed,
                        "{role:?} {event:?}"
                    );
                }
            }
        }
    }
}
