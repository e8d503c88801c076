//! Events after a fault: the takeover or the claim that must follow, then a second event that the connections must survive too.

use std::time::{Duration, Instant as Deadline};

use anyhow::Result;
use nix::sys::signal::Signal;
use proto::Instant;

use super::fault::{Fault, Sequel, Target};
use super::integration::Integration;
use super::stage::Stage;
use super::strike::{hooks_without_filter, kill_agent, power_off};
use super::{Options, Returning, baseline, reboot};
use crate::clock::monotonic;
use crate::net::address::NODES;
use crate::node::{Connection, Status, Takeover};

/// Time limit for the survivor to decide every connection.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the pair to be as it was, or for the primary to notice that it is alone.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Time between two status requests while connections are taken over. Each request takes 5 ms of CPU time in total, which the measured
/// takeover then lacks. The first request comes after the busy connections are taken over.
const PATIENT_POLL: Duration = Duration::from_millis(250);
/// Pause after a step that follows the fault. Meanwhile the clients continue.
const ACT: Duration = Duration::from_millis(250);
/// Time that the nodes have to agree on their roles after a fault that may change nothing.
const AGREEMENT: Duration = Duration::from_secs(1);
/// Time after which a service supervisor has restarted a dead agent (systemd's `RestartSec` is 100 ms by default).
const RESTARTED_AFTER: Duration = Duration::from_millis(300);

/// The events of a run since its fault.
pub struct Course {
    /// When the fault happened.
    pub fault_at: Instant,
    /// Time of the fault that makes node b take over. `None` if node b does not take over.
    pub deadly_at: Option<Instant>,
    /// When node a began to claim the address because its wire is gone, if it did.
    pub claimed_at: Option<Instant>,
    /// When the second event happened: for example a node's return, an agent's death or upgrade, or the primary's power-off.
    pub second_at: Option<Instant>,
    /// Node b's takeovers, each of some connections or of the service.
    pub takeovers: Vec<Takeover>,
    /// Node b's connections after the takeover.
    pub taken_over: Vec<Connection>,
    /// The return of a node that was gone, if it came back.
    pub integration: Option<Integration>,
    /// Number of times the speaking node has changed since the fault.
    pub role_changes: u64,
    /// Things that the daemons failed to do, or did without reason.
    pub problems: Vec<String>,
}

/// Follows the run after `options.fault` hit `target` at `fault_at`, in `epoch`. Calls `tell` with the name of each step.
///
/// # Errors
/// If a step could not be carried out.
pub fn follow(
    stage: &mut Stage,
    options: &Options,
    target: Target,
    (fault_at, epoch): (Instant, u64),
    tell: &impl Fn(&str),
) -> Result<Course> {
    let mut course = Course::new(fault_at);
    let sequel = options.sequel(target);
    match sequel {
        Sequel::Takeover | Sequel::TakeoverOfSome => {
            course.deadly_at = Some(fault_at);
            course.survive(stage, sequel == Sequel::TakeoverOfSome)?;
        }
        Sequel::Claim => course.wait_for_claim(stage)?,
        Sequel::Nothing => course.recover(stage, options, target)?,
        Sequel::AtMostOne => course.settle(stage)?,
    }
    if !options.baseline {
        course.problems.extend(stage.greet(options)?);
        tell("aftermath");
        course.second_event(stage, options, target)?;
        course.problems.extend(stage.greet(options)?);
        course.role_changes = stage.epoch().saturating_sub(epoch);
        course.problems.extend(flapping(course.role_changes, 1));
    }
    Ok(course)
}

impl Course {
    /// The course of a run whose fault has just happened.
    #[must_use]
    pub fn new(fault_at: Instant) -> Self {
        Self {
            fault_at,
            deadly_at: None,
            claimed_at: None,
            second_at: None,
            takeovers: Vec::new(),
            taken_over: Vec::new(),
            integration: None,
            role_changes: 0,
            problems: Vec::new(),
        }
    }

