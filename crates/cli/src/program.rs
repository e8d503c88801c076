//! Finds the path of this program's file. A keeper and the new program of an upgrade are started from this path.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The suffix that the kernel adds to the path of a removed file in `/proc/<pid>/exe`.
const DELETED: &[u8] = b" (deleted)";

/// Returns the path from which this program was started. Only the first call looks for the path, because a package may replace the file
/// later. If `argv[0]` is a path of the running file, the result is `argv[0]` as an absolute path. Symbolic links in it are not resolved,
/// because an upgrade may change their targets. Otherwise the result is the target of `/proc/self/exe`, in which all links are resolved.
///
/// # Errors
/// If the path cannot be found.
pub fn path() -> io::Result<&'static Path> {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = PATH.get() {
        return Ok(path);
    }
    let found = match std::env::args_os()
        .next()
        .filter(|name| name.as_bytes().contains(&b'/'))
    {
        Some(name) if is_running(Path::new(&name)) => std::path::absolute(name)?,
        _ => undeleted(fs::read_link("/proc/self/exe")?),
    };
    Ok(PATH.get_or_init(|| found))
}

/// Whether this process runs the file at `path`.
fn is_running(path: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((file(path), file(Path::new("/proc/self/exe"))), (Ok(there), Ok(own)) if there == own)
}

fn undeleted(path: PathBuf) -> PathBuf {
    let mut bytes = path.into_os_string().into_vec();
    if bytes.ends_with(DELETED) && !Path::new(std::ffi::OsStr::from_bytes(&bytes)).exists() {
        bytes.truncate(bytes.len() - DELETED.len());
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_where_it_was_started() {
        assert!(is_running(path().unwrap()));
        assert!(!is_running(Path::new("/etc/passwd")));
    }

    #[test]
    fn a_deleted_program_was_where_its_successor_is() {
        assert_eq!(
            undeleted("/sbin/steadfast (deleted)".into()),
            Path::new("/sbin/steadfast")
        );
        assert_eq!(undeleted("/sbin/steadfast".into()), Path::new("/sbin/steadfast"));
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("steadfast (deleted)");
        fs::write(&odd, "").unwrap();
        assert_eq!(undeleted(odd.clone()), odd);
    }
}
