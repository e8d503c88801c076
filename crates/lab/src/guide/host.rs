//! A host with systemd, in one of the lab's network namespaces.
//!
//! systemd-nspawn boots the host. The host sees this machine's files through an overlay file system. Everything that the host writes goes
//! to a layer in memory above these files. The layer is removed when the host ends. The host starts only systemd's own services.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use linux::netns::Netns;
use nix::unistd::Pid;

use crate::process::{self, LoggedProcess};

/// Time limit for the boot of a host.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Time between two checks of a booting host.
const POLL: Duration = Duration::from_millis(100);

/// Time limit for one block of commands, in seconds. The first block may build the program.
const BLOCK_LIMIT: &str = "900";
/// Shell script that mounts the host's file system and then boots the host. It runs in a mount namespace of its own. Arguments: the folder
/// for the host's files, the file of its network namespace, the host name inside the host, and the host's name for systemd-nspawn.
const BOOT: &str = r#"
set -eu
mkdir -p "$1" /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn
mount -t tmpfs tmpfs "$1"
mkdir -p "$1/upper/etc/tmpfiles.d" "$1/work" "$1/root"
# The repository may be below /tmp. So the host has this machine's /tmp, and does not empty it when it boots.
ln -s /dev/null "$1/upper/etc/tmpfiles.d/tmp.conf"
export SYSTEMD_NSPAWN_TMPFS_TMP=0
echo "$3" > "$1/upper/etc/hostname"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=1
exec systemd-nspawn --quiet --register=no --keep-unit --link-journal=no --console=pipe --capability=all \
    --system-call-filter='bpf perf_event_open' --directory="$1/root" --network-namespace-path="$2" --machine="$4" \
    --boot systemd.unit=basic.target
"#;

/// A booted host. Dropping this value ends the host.
pub struct SystemdHost {
    namespace: Netns,
    _boot: LoggedProcess,
    /// Process id, on this machine, of the host's first process.
    init: Pid,
}

impl SystemdHost {
    /// Boots the host `name` in `namespace`. Stores the layer with the host's files, and the log of the boot, in `directory` on this
    /// machine.
    ///
    /// # Errors
    /// If the host does not boot in time.
    pub fn boot(name: &str, namespace: Netns, directory: &Path) -> Result<Self> {
        let known_as = namespace.name().to_owned();
        let mut command = Command::new("unshare");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
            .args(["--mount", "bash", "-c", BOOT, "boot"])
            .arg(directory.join(name))
            .args([
                Netns::path_of(&known_as),
                PathBuf::from(name),
                PathBuf::from(&known_as),
            ]);
        let mut boot = LoggedProcess::start(&format!("boot-{name}"), command, directory)?;
        let end = Instant::now() + BOOT_LIMIT;
        let mut init = None;
        boot.wait_until("start its first process", BOOT_LIMIT, |boot| {
            // The script has other children before it executes systemd-nspawn, whose child is the host's systemd.
            let is_init = |pid: &Pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                name.is_ok_and(|name| name == "systemd\n")
            };
            let children = process::children(boot.pid()).unwrap_or_default();
            init = children.into_iter().find(is_init);
            init.is_some()
        })?;
        let machine = Self {
            namespace,
            _boot: boot,
            init: init.expect("waited for"),
        };
        loop {
            let look = machine.command("systemctl is-system-running")?.output();
            let said = look.context("look at the host")?;
            if said.stdout.starts_with(b"running") || said.stdout.starts_with(b"degraded") {
                return Ok(machine);
            }
            if Instant::now() > end {
                let said = [said.stdout, said.stderr].concat();
                bail!(
                    "{name} did not boot within {BOOT_LIMIT:?}: {}",
                    String::from_utf8_lossy(&said)
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// A command that runs the shell `commands` on the host, as root, in the current directory of this process. The shell ends at the first
    /// of `commands` that fails.
    ///
    /// # Errors
    /// If there is no current directory, or the namespace's handle cannot be duplicated.
    pub fn command(&self, commands: &str) -> Result<Command> {
        let directory = std::env::current_dir()?;
        let mut command = self.namespace.command("nsenter")?;
        command
            .args(["--all", "--target", &self.init.to_string()])
            .arg(format!("--wdns={}", directory.display()))
            .args(["bash", "-c"])
            .arg(strict(commands));
        Ok(command)
    }

    /// The path by which this machine reaches the host's `file`.
    pub fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{file}", self.init))
    }
}

/// Wraps shell commands so that they end at the first command that fails, or after [`BLOCK_LIMIT`].
pub fn strict(commands: &str) -> String {
    let quoted = commands.replace('\'', r"'\''");
    format!("exec timeout {BLOCK_LIMIT} bash -euo pipefail -c '{quoted}'")
}
