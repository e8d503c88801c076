//! Who does what for a service: the role table (DESIGN.md §3, §4).
//!
//! ```text
//!              paired as primary                  peer speaks
//!   Joining ───────────────────────▶ Primary ────────────────────▶ Standby
//!      │ │                                                            ▲
//!      │ └────────────────────────── peer speaks ─────────────────────┘
//!      │ paired as backup            peer silent,
//!      └────────────────▶ Backup ─────────────────▶ TakingOver ─────────▶ Sole
//!                                    server dead               all decided
//! ```
//!
//! Only `Primary` (through the peer's wire), `TakingOver` and `Sole` have the right to speak for the VIP.

use serde::{Deserialize, Serialize};

/// This node's part in one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Has not yet agreed with the peer.
    Joining,
    /// Runs the application behind the peer's wire.
    Primary,
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
    /// The peer speaks for the service in a later epoch.
    PeerSpeaks,
    /// The peer is declared dead.
    PeerSilent,
    /// The peer is alive, but its application's process died.
    PeerServerDead,
    /// The last connection of a takeover is decided.
    Decided,
}

impl Role {
    /// All roles, for tables.
    pub const ALL: [Self; 6] = [
        Self::Joining,
        Self::Primary,
        Self::Backup,
        Self::TakingOver,
        Self::Sole,
        Self::Standby,
    ];

    /// The role after `event`; `None` if it changes nothing.
    pub fn after(self, event: Event) -> Option<Self> {
        use Event::{Decided, PairedAsBackup, PairedAsPrimary, PeerServerDead, PeerSilent, PeerSpeaks};
        match (self, event) {
            (Self::Joining, PairedAsPrimary) => Some(Self::Primary),
            (Self::Joining, PairedAsBackup) => Some(Self::Backup),
            (Self::Joining, PeerSpeaks) => Some(Self::Standby),
            (Self::Joining, PeerSilent | PeerServerDead | Decided) => None,

            // A primary whose wire is silent keeps on: its output is held to the wire by the egress guard.
            (Self::Primary, PairedAsPrimary | PairedAsBackup | PeerSilent | PeerServerDead | Decided) => None,
            (Self::Primary, PeerSpeaks) => Some(Self::Standby),

            (Self::Backup, PeerSilent | PeerServerDead) => Some(Self::TakingOver),
            (Self::Backup, PairedAsPrimary | PairedAsBackup | PeerSpeaks | Decided) => None,

            (Self::TakingOver, Decided) => Some(Self::Sole),
            (
                Self::TakingOver,
                PairedAsPrimary | PairedAsBackup | PeerSpeaks | PeerSilent | PeerServerDead,
            ) => None,

            (
                Self::Sole,
                PairedAsPrimary | PairedAsBackup | PeerSpeaks | PeerSilent | PeerServerDead | Decided,
            ) => None,

            // What the peer holds alone is not this node's to speak for, also when the peer falls silent.
            (
                Self::Standby,
                PairedAsPrimary | PairedAsBackup | PeerSpeaks | PeerSilent | PeerServerDead | Decided,
            ) => None,
        }
    }

    /// Whether this node may let segments of the VIP out.
    pub fn may_speak(self) -> bool {
        match self {
            Self::Primary | Self::TakingOver | Self::Sole => true,
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
    pub const ALL: [Self; 6] = [
        Self::PairedAsPrimary,
        Self::PairedAsBackup,
        Self::PeerSpeaks,
        Self::PeerSilent,
        Self::PeerServerDead,
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
        Joining -- PeerSpeaks --> Standby
        Primary -- PeerSpeaks --> Standby
        Backup -- PeerSilent --> TakingOver
        Backup -- PeerServerDead --> TakingOver
        TakingOver -- Decided --> Sole
        ");
    }

    /// From no role in which the peer may be speaking does a single step of ours lead to speech, but by the gate.
    #[test]
    fn only_the_node_that_holds_the_gate_starts_to_speak_alone() {
        for role in Role::ALL {
            for event in Event::ALL {
                if role.after(event).is_some_and(Role::speaks_alone) {
                    assert!(
                        matches!(role, Role::Backup | Role::TakingOver),
                        "{role:?} {event:?}"
                    );
                }
            }
        }
    }
}
