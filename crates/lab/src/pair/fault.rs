//! Faults of a run, and the required consequence of each fault.

use clap::ValueEnum;
use serde::Serialize;

use super::path::PathCut;
use crate::node::ServerSoftware;
use crate::run::WrongUse;

/// A fault that a run injects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrashFault {
    /// The primary's cable is cut in both directions at once, then all processes of the primary are killed. Later the primary comes back.
    #[default]
    PowerOff,
    /// The primary's cable is pulled, and plugged in again later; nothing is killed.
    LinkDown,
    /// All processes of the primary's server are killed; later it is started again.
    KillServer,
    /// All processes of the application behind the primary's stage are killed; later it is started again.
    KillApplication,
    /// One worker process of the primary's server is killed.
    CrashWorker,
    /// All processes of the primary's server are stopped (SIGSTOP), and resumed later.
    HangServer,
    /// A node's agent is killed, and started again.
    KillAgent,
    /// The backup's agent is stopped (SIGSTOP), and resumed later. Its kernel goes on.
    PauseAgent,
    /// The primary's power goes off; when the survivor has taken over, the survivor's agent is killed and started again.
    KillAgentAfterTakeover,
    /// A node's daemon is upgraded in place: its program file is replaced, then the daemon gets SIGUSR2.
    Upgrade,
    /// The primary's power goes off; when the survivor has taken over, the survivor's daemon is upgraded in place.
    UpgradeAfterTakeover,
    /// The backup's cable is cut in both directions at once, then all processes of the backup are killed.
    KillBackup,
    /// The backup's cable is pulled, and plugged in again later; nothing is killed.
    CutBackup,
    /// The path between a node and its clients is broken, and restored later; nothing is killed. --how selects the broken part.
    CutServicePath,
    /// One of the two links between the nodes is cut, and restored later. --link selects the link.
    CutLink,
    /// A node's agent is told to stop (SIGTERM), as systemd does.
    Stop,
    /// A node is asked for a handover: primary and backup change places.
    Handover,
    /// Live connections move from the primary to its backup, at the operator's order. The service stays.
    Migrate,
    /// Live connections, which had moved from the primary to its backup and are protected there, move back.
    MigrateBack,
    /// Live connections have moved from the primary to its backup. Then the backup's power goes off.
    KillBackupAfterMigrate,
    /// Live connections have moved from the primary to its backup, and are protected there. Then all processes of the backup's server are
    /// killed; later it is started again.
    KillServerAfterMigrate,
    /// Live connections move from the primary to an annex, at the operator's order. Later they move back, if there are two annexes from one
    /// annex to the other before.
    MigrateAnnex,
    /// Live connections have moved from the primary to an annex. Then the annex's power goes off.
    KillAnnex,
    /// Live connections have moved from the primary to an annex. Then all processes of the annex's server are killed.
    KillAnnexServer,
    /// Live connections have moved from the primary to an annex. Then all processes of the annex's server are stopped (SIGSTOP). The annex has a
    /// health probe.
    HangAnnexServer,
    /// Live connections have moved from the primary to an annex. Then the annex's daemon is told to stop (SIGTERM).
    StopAnnex,
    /// Live connections have moved from the primary to an annex. Then the backup's power goes off, which was their wire.
    KillBackupAfterAnnex,
    /// Live connections have moved from the primary to an annex. Then an agent is killed, and started again: the backup's, which is their wire,
    /// or the primary's, when the backup's power has gone off and the primary carries them.
    KillAgentAfterAnnex,
    /// Live connections have moved from the primary to an annex. Then the agent of the backup, which is their wire, is stopped (SIGSTOP), and
    /// resumed later. Later still, the connections move back.
    PauseAgentAfterAnnex,
    /// A node is drained; later it takes part again.
    Drain,
    /// A node's tc filters and their qdisc are removed.
    FlushTc,
    /// A node's power goes off; it boots and gets packets before it is configured; its agent starts later.
    RebootRace,
}

/// The node that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrashTarget {
    /// Node a.
    Primary,
    /// Node b.
    Backup,
    /// Both nodes. A fault of agents hits node b after node a has recovered.
    Both,
}

/// The required consequence of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequel {
    /// Node b goes on with every connection.
    Takeover,
    /// Node b goes on with the connections whose process died. Node a goes on with the others.
    TakeoverOfSome,
    /// Node a goes on, without a wire: it claims the address.
    Claim,
    /// Nothing: both nodes go on in their roles.
    Nothing,
    /// The nodes decide: both go on in their roles, or one of them goes on alone.
    AtMostOne,
}

