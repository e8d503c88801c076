//! `steadfast-lab demo`: its options, its two downloads, and its output.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::download::{DownloadResult, play, variant};
use crate::emulator::WanOptions;
use crate::pair::{LanOptions, PairOptions, WorkloadOption};
use crate::run::{Lab, LabFindings, LabRun, RunOptions, WrongUse};
use crate::timeline::{self, Timeline};

/// Rate, round trip and size of the download. It takes about five seconds, so that a person sees it progress.
const RATE_MBIT: f64 = 400.0;
const RTT_MS: f64 = 4.0;
const MEGABYTES: u32 = 250;

/// Download a file with curl from nginx while the server's power goes off, with and without steadfast.
///
/// The path to the client has a rate of 400 Mbit/s and a round trip of 4 ms. Halfway through, the primary's cable is cut and its processes
/// are killed. Prints the stall in its parts and writes a timeline to look at.
#[derive(Clone, Debug, Args)]
pub struct DemoOptions {
    /// Directory for the timeline.
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Size of the download in megabytes (10⁶ bytes).
    #[arg(long, value_name = "MB", default_value_t = MEGABYTES, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    megabytes: u32,
    #[command(flatten)]
    lan: LanOptions,
    #[command(flatten)]
    run: RunOptions,
}

/// Both downloads, of the last run.
#[derive(Debug, Serialize)]
pub struct DemoFindings {
    without: Option<DownloadResult>,
    with: Option<DownloadResult>,
    timeline: PathBuf,
}

impl DemoOptions {
    /// The options of a run with one download. If `baseline`, the run is without steadfast.
    fn pair(&self, baseline: bool) -> PairOptions {
        PairOptions {
            run: self.run.clone(),
            lan: self.lan,
            megabytes: Some(self.megabytes),
            way: WanOptions {
                rtt_ms: Some(RTT_MS),
                rate_mbit: Some(RATE_MBIT),
                loss_percent: None,
            },
            baseline,
            ..PairOptions::new(WorkloadOption::Download, 1)
        }
    }
}

impl Lab for DemoOptions {
    /// One of the two downloads: `true` is the download without steadfast.
    type Part = bool;
    type Findings = DemoFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check(&self) -> Result<()> {
        let created = fs::create_dir_all(&self.out);
        Ok(created.map_err(|error| WrongUse(format!("--out {}: {error}", self.out.display())))?)
    }

    fn check_machine(&self) -> Result<()> {
        self.pair(false).check_machine(&[("curl", "curl")])
    }

    fn parts(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn nothing(&self) -> DemoFindings {
        DemoFindings {
            without: None,
            with: None,
            timeline: self.out.join("timeline.html"),
        }
    }

    fn play(&self, baseline: bool, run: &LabRun<'_>, _problems: &mut Vec<String>) -> Result<DemoFindings> {
        let result = play(&self.pair(baseline), run)?;
        let mut findings = self.nothing();
        if baseline {
            findings.without = Some(result);
        } else {
            findings.with = Some(result);
        }
        Ok(findings)
    }

    fn conclude(&self, findings: &DemoFindings, _problems: &mut Vec<String>) -> Result<()> {
        let DemoFindings {
            without: Some(without),
            with: Some(with),
            timeline,
        } = findings
        else {
            return Ok(());
        };
        fs::write(timeline, page(self, with, without)).with_context(|| timeline.display().to_string())
    }
}

impl LabFindings for DemoFindings {
    fn holds(&self) -> bool {
        let survived = |with: &DownloadResult| with.complete && with.sha256_match;
        self.with.as_ref().is_none_or(survived)
            && self.without.as_ref().is_none_or(|without| !without.complete)
    }

    fn add(&mut self, other: Self) {
        self.without = other.without.or(self.without.take());
        self.with = other.with.or(self.with.take());
    }

    fn line(&self) -> String {
        let line = |baseline: bool, result: &DownloadResult| {
            let [bytes, all] = [result.bytes, result.bytes_expected].map(|bytes| bytes as f64 / 1e6);
            let (variant, error) = (variant(baseline), result.error.as_deref());
            match error {
                Some(error) => format!("{variant}: lost after {bytes:.0} of {all:.0} MB: {error}"),
                None => format!("{variant}: complete, {bytes:.0} MB"),
            }
        };
        let without = self.without.iter().map(|result| line(true, result));
        let with = self.with.iter().map(|result| line(false, result));
        without.chain(with).collect::<Vec<_>>().join("; ")
    }

    fn text(&self) -> String {
        let mut text = format!(
            "curl downloads a file from nginx at {RATE_MBIT} Mbit/s; halfway, the server's power goes off.\n  {}\n",
            self.line().replace("; ", "\n  ")
        );
        if let Some(with) = &self.with {
            text += &with.text();
        }
        // Writing to a String does not fail.
        let _ = write!(text, "\ntimeline: {}", self.timeline.display());
        text
    }
}

fn page(options: &DemoOptions, with: &DownloadResult, without: &DownloadResult) -> String {
    let number =
        |value: Option<f64>, digits: usize| value.map_or("–".into(), |ms| format!("{ms:.digits$} ms"));
    timeline::render(&Timeline {
        title: "A download survives its server".into(),
        summary: format!(
            "curl fetches {} MB from nginx at {RATE_MBIT} Mbit/s. Halfway, the primary's cable is cut and its processes \
             are killed.",
            options.megabytes
        ),
        facts: vec![
            ("stall".into(), number(with.stall_ms, 1)),
            ("detection".into(), number(with.detection_ms, 1)),
            ("takeover".into(), number(with.takeover_ms, 2)),
            ("restart gap".into(), number(with.restart_gap_ms, 1)),
            ("longest gap before".into(), number(with.baseline_gap_ms, 1)),
        ],
        panels: vec![with.panel.clone(), without.panel.clone()],
        footnote: "The positions are from a capture at the client. The times that divide the stall into its parts are \
                   from the survivor's clock. The client and the survivor run on the same machine."
            .into(),
    })
}
