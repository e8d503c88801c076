//! Agents that share a network namespace set it up one at a time: two that look for a free routing table at the same moment would take the
//! same one.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

/// The name of an abstract Unix socket, of which each network namespace has its own. The kernel frees it when its holder dies.
const NAME: &str = "steadfast-set-up";
/// Time limit for the other agents of the namespace.
const WAIT_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The right to set up this network namespace, until it is dropped.
#[derive(Debug)]
pub struct SetUpTurn {
    _holder: UnixListener,
}

impl SetUpTurn {
    /// Waits for the turn of this agent.
    ///
    /// # Errors
    /// The kernel's error, or `TimedOut` if another agent has not finished within 10 s.
    pub fn take() -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(NAME)?;
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(holder) => return Ok(Self { _holder: holder }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
                Err(_) if Instant::now() > deadline => {
                    let message = format!("another agent has set up this network for more than {WAIT_MAX:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Err(_) => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time() {
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let turn = SetUpTurn::take().expect("the others finish");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::sleep(Duration::from_millis(1));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
    }
}
