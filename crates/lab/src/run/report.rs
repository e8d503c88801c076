//! The report of a lab. Scripts rely on its JSON.

use anyhow::Result;
use serde::Serialize;

use super::again;

/// Maximum number of problems or findings of a kind that are printed one by one.
pub const SHOWN: usize = 20;

/// The findings of a part, or of all parts. Their fields become fields of the command's JSON object.
pub trait LabFindings: Serialize {
    /// Whether all checks of the findings passed.
    fn holds(&self) -> bool;

    /// Adds the findings of another part or run.
    fn add(&mut self, other: Self);

    /// One line of text for a person. The outcome and the seed come before it.
    fn line(&self) -> String;

    /// The whole text for a person.
    fn text(&self) -> String {
        self.line()
    }
}

/// Report of a lab: its findings, and the fields that all labs share.
#[derive(Debug, Serialize)]
pub struct LabReport<F> {
    /// Whether every run held.
    ok: bool,
    /// Seed of the first run.
    seed: u64,
    #[serde(flatten)]
    findings: F,
    /// The first few things that the daemons or the clients failed to do, or did without reason.
    problems: Vec<String>,
    /// Runs that were not made, and why.
    exceptions: Vec<LabException>,
    /// Number of runs that were made. Each part of a run counts as a run.
    runs: u32,
    runs_failed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<FirstFailure>,
}

/// Runs that were not made, because their combination of options cannot be played.
#[derive(Debug, Serialize)]
struct LabException {
    reason: String,
    /// Number of runs.
    count: u64,
}

#[derive(Debug, Serialize)]
struct FirstFailure {
    seed: u64,
    /// The command that repeats this run alone.
    command: String,
}

impl<F: LabFindings> LabReport<F> {
    /// The report before the first run. `seed` is the seed of that run.
    pub fn new(nothing: F, seed: u64) -> Self {
        Self {
            ok: true,
            seed,
            findings: nothing,
            problems: Vec::new(),
            exceptions: Vec::new(),
            runs: 0,
            runs_failed: 0,
            first_failure: None,
        }
    }

    /// The report of one run. The options in `selection` select the part that was run, so that the command repeats only
    /// this part.
    pub fn of_run(
        findings: F,
        problems: Vec<String>,
        seed: u64,
        selection: Vec<(&'static str, String)>,
    ) -> Self {
        let mut report = Self::new(findings, seed);
        append(&mut report.problems, problems);
        report.runs = 1;
        report.judge();
        if !report.ok {
            report.runs_failed = 1;
            report.first_failure = Some(FirstFailure {
                seed,
                command: again::command(std::env::args(), seed, selection),
            });
        }
        report
    }

    /// Whether every run held.
    pub fn ok(&self) -> bool {
        self.ok
    }

    /// Records that no run was made, and the reason.
    pub fn except(&mut self, reason: &str) {
        let reason = reason.to_owned();
        self.exceptions.push(LabException { reason, count: 1 });
    }

    /// Adds the report of another run.
    pub fn add(&mut self, other: Self) {
        self.findings.add(other.findings);
        append(&mut self.problems, other.problems);
        self.exceptions.extend(other.exceptions);
        self.runs += other.runs;
        self.runs_failed += other.runs_failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.judge();
    }

    /// Lets `look` examine the findings of all runs together and add problems.
    ///
    /// # Errors
    /// An error of `look`.
    pub fn conclude(&mut self, look: impl FnOnce(&F, &mut Vec<String>) -> Result<()>) -> Result<()> {
        look(&self.findings, &mut self.problems)?;
        self.judge();
        Ok(())
    }

    /// One line of text for a person.
    pub fn line(&self) -> String {
        self.with_outcome(&self.findings.line())
    }

    /// The whole report as text for a person.
    pub fn text(&self) -> String {
        if let Some(LabException { reason, .. }) = self.exceptions.first() {
            return format!("exception: {reason}");
        }
        let mut text = self.with_outcome(&self.findings.text());
        for problem in &self.problems {
            text += &format!("\n  {problem}");
        }
        if let Some(FirstFailure { command, .. }) = &self.first_failure {
            let (failed, runs) = (self.runs_failed, self.runs);
            text += &format!("\n{failed} of {runs} runs failed; repeat the first failure with: {command}");
        }
        text
    }

    fn with_outcome(&self, text: &str) -> String {
        let outcome = if self.ok { "held" } else { "DID NOT HOLD" };
        format!("{outcome}, seed {}: {text}", self.seed)
    }

    fn judge(&mut self) {
        self.ok = self.findings.holds() && self.problems.is_empty() && self.runs_failed == 0;
    }
}

/// Appends items of `more` to `list` until the list has [`SHOWN`] items. Returns the number of items left out.
pub fn append<T>(list: &mut Vec<T>, more: Vec<T>) -> u64 {
    let room = SHOWN.saturating_sub(list.len()).min(more.len());
    let left_out = more.len() - room;
    list.extend(more.into_iter().take(room));
    left_out as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of runs that were added, and whether they held.
    #[derive(Serialize)]
    struct Counted {
        added: u32,
        held: bool,
    }

    impl LabFindings for Counted {
        fn holds(&self) -> bool {
            self.held
        }

        fn add(&mut self, other: Self) {
            self.added += other.added;
            self.held &= other.held;
        }

        fn line(&self) -> String {
            format!("{} added", self.added)
        }
    }

    fn one(held: bool, problems: &[&str], seed: u64) -> LabReport<Counted> {
        let problems = problems.iter().map(ToString::to_string).collect();
        LabReport::of_run(Counted { added: 1, held }, problems, seed, Vec::new())
    }

    #[test]
    fn the_first_failure_of_several_runs_is_repeated() {
        let mut all = LabReport::new(Counted { added: 0, held: true }, 4);
        assert!(all.ok());
        all.add(one(true, &[], 4));
        assert_eq!(all.text(), "held, seed 4: 1 added");
        all.add(one(true, &["it was late"], 5));
        all.add(one(false, &[], 6));
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!((&json["ok"], &json["seed"]), (&false.into(), &4.into()));
        assert_eq!(
            (&json["runs"], &json["runs_failed"], &json["added"]),
            (&3.into(), &2.into(), &3.into())
        );
        assert_eq!(json["problems"][0], "it was late");
        assert_eq!(json["first_failure"]["seed"], 5);
        assert!(
            all.text()
                .contains("2 of 3 runs failed; repeat the first failure with: steadfast-lab ")
        );
    }

    #[test]
    fn a_problem_of_all_runs_together_counts() {
        let mut all = LabReport::new(Counted { added: 0, held: true }, 4);
        all.add(one(true, &[], 4));
        let look = |_: &Counted, problems: &mut Vec<String>| {
            problems.push("they differ".to_owned());
            Ok(())
        };
        all.conclude(look).unwrap();
        assert_eq!(all.text(), "DID NOT HOLD, seed 4: 1 added\n  they differ");
    }

    #[test]
    fn a_run_that_cannot_happen_holds() {
        let mut none = LabReport::new(Counted { added: 0, held: true }, 4);
        none.except("no such thing");
        assert!(none.ok());
        assert_eq!(none.text(), "exception: no such thing");
        let json = serde_json::to_string(&none).unwrap();
        assert!(json.contains(r#""exceptions":[{"reason":"no such thing","count":1}],"runs":0"#));
    }
}
