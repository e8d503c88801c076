//! Attaches the programs to the clsact hooks of the service interfaces and of `lo`, and to the root cgroup.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, Object, Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder};
use nix::mount::{MsFlags, mount};

use super::error::{WireError, WireStep};
use super::layout;

const BPFFS: &str = "/sys/fs/bpf";
/// The priority and the handle of our tc filters. These two identify our filters among others.
const PRIORITY: u32 = 0x5f;
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

/// Mounts the BPF file system if it is not there.
///
/// # Errors
/// If `/proc/mounts` cannot be read, or `mount(2)` fails.
pub fn mount_bpffs() -> Result<(), WireError> {
    let mounts = std::fs::read_to_string("/proc/mounts").step(|| "reading /proc/mounts".into())?;
    if mounts.lines().any(|line| line.split(' ').nth(1) == Some(BPFFS)) {
        return Ok(());
    }
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
        .map_err(std::io::Error::from)
        .step(|| format!("mounting {BPFFS}"))
}

fn find<'a>(object: &'a Object, program: &str) -> Program<'a> {
    object
        .progs()
        .find(|candidate| candidate.name() == OsStr::new(program))
        .expect("compiled with it")
}

/// Attaches a program, replacing one that has this handle already.
fn attach(
    object: &Object,
    program: &str,
    (interface, point): (u32, TcAttachPoint),
    handle: u32,
) -> Result<(), WireError> {
    let found = find(object, program);
    let mut builder = TcHookBuilder::new(found.as_fd());
    builder
        .ifindex(interface.cast_signed())
        .replace(true)
        .handle(handle)
        .priority(PRIORITY);
    let mut hook = builder.hook(point);
    // An existing clsact qdisc is used as it is; `create` succeeds then too.
    hook.create()
        .step(|| format!("adding the clsact qdisc to interface {interface}"))?;
    hook.attach()
        .step(|| format!("attaching `{program}` to interface {interface}"))?;
    Ok(())
}

/// Attaches the wire to the ingress and the guard to the egress of an interface.
pub(super) fn attach_interface(object: &Object, interface: u32) -> Result<(), WireError> {
    for (program, point) in [("guard", TC_EGRESS), ("wire", TC_INGRESS)] {
        attach(object, program, (interface, point), HANDLE)?;
    }
    Ok(())
}

/// Attaches the program `loopback` to `lo`. This program is the wire for clients on this node. Agents of other nodes
/// may have attached their programs to `lo` too.
pub(super) fn attach_loopback(object: &Object, node: &str) -> Result<(), WireError> {
    attach(object, "loopback", (LOOPBACK, TC_EGRESS), loopback_handle(node))
}

/// The handle of a node's filter on `lo`.
fn loopback_handle(node: &str) -> u32 {
    let [.., a, b, c, d] = layout::hash(node.as_bytes()).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]).max(1) // for handle 0 the kernel would choose another one
}

/// Detaches a node's filter from `lo`, as [`detach`] does.
///
/// # Errors
/// As [`detach`].
pub fn detach_loopback(node: &str) -> Result<(), WireError> {
    if !has_filters("lo", TC_EGRESS) {
        return Ok(()); // nothing to detach; libbpf would print an error for the operator
    }
    take_away(LOOPBACK, &[TC_EGRESS], loopback_handle(node))
}

/// Detaches our two filters from an interface. A qdisc without other filters goes too.
///
/// # Errors
/// The kernel's error. It is no error if the hook or the interface is gone already.
pub fn detach(interface: u32) -> Result<(), WireError> {
    take_away(interface, &[TC_EGRESS, TC_INGRESS], HANDLE)
}

fn take_away(interface: u32, points: &[TcAttachPoint], handle: u32) -> Result<(), WireError> {
    let Some(name) = name_of(interface) else {
        return Ok(());
    };
    // Detaching does not need the program's descriptor, but needs some open descriptor.
    let null = File::open("/dev/null").step(|| "opening /dev/null".into())?;
    let mut others = false;
    for &point in points {
        let mut builder = TcHookBuilder::new(null.as_fd());
        builder
            .ifindex(interface.cast_signed())
            .handle(handle)
            .priority(PRIORITY);
        let mut hook = builder.hook(point);
        match hook.detach() {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => Err(error).step(|| format!("detaching from interface {interface}"))?,
        }
    }
    for point in [TC_EGRESS, TC_INGRESS] {
        others |= has_filters(&name, point);
    }
    if !others {
        let mut hook = TcHook::new(null.as_fd());
        hook.ifindex(interface.cast_signed())
            .attach_point(TC_EGRESS | TC_INGRESS);
        match hook.destroy() {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                Err(error).step(|| format!("removing the clsact qdisc of interface {interface}"))?
            }
        }
    }
    Ok(())
}

/// Whether any filter hangs at the hook. If `tc` cannot tell, the answer is yes, so that the qdisc stays.
fn has_filters(interface: &str, point: TcAttachPoint) -> bool {
    let side = if point == TC_INGRESS { "ingress" } else { "egress" };
    let listing = std::process::Command::new("tc")
        .args(["filter", "show", "dev", interface, side])
        .output();
    listing.map_or(true, |output| {
        !output.status.success() || !output.stdout.trim_ascii().is_empty()
    })
}

/// The name of an interface that is there.
fn name_of(interface: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(interface).ok()?;
    // This call reports a missing interface by an empty name.
    name.into_string().ok().filter(|name| !name.is_empty())
}

fn is_gone(error: &libbpf_rs::Error) -> bool {
    matches!(
        error.kind(),
        libbpf_rs::ErrorKind::NotFound | libbpf_rs::ErrorKind::InvalidInput
    )
}

/// The cookie of this network namespace.
pub(super) fn netns_cookie() -> std::io::Result<u64> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).expect("small");
    // SAFETY: the kernel writes `len` bytes into `cookie`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if outcome == 0 {
        Ok(cookie)
    } else {
        Err(std::io::Error::last_os_error())
    }
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
        .expect("compiled with it");
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
