//! Attaches the programs to the clsact hooks of the service interfaces and of `lo`, and to the root cgroup.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, Object, TC_EGRESS, TC_INGRESS};

use crate::bpf::error::{WireError, WireStep};
use crate::bpf::hook::{attach, has_filters, take_away};
use crate::bpf::layout;
use crate::bpf::object::find;

/// The handle of the wire's and the guard's tc filters.
const HANDLE: u32 = 1;
/// The index of `lo`, in every network namespace.
pub const LOOPBACK: u32 = 1;
/// The programs of the root cgroup, each with the consequence if the program cannot be attached.
pub(super) const OF_CGROUP: [(&str, &str); 3] = [
    ("death", "deaths of server processes are not noticed"),
    (
        "connect4",
        "programs on this node cannot use its services over IPv4",
    ),
    (
        "connect6",
        "programs on this node cannot use its services over IPv6",
    ),
];

/// Attaches the wire to the ingress and the guard to the egress of an interface.
pub(super) fn attach_interface(object: &Object, interface: u32) -> Result<(), WireError> {
    for (program, point) in [("guard", TC_EGRESS), ("wire", TC_INGRESS)] {
        attach(object, program, (interface, point), HANDLE)?;
    }
    Ok(())
}

/// Attaches the program `loopback` to `lo`. This program is the wire for clients on this node. If several nodes share a network namespace,
/// their agents attach to the same `lo`, so each node's filter has a handle of its own.
pub(super) fn attach_loopback(object: &Object, node: &str) -> Result<(), WireError> {
    attach(object, "loopback", (LOOPBACK, TC_EGRESS), loopback_handle(node))
}

/// The handle of a node's filter on `lo`.
fn loopback_handle(node: &str) -> u32 {
    let [.., a, b, c, d] = layout::hash(node.as_bytes()).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]).max(1) // instead of handle 0, the kernel would choose a handle itself
}

/// Detaches a node's filter from `lo`, as [`detach`] does.
///
/// # Errors
/// As [`detach`].
pub fn detach_loopback(node: &str) -> Result<(), WireError> {
    if !has_filters("lo", TC_EGRESS) {
        return Ok(()); // nothing to detach; a try would make libbpf print an error
    }
    take_away(LOOPBACK, &[TC_EGRESS], loopback_handle(node))
}

/// Detaches our two filters from an interface. Also removes the qdisc if it has no other filters.
///
/// # Errors
/// The kernel's error. It is no error if the hook or the interface is gone already.
pub fn detach(interface: u32) -> Result<(), WireError> {
    take_away(interface, &[TC_EGRESS, TC_INGRESS], HANDLE)
}

/// Attaches a program to the root of the cgroup v2 hierarchy and pins the link. If a dead agent has pinned such a link, the
/// program replaces the old program in that link.
pub(super) fn attach_cgroup(object: &mut Object, program: &str, pin: &Path) -> Result<(), WireError> {
    if pin.exists() {
        let program = find(object, program);
        let replaced = Link::open(pin).and_then(|mut link| link.update_prog(&program));
        return replaced.step(|| format!("replacing the program of {}", pin.display()));
    }
    let root = cgroup2_root()?;
    let directory = File::open(&root).step(|| format!("opening {}", root.display()))?;
    let found = object
        .progs_mut()
        .find(|candidate| candidate.name() == OsStr::new(program))
        .expect("the object contains this program");
    let mut link = found
        .attach_cgroup(directory.as_raw_fd())
        .step(|| format!("attaching `{program}` to the cgroup {}", root.display()))?;
    link.pin(pin).step(|| format!("pinning {}", pin.display()))
}

fn cgroup2_root() -> Result<PathBuf, WireError> {
    let mounts = std::fs::read_to_string("/proc/mounts").step(|| "reading /proc/mounts".into())?;
    mounts
        .lines()
        .find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let path = words.next()?;
            (words.next()? == "cgroup2").then(|| PathBuf::from(path))
        })
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "no cgroup2 file system is mounted"))
        .step(|| "looking for the cgroup v2 hierarchy".into())
}
