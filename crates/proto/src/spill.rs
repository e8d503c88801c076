//! The part of a log that is in a file, because it exceeds the log's limit in memory. This crate accesses the file only through the traits
//! [`Depot`] and [`Spill`].
//!
//! ```text
//!      base         resident           frontier
//!  ──────┼──────────────┼──────────────────┼──────▶ offset
//!  given │   spilled    │     in memory    │ not seen yet
//!  up    │              │                  │
//! ```
//!
//! A file belongs to one log and is dropped with the log. The file need not survive this node, so it is never synchronized to disk.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::Offset;

/// Minimum number of bytes that are released at a time.
const RELEASE_MIN: u64 = 1 << 20;

/// Makes the files of spilled logs.
pub trait Depot: Debug + Send + Sync {
    /// Makes an empty file that nobody else uses.
    ///
    /// # Errors
    /// The environment's error.
    fn open(&self) -> io::Result<Box<dyn Spill>>;
}

/// A file. The trait extends [`Any`], so that the program that made the file can get the concrete type back and pass the file on.
pub trait Spill: Any + Debug + Send {
    /// Appends `bytes`. `at` is the current end of the file.
    ///
    /// # Errors
    /// The environment's error. The call may be repeated.
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes` from the position `at`, which was written before.
    ///
    /// # Errors
    /// The environment's error.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Frees the space of all bytes before `to`. These bytes will not be read again.
    ///
    /// # Errors
    /// The environment cannot free space before the whole file is dropped.
    fn release(&mut self, to: u64) -> io::Result<()>;
}

/// Why a log may not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LogFull {
    /// This log has reached its limit in memory.
    #[error("the log reached its limit")]
    Memory,
    /// All logs together have reached their limit, and this client's logs hold more than any other client's.
    #[error("all logs together reached their limit, and this client's logs are the largest")]
    Share,
    /// The log in memory and the service's files have both reached their limits.
    #[error("the log in memory and the service's files have reached their limits")]
    Files,
    /// The log cannot be written to a file.
    #[error("the log reached its limit and is not written to a file: {0}")]
    NotWritten(io::ErrorKind),
}

/// The files of one service.
#[derive(Debug)]
pub struct Spills {
    depot: Box<dyn Depot>,
    bytes_max: u64,
    bytes: AtomicU64,
}

impl Spills {
    /// Files of `depot` that together hold at most `bytes_max` bytes.
    pub fn new(depot: Box<dyn Depot>, bytes_max: u64) -> Arc<Self> {
        let bytes = AtomicU64::new(0);
        Arc::new(Self {
            depot,
            bytes_max,
            bytes,
        })
    }

    /// Number of bytes that the files hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Maximum of [`bytes`](Self::bytes).
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Reserves room for `bytes` more bytes, if the limit allows it.
    fn take(&self, bytes: u64) -> Result<(), LogFull> {
        let fits = |held: u64| held.checked_add(bytes).filter(|&held| held <= self.bytes_max);
        let taken = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(|_| ()).map_err(|_| LogFull::Files)
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn not_written(error: io::Error) -> LogFull {
    LogFull::NotWritten(error.kind())
}

/// The part of one log that is in its file.
#[derive(Debug)]
pub(crate) struct Spilled {
    spills: Arc<Spills>,
    file: Box<dyn Spill>,
    /// The offset at the file's beginning.
    start: Offset,
    /// The offset up to which the file's space was freed.
    released: Offset,
    end: Offset,
}

impl Spilled {
    /// A new file for the bytes from `start` on.
    pub(crate) fn begin(spills: &Arc<Spills>, start: Offset) -> Result<Self, LogFull> {
        Ok(Self {
            spills: Arc::clone(spills),
            file: spills.depot.open().map_err(not_written)?,
            start,
            released: start,
            end: start,
        })
    }

    /// The offset after the last byte in the file.
    pub(crate) fn end(&self) -> Offset {
        self.end
    }

    /// Bytes that the file holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.end.since(self.released)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), LogFull> {
        let len = bytes.len() as u64;
        self.spills.take(len)?;
        if let Err(error) = self.file.append(self.end.since(self.start), bytes) {
            self.spills.give_back(len);
            return Err(not_written(error));
        }
        self.end += len;
        Ok(())
    }

    /// Bytes before `to` are no longer needed. Bytes whose space the file cannot free still count as held by the file.
    pub(crate) fn release(&mut self, to: Offset) {
        let to = to.min(self.end);
        if to < self.released + RELEASE_MIN || self.file.release(to.since(self.start)).is_err() {
            return;
        }
        self.spills.give_back(to.since(self.released));
        self.released = to;
    }

    /// `len` bytes from `at` on.
    pub(crate) fn part(&self, at: Offset, len: u64) -> LogPart<'_> {
        LogPart::File(InFile {
            file: &*self.file,
            at: at.since(self.start),
            len,
        })
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.spills.give_back(self.bytes());
    }
}

/// A part of the bytes that a log keeps.
#[derive(Clone, Copy, Debug)]
pub enum LogPart<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// In a file.
    File(InFile<'a>),
}

/// Bytes in a file.
#[derive(Clone, Copy, Debug)]
pub struct InFile<'a> {
    /// The file.
    pub file: &'a dyn Spill,
    /// Position of the first byte in the file.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
}

impl InFile<'_> {
    /// Reads the next bytes into `buffer`, as many as fit. Returns the number of bytes read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.len).unwrap_or(usize::MAX).min(buffer.len());
        self.file.read(self.at, &mut buffer[..count])?;
        self.at += count as u64;
        self.len -= count as u64;
        Ok(count)
    }
}

/// Copies the bytes of `parts` into memory.
///
/// # Errors
/// A file cannot be read.
pub fn gather<'a>(parts: impl IntoIterator<Item = LogPart<'a>>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            LogPart::Memory(part) => bytes.extend_from_slice(part),
            LogPart::File(mut part) => {
                let before = bytes.len();
                bytes.resize(before + usize::try_from(part.len).unwrap_or(usize::MAX), 0);
                part.read(&mut bytes[before..])?;
            }
        }
    }
    Ok(bytes)
}

/// Treatment of a connection whose log is full.
#[derive(Clone, Debug)]
pub enum AtLimit {
    /// The log is given up.
    Unprotect,
    /// Input that the server has accepted is spilled. If that fails, the log is given up.
    Spill(Arc<Spills>),
    /// The client is slowed before the log is full. If slowing does not help, the log is given up.
    Slow,
}

/// Replaces the files while a node's recorded inputs are replayed. Appended bytes are forgotten, because no kernel reads them.
#[derive(Debug)]
struct Forgotten;

impl Depot for Forgotten {
    fn open(&self) -> io::Result<Box<dyn Spill>> {
        Ok(Box::new(Self))
    }
}

impl Spill for Forgotten {
    fn append(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn release(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The form of [`AtLimit`] in a recording of a node's inputs.
#[derive(Serialize, Deserialize)]
enum RecordedLimit {
    Unprotect,
    Spill { bytes_max: u64 },
    Slow,
}

impl Serialize for AtLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let recorded = match self {
            Self::Unprotect => RecordedLimit::Unprotect,
            Self::Spill(spills) => RecordedLimit::Spill {
                bytes_max: spills.bytes_max(),
            },
            Self::Slow => RecordedLimit::Slow,
        };
        recorded.serialize(serializer)
    }
}

/// The deserialized files take further bytes, but cannot be read (`Forgotten`).
impl<'de> Deserialize<'de> for AtLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RecordedLimit::deserialize(deserializer)? {
            RecordedLimit::Unprotect => Self::Unprotect,
            RecordedLimit::Spill { bytes_max } => Self::Spill(Spills::new(Box::new(Forgotten), bytes_max)),
            RecordedLimit::Slow => Self::Slow,
        })
    }
}

impl AtLimit {
    /// The files for input that exceeds the limit in memory. `None` unless input is spilled.
    pub fn spills(&self) -> Option<&Arc<Spills>> {
        match self {
            Self::Spill(spills) => Some(spills),
            Self::Unprotect | Self::Slow => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Files in memory. While `fails` is set, nothing can be written.
    #[derive(Debug, Default)]
    pub(crate) struct TestDepot {
        pub(crate) fails: Arc<AtomicBool>,
    }

    #[derive(Debug)]
    struct MemoryFile {
        bytes: Vec<u8>,
        released: u64,
        fails: Arc<AtomicBool>,
    }

    impl Depot for TestDepot {
        fn open(&self) -> io::Result<Box<dyn Spill>> {
            Ok(Box::new(MemoryFile {
                bytes: Vec::new(),
                released: 0,
                fails: Arc::clone(&self.fails),
            }))
        }
    }

    impl Spill for MemoryFile {
        fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
            if self.fails.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            assert_eq!(at, self.bytes.len() as u64, "at its end");
            self.bytes.extend_from_slice(bytes);
            Ok(())
        }

        fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
            assert!(
                at >= self.released,
                "the bytes at {at} were released, like all bytes before {}",
                self.released
            );
            let at = usize::try_from(at).expect("small");
            bytes.copy_from_slice(&self.bytes[at..][..bytes.len()]);
            Ok(())
        }

        fn release(&mut self, to: u64) -> io::Result<()> {
            self.released = to;
            Ok(())
        }
    }

    #[test]
    fn what_the_files_hold_is_bounded_and_given_back() {
        let spills = Spills::new(Box::new(TestDepot::default()), 5 << 20);
        let mut first = Spilled::begin(&spills, Offset(7)).expect("memory");
        let mut second = Spilled::begin(&spills, Offset(0)).expect("memory");
        first.append(&vec![1; 3 << 20]).expect("room");
        second.append(&vec![1; 2 << 20]).expect("room");
        assert!(matches!(first.append(&[1]), Err(LogFull::Files)));
        first.release(Offset(1 << 20));
        assert_eq!(spills.bytes(), 5 << 20, "too little to be given back");
        first.release(Offset(7 + (2 << 20)));
        assert_eq!((spills.bytes(), first.bytes()), (3 << 20, 1 << 20));
        drop(first);
        assert_eq!(spills.bytes(), 2 << 20);
        drop(second);
        assert_eq!(spills.bytes(), 0);
    }

    #[test]
    fn what_could_not_be_written_does_not_count() {
        let depot = TestDepot::default();
        let fails = Arc::clone(&depot.fails);
        let spills = Spills::new(Box::new(depot), 1 << 20);
        let mut spilled = Spilled::begin(&spills, Offset(0)).expect("memory");
        spilled.append(b"abc").expect("room");
        fails.store(true, Ordering::Relaxed);
        let error = spilled.append(b"def").expect_err("it fails");
        assert_eq!(error, LogFull::NotWritten(io::ErrorKind::StorageFull));
        assert_eq!((spills.bytes(), spilled.end()), (3, Offset(3)));
    }
}
