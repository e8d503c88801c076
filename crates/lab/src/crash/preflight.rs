//! Checks whether this machine can play a crash.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

use super::{CrashOptions, PolicyOption, WorkloadOption};
use crate::Missing;
use crate::node::Assume;

/// Checks everything that can be known before a run.
///
/// # Errors
/// Names everything that is missing.
pub fn check(options: &CrashOptions) -> Result<()> {
    check_with(options, &[])
}

/// Checks the machine for runs with nginx and the arbiter `assume`. Returns the path of the daemon under test.
///
/// # Errors
/// Names everything that is missing.
pub fn check_machine(assume: Assume, steadfast: Option<PathBuf>) -> Result<PathBuf> {
    let options = CrashOptions {
        assume,
        ..CrashOptions::single(WorkloadOption::Request, 1, 0, steadfast)
    };
    check(&options)?;
    daemon(&options)
}

/// As [`check`], but also for `others`: programs or files, each with the Debian package that contains it.
///
/// # Errors
/// Names everything that is missing.
pub fn check_with(options: &CrashOptions, others: &[(&'static str, &'static str)]) -> Result<()> {
    let needed = [
        ("ip", "iproute2"),
        ("ss", "iproute2"),
        ("tc", "iproute2"),
        ("nft", "nftables"),
        ("tcpdump", "tcpdump"),
        options.application().needs(),
    ];
    let of_arbiter: &[_] = match options.assume {
        Assume::Etcd => &[("etcd", "etcd-server"), ("openssl", "openssl")],
        Assume::Fence | Assume::SlowFence | Assume::FailStop => &[],
    };
    let of_hook: &[_] = match options.policy {
        PolicyOption::Replica if options.rounds.is_some() => &[("redis-cli", "redis-tools")],
        _ => &[],
    };
    let others = [others, of_arbiter, of_hook].concat();
    let mut missing = missing_programs(needed.into_iter().chain(others));
    missing.dedup(); // A server and its client may need the same package.
    if !options.baseline {
        if !Path::new("/sys/fs/bpf").is_dir() {
            missing.push("/sys/fs/bpf: the kernel has no eBPF file system".to_owned());
        }
        let steadfast = daemon(options)?;
        if !is_program(&steadfast) {
            missing.push(format!(
                "{}: build it (cargo build -p steadfast) or name another with --steadfast",
                steadfast.display()
            ));
        }
    }
    missing.extend(raise_descriptors(u64::from(options.connections) + DESCRIPTORS)?);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Missing(missing).into())
    }
}

/// Lists what this machine lacks: root's rights, and entries of `needed`. An entry is a program or a file, with the Debian package that
/// contains it.
pub fn missing_programs(needed: impl IntoIterator<Item = (&'static str, &'static str)>) -> Vec<String> {
    let mut missing = Vec::new();
    if !geteuid().is_root() {
        missing.push("root: network namespaces and eBPF need it (try sudo)".to_owned());
    }
    for (what, package) in needed {
        let file = Path::new(what);
        if file.is_absolute() && !file.exists() {
            missing.push(format!("{what}: not there; on Debian: apt-get install {package}"));
        } else if !file.is_absolute() && !in_path(what) {
            missing.push(format!(
                "{what}: not in PATH; on Debian: apt-get install {package} (it may be in /usr/sbin)"
            ));
        }
    }
    missing
}

/// Number of descriptors that a process uses besides its connections.
const DESCRIPTORS: u64 = 100;

/// Raises the limit of open descriptors for this process and its children to `least`. Returns a message if the machine does not
/// allow it.
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

/// The daemon's binary.
///
/// # Errors
/// If this program's own path is unknown.
pub fn daemon(options: &CrashOptions) -> Result<PathBuf> {
    if let Some(path) = &options.steadfast {
        // The daemon is started in another working directory, so the path must be absolute.
        return std::path::absolute(path).with_context(|| path.display().to_string());
    }
    let own = env::current_exe().context("find this program's directory")?;
    Ok(own.with_file_name("steadfast"))
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

    #[test]
    fn everything_missing_is_said_at_once() {
        let text = Missing(vec!["root".to_owned(), "nginx".to_owned()]).to_string();
        assert_eq!(text, "cannot run here:\n  - root\n  - nginx");
    }
}
