//! The captures of a run, and the judge's verdict on them.

use anyhow::Result;
use serde::Serialize;

use super::expect::BACKUP;
use super::testbed::Testbed;
use crate::emulator::{Emulator, Passed};
use judge::Capture;
use judge::{Expectations, JudgeVerdict, NodeChange, Survey};

/// The captures of a run, and the judge's verdict on them.
#[derive(Serialize)]
pub struct JudgedRun {
    /// The captures.
    pub captures: Vec<Capture>,
    /// Counters of the emulator, if there is one: of packets to the router, then of packets to the client.
    pub emulated: Option<[Passed; 2]>,
    /// The times in which each node was the wire or spoke, according to the captures.
    #[serde(skip)]
    pub survey: Survey,
    /// Whether connections may live on annexes.
    #[serde(skip)]
    pub has_annexes: bool,
    /// The judge's verdict.
    pub verdict: JudgeVerdict,
}

impl JudgedRun {
    /// Ends the captures of `testbed` and judges them by `expected`. The survey and `changes` tell which node was
    /// the wire at which time. Without steadfast there is no wire.
    ///
    /// # Errors
    /// If a capture has failed or cannot be read.
    pub fn of(testbed: Testbed, mut expected: Expectations, changes: &[NodeChange]) -> Result<Self> {
        let has_wire = testbed.agents.is_some();
        let captures = testbed.captures.stop()?;
        let emulated = testbed.emulator.map(Emulator::finish).transpose()?;
        let survey = Survey::of(&captures, &expected)?;
        if has_wire {
            expected.wires = survey.wires(BACKUP, changes);
        }
        let verdict = judge::check(&captures, &expected)?;
        Ok(Self {
            captures,
            emulated,
            survey,
            has_annexes: !expected.annexes.is_empty(),
            verdict,
        })
    }
}
