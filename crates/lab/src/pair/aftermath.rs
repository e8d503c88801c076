//! Events after a fault: the takeover or the claim that must follow, then a second event that the connections must survive too.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use proto::Instant;
use serde::Serialize;

use super::fault::{CrashFault, CrashTarget, Sequel};
use super::inject::{
    WIRE, hooks_without_filter, kill_agent, move_back, power_off, restore_link, signal_server,
};
use super::integration::Integration;
use super::survive::{flapping, survive};
use super::testbed::Testbed;
use super::unlogged::UnloggedPackets;
use super::{PairOptions, Returning, WorkloadOption, baseline, protection, reboot};
use crate::clock::{as_nanos, as_optional_nanos, monotonic};
use crate::net::address::NODES;
use crate::node::{ReportedConnection, ReportedStatus, ReportedTakeover};
use crate::run::LabRun;

/// Pause after a step that follows the fault. Meanwhile the clients continue.
const ACT: Duration = Duration::from_millis(250);
/// Longest time for which a run waits until connections that have moved back are protected.
const PROTECTION: Duration = Duration::from_secs(5);
/// Time limit for a node that has given its service up to end its connections.
const ENDS_LIMIT: Duration = Duration::from_secs(10);
/// Time between two looks at them. Each look is work for the kernel only.
const ENDS_POLL: Duration = Duration::from_millis(100);
/// How long a paused agent stands still. Long enough for clients to fill the rings, if these are small, also on a busy machine.
const PAUSED_FOR: Duration = Duration::from_secs(1);
/// Time that the nodes have to agree on their roles after a fault that may change nothing.
const AGREEMENT: Duration = Duration::from_secs(1);
/// Time after which a service supervisor has restarted a dead agent (systemd's `RestartSec` is 100 ms by default).
const RESTARTED_AFTER: Duration = Duration::from_millis(300);

/// The events of a run since its fault.
#[derive(Serialize)]
pub struct Aftermath {
    /// When the fault happened.
    #[serde(serialize_with = "as_nanos")]
    pub fault_at: Instant,
    /// Time of the fault that makes node b take over. `None` if node b does not take over.
    #[serde(serialize_with = "as_optional_nanos")]
    pub deadly_at: Option<Instant>,
    /// When connections were ordered to move to node b, if they were.
    pub moved_at: Vec<Instant>,
    /// What passed unlogged while the backup's agent was paused, with that fault.
    pub unlogged: Option<UnloggedPackets>,
    /// For each move of connections that was watched: milliseconds from the order until the new wire protected all of them.
    pub protected_ms: Vec<f64>,
    /// When node a began to claim the address because its wire is gone, if node a did so.
    #[serde(serialize_with = "as_optional_nanos")]
    pub claimed_at: Option<Instant>,
    /// When the second event happened: for example a node's return, an agent's death or upgrade, or the primary's power-off.
    #[serde(serialize_with = "as_optional_nanos")]
    pub second_at: Option<Instant>,
    /// Node b's takeovers, each of some connections or of the service.
    pub takeovers: Vec<ReportedTakeover>,
    /// Node b's connections after the takeover.
    pub taken_over: Vec<ReportedConnection>,
    /// CPU time that the daemons and their keepers have used by the time when all connections were decided, since their start. After an
    /// order, by the time when node a had ended its connections, too.
    pub daemons_cpu: Duration,
    /// The return of a node that was gone, if it came back.
    pub integration: Option<Integration>,
    /// Number of times the speaking node has changed since the fault.
    pub role_changes: u64,
    /// When the nodes had their last roles: no later event of the run changes them.
    #[serde(skip)]
    pub settled_at: Instant,
    /// Things that the daemons failed to do, or did without reason.
    pub problems: Vec<String>,
}

