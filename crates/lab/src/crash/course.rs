//! What happens after a fault: the takeover or the claim that must follow, and the second event that must change nothing.

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

/// How long the survivor has to decide every connection.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);
/// How long the pair has to be as it was, or the primary to notice that it is alone.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// The same while connections are taken over: each question takes the CPU from what is measured, 5 ms in all. The first comes after the
/// busy ones.
const PATIENT_POLL: Duration = Duration::from_millis(250);
/// How long each act after the fault's sequel lasts.
const ACT: Duration = Duration::from_millis(250);
/// How long the nodes have to agree on what follows a fault that may change nothing.
const AGREEMENT: Duration = Duration::from_secs(1);
/// After so long a service supervisor has started a dead agent again (systemd's `RestartSec` is 100 ms by default).
const RESTARTED_AFTER: Duration = Duration::from_millis(300);

/// What happened.
pub struct Course {
    /// The fault.
    pub fault_at: Instant,
    /// The fault that makes node b take over, if one does.
    pub deadly_at: Option<Instant>,
    /// When node a began to claim the address of a service whose wire is gone, if it did.
    pub claimed_at: Option<Instant>,
    /// The event after it, which must change nothing: a return, an agent's death.
    pub second_at: Option<Instant>,
    /// Node b's takeovers: of some connections, of the service.
    pub takeovers: Vec<Takeover>,
    /// Node b's connections after it.
    pub taken_over: Vec<Connection>,
    /// The return of a node that was gone, if it came back.
    pub integration: Option<Integration>,
    /// How often who speaks has changed since the fault.
    pub role_changes: u64,
    /// What the daemons did not do, or did without reason.
    pub problems: Vec<String>,
}

/// Follows the course of things after `options.fault` hit `target` at `fault_at`, in `epoch`; `tell` hears of each act.
///
/// # Errors
/// If an act could not be carried out.
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
    /// The fault has just happened.
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

    /// Waits until node b has decided every connection; or, if it takes over `of_some` only, those. Without steadfast:
    /// moves the address to it.
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

    /// Lets the nodes agree on who goes on, and looks whether node b does.
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

    /// Waits until node a works alone, and asks it since when it has claimed the address.
    fn wait_for_claim(&mut self, stage: &Stage) -> Result<()> {
        self.wait_for_role(stage, 0, Status::is_alone, "work alone")?;
        let claimed_at = stage.status(0).ok().and_then(|status| status.became("claiming"));
        self.claimed_at = claimed_at.filter(|at| *at >= self.fault_at);
        Ok(())
    }

    /// Waits until the agent of node `index` says what it should.
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

    /// Lets the pair become whole again after a fault that nobody takes over.
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
            // What is older than a new agent is learnt from the next request on.
            self.wait_for_role(stage, 1, Status::protects_all, "protect all connections again")?;
        }
        // Whoever took over for that reason did so without one.
        let takeovers = stage
            .status(1)
            .map_or_else(|_| Vec::new(), |status| status.takeovers().to_vec());
        for takeover in takeovers {
            self.problems
                .push(format!("node b took over without a reason: {takeover:?}"));
        }
        Ok(())
    }

    /// After an upgrade a keeper of the new program gets the connections to come, and the earlier one has those that it had.
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

    /// What comes after, while the clients go on.
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

    /// Heals the dead server of a node that became the wire by itself, but has nobody to go on with.
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

    /// Plugs a node's cable in again, while the clients go on with the other one: it finds out, and becomes the wire.
    fn plug(&mut self, stage: &Stage, index: usize) -> Result<()> {
        let returned_at = monotonic();
        stage.network.cables[index].plug()?;
        self.rejoin(stage, index, returned_at)
    }

    /// The same after its power was off: its kernel is reached first, then its server and its agent start.
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

    /// A rebooted node is reached by packets of the service before it is configured; then its agent starts.
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

/// How often who speaks may change for one fault: a node goes on alone, and the other one is the wire again.
const ROLE_CHANGES_MAX: u64 = 2;

/// That who speaks has changed more often than so many `faults` can be the reason for, if it has.
pub fn flapping(role_changes: u64, faults: u64) -> Option<String> {
    (role_changes > faults * ROLE_CHANGES_MAX)
        .then(|| format!("who speaks has changed {role_changes} times, for {faults} faults"))
}

/// What a node said, or why it did not.
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
