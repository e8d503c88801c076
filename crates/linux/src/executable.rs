//! What `/proc` and an executable file say of a server: who listens, whether a library can be preloaded into the program, and whether the
//! program uses io_uring.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Type of the program header that names the dynamic loader (`elf.h`).
const PT_INTERP: u32 = 3;
/// Bytes of the header of a 64-bit ELF file, and of one of its program headers.
const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// The bits of a file's mode that make the program run as another user or group.
const SET_ID: u32 = 0o6000;

/// Why no library can be preloaded into the program in `file`. `None`: the loader takes `LD_PRELOAD` for it.
///
/// # Errors
/// If the file cannot be read.
pub fn preload_obstacle(file: &Path) -> io::Result<Option<&'static str>> {
    let mut open = File::open(file)?;
    if open.metadata()?.mode() & SET_ID != 0 {
        return Ok(Some("it is setuid or setgid, so the loader ignores LD_PRELOAD"));
    }
    let mut start = Vec::new();
    (&mut open).take(ELF_HEADER as u64).read_to_end(&mut start)?;
    if start.starts_with(b"#!") {
        return Ok(Some("it is a script; name its interpreter"));
    }
    let Some(header) = start.first_chunk::<ELF_HEADER>() else {
        return Ok(Some("it is no ELF file"));
    };
    if !header.starts_with(b"\x7fELF\x02") {
        return Ok(Some("it is no 64-bit ELF file"));
    }
    let table = u64::from_ne_bytes(header[32..40].try_into().expect("8 bytes"));
    let count = u16::from_ne_bytes(header[56..58].try_into().expect("2 bytes"));
    open.seek(SeekFrom::Start(table))?;
    for _ in 0..count {
        let mut entry = [0; PROGRAM_HEADER];
        open.read_exact(&mut entry)?;
        if u32::from_ne_bytes(entry[..4].try_into().expect("4 bytes")) == PT_INTERP {
            return Ok(None);
        }
    }
    Ok(Some("it is linked statically, so it loads no library"))
}

/// The process that has the socket with this inode open. If several have it, the first one.
///
/// # Errors
/// If `/proc` cannot be read. Processes that end meanwhile are skipped.
pub fn owner_of(inode: u32) -> io::Result<Option<i32>> {
    let name = PathBuf::from(format!("socket:[{inode}]"));
    let mut pids: Vec<i32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids.into_iter().find(|&pid| has_open(pid, |open| open == name)))
}

/// Whether the process has an io_uring.
pub fn uses_io_uring(pid: i32) -> bool {
    has_open(pid, |open| open == Path::new("anon_inode:[io_uring]"))
}

/// The executable file of a process.
///
/// # Errors
/// If the process has ended.
pub fn file_of(pid: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// Whether the process has mapped a file with this name.
///
/// # Errors
/// If the process has ended.
pub fn has_mapped(pid: i32, name: &str) -> io::Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let is_it = |path: &str| path.trim_end_matches(" (deleted)").rsplit('/').next() == Some(name);
    Ok(maps.lines().any(is_it))
}

fn has_open(pid: i32, is_it: impl Fn(&Path) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false; // it has ended
    };
    let mut open = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    open.any(|open| is_it(&open))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(bytes: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    /// A 64-bit ELF file with one program header of this type.
    fn elf(kind: u32) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02".to_vec();
        bytes.resize(ELF_HEADER, 0);
        bytes[32..40].copy_from_slice(&(ELF_HEADER as u64).to_ne_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(ELF_HEADER + PROGRAM_HEADER, 0);
        bytes
    }

    #[test]
    fn a_program_that_cannot_load_a_library_is_recognized() {
        let own = file_of(std::process::id().cast_signed()).unwrap();
        assert_eq!(
            preload_obstacle(&own).unwrap(),
            None,
            "this test is linked dynamically"
        );
        let obstacle = |bytes: &[u8], mode| preload_obstacle(written(bytes, mode).path()).unwrap();
        assert_eq!(obstacle(&elf(PT_INTERP), 0o755), None);
        assert!(obstacle(&elf(1), 0o755).unwrap().contains("statically"));
        assert!(obstacle(&elf(PT_INTERP), 0o4755).unwrap().contains("setuid"));
        assert!(obstacle(b"#!/bin/sh\n", 0o755).unwrap().contains("script"));
        assert!(obstacle(b"", 0o755).unwrap().contains("no ELF"));
        preload_obstacle(Path::new("/nonexistent")).expect_err("no such file");
    }

    #[test]
    fn a_listener_is_found_with_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = crate::network::sockets::listeners(address.port()).unwrap();
        let one = found
            .iter()
            .find(|one| one.address == address)
            .expect("it is listed");
        let pid = std::process::id().cast_signed();
        assert_eq!(owner_of(one.inode).unwrap(), Some(pid));
        assert!(has_mapped(pid, "libc.so.6").unwrap());
        assert!(!has_mapped(pid, "libsteadfast_order.so").unwrap());
    }

    #[test]
    fn an_io_uring_is_noticed() {
        /// Bytes of `struct io_uring_params`.
        const PARAMETERS: usize = 120;
        let mut parameters = [0u64; PARAMETERS / 8];
        // SAFETY: the kernel reads and writes `PARAMETERS` bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        if ring < 0 {
            return; // this kernel forbids io_uring
        }
        let is_noticed = uses_io_uring(std::process::id().cast_signed());
        // SAFETY: the descriptor is this test's own.
        unsafe { libc::close(i32::try_from(ring).unwrap()) };
        assert!(is_noticed);
    }
}
