//! Finds the steps of the network's set-up that somebody has undone, and does them again. An operator may run `ip rule flush` or
//! `nft flush ruleset`, and the kernel removes the routes over a cable that is unplugged.

use super::step::NetworkStep;
use super::{Network, NetworkError};

impl Network {
    /// Describes each step that this node has done and that somebody else has undone or changed. The call is cheap enough for every second:
    /// it sends some messages to the kernel and starts no program.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn verify(&self) -> Result<Vec<String>, NetworkError> {
        let missing = self.missing()?;
        Ok(missing.iter().map(NetworkStep::to_string).collect())
    }

    /// Does the missing steps again. If the guard was missing, also restores the granted rights to speak. Describes the steps that were
    /// missing.
    ///
    /// # Errors
    /// Names the first step that failed, for example a route over an unplugged cable. The other steps are tried all the
    /// same.
    pub fn repair(&mut self) -> Result<Vec<String>, NetworkError> {
        self.repair_what(|_| true)
    }

    /// As [`repair`](Network::repair), but only for the steps on one interface.
    ///
    /// # Errors
    /// As for [`Network::repair`].
    pub fn repair_on(&mut self, interface: &str) -> Result<Vec<String>, NetworkError> {
        self.repair_what(|step| step.is_on(interface))
    }

    fn repair_what(&mut self, which: impl Fn(&NetworkStep) -> bool) -> Result<Vec<String>, NetworkError> {
        let mut missing = self.missing()?;
        missing.retain(which);
        let mut outcome = Ok(());
        for step in &missing {
            let repaired = step.apply(&self.netlink).and_then(|()| self.restore_speech(step));
            outcome = outcome.and(repaired);
        }
        outcome.map(|()| missing.iter().map(NetworkStep::to_string).collect())
    }

    fn restore_speech(&self, step: &NetworkStep) -> Result<(), NetworkError> {
        match step {
            NetworkStep::Guard { .. } => self
                .speakers()
                .into_iter()
                .try_for_each(|service| self.set_speak(service, true)),
            _ => Ok(()),
        }
    }

    fn missing(&self) -> Result<Vec<NetworkStep>, NetworkError> {
        let mut missing = Vec::new();
        for (index, step) in self.journal.steps().iter().enumerate() {
            if self.journal.begun(index) && !self.stands(step)? {
                missing.push(step.clone());
            }
        }
        Ok(missing)
    }

    fn stands(&self, step: &NetworkStep) -> Result<bool, NetworkError> {
        match step.stands(&self.netlink, &self.voice, &self.speakers()) {
            // The step's interface is gone.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(false),
            stands => stands.map_err(NetworkError::at("look for", step)),
        }
    }
}
