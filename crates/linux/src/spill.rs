//! Files for the part of a log that does not fit into its memory limit ([`proto::spill`]). The files have no name in their directory, so
//! the kernel removes a file when no process has it open any longer.
//!
//! Writing is a copy into the page cache, as long as the kernel has clean pages. Only two things wait for the disk: reading pages that
//! have left the cache, and writing while the kernel throttles writers because of too many dirty pages.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::fcntl::{FallocateFlags, fallocate};
use proto::spill::{Depot, Spill};

/// A directory in which files are made.
#[derive(Clone, Debug)]
pub struct SpillDir(pub PathBuf);

impl Depot for SpillDir {
    fn open(&self) -> io::Result<Box<dyn Spill>> {
        let file = tempfile::tempfile_in(&self.0).inspect_err(|error| {
            tracing::warn!(%error, "cannot create a spill file in {}; the log is not spilled", self.0.display());
        })?;
        Ok(Box::new(SpillFile { file: Some(file) }))
    }
}

/// A file without a name.
#[derive(Debug)]
struct SpillFile {
    /// `None` only while the value is dropped.
    file: Option<File>,
}

impl SpillFile {
    fn file(&self) -> &File {
        self.file.as_ref().expect("it is there until the end")
    }
}

impl Spill for SpillFile {
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.file().write_all_at(bytes, at);
        written.inspect_err(
            |error| tracing::warn!(%error, "cannot write to the spill file; the log is not spilled"),
        )
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file().read_exact_at(bytes, at)
    }

    fn release(&mut self, to: u64) -> io::Result<()> {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let len = i64::try_from(to).map_err(io::Error::other)?;
        Ok(fallocate(self.file(), hole, 0, len)?)
    }
}

impl Drop for SpillFile {
    /// Closes the file in another thread. Freeing a large file's memory takes 0.1 ms per megabyte: too long for the thread that drops this
    /// value.
    fn drop(&mut self) {
        let file = self.file.take();
        let thread = std::thread::Builder::new().name("close".to_owned());
        drop(thread.spawn(move || drop(file))); // if the thread cannot start, the file is closed here
    }
}

/// The file itself, if `spill` was made by [`SpillDir`].
pub fn file_of(spill: &dyn Spill) -> Option<&File> {
    (spill as &dyn Any)
        .downcast_ref::<SpillFile>()
        .map(SpillFile::file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_has_no_name_and_gives_room_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spill = SpillDir(dir.path().to_owned()).open().expect("a file");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
        for at in 0..64 {
            spill.append(at << 15, &[7; 1 << 15]).expect("room");
        }
        let file = file_of(&*spill).expect("a file");
        let blocks = file.metadata().expect("a file").blocks();
        assert!(blocks >= 2 << 20 >> 9, "{blocks}");
        spill.release(1 << 20).expect("holes can be punched");
        let left = file_of(&*spill)
            .expect("a file")
            .metadata()
            .expect("a file")
            .blocks();
        assert_eq!(blocks - left, 1 << 20 >> 9);
        let mut bytes = [0; 100];
        spill.read((1 << 20) + 5, &mut bytes).expect("it was written");
        assert_eq!(bytes, [7; 100]);
        spill.read((2 << 20) - 5, &mut bytes).expect_err("it was not");
    }

    #[test]
    fn a_directory_that_is_missing_is_an_error() {
        let error = SpillDir("/nonexistent".into()).open().expect_err("no directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
