//! Looks for servers whose order cannot be recorded: without the library, or with io_uring.

use std::time::Duration;

use linux::executable::{file_of, has_mapped, owner_of, preload_obstacle, uses_io_uring};
use linux::network::sockets;
use proto::Instant;

use super::state::{LibraryPart, OrderedService};
use crate::daemon::servers::accepts;

/// Interval at which a server is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// The library's file.
const LIBRARY: &str = "libsteadfast_order.so";

/// Checks the server at a service's address once a second, and remembers the listener that it has checked.
#[derive(Default)]
pub(super) struct ServerInspection {
    looked: Instant,
    /// The inode of the listener that was looked at last.
    listener: Option<u32>,
}

impl ServerInspection {
    /// Looks at the server, if it is time. Notes and logs why its order is not recorded.
    pub fn look(&mut self, service: &OrderedService, now: Instant) {
        if now.since(self.looked) < EVERY {
            return;
        }
        self.looked = now;
        let (server, part) = {
            let state = service.state();
            (state.server, state.part)
        };
        match server {
            None => self.look_for_server(service),
            Some(process) if part == LibraryPart::Records && uses_io_uring(process) => {
                let mut state = service.state();
                if state.recorder.is_some() && state.ended.is_none() {
                    state.stop_recording(now, "the server uses io_uring".to_owned());
                }
            }
            Some(_) => self.listener = None,
        }
    }

    /// Looks for a server that runs without a role.
    fn look_for_server(&mut self, service: &OrderedService) {
        let application = service.application;
        let listeners = sockets::listeners(application.port()).unwrap_or_default(); // the watch of the servers logs the error
        let found = listeners
            .iter()
            .find(|listener| accepts(listener.address, application));
        let listener = found.map(|listener| listener.inode);
        if listener == self.listener {
            return;
        }
        let reason = match listener {
            Some(inode) => match owner_of(inode) {
                Ok(Some(process)) => why_unrecorded(process),
                _ => return, // the next look finds the process
            },
            None => None,
        };
        self.listener = listener;
        let mut state = service.state();
        if state.server.is_none()
            && let Some(reason) = reason
        {
            tracing::warn!(vip = %service.vip, reason, "the server has no recorded order");
            state.without_library += 1;
            state.reason = reason;
        }
    }
}

/// Why a server that listens has no role. `None`: it has ended.
fn why_unrecorded(process: i32) -> Option<String> {
    let file = file_of(process).ok()?;
    let name = file.display();
    if has_mapped(process, LIBRARY).ok()? {
        return Some(format!(
            "the server (process {process}, {name}) has no role from this agent: it got none, or had it from an earlier agent"
        ));
    }
    // The path of a process in another mount namespace may name another file here.
    let obstacle = preload_obstacle(format!("/proc/{process}/exe").as_ref()).ok()?;
    let obstacle = obstacle.map_or_else(
        || format!("it runs without {LIBRARY}; LD_PRELOAD must name this file"),
        str::to_owned,
    );
    Some(format!(
        "the order of the server (process {process}, {name}) cannot be recorded: {obstacle}"
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use proto::order::OnDivergence;

    use super::*;

    #[test]
    fn a_server_without_the_library_is_noticed_once() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let none = SocketAddr::from(([127, 0, 0, 1], 1));
        let service = OrderedService::new(0, (none, address, none), OnDivergence::Unprotect, None);
        let mut inspection = ServerInspection::default();
        let at = |second| Instant::ZERO + Duration::from_secs(second);
        inspection.look(&service, at(1));
        let reason = service.state().reason.clone();
        assert!(
            reason.contains("it runs without libsteadfast_order.so"),
            "{reason}"
        );
        inspection.look(&service, at(2));
        assert_eq!(service.state().without_library, 1);
        drop(listener);
        inspection.look(&service, at(3));
        let _listener = TcpListener::bind(address).expect("the address is free");
        inspection.look(&service, at(4));
        assert_eq!(service.state().without_library, 2, "another listener");
    }
}
