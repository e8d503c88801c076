//! Cubic congestion control in every host of the lab.
//!
//! The machine's default may be bbr, which paces by itself and would blur the effect of a takeover on a stream. A namespace
//! other than the first may only choose an algorithm from the machine's list of allowed algorithms. So cubic is on that
//! list for the moment of the choice.

use std::fs::{self, File};

use linux::netns::Netns;
use nix::fcntl::{Flock, FlockArg};

use super::kernel::{NetError, set};

const CHOICE: &str = "ipv4/tcp_congestion_control";
const ALLOWED: &str = "ipv4/tcp_allowed_congestion_control";
const CUBIC: &str = "cubic";
/// Directory that is locked while the machine's list is changed, because several labs may start at the same time. It exists as
/// soon as a namespace exists.
const LOCK: &str = "/run/netns";

/// Makes cubic the default in each of `hosts`.
///
/// # Errors
/// If the kernel has no cubic, or the machine's list cannot be changed or put back.
pub fn use_cubic(hosts: [&Netns; 3]) -> Result<(), NetError> {
    let machine = |source| NetError::Setting {
        place: "this machine".to_owned(),
        key: ALLOWED,
        value: format!("the list with {CUBIC}"),
        source,
    };
    let lock = File::open(LOCK).map_err(machine)?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| machine(errno.into()))?;
    let list = fs::read_to_string(format!("/proc/sys/net/{ALLOWED}")).map_err(machine)?;
    let change = !list.split_whitespace().any(|name| name == CUBIC);
    if change {
        set("this machine", ALLOWED, &format!("{} {CUBIC}", list.trim_end()))?;
    }
    let chosen = hosts
        .iter()
        .try_for_each(|host| host.run(|| set(host.name(), CHOICE, CUBIC))?);
    if change {
        set("this machine", ALLOWED, &list)?;
    }
    chosen
}
