//! Checks what this machine has before a run.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

use super::outcome::Missing;

/// A program or an absolute path of a file, and the Debian package that contains it.
pub type Needed = (&'static str, &'static str);

/// The programs of every lab with daemons.
pub const LAB_PROGRAMS: [Needed; 5] = [
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("tcpdump", "tcpdump"),
];
/// Number of descriptors that a process uses besides its connections.
const DESCRIPTORS: u64 = 100;

/// Checks the machine for a lab: root privileges, the `needed` programs and files, the program `daemon` if one is given, and enough file
/// descriptors for `connections`.
///
/// # Errors
/// [`Missing`] names everything that is missing.
pub fn check(
    needed: impl IntoIterator<Item = Needed>,
    daemon: Option<PathBuf>,
    connections: u32,
) -> Result<()> {
    let mut missing = missing_programs(needed);
    missing.dedup(); // A server and its client may need the same program.
    if let Some(daemon) = daemon {
        if !Path::new("/sys/fs/bpf").is_dir() {
            missing.push("/sys/fs/bpf: the kernel has no eBPF file system".to_owned());
        }
        if !is_program(&daemon) {
            missing.push(format!(
                "{}: build it (cargo build -p steadfast) or name another with --steadfast",
                daemon.display()
            ));
        }
    }
    missing.extend(raise_descriptors(u64::from(connections) + DESCRIPTORS)?);
    require_nothing(missing)
}

/// Fails if anything is `missing`.
///
/// # Errors
/// [`Missing`] with these items.
pub fn require_nothing(missing: Vec<String>) -> Result<()> {
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Missing(missing).into())
    }
}

/// Lists the requirements that this machine lacks: root privileges, and entries of `needed`.
pub fn missing_programs(needed: impl IntoIterator<Item = Needed>) -> Vec<String> {
    let mut missing = Vec::new();
    if !geteuid().is_root() {
        missing.push("root: network namespaces and eBPF need it (try sudo)".to_owned());
    }
    for (what, package) in needed {
        let file = Path::new(what);
        if file.is_absolute() && !file.exists() {
            missing.push(format!("{what}: missing; on Debian: apt-get install {package}"));
        } else if !file.is_absolute() && !in_path(what) {
            missing.push(format!(
                "{what}: not in PATH; on Debian: apt-get install {package} (it may be in /usr/sbin)"
            ));
        }
    }
    missing
}

/// Raises the limit of open descriptors for this process and its children to at least `least`. Returns a message if the hard limit is below
/// `least`.
fn raise_descriptors(least: u64) -> Result<Option<String>> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of open files")?;
    if hard < least {
        return Ok(Some(format!(
            "open files: {least} are needed and {hard} allowed (ulimit -Hn {least}, or fewer --connections)"
        )));
    }
    if soft < least {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")?;
    }
    Ok(None)
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| is_program(&directory.join(program)))
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_data_is_not_a_program() {
        assert!(in_path("sh"));
        assert!(!in_path("no-such-program"));
        assert!(!is_program(Path::new("/etc/passwd")));
    }
}
