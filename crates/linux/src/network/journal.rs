//! The write-ahead journal: each step is written to disk before the step is done.
//!
//! A text file with one JSON value per line: first the header with the plan and its steps, then one [`Begun`] per begun step. If the last
//! line has no line end, the writer died while writing it, so the step of this line was not done.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NetworkError;
use super::plan::NetworkPlan;
use super::step::NetworkStep;

const VERSION: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    /// The kernel's boot id. If the machine has another boot id now, it has rebooted. Then the journal's changes are
    /// gone.
    boot: String,
    /// The inode of the network namespace.
    namespace: u64,
    plan: NetworkPlan,
    steps: Vec<NetworkStep>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun {
    /// Index into the header's steps.
    begin: usize,
    /// The result of [`NetworkStep::find`] before the step: the old value that undoing must restore, or a note that undoing must leave the
    /// object alone.
    found: Option<String>,
}

/// A journal and its file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    header: Header,
    begun: Vec<Begun>,
}

impl Journal {
    /// Begins a new journal; nothing has been done yet.
    pub(super) fn create(
        path: &Path,
        plan: &NetworkPlan,
        steps: Vec<NetworkStep>,
    ) -> Result<Self, NetworkError> {
        let here = || Ok((boot()?, namespace()?));
        let (boot, namespace) = here().map_err(NetworkError::at("create", path.display()))?;
        let header = Header {
            version: VERSION,
            boot,
            namespace,
            plan: plan.clone(),
            steps,
        };
        let journal = Self {
            path: path.to_owned(),
            header,
            begun: Vec::new(),
        };
        journal.rewrite()?;
        Ok(journal)
    }

    /// Reads the journal at `path`. Returns `None` if there is no journal. A journal from before the machine's last
    /// boot is removed, and the result is `None` too.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, NetworkError> {
        let read = || {
            let text = match fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let (header, begun) = parse(&text)?;
            if header.boot != boot()? {
                fs::remove_file(path)?;
                return Ok(None);
            }
            if header.namespace != namespace()? {
                let what = format!(
                    "it is of another network namespace, net:[{}]: clean up there, or remove the file if that namespace is gone",
                    header.namespace
                );
                return Err(io::Error::other(what));
            }
            let torn = !text.ends_with('\n');
            Ok(Some((
                Self {
                    path: path.to_owned(),
                    header,
                    begun,
                },
                torn,
            )))
        };
        let Some((journal, torn)) = read().map_err(NetworkError::at("read the journal", path.display()))?
        else {
            return Ok(None);
        };
        if torn {
            journal.rewrite()?;
        }
        Ok(Some(journal))
    }

    /// The plan that the journal was made for.
    pub(super) fn plan(&self) -> &NetworkPlan {
        &self.header.plan
    }

    pub(super) fn steps(&self) -> &[NetworkStep] {
        &self.header.steps
    }

    /// Whether the step with this index was begun.
    pub(super) fn begun(&self, index: usize) -> bool {
        self.begun.iter().any(|begun| begun.begin == index)
    }

    /// The steps that were begun, last first, each with the result of [`NetworkStep::find`].
    pub(super) fn begun_last_first(&self) -> Vec<(usize, Option<String>)> {
        self.begun
            .iter()
            .rev()
            .map(|begun| (begun.begin, begun.found.clone()))
            .collect()
    }

    /// Writes that the step with this index is about to be done. When this returns, the entry is on disk.
    pub(super) fn begin(&mut self, index: usize, found: Option<String>) -> Result<(), NetworkError> {
        let begun = Begun { begin: index, found };
        let append = || {
            let mut file = File::options().append(true).open(&self.path)?;
            file.write_all(&line(&begun))?;
            file.sync_data()
        };
        append().map_err(NetworkError::at("write the journal", self.path.display()))?;
        self.begun.push(begun);
        Ok(())
    }

    /// Forgets a step that was undone. The file lists the step until [`Self::rewrite`].
    pub(super) fn undone(&mut self, index: usize) {
        self.begun.retain(|begun| begun.begin != index);
    }

    /// Replaces the whole file atomically.
    pub(super) fn rewrite(&self) -> Result<(), NetworkError> {
        let write = || {
            let new = self.path.with_extension("journal.new");
            let mut file = File::create(&new)?;
            file.write_all(&line(&self.header))?;
            for begun in &self.begun {
                file.write_all(&line(begun))?;
            }
            file.sync_data()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(NetworkError::at("write the journal", self.path.display()))
    }

    /// Removes the journal's file, because nothing is left to restore.
    pub(super) fn remove(&self) -> Result<(), NetworkError> {
        fs::remove_file(&self.path).map_err(NetworkError::at("remove the journal", self.path.display()))
    }
}

fn parse(text: &str) -> io::Result<(Header, Vec<Begun>)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines().enumerate();
    let damaged = |index: usize, what: &dyn std::fmt::Display| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {} is damaged: {what}", index + 1),
        )
    };
    let (_, first) = lines.next().ok_or_else(|| damaged(0, &"it is missing"))?;
    let header: Header = serde_json::from_str(first).map_err(|error| damaged(0, &error))?;
    if header.version != VERSION {
        return Err(damaged(0, &format!("version {} is unknown", header.version)));
    }
    let mut all = Vec::new();
    for (index, text) in lines {
        let begun: Begun = serde_json::from_str(text).map_err(|error| damaged(index, &error))?;
        if begun.begin >= header.steps.len() {
            return Err(damaged(index, &format!("there is no step {}", begun.begin)));
        }
        all.push(begun);
    }
    Ok((header, all))
}

fn line(entry: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("the entries have string keys only");
    line.push(b'\n');
    line
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim_end()
        .to_owned())
}

fn namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}