impl CrashFault {
    /// The nodes that the fault may hit.
    pub fn targets(self) -> &'static [CrashTarget] {
        match self {
            Self::PowerOff
            | Self::LinkDown
            | Self::KillServer
            | Self::KillApplication
            | Self::CrashWorker
            | Self::HangServer
            | Self::Migrate
            | Self::MigrateAnnex
            | Self::KillAnnex
            | Self::KillAnnexServer
            | Self::HangAnnexServer
            | Self::StopAnnex
            | Self::KillAgentAfterTakeover
            | Self::UpgradeAfterTakeover => &[CrashTarget::Primary],
            Self::KillBackup
            | Self::CutBackup
            | Self::MigrateBack
            | Self::PauseAgent
            | Self::KillBackupAfterMigrate
            | Self::KillServerAfterMigrate
            | Self::KillBackupAfterAnnex
            | Self::PauseAgentAfterAnnex => &[CrashTarget::Backup],
            Self::CutServicePath
            | Self::CutLink
            | Self::RebootRace
            | Self::Stop
            | Self::Handover
            | Self::Drain => &[CrashTarget::Primary, CrashTarget::Backup],
            Self::KillAgentAfterAnnex => &[CrashTarget::Backup, CrashTarget::Primary],
            Self::KillAgent | Self::Upgrade | Self::FlushTc => {
                &[CrashTarget::Primary, CrashTarget::Backup, CrashTarget::Both]
            }
        }
    }

    /// The node to hit: `asked`, or else a node chosen by `seed`.
    ///
    /// # Errors
    /// If the fault cannot hit the `asked` node.
    pub fn target(self, asked: Option<CrashTarget>, seed: u64) -> Result<CrashTarget, WrongUse> {
        let targets = self.targets();
        match asked {
            Some(asked) if !targets.contains(&asked) => Err(WrongUse(format!(
                "--node: this fault hits only {targets:?}, not {asked:?}"
            ))),
            Some(asked) => Ok(asked),
            None => Ok(targets[(seed % targets.len() as u64) as usize]),
        }
    }

    /// The required consequence of the fault. `how` matters only if a service path is cut.
    pub fn sequel(self, target: CrashTarget, how: PathCut) -> Sequel {
        match self {
            Self::CutServicePath => match (how, target) {
                // A primary without a path to the router still reaches its clients through the wire.
                (PathCut::Flicker, _) | (PathCut::Router, CrashTarget::Primary) => Sequel::AtMostOne,
                (_, CrashTarget::Primary) => Sequel::Takeover,
                (_, CrashTarget::Backup | CrashTarget::Both) => Sequel::Claim,
            },
            Self::PowerOff
            | Self::LinkDown
            | Self::KillServer
            | Self::HangServer
            | Self::KillAgentAfterTakeover
            | Self::UpgradeAfterTakeover => Sequel::Takeover,
            Self::CrashWorker
            | Self::KillAnnex
            | Self::KillAnnexServer
            | Self::HangAnnexServer
            | Self::StopAnnex => Sequel::TakeoverOfSome,
            Self::KillBackup
            | Self::KillBackupAfterMigrate
            | Self::KillBackupAfterAnnex
            | Self::CutBackup => Sequel::Claim,
            Self::RebootRace | Self::Stop | Self::Drain if target == CrashTarget::Backup => Sequel::Claim,
            Self::KillAgentAfterAnnex if target == CrashTarget::Primary => Sequel::Claim,
            Self::RebootRace | Self::Stop | Self::Drain | Self::Handover => Sequel::Takeover,
            Self::KillApplication
            | Self::KillAgent
            | Self::KillAgentAfterAnnex
            | Self::PauseAgent
            | Self::PauseAgentAfterAnnex
            | Self::Upgrade
            | Self::FlushTc
            | Self::CutLink
            | Self::Migrate
            | Self::MigrateBack
            | Self::KillServerAfterMigrate
            | Self::MigrateAnnex => Sequel::Nothing,
        }
    }

    /// Whether this is an order of the operator after which the other node serves.
    pub fn is_order(self) -> bool {
        matches!(self, Self::Handover | Self::Drain)
    }

    /// Whether connections have moved from the primary to its backup before the fault.
    pub fn follows_a_move(self) -> bool {
        matches!(
            self,
            Self::MigrateBack | Self::KillBackupAfterMigrate | Self::KillServerAfterMigrate
        )
    }

    /// Whether connections change their node one by one.
    pub fn moves_connections(self) -> bool {
        self == Self::Migrate || self.follows_a_move() || self.needs_annexes()
    }

    /// Whether connections live on an annex in the run.
    pub fn needs_annexes(self) -> bool {
        self == Self::MigrateAnnex || self.begins_on_annex()
    }

    /// Whether connections have moved to an annex before the fault.
    pub fn begins_on_annex(self) -> bool {
        matches!(
            self,
            Self::KillAnnex
                | Self::KillAnnexServer
                | Self::HangAnnexServer
                | Self::StopAnnex
                | Self::KillBackupAfterAnnex
                | Self::KillAgentAfterAnnex
                | Self::PauseAgentAfterAnnex
        )
    }

    /// Whether the fault cuts a living node off, so that the node's path is lost.
    pub fn cuts_path(self) -> bool {
        matches!(self, Self::LinkDown | Self::CutBackup | Self::CutServicePath)
    }

    /// Why the fault cannot happen to `application`, if it cannot.
    pub fn exception(self, application: ServerSoftware) -> Option<&'static str> {
        match self {
            Self::CrashWorker if !application.has_workers() => {
                Some("not applicable: this server is one process and has no workers; see kill-server")
            }
            Self::KillApplication if application.staged_port().is_none() => {
                Some("not applicable: no stage is before this server; see kill-server")
            }
            _ => None,
        }
    }

    /// Whether an agent is away for a while, and its node keeps running.
    pub fn takes_agents_away(self) -> bool {
        matches!(
            self,
            Self::KillAgent
                | Self::KillAgentAfterAnnex
                | Self::PauseAgent
                | Self::PauseAgentAfterAnnex
                | Self::Upgrade
        )
    }

    /// Whether the nodes' programs are replaced.
    pub fn replaces_programs(self) -> bool {
        matches!(self, Self::Upgrade | Self::UpgradeAfterTakeover)
    }

    /// Whether the fault can be repeated in rounds: a node is gone, and comes back, or the nodes change places.
    pub fn has_rounds(self) -> bool {
        matches!(
            self,
            Self::PowerOff
                | Self::LinkDown
                | Self::KillServer
                | Self::HangServer
                | Self::KillBackup
                | Self::CutBackup
                | Self::CutServicePath
                | Self::Stop
                | Self::Handover
                | Self::Migrate
                | Self::MigrateBack
                | Self::MigrateAnnex
                | Self::Drain
        )
    }

    /// Whether the clients must be at work for longer, because the fault has many events.
    pub fn is_long(self) -> bool {
        !matches!(
            self,
            Self::PowerOff | Self::KillServer | Self::KillApplication | Self::CrashWorker | Self::KillBackup
        )
    }
}

