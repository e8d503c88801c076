//! A file that this process has made and that others may rename: it is found again by its inode.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file of this process. Others may have renamed it within its folder. The process must hold the file open until it calls
/// [`remove`](Self::remove). For the file of a Unix socket, the process must keep the socket bound. Otherwise the kernel may give the
/// inode's number to another file.
#[derive(Debug)]
pub struct OwnFile {
    folder: PathBuf,
    device: u64,
    inode: u64,
}

impl OwnFile {
    /// The file that is at `path` now.
    ///
    /// # Errors
    /// If there is no file, or its metadata cannot be read.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path, &fs::symlink_metadata(path)?))
    }

    /// The file with this `metadata`, which was made at `path`.
    pub fn of(path: &Path, metadata: &Metadata) -> Self {
        Self {
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Whether this file is now at `path`.
    pub fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }

    /// Removes the file. It is no error if the file or its folder is gone already.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if self.is_at(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_is_removed_and_not_the_one_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let [path, renamed] = ["file", "file-1"].map(|name| folder.path().join(name));
        let open = fs::File::create(&path).unwrap();
        let own = OwnFile::of(&path, &open.metadata().unwrap());
        assert!(own.is_at(&path));
        fs::rename(&path, &renamed).unwrap();
        fs::write(&path, "another's").unwrap();
        assert!(!own.is_at(&path) && own.is_at(&renamed));
        own.remove().unwrap();
        assert!(path.exists() && !renamed.exists());
        own.remove().unwrap();
        assert!(path.exists(), "nothing is left to be removed");
    }

    #[test]
    fn what_is_gone_needs_no_removal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        let own = OwnFile::at(&path).unwrap();
        drop(folder);
        own.remove().unwrap();
        assert!(OwnFile::at(&path).is_err());
    }
}