/// Follows the run after its fault. `options.fault` hit `target` at `fault_at`, when the service's epoch was `epoch`.
///
/// # Errors
/// If a step could not be carried out.
pub fn follow(
    testbed: &mut Testbed,
    options: &PairOptions,
    target: CrashTarget,
    (fault_at, epoch): (Instant, u64),
    run: &LabRun<'_>,
) -> Result<Aftermath> {
    let mut aftermath = Aftermath::new(fault_at);
    let sequel = options.sequel(target);
    match sequel {
        Sequel::Takeover | Sequel::TakeoverOfSome => {
            aftermath.deadly_at = Some(fault_at);
            aftermath.survive(testbed, sequel == Sequel::TakeoverOfSome)?;
            if options.fault.is_order() && !options.baseline {
                aftermath.wait_for_ends(testbed)?;
            }
        }
        Sequel::Claim => {
            if options.fault.follows_a_move() {
                aftermath.moved_at.push(fault_at);
            }
            aftermath.wait_for_claim(testbed)?;
        }
        Sequel::Nothing => aftermath.recover(testbed, options, target)?,
        Sequel::AtMostOne => aftermath.settle(testbed)?,
    }
    if !options.baseline {
        aftermath.problems.extend(testbed.greet()?);
        run.step("aftermath");
        aftermath.second_event(testbed, options, target)?;
        aftermath.problems.extend(testbed.greet()?);
        aftermath.role_changes = testbed.epoch().saturating_sub(epoch);
        aftermath.problems.extend(flapping(aftermath.role_changes, 1));
    }
    let settled_at = aftermath.integration.as_ref().and_then(Integration::settled_at);
    aftermath.settled_at = settled_at.unwrap_or_else(monotonic);
    Ok(aftermath)
}

/// Kills the agent of node `index`, and starts it again a little later. Returns the time just before the kill.
fn start_again(testbed: &mut Testbed, index: usize) -> Result<Instant> {
    let at = kill_agent(testbed, index)?;
    std::thread::sleep(RESTARTED_AFTER);
    testbed.start_agent(index)?;
    Ok(at)
}

impl Aftermath {
    /// The aftermath of a run whose fault has just happened.
    pub fn new(fault_at: Instant) -> Self {
        Self {
            fault_at,
            deadly_at: None,
            moved_at: Vec::new(),
            unlogged: None,
            protected_ms: Vec::new(),
            claimed_at: None,
            second_at: None,
            takeovers: Vec::new(),
            taken_over: Vec::new(),
            daemons_cpu: Duration::ZERO,
            integration: None,
            role_changes: 0,
            settled_at: fault_at,
            problems: Vec::new(),
        }
    }

    /// Waits until node b has restored or reset every connection that it takes over. With `of_some`, node b takes over only some
    /// connections, not the service. Without steadfast, moves the address to node b.
    ///
    /// # Errors
    /// If the address cannot be moved.
    pub fn survive(&mut self, testbed: &Testbed, of_some: bool) -> Result<()> {
        if testbed.agents.is_none() {
            return claim_as_keepalived(testbed);
        }
        (self.takeovers, self.taken_over) = survive(testbed, 1, self.fault_at, of_some, &mut self.problems)?;
        self.daemons_cpu = testbed.daemons_cpu()?;
        Ok(())
    }

    /// Waits until node a, which has given the service up, has ended its connections. This is part of the daemons' work.
    fn wait_for_ends(&mut self, testbed: &Testbed) -> Result<()> {
        let vip = testbed.pair.service;
        let deadline = monotonic() + ENDS_LIMIT;
        loop {
            let open = testbed.network.nodes[0].run(|| linux::network::sockets::open_behind(vip, None))??;
            if open.is_empty() {
                break;
            }
            if monotonic() >= deadline {
                let left = open.len();
                self.problems.push(format!(
                    "node a, which has given the service up, still has {left} of its connections"
                ));
                break;
            }
            std::thread::sleep(ENDS_POLL);
        }
        self.daemons_cpu = testbed.daemons_cpu()?;
        Ok(())
    }

    /// Gives the nodes time to agree on their roles, then follows node b's takeover if there is one.
    fn settle(&mut self, testbed: &Testbed) -> Result<()> {
        std::thread::sleep(AGREEMENT);
        match testbed.status(1) {
            Ok(status) if !status.takeovers().is_empty() => {
                self.deadly_at = Some(self.fault_at);
                self.survive(testbed, false)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.problems.push(format!("{error:#}"));
                Ok(())
            }
        }
    }

    /// Waits until node a works alone, then asks its agent when the claim of the address began.
    fn wait_for_claim(&mut self, testbed: &Testbed) -> Result<()> {
        self.wait_for_role(testbed, 0, ReportedStatus::is_alone, "work alone")?;
        let claimed_at = testbed
            .status(0)
            .ok()
            .and_then(|status| status.became("claiming"));
        self.claimed_at = claimed_at.filter(|at| *at >= self.fault_at);
        Ok(())
    }

