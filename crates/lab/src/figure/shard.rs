//! Shards: parts of a sweep that are run on different machines, and how they are joined.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::results::Results;
use super::rows::Rows;
use crate::run::WrongUse;

/// One of several parts of a sweep's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Number of this part, from 1.
    index: usize,
    /// Number of parts, at least 1.
    count: usize,
}

/// The options of the command that made the runs. Parts belong together if their manifests differ in `shard` only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The figures' name on the command line.
    pub name: String,
    /// Number of seeds with which each run is repeated.
    pub seeds: u64,
    /// The part. `None` is the whole sweep.
    pub shard: Option<Shard>,
    /// The text of the user's scenario file, if there is one.
    pub scenario: Option<String>,
}

const MANIFEST: &str = "shard.json";

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shard = text.split_once('/').and_then(|(index, count)| {
            let (index, count) = (index.parse().ok()?, count.parse().ok()?);
            (1 <= index && index <= count).then_some(Self { index, count })
        });
        shard.ok_or_else(|| "a part is I/N with 1 ≤ I ≤ N".to_owned())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    /// Whether the run of this number is in this part. Runs of all scenarios are counted together, from 0.
    pub const fn has(self, number: usize) -> bool {
        number % self.count == self.index - 1
    }

    /// The part's directory below `--out`.
    pub fn directory(self) -> String {
        format!("shard-{}-of-{}", self.index, self.count)
    }
}

/// Writes a part: its rows, and last its manifest.
///
/// # Errors
/// Names the file that cannot be written.
pub fn write(directory: &Path, manifest: &Manifest, results: &Results) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for (name, (_, rows)) in &results.scenarios {
        rows.write(directory, name)?;
    }
    let path = directory.join(MANIFEST);
    fs::write(&path, serde_json::to_string_pretty(manifest)?).with_context(|| path.display().to_string())
}

/// Reads all parts at or directly below `directories`, and joins them.
///
/// # Errors
/// [`WrongUse`] if the parts that were found are not exactly the parts of one sweep.
pub fn join(directories: &[PathBuf]) -> Result<(Manifest, Results)> {
    let mut parts = Vec::new();
    for directory in directories {
        for directory in parts_at(directory)? {
            let path = directory.join(MANIFEST);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let manifest: Manifest = serde_json::from_str(&text)
                .map_err(|error| WrongUse(format!("{}:{}: {error}", path.display(), error.line())))?;
            parts.push((manifest, directory));
        }
    }
    let manifest = complete(&parts)?;
    let mut results = Results::default();
    for (name, scenario) in manifest.scenarios()? {
        let mut rows = Rows::default();
        for (_, directory) in &parts {
            rows.append(Rows::read(directory, &name)?);
        }
        rows.sort();
        results.scenarios.insert(name, (scenario, rows));
    }
    Ok((manifest, results))
}

/// `directory` itself if it contains a part's manifest. If not, the directories directly below `directory` that contain such a manifest.
fn parts_at(directory: &Path) -> Result<Vec<PathBuf>> {
    if directory.join(MANIFEST).is_file() {
        return Ok(vec![directory.to_owned()]);
    }
    let entries =
        fs::read_dir(directory).map_err(|error| WrongUse(format!("{}: {error}", directory.display())))?;
    let mut parts = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| directory.display().to_string())?.path();
        if path.join(MANIFEST).is_file() {
            parts.push(path);
        }
    }
    if parts.is_empty() {
        return Err(WrongUse(format!(
            "{}: no part of a sweep ({MANIFEST})",
            directory.display()
        ))
        .into());
    }
    parts.sort();
    Ok(parts)
}

/// Checks that the parts are complete, and returns the manifest of the whole sweep.
fn complete(parts: &[(Manifest, PathBuf)]) -> Result<Manifest, WrongUse> {
    let whole = |manifest: &Manifest| Manifest {
        shard: None,
        ..manifest.clone()
    };
    let (first, at) = parts.first().ok_or_else(|| WrongUse("no parts".to_owned()))?;
    let manifest = whole(first);
    if let Some((_, other)) = parts.iter().find(|(other, _)| whole(other) != manifest) {
        let (at, other) = (at.display(), other.display());
        return Err(WrongUse(format!(
            "{at} and {other} are parts of different sweeps"
        )));
    }
    let mut there: Vec<Shard> = parts.iter().filter_map(|(manifest, _)| manifest.shard).collect();
    there.sort();
    let count = there.first().map_or(0, |shard| shard.count);
    for index in 1..=count {
        let wanted = Shard { index, count };
        match there.iter().filter(|shard| **shard == wanted).count() {
            1 => (),
            0 => return Err(WrongUse(format!("part {wanted} is missing"))),
            _ => return Err(WrongUse(format!("part {wanted} was given more than once"))),
        }
    }
    if there.len() == count {
        Ok(manifest)
    } else {
        Err(WrongUse("the parts differ in the number of parts".to_owned()))
    }
}
