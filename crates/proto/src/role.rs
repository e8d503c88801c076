//! Who does what for a service: the role table (DESIGN.md §3, §4).
//!
//! ```text
//!              paired as primary            peer silent, peer leaves
//!   Joining ───────────────────────▶ Primary ──────────────────────▶ Claiming ─────────────▶ Sole
//!      │                                ▲                              │  ▲      outside hosts  ▲
//!      │                                └──────────────────────────────┘  │      reach it here  │
//!      ├─────────────────────────────────────── peer is back ─ alone ─────┘                     │
//!      │ paired as backup             peer silent, peer yields                  all decided     │
//!      └────────────────────▶ Backup ─────────────────────────▶ TakingOver ─────────────────────┘
//!
//!   any role but Standby ── peer speaks ──▶ Standby
//! ```
//!
//! Only `Primary` and `Claiming` (through the peer's wire), `TakingOver` and `Sole` have the right to speak for the VIP. When a peer
//! speaks is decided by epochs ([`crate::node`]): the later one wins.

use serde::{Deserialize, Serialize};

/// This node's part in one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Has not yet agreed with the peer.
    Joining,
    /// Runs the application behind the peer's wire.
    Primary,
    /// The same, but the wire is gone: waits for the right to speak without it.
    Claiming,
    /// Is the wire.
    Backup,
    /// The primary is declared dead; connections are being decided.
    TakingOver,
    /// Speaks alone.
    Sole,
    /// Mute: the peer speaks alone.
    Standby,
}

/// What changes a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both nodes are there and neither speaks alone; the configuration makes this one the primary.
    PairedAsPrimary,
    /// The same, and this one is the backup.
    PairedAsBackup,
    /// There is no peer, and the operator wants the service all the same.
    Alone,
    /// The peer speaks for the service in a later epoch.
    PeerSpeaks,
    /// The peer is declared dead.
    PeerSilent,
    /// The peer, which was silent, is the wire as before.
    PeerBack,
    /// The peer is a primary that wants to be taken over: its application failed, or it stops.
    PeerYields,
    /// The peer is a wire that will be gone soon.
    PeerLeaves,
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
            Self::Backup => "backup",
            Self::TakingOver => "taking over",
            Self::Sole => "sole",
            Self::Standby => "standby",
        })
    }
}

impl Role {
    /// All roles, for tables.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::Primary,
        Self::Claiming,
        Self::Backup,
        Self::TakingOver,
        Self::Sole,
        Self::Standby,
    ];

    /// The role after `event`; `None` if it changes nothing.
    pub fn after(self, event: Event) -> Option<Self> {
        use Event::{
            Alone, Decided, PairedAsBackup, PairedAsPrimary, PeerBack, PeerLeaves, PeerSilent, PeerSpeaks,
            PeerYields, Reached,
        };
        match (self, event) {
            (Self::Joining, PairedAsPrimary) => Some(Self::Primary),
            (Self::Joining, PairedAsBackup) => Some(Self::Backup),
            (Self::Joining, Alone) => Some(Self::Claiming),
            (Self::Joining, PeerSpeaks) => Some(Self::Standby),
            (Self::Joining, PeerSilent | PeerBack | PeerYields | PeerLeaves | Reached | Decided) => None,

            // Until it has claimed the VIP its output is held to the wire by the egress guard.
            (Self::Primary, PeerSilent | PeerLeaves) => Some(Self::Claiming),
            (Self::Primary, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Primary,
                PairedAsPrimary | PairedAsBackup | Alone | PeerBack | PeerYields | Reached | Decided,
            ) => None,

            (Self::Claiming, PeerBack) => Some(Self::Primary),
            (Self::Claiming, Reached) => Some(Self::Sole),
            (Self::Claiming, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Claiming,
                PairedAsPrimary | PairedAsBackup | Alone | PeerSilent | PeerYields | PeerLeaves | Decided,
            ) => None,

            (Self::Backup, PeerSilent | PeerYields) => Some(Self::TakingOver),
            (Self::Backup, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Backup,
                PairedAsPrimary | PairedAsBackup | Alone | PeerBack | PeerLeaves | Reached | Decided,
            ) => None,

            (Self::TakingOver, Decided) => Some(Self::Sole),
            (Self::TakingOver, PeerSpeaks) => Some(Self::Standby),
            (
                Self::TakingOver,
                PairedAsPrimary | PairedAsBackup | Alone | PeerSilent | PeerBack | PeerYields | PeerLeaves
                | Reached,
            ) => None,

            (Self::Sole, PeerSpeaks) => Some(Self::Standby),
            (
                Self::Sole,
                PairedAsPrimary | PairedAsBackup | Alone | PeerSilent | PeerBack | PeerYields | PeerLeaves
                | Reached | Decided,
            ) => None,

            // What the peer holds alone is not this node's to speak for, also when the peer falls silent.
            (
                Self::Standby,
                PairedAsPrimary | PairedAsBackup | Alone | PeerSpeaks | PeerSilent | PeerBack | PeerYields
                | PeerLeaves | Reached | Decided,
            ) => None,
        }
    }

    /// Whether this node may let segments of the VIP out.
    pub fn may_speak(self) -> bool {
        match self {
            Self::Primary | Self::Claiming | Self::TakingOver | Self::Sole => true,
            Self::Joining | Self::Backup | Self::Standby => false,
        }
    }

    /// Whether this node speaks without a wire beside it.
    pub fn speaks_alone(self) -> bool {
        matches!(self, Self::TakingOver | Self::Sole)
    }
}

impl Event {
    /// All events, for tables.
    pub const ALL: [Self; 10] = [
        Self::PairedAsPrimary,
        Self::PairedAsBackup,
        Self::Alone,
        Self::PeerSpeaks,
        Self::PeerSilent,
        Self::PeerBack,
        Self::PeerYields,
        Self::PeerLeaves,
        Self::Reached,
        Self::Decided,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn the_whole_matrix() {
        let mut table = String::new();
        for role in Role::ALL {
            for event in Event::ALL {
                if let Some(next) = role.after(event) {
                    writeln!(table, "{role:?} -- {event:?} --> {next:?}").unwrap();
                }
            }
        }
        insta::assert_snapshot!(table, @r"
        Joining -- PairedAsPrimary --> Primary
        Joining -- PairedAsBackup --> Backup
        Joining -- Alone --> Claiming
        Joining -- PeerSpeaks --> Standby
        Primary -- PeerSpeaks --> Standby
        Primary -- PeerSilent --> Claiming
        Primary -- PeerLeaves --> Claiming
        Claiming -- PeerSpeaks --> Standby
        Claiming -- PeerBack --> Primary
        Claiming -- Reached --> Sole
        Backup -- PeerSpeaks --> Standby
        Backup -- PeerSilent --> TakingOver
        Backup -- PeerYields --> TakingOver
        TakingOver -- PeerSpeaks --> Standby
        TakingOver -- Decided --> Sole
        Sole -- PeerSpeaks --> Standby
        ");
    }

    /// A node starts to speak alone when it holds the gate, or has asked outside hosts.
    #[test]
    fn only_a_backup_or_a_claimant_starts_to_speak_alone() {
        for role in Role::ALL {
            for event in Event::ALL {
                if role.after(event).is_some_and(Role::speaks_alone) {
                    assert!(
                        matches!(role, Role::Backup | Role::TakingOver | Role::Claiming),
                        "{role:?} {event:?}"
                    );
                }
            }
        }
    }
}