    /// Waits until the status of node `index` satisfies `is_right`, then lets the clients go on for a while. If the
    /// time limit passes first, adds a problem: the node does not do `what`.
    fn wait_for_role(
        &mut self,
        testbed: &Testbed,
        index: usize,
        is_right: impl FnMut(&ReportedStatus) -> bool,
        what: &str,
    ) -> Result<()> {
        testbed.wait_for(index, what, is_right, &mut self.problems)?;
        std::thread::sleep(ACT);
        Ok(())
    }

    /// Waits for the pair to become whole again after a fault that leads to no takeover.
    fn recover(&mut self, testbed: &mut Testbed, options: &PairOptions, target: CrashTarget) -> Result<()> {
        if options.fault.follows_a_move() {
            let protected = protection::watch(testbed, 1, options, self.fault_at, PROTECTION)?;
            self.protected_ms.extend(protected);
        }
        for (turn, &index) in target.nodes().iter().enumerate() {
            self.mend(testbed, options.fault, index, turn > 0)?;
            self.wait_for_role(testbed, index, ReportedStatus::is_duplex, "become duplex again")?;
            testbed.wait_for_channel(index, &mut self.problems)?;
            if options.fault == CrashFault::Upgrade {
                self.look_at_keepers(testbed, index)?;
            }
            if options.fault == CrashFault::FlushTc {
                let name = &testbed.pair.names[index];
                let bare = hooks_without_filter(testbed, index)?.into_iter();
                self.problems
                    .extend(bare.map(|hook| format!("{name} has put no filter back at its {hook}")));
            }
        }
        if options.fault == CrashFault::MigrateAnnex {
            self.moved_at.push(self.fault_at);
            let annex = &testbed.annexes[0].name;
            let has_all = |status: &ReportedStatus| status.has_all_on(annex);
            self.wait_for_role(testbed, 1, has_all, "have all connections on the annex")?;
            if options.stop_etcd {
                testbed.stop_etcd(&mut self.problems)?;
            }
        } else if options.fault.begins_on_annex() {
            self.protect_annexed(testbed, options)?;
        } else if options.fault.moves_connections() {
            self.moved_at.push(self.fault_at);
            let has_some = |status: &ReportedStatus| status.kept() > 0;
            let (from, to) = (target.nodes()[0], 1 - target.nodes()[0]);
            let what = "relay the connections that have moved";
            testbed.wait_for(to, what, has_some, &mut self.problems)?;
            let until = monotonic() + ACT;
            if options.fault == CrashFault::Migrate && protection::is_possible(options) {
                let protected = protection::watch(testbed, from, options, self.fault_at, ACT)?;
                self.protected_ms.extend(protected);
            }
            std::thread::sleep(until.since(monotonic().min(until)));
        }
        let loses_logs = !matches!(
            options.fault,
            CrashFault::FlushTc
                | CrashFault::Migrate
                | CrashFault::PauseAgent
                | CrashFault::PauseAgentAfterAnnex
        );
        if loses_logs && options.then().is_some() {
            // A new agent does not know the connections that began before its start. The agent learns each of them from the connection's
            // next request.
            self.wait_for_role(
                testbed,
                1,
                ReportedStatus::protects_all,
                "protect all connections again",
            )?;
        }
        if options.fault == CrashFault::PauseAgent {
            self.unlogged = Some(UnloggedPackets::wait(testbed)?);
        }
        // This fault is no reason for a takeover.
        let takeovers = testbed
            .status(1)
            .map_or_else(|_| Vec::new(), |status| status.takeovers().to_vec());
        for takeover in takeovers {
            self.problems
                .push(format!("node b took over without a reason: {takeover:?}"));
        }
        Ok(())
    }

