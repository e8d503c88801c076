//! Loads objects with eBPF programs and pins their maps.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject, Program};
use memmap2::{MmapOptions, MmapRaw};
use nix::mount::{MsFlags, mount};

use super::error::{WireError, WireStep};
use super::layout;

const BPFFS: &str = "/sys/fs/bpf";

/// Aligns the embedded ELF file to 8 bytes, because libbpf reads the file in place.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);

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

/// The cookie of this network namespace.
pub(crate) fn netns_cookie() -> std::io::Result<u64> {
    netns_cookie_of(&socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::DGRAM,
        None,
    )?)
}

/// The cookie of a socket's network namespace.
pub(crate) fn netns_cookie_of(socket: &impl AsRawFd) -> std::io::Result<u64> {
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

/// Opens an embedded object, not loaded yet.
pub(crate) fn open(object: &[u8]) -> Result<OpenObject, WireError> {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log_libbpf)));
    ObjectBuilder::default()
        .open_memory(object)
        .step(|| "opening the eBPF object".into())
}

/// Number of attempts to load the programs. In each attempt, libbpf itself tries five times. The verifier gives up (EAGAIN) when its thread
/// gets a signal or is stopped.
const VERIFIER_TRIES: usize = 5;

/// Loads the object that `open` returns. Tries again with a new object if the verifier gives up.
pub(crate) fn verified(open: impl Fn() -> Result<OpenObject, WireError>) -> Result<Object, WireError> {
    let mut tries = 1;
    loop {
        match open()?.load() {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::WouldBlock && tries < VERIFIER_TRIES => {
                tries += 1
            }
            outcome => return outcome.step(|| "loading the eBPF programs (verifier)".into()),
        }
    }
}

pub(crate) fn find_map(object: &Object, name: &str) -> Option<MapHandle> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name))?;
    MapHandle::try_from(&map).ok()
}

/// The name under which a map is pinned. `None` for the sections of data that libbpf keeps in maps, such as .rodata.
fn pinned_name(name: &OsStr) -> Option<String> {
    let name = name.to_str().filter(|name| !name.contains('.'))?;
    Some(name.to_owned())
}

/// Pins all maps of an object in the new directory `pin_dir`.
pub(crate) fn pin_maps(object: &mut Object, pin_dir: &Path) -> Result<(), WireError> {
    std::fs::create_dir_all(pin_dir).step(|| format!("creating {}", pin_dir.display()))?;
    for mut map in object.maps_mut() {
        let Some(name) = pinned_name(map.name()) else {
            continue; // .rodata needs no pin: the programs hold it
        };
        map.pin(pin_dir.join(&name))
            .step(|| format!("pinning the map {name}"))?;
    }
    Ok(())
}

/// Loads the object that `open` returns, and lets its programs use the maps that an earlier agent pinned in `pin_dir`. `None` if nothing is
/// pinned. `abi` is the hash of the layout that the programs need.
///
/// # Errors
/// [`WireError::Unfit`] if the maps do not fit. Any other error names the step that failed.
pub(crate) fn load_over_pins(
    pin_dir: &Path,
    abi: u64,
    open: impl Fn() -> Result<OpenObject, WireError>,
) -> Result<Option<Object>, WireError> {
    if !pin_dir.exists() {
        return Ok(None);
    }
    let unfit = |why: String| WireError::Unfit {
        pin_dir: pin_dir.to_owned(),
        why,
    };
    if !layout::fits(pin_dir, abi) {
        return Err(unfit(
            "the maps have another layout, or the earlier daemon died during startup".into(),
        ));
    }
    let object = verified(|| {
        let mut open = open()?;
        reuse_maps(&mut open, pin_dir)?.map_err(unfit)?;
        Ok(open)
    });
    object.map(Some)
}

/// Lets `open` use the pinned maps, or says why they do not fit.
fn reuse_maps(open: &mut OpenObject, pin_dir: &Path) -> Result<Result<(), String>, WireError> {
    for mut map in open.maps_mut() {
        let Some(name) = pinned_name(map.name()) else {
            continue; // each object has its own .rodata
        };
        let path = pin_dir.join(&name);
        if !path.exists() {
            return Ok(Err(format!("its map {name} is missing")));
        }
        let pinned = MapHandle::from_pinned_path(&path).step(|| format!("opening {}", path.display()))?;
        let theirs = (pinned.map_type(), pinned.key_size(), pinned.value_size());
        let ours = (map.map_type(), map.key_size(), map.value_size());
        if theirs != ours {
            let what =
                format!("type and sizes of key and value of its map {name} are {theirs:?}, not {ours:?}");
            return Ok(Err(what));
        }
        let (theirs, ours) = (pinned.max_entries(), map.max_entries());
        if theirs != ours {
            let what = format!("its map {name} has {theirs} entries or bytes, not {ours}");
            return Ok(Err(what));
        }
        map.reuse_fd(pinned.as_fd())
            .step(|| format!("using the pinned map {name}"))?;
    }
    Ok(Ok(()))
}

/// The program with this name.
pub(crate) fn find<'a>(object: &'a Object, program: &str) -> Program<'a> {
    object
        .progs()
        .find(|candidate| candidate.name() == OsStr::new(program))
        .expect("the object contains this program")
}

pub(crate) fn map_memory(object: &Object, name: &str, len: usize) -> Result<MmapRaw, WireError> {
    let map = find_map(object, name).expect("the object was compiled with this map");
    MmapOptions::new()
        .len(len)
        .map_raw(map.as_fd().as_raw_fd())
        .step(|| format!("mapping {name}"))
}

fn log_libbpf(level: libbpf_rs::PrintLevel, text: String) {
    match level {
        libbpf_rs::PrintLevel::Warn => tracing::warn!(target: "libbpf", "{}", text.trim_end()),
        _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
    }
}
