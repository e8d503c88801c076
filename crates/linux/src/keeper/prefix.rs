//! The input of relayed connections, kept for a node that becomes their cold backup ([`proto::restart::prefix`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use proto::connection::OutputEnd;
use proto::restart::prefix::{KeptInput, KeptInputs, PrefixAnswer, PrefixAsk};
use proto::spill::Spills;

use super::message::{Adoption, AdoptionPlan, KeepInput};
use super::status::KeeperServiceStatus;
use crate::spill::SpillDir;

/// The kept input of all connections, by service.
#[derive(Default)]
pub(super) struct KeptPrefixes(BTreeMap<String, Vec<(KeepInput, Arc<KeptInputs>)>>);

impl KeptPrefixes {
    /// The record of a new connection.
    pub fn begin(&mut self, adoption: &Adoption) -> KeptPrefix {
        let is_open = adoption.output == OutputEnd::Open && !adoption.input_ended;
        let (AdoptionPlan::Replay { begins_at, .. }, Some(keep), true) =
            (&adoption.plan, &adoption.keep, is_open)
        else {
            return KeptPrefix::default();
        };
        // An agent that was started with other limits gives the keeper other limits. They hold for new connections.
        let all = self.0.entry(adoption.service.clone()).or_default();
        let known = all.iter().find(|(known, _)| known == keep);
        let inputs = known.map(|(_, inputs)| Arc::clone(inputs)).unwrap_or_else(|| {
            let spills = keep.files.as_ref();
            let spills = spills.map(|(dir, most)| Spills::new(Box::new(SpillDir(dir.clone())), *most));
            let inputs = KeptInputs::new(keep.limits, spills);
            all.push((keep.clone(), Arc::clone(&inputs)));
            inputs
        });
        KeptPrefix {
            input: RefCell::new(Some(KeptInput::new(inputs, *begins_at))),
            missing: Cell::new(u64::MAX),
        }
    }

    /// Adds the numbers of kept inputs to the sums.
    pub fn count(&self, services: &mut BTreeMap<String, KeeperServiceStatus>) {
        for (service, all) in &self.0 {
            if let Some(sums) = services.get_mut(service) {
                sums.kept = all.iter().map(|(_, inputs)| inputs.live()).sum();
                sums.kept_given_up = all.iter().map(|(_, inputs)| inputs.given_up()).sum();
            }
        }
    }
}

/// The kept input of one connection.
#[derive(Default)]
pub(super) struct KeptPrefix {
    input: RefCell<Option<KeptInput>>,
    /// Bytes that the client has already and the application has yet to repeat.
    missing: Cell<u64>,
}

impl KeptPrefix {
    /// The application gets these bytes next.
    pub fn on_input(&self, bytes: &[u8]) {
        if let Some(input) = &mut *self.input.borrow_mut() {
            input.on_input(bytes);
        }
    }

    /// The application has sent these bytes.
    pub fn on_output(&self, bytes: &[u8]) {
        if let Some(input) = &mut *self.input.borrow_mut() {
            input.on_output(bytes);
        }
    }

    /// The application has yet to repeat this many bytes.
    pub fn set_missing(&self, missing: u64) {
        self.missing.set(missing);
    }

    /// The answer to the peer's question. `None`: the input is not kept.
    pub fn answer(&self, ask: &PrefixAsk) -> Option<PrefixAnswer> {
        let input = self.input.borrow();
        Some(input.as_ref()?.answer(ask, self.missing.get() == 0))
    }
}