    /// Waits until node b has decided every connection that it takes over. With `of_some`, node b takes over only some connections,
    /// not the service. Without steadfast, moves the address to node b.
    ///
    /// # Errors
    /// If the address cannot be moved.
    pub fn survive(&mut self, stage: &Stage, of_some: bool) -> Result<()> {
        if stage.agents.is_none() {
            return claim_as_keepalived(stage);
        }
        let deadline = Deadline::now() + TAKEOVER_LIMIT;
        std::thread::sleep(PATIENT_POLL);
        loop {
            let status = stage.status(1);
            self.takeovers = status
                .as_ref()
                .map_or_else(|_| Vec::new(), |status| status.takeovers().to_vec());
            let is_whole = status.as_ref().is_ok_and(|status| of_some || status.speaks());
            if is_whole && self.takeovers.last().is_some_and(Takeover::is_complete) {
                match stage.agent(1)?.restored(&stage.network.nodes[1]) {
                    Ok(connections) => self.taken_over = connections,
                    Err(error) => self.problems.push(format!("{error:#}")),
                }
                return Ok(());
            }
            if Deadline::now() > deadline {
                let said = stage.agent(1)?.last_words();
                let status = told(&status);
                self.problems.push(format!(
                    "node b has not taken over after {TAKEOVER_LIMIT:?}: {status}; it said:{said}"
                ));
                return Ok(());
            }
            std::thread::sleep(PATIENT_POLL);
        }
    }

    /// Gives the nodes time to agree on their roles, then follows node b's takeover if there is one.
    fn settle(&mut self, stage: &Stage) -> Result<()> {
        std::thread::sleep(AGREEMENT);
        match stage.status(1) {
            Ok(status) if !status.takeovers().is_empty() => {
                self.deadly_at = Some(self.fault_at);
                self.survive(stage, false)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.problems.push(format!("{error:#}"));
                Ok(())
            }
        }
    }

    /// Waits until node a works alone, then asks it when it began to claim the address.
    fn wait_for_claim(&mut self, stage: &Stage) -> Result<()> {
        self.wait_for_role(stage, 0, Status::is_alone, "work alone")?;
        let claimed_at = stage.status(0).ok().and_then(|status| status.became("claiming"));
        self.claimed_at = claimed_at.filter(|at| *at >= self.fault_at);
        Ok(())
    }

