//! `steadfast-lab demo`: shows a person that a download goes on when its server's power goes off.

mod download;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

pub use self::download::digest;
use self::download::{DownloadResult, show};
use super::{CrashOptions, WorkloadOption, preflight};
use crate::emulator::WanOptions;
use crate::timeline::{self, Timeline};
use crate::{LabOutcome, WrongUse};

/// Rate, round trip and size of the download. It takes about five seconds, so that a person sees it progress.
const RATE_MBIT: f64 = 400.0;
const RTT_MS: f64 = 4.0;
const MEGABYTES: u32 = 250;
const SEED: u64 = 1;

/// Download a file with curl from nginx while the server's power goes off, with and without steadfast.
///
/// The way to the client is 400 Mbit/s with a round trip of 4 ms. Halfway through, the primary's cable is cut and its
/// processes are killed. Prints the stall in its parts and writes a timeline to look at.
#[derive(Clone, Debug, Args)]
pub struct DemoOptions {
    /// Where the timeline goes.
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Size of the download in megabytes (10⁶ bytes).
    #[arg(long, value_name = "MB", default_value_t = MEGABYTES, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    megabytes: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

/// Both downloads.
#[derive(Debug, Serialize)]
struct DemoReport {
    ok: bool,
    without: DownloadResult,
    with: DownloadResult,
    timeline: PathBuf,
}

/// Runs the demo.
///
/// # Errors
/// If the demo could not run. A download that fails is not an error.
pub fn demo(options: &DemoOptions) -> Result<LabOutcome> {
    fs::create_dir_all(&options.out)
        .map_err(|error| WrongUse(format!("--out {}: {error}", options.out.display())))?;
    let run = |baseline: bool| {
        let options = CrashOptions {
            megabytes: Some(options.megabytes),
            way: WanOptions {
                rtt_ms: Some(RTT_MS),
                rate_mbit: Some(RATE_MBIT),
                loss_percent: None,
            },
            baseline,
            ..CrashOptions::single(WorkloadOption::Download, 1, SEED, options.steadfast.clone())
        };
        preflight::check(&options)?;
        show(&options)
    };
    if !options.json {
        println!(
            "curl downloads {} MB from nginx at {RATE_MBIT} Mbit/s; halfway, the server's power goes off.\n",
            options.megabytes
        );
    }
    let without = run(true)?;
    let with = run(false)?;
    let timeline = options.out.join("timeline.html");
    fs::write(&timeline, page(options, &with, &without)).with_context(|| timeline.display().to_string())?;
    let report = DemoReport {
        ok: with.complete && with.sha256_match && !without.complete,
        without,
        with,
        timeline,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    Ok(if report.ok {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    })
}

impl DemoReport {
    fn print(&self) {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let DownloadResult {
            bytes,
            bytes_expected,
            ..
        } = self.without;
        println!(
            "\nwithout steadfast: lost after {:.0} of {:.0} MB",
            megabytes(bytes),
            megabytes(bytes_expected)
        );
        println!(
            "  {}",
            self.without
                .error
                .as_deref()
                .unwrap_or("it was complete: nothing was shown")
        );
        let with = &self.with;
        match &with.error {
            Some(error) => println!("with steadfast: LOST: {error}"),
            None => println!("with steadfast: complete, {:.0} MB", megabytes(with.bytes)),
        }
        let verdict = if with.sha256_match {
            "as on the server"
        } else {
            "DIFFERENT from the server's"
        };
        println!("  sha256 {} ({verdict})", with.sha256);
        if let Self {
            with: DownloadResult {
                stall_ms: Some(stall),
                ..
            },
            ..
        } = self
        {
            let of = |part: Option<f64>| part.unwrap_or_default();
            let [detection, takeover, gap] =
                [with.detection_ms, with.takeover_ms, with.restart_gap_ms].map(of);
            let whole = detection + takeover + gap;
            println!(
                "  stall at the client: {stall:.1} ms (longest gap before the fault: {:.1} ms)",
                of(with.baseline_gap_ms)
            );
            println!(
                "  from the fault to the survivor's first byte: {whole:.1} ms = detection {detection:.1} + takeover {takeover:.2} + \
                 restart gap {gap:.1}"
            );
            if whole > *stall {
                println!(
                    "  for {:.1} ms of these, the client still received what was under way",
                    whole - stall
                );
            }
        }
        println!("\ntimeline: {}", self.timeline.display());
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
        footnote: "Positions are of a capture at the client; the parts are divided by the survivor's clock \
                   (the same machine)."
            .into(),
    })
}
