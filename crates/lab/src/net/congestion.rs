//! The congestion control of the lab's hosts. It is cubic unless a lab asks for another one.
//!
//! The machine's default may be bbr, which paces by itself and would blur the effect of a takeover on a stream. A network namespace other
//! than the machine's initial one may only choose an algorithm from the machine's list of allowed algorithms. So [`choose`] temporarily
//! adds the algorithm to that list.

use std::fs::{self, File};

use linux::netns::Netns;
use nix::fcntl::{Flock, FlockArg};

use super::kernel::{NetError, set};

const CHOICE: &str = "ipv4/tcp_congestion_control";
const ALLOWED: &str = "ipv4/tcp_allowed_congestion_control";
/// The congestion control of the lab's hosts unless a lab asks for another one.
pub const CUBIC: &str = "cubic";
/// Directory that is locked while the machine's list is changed, because several labs may start at the same time. The directory
/// exists as soon as a namespace exists.
const LOCK: &str = "/run/netns";

/// Makes `algorithm` the default in each of `hosts`.
///
/// # Errors
/// If the kernel does not have the algorithm, or the machine's list cannot be changed or put back.
pub fn choose<'a>(algorithm: &str, hosts: impl IntoIterator<Item = &'a Netns>) -> Result<(), NetError> {
    let machine = |source| NetError::Setting {
        place: "this machine".to_owned(),
        key: ALLOWED,
        value: format!("the list with {algorithm}"),
        source,
    };
    let lock = File::open(LOCK).map_err(machine)?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| machine(errno.into()))?;
    let list = fs::read_to_string(format!("/proc/sys/net/{ALLOWED}")).map_err(machine)?;
    let change = !list.split_whitespace().any(|name| name == algorithm);
    if change {
        set(
            "this machine",
            ALLOWED,
            &format!("{} {algorithm}", list.trim_end()),
        )?;
    }
    let chosen = hosts
        .into_iter()
        .try_for_each(|host| host.run(|| set(host.name(), CHOICE, algorithm))?);
    if change {
        set("this machine", ALLOWED, &list)?;
    }
    chosen
}
