//! Network namespaces: opening one, working inside it, starting processes in it, and taking its interfaces down and up.
//!
//! Processes enter by `setns` between `fork` and `exec`. `ip netns exec` would also remount `/sys` and so hide
//! pinned eBPF objects.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// The directory in which iproute2 keeps named namespaces.
const NAMED: &str = "/run/netns";

/// A failed step on a network namespace.
#[derive(Debug, thiserror::Error)]
#[error("network namespace {namespace}: {step}")]
pub struct NetnsError {
    namespace: String,
    step: String,
    source: io::Error,
}

/// A named network namespace, held open.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
    inode: u64,
}

impl Netns {
    /// Opens the namespace that `ip netns add NAME` made.
    ///
    /// # Errors
    /// If there is no such namespace or it may not be opened.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        let path = Self::path_of(name);
        let failed = |source| NetnsError {
            namespace: name.to_owned(),
            step: format!("open {}", path.display()),
            source,
        };
        let file = File::open(&path).map_err(failed)?;
        let inode = file.metadata().map_err(failed)?.ino();
        Ok(Self {
            name: name.to_owned(),
            file,
            inode,
        })
    }

    /// The file that names the namespace.
    #[must_use]
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(NAMED).join(name)
    }

    /// The name by which the namespace was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace's inode number. `/proc/PID/ns/net` shows the same number for each process inside.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Moves only the calling thread into the namespace, for the rest of the thread's life.
    ///
    /// # Errors
    /// If the kernel refuses. The kernel requires CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| self.error("enter", errno.into()))
    }

    /// Runs `work` on a thread of its own inside the namespace and waits for its result.
    ///
    /// # Errors
    /// If the thread cannot be made or cannot enter. A panic of `work` is passed on.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new()
                .name(self.name.clone())
                .spawn_scoped(scope, || self.enter().map(|()| work()))
                .map_err(|source| self.error("start a thread", source))?;
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command whose process will live inside the namespace. The process dies (SIGKILL) with the **thread** that spawns it, so
    /// spawn it from a thread that lives as long as the process should. The process gets a process group of its own, so ^C at a
    /// terminal does not reach it.
    ///
    /// # Errors
    /// If the namespace's handle cannot be duplicated.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command, NetnsError> {
        let namespace = self
            .file
            .try_clone()
            .map_err(|source| self.error("duplicate the handle", source))?;
        let parent = Pid::this();
        let mut command = Command::new(program);
        command.process_group(0);
        // SAFETY: the closure runs in the child between fork and exec, and makes only the system calls setns, prctl
        // and getppid: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                setns(&namespace, CloneFlags::CLONE_NEWNET)?;
                set_pdeathsig(Signal::SIGKILL)?;
                // The parent may have died before the signal was asked for.
                if getppid() == parent {
                    Ok(())
                } else {
                    Err(io::ErrorKind::Interrupted.into())
                }
            });
        }
        Ok(command)
    }

    /// Makes everything ready to take `interface` down and up quickly, as if its cable were pulled and plugged in
    /// again.
    ///
    /// # Errors
    /// If the name is not an interface's name (too long, or with a zero byte), or if no control socket can be made inside the namespace.
    pub fn cable(&self, interface: &str) -> Result<InterfaceControl, NetnsError> {
        let mut name = [0; libc::IFNAMSIZ];
        if interface.len() >= name.len() || interface.contains('\0') {
            let reason = io::Error::new(io::ErrorKind::InvalidInput, "not an interface name");
            return Err(self.error(&format!("cable {interface:?}"), reason));
        }
        for (slot, byte) in name.iter_mut().zip(interface.bytes()) {
            *slot = byte.cast_signed() as libc::c_char;
        }
        let control = self
            .run(control_socket)?
            .map_err(|source| self.error("open a control socket", source))?;
        Ok(InterfaceControl {
            label: format!("{}/{interface}", self.name),
            name,
            control,
        })
    }

    fn error(&self, step: &str, source: io::Error) -> NetnsError {
        NetnsError {
            namespace: self.name.clone(),
            step: step.to_owned(),
            source,
        }
    }
}

/// An interface that can be taken down and up. The control socket is already open, so each change is two system calls.
#[derive(Debug)]
pub struct InterfaceControl {
    label: String,
    name: [libc::c_char; libc::IFNAMSIZ],
    control: OwnedFd,
}

impl InterfaceControl {
    /// Takes the interface down: a veth's other end loses its carrier, and nothing passes in either direction.
    ///
    /// # Errors
    /// If the interface does not exist or may not be changed.
    pub fn pull(&self) -> Result<(), NetnsError> {
        self.change("take down", |flags| flags & !(libc::IFF_UP as libc::c_short))
    }

    /// Takes the interface up again.
    ///
    /// # Errors
    /// If the interface does not exist or may not be changed.
    pub fn plug(&self) -> Result<(), NetnsError> {
        self.change("take up", |flags| flags | libc::IFF_UP as libc::c_short)
    }

    fn change(
        &self,
        step: &str,
        new_flags: impl Fn(libc::c_short) -> libc::c_short,
    ) -> Result<(), NetnsError> {
        let failed = || NetnsError {
            namespace: self.label.clone(),
            step: step.to_owned(),
            source: io::Error::last_os_error(),
        };
        // SAFETY: an ifreq of zeroes is valid: every member of its union is plain integers or addresses.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        // SAFETY: SIOCGIFFLAGS reads the name of this ifreq and writes its flags.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) } < 0 {
            return Err(failed());
        }
        // SAFETY: SIOCGIFFLAGS succeeded, so `ifru_flags` is the member that is set.
        request.ifr_ifru.ifru_flags = new_flags(unsafe { request.ifr_ifru.ifru_flags });
        // SAFETY: SIOCSIFFLAGS only reads this ifreq.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } < 0 {
            return Err(failed());
        }
        Ok(())
    }
}

/// A socket on which interface ioctls work; it stays bound to the namespace of the thread that opened it.
fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers; a non-negative result is a descriptor that nobody else owns.
    unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_names_the_missing_namespace() {
        let error = Netns::open("sf-no-such-namespace").unwrap_err().to_string();
        assert!(error.contains("sf-no-such-namespace"), "{error}");
        assert!(error.contains("/run/netns/"), "{error}");
    }
}
