//! Shows how far a command is with its runs.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress of a command's runs: a bar on stderr, if stderr is a terminal, and a line for each run that has ended.
pub struct Progress {
    bar: Option<ProgressBar>,
    json: bool,
}

impl Progress {
    /// Begins to show the progress of `runs` runs. With `json`, nothing is printed on stdout, because the command's JSON object goes there.
    pub fn new(runs: u32, json: bool) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::from(runs));
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
            bar.set_style(style.expect("the template is right"));
            bar
        });
        Self { bar, json }
    }

    /// A progress without a bar. Its lines go to stderr.
    pub fn hidden() -> Self {
        Self {
            bar: None,
            json: true,
        }
    }

    /// Shows that run number `run` has begun the step named `step`.
    pub fn step(&self, run: u32, step: &str) {
        tracing::debug!(run, "{step}");
        self.show(run, step);
    }

    /// Sets the bar to run number `run`, and shows the text `what` beside the bar.
    pub fn show(&self, run: u32, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(u64::from(run));
            bar.set_message(what.to_owned());
        }
    }

    /// Prints `line`, the result of a run that has ended.
    pub fn line(&self, line: &str) {
        let print = || {
            if self.json {
                eprintln!("{line}");
            } else {
                say!("{line}");
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