    /// Ends what the fault does to node `index`. If `is_second`, the fault first hits this node.
    fn mend(
        &mut self,
        testbed: &mut Testbed,
        fault: CrashFault,
        index: usize,
        is_second: bool,
    ) -> Result<()> {
        match fault {
            CrashFault::KillAgent | CrashFault::KillAgentAfterAnnex => {
                if is_second {
                    self.second_at = Some(kill_agent(testbed, index)?);
                }
                std::thread::sleep(RESTARTED_AFTER);
                testbed.start_agent(index)?;
            }
            CrashFault::PauseAgent | CrashFault::PauseAgentAfterAnnex => {
                std::thread::sleep(PAUSED_FOR);
                testbed.agent(index)?.resume()?;
            }
            CrashFault::KillApplication => {
                std::thread::sleep(RESTARTED_AFTER);
                testbed.start_behind(index)?;
            }
            CrashFault::Upgrade if is_second => {
                self.second_at = Some(testbed.agent(index)?.upgrade()?);
            }
            CrashFault::KillServerAfterMigrate => {
                std::thread::sleep(RESTARTED_AFTER);
                testbed.start_server(index)?;
            }
            CrashFault::CutLink => std::thread::sleep(ACT), // connections begin and end over the remaining link
            _ => {}
        }
        Ok(())
    }

    /// Checks that after an upgrade a keeper of the new program gets new connections, and that the earlier keeper still runs.
    fn look_at_keepers(&mut self, testbed: &Testbed, index: usize) -> Result<()> {
        let name = &testbed.pair.names[index];
        let (serves_anew, retired) = testbed.agent(index)?.keepers()?;
        if !serves_anew {
            self.problems
                .push(format!("the keeper of {name} runs the earlier program"));
        }
        if retired == 0 {
            self.problems.push(format!(
                "the earlier keeper of {name} has ended, or was not retired"
            ));
        }
        Ok(())
    }

    /// Carries out the second event while the clients continue.
    fn second_event(
        &mut self,
        testbed: &mut Testbed,
        options: &PairOptions,
        target: CrashTarget,
    ) -> Result<()> {
        match options.fault {
            CrashFault::PowerOff => self.come_back(testbed, 0, options.returning),
            CrashFault::KillBackupAfterAnnex => self.end_carrying(testbed, options),
            CrashFault::KillAgentAfterAnnex if target == CrashTarget::Primary => {
                self.replace_carrier(testbed)?;
                self.end_carrying(testbed, options)
            }
            CrashFault::LinkDown | CrashFault::CutBackup => self.plug(testbed, target.nodes()[0]),
            CrashFault::CutServicePath => {
                let (at, index) = (monotonic(), target.nodes()[0]);
                options.how.heal(&testbed.network, index)?;
                self.rejoin(testbed, index, at)
            }
            CrashFault::KillServer | CrashFault::HangServer => self.serve_again(testbed, options.fault),
            CrashFault::KillAgentAfterTakeover | CrashFault::UpgradeAfterTakeover => {
                self.replace_survivor(testbed, options.fault)
            }
            CrashFault::RebootRace => self.come_back_half(testbed, target.nodes()[0]),
            CrashFault::KillAgent
            | CrashFault::PauseAgent
            | CrashFault::KillApplication
            | CrashFault::Upgrade
            | CrashFault::CutLink
            | CrashFault::FlushTc
            | CrashFault::Migrate
            | CrashFault::MigrateBack
            | CrashFault::MigrateAnnex
                if let Some(then) = options.then() =>
            {
                self.follow_by(testbed, then, options.returning)
            }
            CrashFault::MigrateAnnex | CrashFault::PauseAgentAfterAnnex => self.move_home(testbed),
            CrashFault::StopAnnex => self.leave_annex(testbed),
            CrashFault::Stop => {
                let agent = testbed.agent_mut(target.nodes()[0])?;
                if let Err(error) = agent.wait_stopped() {
                    self.problems.push(format!("{error:#}"));
                }
                self.second_at = Some(monotonic());
                std::thread::sleep(ACT);
                Ok(())
            }
            CrashFault::CutLink => self.restore(testbed, options, target.nodes()[0]),
            CrashFault::Handover => self.rejoin(testbed, 0, self.fault_at),
            CrashFault::Drain => {
                let (at, index) = (monotonic(), target.nodes()[0]);
                testbed.order(index, &["drain", &testbed.pair.names[index], "--off"])?;
                self.rejoin(testbed, index, at)
            }
            CrashFault::CrashWorker
            | CrashFault::KillApplication
            | CrashFault::KillBackup
            | CrashFault::KillAgent
            | CrashFault::KillAgentAfterAnnex
            | CrashFault::Upgrade
            | CrashFault::PauseAgent
            | CrashFault::Migrate
            | CrashFault::MigrateBack
            | CrashFault::KillBackupAfterMigrate
            | CrashFault::KillServerAfterMigrate
            | CrashFault::KillAnnexServer
            | CrashFault::HangAnnexServer
            | CrashFault::FlushTc => Ok(()),
            CrashFault::KillAnnex if options.registered_annexes => {
                testbed.wait_for_no_entries(&mut self.problems)
            }
            CrashFault::KillAnnex => Ok(()),
        }
    }

