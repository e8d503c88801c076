//! Whether everything still stands, and putting it up again: `ip rule flush` and `nft flush ruleset` are quickly typed, and a
//! cable that was pulled takes routes along.

use super::step::Step;
use super::{Error, Network};

impl Network {
    /// Phrases for each step of this node that somebody else has removed or changed since. Cheap enough for every second: it sends
    /// some messages to the kernel and starts no program.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn verify(&self) -> Result<Vec<String>, Error> {
        let missing = self.missing()?;
        Ok(missing.iter().map(Step::to_string).collect())
    }

    /// Puts up again what is missing, and restores the granted rights to speak. Returns what was missing.
    ///
    /// # Errors
    /// The first step that failed (as long as a cable is unplugged, a route over it cannot be made); the others were
    /// tried all the same.
    pub fn repair(&mut self) -> Result<Vec<String>, Error> {
        self.repair_what(|_| true)
    }

    /// The same for what is on one interface.
    ///
    /// # Errors
    /// As for [`Network::repair`].
    pub fn repair_on(&mut self, interface: &str) -> Result<Vec<String>, Error> {
        self.repair_what(|step| step.is_on(interface))
    }

    fn repair_what(&mut self, which: impl Fn(&Step) -> bool) -> Result<Vec<String>, Error> {
        let mut missing = self.missing()?;
        missing.retain(which);
        let mut outcome = Ok(());
        for step in &missing {
            let repaired = step.apply(&self.netlink).and_then(|()| self.restore_speech(step));
            outcome = outcome.and(repaired);
        }
        outcome.map(|()| missing.iter().map(Step::to_string).collect())
    }

    fn restore_speech(&self, step: &Step) -> Result<(), Error> {
        match step {
            Step::Guard { .. } => self
                .speakers()
                .into_iter()
                .try_for_each(|service| self.set_speak(service, true)),
            _ => Ok(()),
        }
    }

    fn missing(&self) -> Result<Vec<Step>, Error> {
        let mut missing = Vec::new();
        for (index, step) in self.journal.steps().iter().enumerate() {
            if self.journal.begun(index) && !self.stands(step)? {
                missing.push(step.clone());
            }
        }
        Ok(missing)
    }

    fn stands(&self, step: &Step) -> Result<bool, Error> {
        match step.stands(&self.netlink, &self.voice, &self.speakers()) {
            // Its interface is gone.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(false),
            stands => stands.map_err(Error::at("look for", step)),
        }
    }
}
