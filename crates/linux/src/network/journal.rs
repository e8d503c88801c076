//! The write-ahead journal: each step is written to a file before the step is done.
//!
//! A text file with one JSON value per line: first the header with the plan and its steps, then one [`JournalChange`] for each step that was
//! begun or undone. If the last line has no line end, the writer died while writing it, so the step of this line was not done.
//!
//! The file must outlive the process, but not the machine: a reboot undoes all steps. So only the header, with the kernel's boot id, must be
//! on disk. It is written before the node serves. The other lines are never waited for: a disk that is busy with something else must not
//! stop an agent that changes its role.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NetworkError;
use super::plan::NetworkPlan;
use super::step::NetworkStep;

const VERSION: u32 = 3;
/// A version whose lines are also lines of this version.
const EARLIER_VERSION: u32 = 2;
/// Number of lines after the header at which the file is written anew, without the steps that were undone.
const LINES_MAX: usize = 4096;

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

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Undone {
    /// Index into the header's steps.
    undo: usize,
}

/// A line after the header.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum JournalChange {
    /// The step is about to be done.
    Begun(Begun),
    /// The step was undone.
    Undone(Undone),
}

/// A journal and its file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    header: Header,
    begun: Vec<Begun>,
    /// Number of lines after the header in the file.
    lines: usize,
    /// Whether a line may be appended to the file. If not, the file must be written anew.
    can_grow: bool,
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
        let mut journal = Self {
            path: path.to_owned(),
            header,
            begun: Vec::new(),
            lines: 0,
            can_grow: false,
        };
        let written = journal.write_anew();
        written.map_err(NetworkError::at("write the journal", path.display()))?;
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
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let header = header_of(whole)?;
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
            let (begun, lines) = changes_of(whole, header.steps.len())?;
            Ok(Some(Self {
                path: path.to_owned(),
                can_grow: text.ends_with('\n') && header.version == VERSION,
                header: Header {
                    version: VERSION,
                    ..header
                },
                begun,
                lines,
            }))
        };
        read().map_err(NetworkError::at("read the journal", path.display()))
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

    /// Writes that the step with this index is about to be done. When this returns, the file has the entry.
    pub(super) fn begin(&mut self, index: usize, found: Option<String>) -> Result<(), NetworkError> {
        let begun = Begun { begin: index, found };
        self.begun.push(begun.clone());
        let written = self.write(&JournalChange::Begun(begun));
        if written.is_err() {
            self.begun.pop();
        }
        written
    }

    /// Writes that the step with this index was undone. If that fails, the file still lists the step, and undoing it again does no harm.
    pub(super) fn undone(&mut self, index: usize) -> Result<(), NetworkError> {
        self.begun.retain(|begun| begun.begin != index);
        self.write(&JournalChange::Undone(Undone { undo: index }))
    }

    /// Brings the file up to date after `change`.
    fn write(&mut self, change: &JournalChange) -> Result<(), NetworkError> {
        let written = if self.can_grow && self.lines < LINES_MAX {
            self.append(change)
        } else {
            self.write_anew()
        };
        written.map_err(NetworkError::at("write the journal", self.path.display()))
    }

    fn append(&mut self, change: &JournalChange) -> io::Result<()> {
        self.can_grow = false; // if only a part of the line is written, nothing may follow it
        let mut file = File::options().append(true).open(&self.path)?;
        file.write_all(&line(change))?;
        self.lines += 1;
        self.can_grow = true;
        Ok(())
    }

    /// Replaces the whole file atomically, and waits until it is on disk.
    fn write_anew(&mut self) -> io::Result<()> {
        let new = self.path.with_extension("journal.new");
        let mut file = File::create(&new)?;
        file.write_all(&line(&self.header))?;
        for begun in &self.begun {
            file.write_all(&line(begun))?;
        }
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        (self.lines, self.can_grow) = (self.begun.len(), true);
        Ok(())
    }

    /// Removes the journal's file, because nothing is left to restore.
    pub(super) fn remove(&self) -> Result<(), NetworkError> {
        fs::remove_file(&self.path).map_err(NetworkError::at("remove the journal", self.path.display()))
    }
}

fn damaged(index: usize, what: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("line {} is damaged: {what}", index + 1),
    )
}

fn header_of(whole: &str) -> io::Result<Header> {
    let first = whole.lines().next().ok_or_else(|| damaged(0, &"it is missing"))?;
    let header: Header = serde_json::from_str(first).map_err(|error| damaged(0, &error))?;
    if ![EARLIER_VERSION, VERSION].contains(&header.version) {
        return Err(damaged(0, &format!("version {} is unknown", header.version)));
    }
    Ok(header)
}

/// The steps that were begun and not undone, and the number of lines after the header.
fn changes_of(whole: &str, steps: usize) -> io::Result<(Vec<Begun>, usize)> {
    let (mut all, mut lines) = (Vec::<Begun>::new(), 0);
    for (index, text) in whole.lines().enumerate().skip(1) {
        let change = serde_json::from_str(text).map_err(|error| damaged(index, &error))?;
        let (JournalChange::Begun(Begun { begin: step, .. }) | JournalChange::Undone(Undone { undo: step })) =
            change;
        if step >= steps {
            return Err(damaged(index, &format!("there is no step {step}")));
        }
        all.retain(|begun| begun.begin != step);
        if let JournalChange::Begun(begun) = change {
            all.push(begun);
        }
        lines += 1;
    }
    Ok((all, lines))
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