    /// Restores the link that was cut at node `index`.
    fn restore(&mut self, testbed: &Testbed, options: &PairOptions, index: usize) -> Result<()> {
        restore_link(testbed, options.link, index)?;
        self.wait_for_role(testbed, index, ReportedStatus::is_duplex, "be duplex")
    }

    /// Kills or upgrades the agent of the survivor, node b, when it has given all connections to its keeper.
    fn replace_survivor(&mut self, testbed: &mut Testbed, fault: CrashFault) -> Result<()> {
        let restored = self.takeovers.last().map_or(0, |takeover| takeover.restored);
        let has_all = |status: &ReportedStatus| status.kept() >= restored;
        self.wait_for_role(testbed, 1, has_all, "give its restored connections to its keeper")?;
        if fault == CrashFault::UpgradeAfterTakeover {
            self.second_at = Some(testbed.agent(1)?.upgrade()?);
        } else {
            self.second_at = Some(start_again(testbed, 1)?);
        }
        let is_alone = |status: &ReportedStatus| !status.is_duplex() && status.speaks();
        self.wait_for_role(testbed, 1, is_alone, "go on alone")?;
        if fault == CrashFault::KillAgentAfterTakeover {
            return Ok(());
        }
        self.wait_for_role(testbed, 1, has_all, "know its earlier keeper's connections")?;
        self.look_at_keepers(testbed, 1)
    }

    /// Waits until the annex has stopped.
    fn leave_annex(&mut self, testbed: &mut Testbed) -> Result<()> {
        if let Err(error) = testbed.annexes[0].wait_stopped() {
            self.problems.push(format!("{error:#}"));
        }
        std::thread::sleep(ACT);
        Ok(())
    }

    /// Moves the connections of the first annex back to node a, over the second annex if there is one.
    fn move_home(&mut self, testbed: &mut Testbed) -> Result<()> {
        let moved_at = move_back(testbed, ACT, &mut self.problems)?;
        self.second_at = moved_at.last().copied();
        self.moved_at.extend(moved_at);
        std::thread::sleep(ACT);
        Ok(())
    }

    /// The primary's power goes off, or its server is killed, after a fault after which both nodes went on.
    fn follow_by(&mut self, testbed: &mut Testbed, then: CrashFault, returning: Returning) -> Result<()> {
        let kills_server = then == CrashFault::KillServer;
        let at = if kills_server {
            signal_server(testbed, 0, Signal::SIGKILL)?
        } else {
            power_off(testbed, 0, returning)?
        };
        (self.deadly_at, self.second_at) = (Some(at), Some(at));
        self.survive(testbed, false)?;
        if kills_server {
            self.serve_again(testbed, then)?;
            self.second_at = Some(at);
        }
        Ok(())
    }

    /// Restarts or resumes the server of node a. Node a has become the wire by itself, but could not take over without its
    /// server.
    fn serve_again(&mut self, testbed: &mut Testbed, fault: CrashFault) -> Result<()> {
        let is_bereft = |status: &ReportedStatus| status.is_wire() && !status.is_duplex();
        let what = "become the wire, and say that its server does not serve";
        self.wait_for_role(testbed, 0, is_bereft, what)?;
        let second_at = monotonic();
        if fault == CrashFault::KillServer {
            testbed.start_server(0)?;
        } else {
            testbed.servers[0].signal(Signal::SIGCONT)?;
        }
        self.rejoin(testbed, 0, self.deadly_at.unwrap_or(self.fault_at))?;
        self.second_at = Some(second_at);
        Ok(())
    }

