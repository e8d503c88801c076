//! Records all that goes into the node, in a file (`steadfast run --record`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

use agent::recording::{Entry, EntryRecorder, FORMAT};
use anyhow::Context;

/// Size in bytes of the buffer in front of the file.
const BUFFER: usize = 1 << 20;

/// Directory and size limit of a recording.
#[derive(Clone, Debug)]
pub struct RecordingTarget {
    /// The directory. It is made if it is not there.
    pub directory: PathBuf,
    /// Maximum size of the file in bytes. A recording that reaches it ends, and the daemon goes on.
    pub bytes_max: u64,
}

/// A recording under way.
pub(super) struct Recording {
    /// `None` if it has ended.
    file: Option<BufWriter<File>>,
    path: PathBuf,
    bytes_left: u64,
}

impl Recording {
    /// Begins a new file in the directory. Only its owner may read it, because it contains the service's traffic.
    pub(super) fn begin(record: &RecordingTarget, node: &str) -> anyhow::Result<Box<dyn EntryRecorder>> {
        let RecordingTarget { directory, bytes_max } = record;
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let path = directory.join(format!("{node}-{}.recording", since.as_millis()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options
            .open(&path)
            .with_context(|| format!("making {}", path.display()))?;
        let mut file = BufWriter::with_capacity(BUFFER, file);
        file.write_all(FORMAT)
            .with_context(|| format!("writing {}", path.display()))?;
        tracing::info!(path = %path.display(), "recording all that clients and servers send; the agent is slower meanwhile");
        Ok(Box::new(Self {
            file: Some(file),
            path,
            bytes_left: *bytes_max,
        }))
    }

    /// Ends the recording and logs the reason `why`.
    fn end(&mut self, why: &str) {
        let outcome = self.file.take().map_or(Ok(()), |mut file| file.flush());
        tracing::warn!(path = %self.path.display(), why, ?outcome, "the recording has ended");
    }

    fn write_entry(&mut self, entry: &Entry) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let bytes = entry.write_to(file)?;
        if matches!(entry, Entry::Idle { has_planned: false }) {
            file.flush()?; // the agent is about to rest, and may be killed
        }
        match self.bytes_left.checked_sub(bytes as u64) {
            Some(left) => self.bytes_left = left,
            None => self.end("it has reached its limit"),
        }
        Ok(())
    }
}

impl EntryRecorder for Recording {
    fn write(&mut self, entry: &Entry) {
        if let Err(error) = self.write_entry(entry) {
            self.end(&error.to_string());
        }
    }
}
