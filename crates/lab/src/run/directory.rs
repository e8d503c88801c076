//! One run: its name, its seed, and the directory of its files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::options::RunOptions;
use super::progress::Progress;
use crate::teardown::{Resource, Teardown};

/// Parent directory of the files of runs. It is in memory, so that captures cost little.
const MEMORY: &str = "/dev/shm";

/// A run that is being played, or a part of such a run.
pub struct LabRun<'a> {
    /// The run's name on this machine, in the names of namespaces and daemons.
    pub name: String,
    /// Decides the random choices.
    pub seed: u64,
    /// The directory of the run's files.
    pub directory: PathBuf,
    /// Removes everything that the run creates, except a kept directory.
    pub teardown: &'a Teardown,
    is_kept: bool,
    progress: &'a Progress,
    number: u32,
}

impl LabRun<'_> {
    /// Plays run `number` of this process with `seed`, and removes everything that it has created. If the run's directory is kept, the
    /// values of `selection` are part of the directory's name.
    ///
    /// # Errors
    /// If the run could not be played, or not everything could be removed.
    pub fn play<T>(
        options: &RunOptions,
        (number, seed, selection): (u32, u64, &[(&'static str, String)]),
        progress: &Progress,
        play: impl FnOnce(&LabRun<'_>) -> Result<T>,
    ) -> Result<T> {
        let name = name(number);
        let teardown = Teardown::start()?;
        let begun = match kept(options, number, selection) {
            Some(kept) => create(std::path::absolute(kept)?),
            None => in_memory(&name, &teardown),
        };
        let played = begun.and_then(|directory| {
            play(&LabRun {
                name,
                seed,
                directory,
                teardown: &teardown,
                is_kept: options.keep.is_some(),
                progress,
                number,
            })
        });
        progress.step(number, "tear down");
        teardown.finish()?;
        played
    }

    /// Shows that the step named `step` begins.
    pub fn step(&self, step: &str) {
        self.progress.step(self.number, step);
    }

    /// Shows how far the present step is.
    pub fn show(&self, what: &str) {
        self.progress.show(self.number, what);
    }

    /// Writes `found` as JSON to the file `name` of the run's directory, if the directory is kept.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&self, name: &str, found: &impl Serialize) -> Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        let path = self.directory.join(name);
        fs::write(&path, serde_json::to_vec_pretty(found)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Removes the files of a run if they were kept.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn forget(options: &RunOptions, number: u32, selection: &[(&'static str, String)]) -> Result<()> {
        match kept(options, number, selection) {
            Some(kept) => fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display())),
            None => Ok(()),
        }
    }
}

fn name(number: u32) -> String {
    format!("{}-{number}", std::process::id())
}

/// The directory in which the files of a run are kept, if they are kept.
fn kept(options: &RunOptions, number: u32, selection: &[(&'static str, String)]) -> Option<PathBuf> {
    let keep = options.keep.as_ref()?;
    let values = selection.iter().map(|(_, value)| format!("-{value}"));
    Some(keep.join(name(number) + &values.collect::<String>()))
}

/// Creates a directory in memory for the files of the run `name`. Teardown removes it.
///
/// # Errors
/// If it cannot be created.
pub fn in_memory(name: &str, teardown: &Teardown) -> Result<PathBuf> {
    let directory = Path::new(MEMORY).join(format!("steadfast-lab-{name}"));
    teardown.will_create(&Resource::Path(directory.clone()))?;
    create(directory)
}

fn create(directory: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(directory)
}
