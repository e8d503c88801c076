//! The verdicts on the claims about the measurements of one paper, for the paper's benchmark.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};

use super::catalogue;
use super::claims::{self, Judged};
use super::report;
use super::results::Results;
use super::rows::Rows;
use super::scenario::FigureScenario;

/// The claims about the measurements of one paper, judged.
pub struct JudgedMeasurements(Vec<Judged>);

/// What a benchmark's JSON says of a claim.
#[derive(Serialize)]
struct MeasuredClaim {
    id: &'static str,
    section: &'static str,
    statement: &'static str,
    paper: &'static str,
    here: Option<String>,
    verdict: String,
}

impl JudgedMeasurements {
    /// The claims about the scenario named `scenario`, judged by `rows`.
    ///
    /// # Errors
    /// If there is no such scenario.
    pub fn new(scenario: &str, rows: Rows) -> Result<Self> {
        let file = catalogue::file(scenario).context("a measured scenario")?;
        let parsed = FigureScenario::parse(Path::new(file.name), file.text)?;
        let mut results = Results::default();
        results.scenarios.insert(scenario.to_owned(), (parsed, rows));
        let of = catalogue::FIGURES
            .iter()
            .filter(|figure| figure.scenario == scenario);
        let names: Vec<_> = of.map(|figure| figure.name).collect();
        Ok(Self(claims::judge(&results, &names)))
    }

    /// Prints a table with the columns claim, paper, here, verdict.
    pub fn print(&self) {
        report::print(&self.0);
    }
}

impl Serialize for JudgedMeasurements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = |judged: &Judged| MeasuredClaim {
            id: judged.claim.id,
            section: judged.claim.section,
            statement: judged.claim.statement,
            paper: judged.claim.paper,
            here: judged.found.as_ref().map(|found| found.here.clone()),
            verdict: judged.verdict.to_string(),
        };
        serializer.collect_seq(self.0.iter().map(of))
    }
}