impl CrashTarget {
    /// Node number `index`.
    pub fn of(index: usize) -> Self {
        [Self::Primary, Self::Backup][index]
    }

    /// The nodes' numbers, in the order in which they are hit.
    pub fn nodes(self) -> &'static [usize] {
        match self {
            Self::Primary => &[0],
            Self::Backup => &[1],
            Self::Both => &[0, 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_among_the_nodes_that_may_be_hit() {
        let drawn = (0..3).map(|seed| CrashFault::KillAgent.target(None, seed).unwrap());
        assert_eq!(drawn.collect::<Vec<_>>(), CrashFault::KillAgent.targets());
        assert_eq!(
            CrashFault::KillBackup.target(None, 7).unwrap(),
            CrashTarget::Backup
        );
        let asked = CrashFault::FlushTc.target(Some(CrashTarget::Backup), 0).unwrap();
        assert_eq!(asked, CrashTarget::Backup);
        assert!(CrashFault::PowerOff.target(Some(CrashTarget::Backup), 0).is_err());
    }

    #[test]
    fn who_reaches_the_clients_decides_who_goes_on() {
        let sequel = |how, target| CrashFault::CutServicePath.sequel(target, how);
        for &how in PathCut::value_variants() {
            let is_claim = sequel(how, CrashTarget::Backup) == Sequel::Claim;
            assert_eq!(is_claim, how != PathCut::Flicker, "{how:?}");
        }
        assert_eq!(sequel(PathCut::Port, CrashTarget::Primary), Sequel::Takeover);
        assert_eq!(sequel(PathCut::Router, CrashTarget::Primary), Sequel::AtMostOne);
    }

    #[test]
    fn who_reboots_decides_who_goes_on() {
        let sequel = |target| CrashFault::RebootRace.sequel(target, PathCut::default());
        assert_eq!(sequel(CrashTarget::Primary), Sequel::Takeover);
        assert_eq!(sequel(CrashTarget::Backup), Sequel::Claim);
    }

    /// A primary carries connections only without their wire, so the wire fails first.
    #[test]
    fn whose_agent_is_killed_decides_whether_the_wire_fails() {
        let sequel = |target| CrashFault::KillAgentAfterAnnex.sequel(target, PathCut::default());
        assert_eq!(sequel(CrashTarget::Primary), Sequel::Claim);
        assert_eq!(sequel(CrashTarget::Backup), Sequel::Nothing);
    }
}