    /// Waits until the status of node `index` satisfies `is_right`. `what` names the expectation in the problem if it never does.
    fn wait_for_role(
        &mut self,
        stage: &Stage,
        index: usize,
        is_right: impl Fn(&Status) -> bool,
        what: &str,
    ) -> Result<()> {
        let deadline = Deadline::now() + SETTLE_LIMIT;
        loop {
            let status = stage.status(index);
            if status.as_ref().is_ok_and(&is_right) {
                std::thread::sleep(ACT);
                return Ok(());
            }
            if Deadline::now() > deadline {
                let (name, said) = (&stage.pair.names[index], stage.agent(index)?.last_words());
                let status = told(&status);
                self.problems.push(format!(
                    "{name} does not {what} after {SETTLE_LIMIT:?}: {status}; it said:{said}"
                ));
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for the pair to become whole again after a fault that leads to no takeover.
    fn recover(&mut self, stage: &mut Stage, options: &Options, target: Target) -> Result<()> {
        for (turn, &index) in target.nodes().iter().enumerate() {
            if options.fault == Fault::KillAgent {
                if turn > 0 {
                    self.second_at = Some(kill_agent(stage, index)?);
                }
                std::thread::sleep(RESTARTED_AFTER);
                stage.start_agent(index)?;
            }
            if options.fault == Fault::Upgrade && turn > 0 {
                self.second_at = Some(stage.agent(index)?.upgrade()?);
            }
            self.wait_for_role(stage, index, Status::is_duplex, "become duplex again")?;
            if options.fault == Fault::Upgrade {
                self.look_at_keepers(stage, index)?;
            }
            if options.fault == Fault::FlushTc {
                let name = &stage.pair.names[index];
                let bare = hooks_without_filter(stage, index)?.into_iter();
                self.problems
                    .extend(bare.map(|hook| format!("{name} has put no filter back at its {hook}")));
            }
        }
        if options.fault != Fault::FlushTc && options.then_power_off {
            // A new agent learns the connections that are older than itself from their next requests.
            self.wait_for_role(stage, 1, Status::protects_all, "protect all connections again")?;
        }
        // A takeover because of this fault is a takeover without a reason.
        let takeovers = stage
            .status(1)
            .map_or_else(|_| Vec::new(), |status| status.takeovers().to_vec());
        for takeover in takeovers {
            self.problems
                .push(format!("node b took over without a reason: {takeover:?}"));
        }
        Ok(())
    }

    /// Checks that after an upgrade a keeper of the new program gets new connections, and that the earlier keeper still has its
    /// own.
    fn look_at_keepers(&mut self, stage: &Stage, index: usize) -> Result<()> {
        let name = &stage.pair.names[index];
        let (serves_anew, retired) = stage.agent(index)?.keepers()?;
        if !serves_anew {
            self.problems
                .push(format!("the keeper of {name} runs the earlier program"));
        }
        if retired == 0 {
            self.problems
                .push(format!("the earlier keeper of {name} is gone, or in use"));
        }
        Ok(())
    }

    /// Carries out the second event while the clients continue.
    fn second_event(&mut self, stage: &mut Stage, options: &Options, target: Target) -> Result<()> {
        match options.fault {
            Fault::PowerOff => self.come_back(stage, 0, options.returning),
            Fault::LinkDown => self.plug(stage, 0),
            Fault::CutBackup => self.plug(stage, 1),
            Fault::CutServicePath => {
                let (returned_at, index) = (monotonic(), target.nodes()[0]);
                options.how.heal(&stage.network, index)?;
                self.rejoin(stage, index, returned_at)
            }
            Fault::KillServer | Fault::HangServer => self.serve_again(stage, options.fault),
            Fault::KillAgentAfterTakeover | Fault::UpgradeAfterTakeover => {
                let restored = self.takeovers.last().map_or(0, |takeover| takeover.restored);
                let has_all = |status: &Status| status.kept() >= restored;
                self.wait_for_role(stage, 1, has_all, "give what it restored to its keeper")?;
                if options.fault == Fault::UpgradeAfterTakeover {
                    self.second_at = Some(stage.agent(1)?.upgrade()?);
                } else {
                    self.second_at = Some(kill_agent(stage, 1)?);
                    std::thread::sleep(RESTARTED_AFTER);
                    stage.start_agent(1)?;
                }
                let is_alone = |status: &Status| !status.is_duplex() && status.speaks();
                self.wait_for_role(stage, 1, is_alone, "go on alone")?;
                if options.fault == Fault::UpgradeAfterTakeover {
                    self.wait_for_role(stage, 1, has_all, "know what its earlier keeper has")?;
                    self.look_at_keepers(stage, 1)?;
                }
                Ok(())
            }
            Fault::RebootRace => self.come_back_half(stage, target.nodes()[0]),
            Fault::KillAgent | Fault::Upgrade | Fault::FlushTc if options.then_power_off => {
                let at = power_off(stage, 0, options.returning)?;
                (self.deadly_at, self.second_at) = (Some(at), Some(at));
                self.survive(stage, false)
            }
            Fault::Stop => {
                let agent = stage.agent_mut(target.nodes()[0])?;
                if let Err(error) = agent.wait_stopped() {
                    self.problems.push(format!("{error:#}"));
                }
                self.second_at = Some(monotonic());
                std::thread::sleep(ACT);
                Ok(())
            }
            Fault::Handover => self.rejoin(stage, 0, self.fault_at),
            Fault::Drain => {
                let returned_at = monotonic();
                let index = target.nodes()[0];
                stage.order(index, &["drain", &stage.pair.names[index], "--off"])?;
                self.rejoin(stage, index, returned_at)
            }
            Fault::CrashWorker | Fault::KillBackup | Fault::KillAgent | Fault::Upgrade | Fault::FlushTc => {
                Ok(())
            }
        }
    }

    /// Restarts or resumes the server of node a. Node a has become the wire by itself, but could not take over without its
    /// server.
    fn serve_again(&mut self, stage: &mut Stage, fault: Fault) -> Result<()> {
        let is_bereft = |status: &Status| status.is_wire() && !status.is_duplex();
        let what = "become the wire, and say that its server does not serve";
        self.wait_for_role(stage, 0, is_bereft, what)?;
        let second_at = monotonic();
        if fault == Fault::KillServer {
            stage.start_server(0)?;
        } else {
            stage.servers[0].signal(Signal::SIGCONT)?;
        }
        self.rejoin(stage, 0, self.fault_at)?;
        self.second_at = Some(second_at);
        Ok(())
    }

    /// Plugs in a node's cable again while the other node serves the clients. The node must notice and become the wire.
    fn plug(&mut self, stage: &Stage, index: usize) -> Result<()> {
        let returned_at = monotonic();
        stage.network.cables[index].plug()?;
        self.rejoin(stage, index, returned_at)
    }

    /// Brings a node back after its power was off. Packets reach its kernel first; then its server and its agent start.
    fn come_back(&mut self, stage: &mut Stage, index: usize, returning: Returning) -> Result<()> {
        let returned_at = monotonic();
        stage.network.cables[index].plug()?;
        std::thread::sleep(ACT);
        if returning == Returning::Frozen {
            stage.servers[index].signal(Signal::SIGKILL)?;
            std::thread::sleep(ACT);
        }
        stage.start_server(index)?;
        stage.start_agent(index)?;
        self.rejoin(stage, index, returned_at)
    }

    /// Brings a rebooted node back. Packets of the service reach it before it is configured; then its agent starts.
    fn come_back_half(&mut self, stage: &mut Stage, index: usize) -> Result<()> {
        reboot::boot(stage, index)?;
        let returned_at = monotonic();
        stage.network.cables[index].plug()?;
        reboot::mislead_router(stage, index)?;
        std::thread::sleep(ACT);
        reboot::configure(stage, index)?;
        stage.start_agent(index)?;
        self.rejoin(stage, index, returned_at)
    }

    fn rejoin(&mut self, stage: &Stage, index: usize, returned_at: Instant) -> Result<()> {
        self.second_at = Some(returned_at);
        let mut integration = Integration::new(index, returned_at);
        integration.wait_duplex(stage, &mut self.problems)?;
        self.integration = Some(integration);
        std::thread::sleep(ACT);
        Ok(())
    }
}

/// Largest number of role changes for one fault: one node goes on alone, then the other node becomes the wire again.
const ROLE_CHANGES_MAX: u64 = 2;

/// A problem if the speaking node has changed more often than this number of `faults` explains.
pub fn flapping(role_changes: u64, faults: u64) -> Option<String> {
    (role_changes > faults * ROLE_CHANGES_MAX)
        .then(|| format!("who speaks has changed {role_changes} times, for {faults} faults"))
}

/// A node's status as text, or the reason why there is none.
pub fn told(status: &Result<Status>) -> String {
    match status {
        Ok(status) => format!("{status:?}"),
        Err(error) => format!("{error:#}"),
    }
}

fn claim_as_keepalived(stage: &Stage) -> Result<()> {
    std::thread::sleep(stage.pair.detection());
    let (node, address) = (&stage.network.nodes[1], stage.pair.service.ip());
    baseline::hold(node, address)?;
    baseline::announce(node, &NODES[1], address)
}