    /// Plugs in a node's cable again while the other node serves the clients. The node must notice and become the wire.
    fn plug(&mut self, testbed: &Testbed, index: usize) -> Result<()> {
        let returned_at = monotonic();
        testbed.network.cables[index].plug()?;
        self.rejoin(testbed, index, returned_at)
    }

    /// Brings a node back after its power was off. Packets reach its kernel first; then its server and its agent start.
    fn come_back(&mut self, testbed: &mut Testbed, index: usize, returning: Returning) -> Result<()> {
        let returned_at = monotonic();
        testbed.network.cables[index].plug()?;
        std::thread::sleep(ACT);
        if returning == Returning::Frozen {
            testbed.kill_server(index)?;
        }
        testbed.start_server(index)?;
        testbed.start_agent(index)?;
        self.rejoin(testbed, index, returned_at)
    }

    /// Brings node b back, and waits until the primary carries nothing any more. What has not ended passes the new wire, node b. If the
    /// connections last and have restart points, waits also until node b protects them.
    fn end_carrying(&mut self, testbed: &mut Testbed, options: &PairOptions) -> Result<()> {
        self.come_back(testbed, WIRE, options.returning)?;
        let carries_none = ReportedStatus::has_none_on_annexes;
        testbed.wait_for(1 - WIRE, "carry nothing", carries_none, &mut self.problems)?;
        self.protect_annexed(testbed, options)
    }

    /// If the connections last and have restart points, waits until node b, their wire, passes all connections of the annex and protects them
    /// again. Otherwise their wire learns nothing of them in this run.
    fn protect_annexed(&mut self, testbed: &Testbed, options: &PairOptions) -> Result<()> {
        if options.workload == WorkloadOption::Request && protection::is_possible(options) {
            let annex = &testbed.annexes[0].name;
            let has_all = |status: &ReportedStatus| status.has_all_on(annex);
            let what = "pass the connections of the annex";
            testbed.wait_for(WIRE, what, has_all, &mut self.problems)?;
            let protects = ReportedStatus::protects_all;
            testbed.wait_for(WIRE, "protect them again", protects, &mut self.problems)?;
        }
        std::thread::sleep(ACT);
        Ok(())
    }

    /// Kills the agent of node a, which carries the connections of the annex, and starts it again. The new agent must carry connections again.
    /// The judge notices each one that it has lost.
    fn replace_carrier(&mut self, testbed: &mut Testbed) -> Result<()> {
        let annex = testbed.annexes[0].name.clone();
        let carries_some = |status: &ReportedStatus| status.connections_on(&annex) > 0;
        let what = "carry the connections of the annex";
        self.wait_for_role(testbed, 1 - WIRE, carries_some, what)?;
        start_again(testbed, 1 - WIRE)?;
        self.wait_for_role(
            testbed,
            1 - WIRE,
            carries_some,
            "carry them again after its restart",
        )
    }

    /// Brings a rebooted node back. Packets of the service reach the node before it is configured. Then the node's agent starts.
    fn come_back_half(&mut self, testbed: &mut Testbed, index: usize) -> Result<()> {
        reboot::boot(testbed, index)?;
        let returned_at = monotonic();
        testbed.network.cables[index].plug()?;
        reboot::mislead_router(testbed, index)?;
        std::thread::sleep(ACT);
        reboot::configure(testbed, index)?;
        testbed.start_agent(index)?;
        self.rejoin(testbed, index, returned_at)
    }

    fn rejoin(&mut self, testbed: &Testbed, index: usize, returned_at: Instant) -> Result<()> {
        self.second_at = Some(returned_at);
        let mut integration = Integration::new(index, returned_at);
        if testbed.pair.order_sockets.is_some() {
            // The new server waits for a record, so it does not listen yet.
            testbed.wait_for(
                index,
                "be the wire again",
                ReportedStatus::is_wire,
                &mut self.problems,
            )?;
        } else {
            integration.wait_duplex(testbed, Duration::ZERO, &mut self.problems)?;
        }
        self.integration = Some(integration);
        std::thread::sleep(ACT);
        Ok(())
    }
}

fn claim_as_keepalived(testbed: &Testbed) -> Result<()> {
    std::thread::sleep(testbed.pair.detection());
    let (node, address) = (&testbed.network.nodes[1], testbed.pair.service.ip());
    baseline::hold(node, address)?;
    baseline::announce(node, &NODES[1], address)
}
