//! Writes scenarios to files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sim::swarm::Scenario;

/// Writes `scenario` to a TOML file in `directory`. Returns the command that replays this file.
///
/// # Errors
/// If the file cannot be written.
pub fn write(directory: &Path, scenario: &Scenario) -> Result<String> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let path = directory.join(format!("seed-{}.toml", scenario.seed));
    let text = toml::to_string(scenario).context("writing a scenario")?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(format!("steadfast-lab replay {}", path.display()))
}
