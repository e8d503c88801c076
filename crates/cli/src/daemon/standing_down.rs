//! Ends the connections of a service that this node has given up. Those with unread input end at once, so that the application begins no
//! request that the other node executes. The others can get nothing any more, because the gate is closed, and there is no hurry until the
//! node's next role. Thousands of them are much work, and the application then closes as many files. So they end a moment later, in a thread of
//! its own: the two nodes may share a machine, and the clients wait for the other node now.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use linux::network::NetworkError;
use proto::action::ServiceIndex;

use super::hook;

/// Time before the others are ended, if the node has no other role before.
const REST: Duration = Duration::from_millis(500);

/// The services whose connections are being ended. If this is dropped, it waits for them: a process that ends must leave none behind.
#[derive(Default)]
pub(super) struct StandingDown {
    running: BTreeMap<ServiceIndex, EndingThread>,
}

/// A thread that ends a service's connections.
struct EndingThread {
    thread: JoinHandle<()>,
    /// If this is dropped, the thread rests no longer.
    rests: Sender<()>,
}

/// A service's name, and the operator's command for the case that it was deposed.
pub(super) type DeposedService = (String, Vec<String>);

impl StandingDown {
    /// Begins to end all connections of the service at `vip`. If the service was deposed, the operator's command runs afterwards.
    pub(super) fn begin(&mut self, service: ServiceIndex, vip: SocketAddr, deposed: Option<DeposedService>) {
        self.wait(service);
        let (rests, hurry) = channel();
        let spare = deposed.clone();
        let end = move || {
            tell(vip, linux::network::sockets::destroy_unread(vip));
            rest(&hurry);
            end_all(vip, deposed);
        };
        match std::thread::Builder::new().name("stand-down".into()).spawn(end) {
            Ok(thread) => drop(self.running.insert(service, EndingThread { thread, rests })),
            Err(error) => {
                tracing::warn!(%error, "no thread to end connections, so the agent waits for it");
                end_all(vip, spare);
            }
        }
    }

    /// Waits until no connection of the service is left. The node's next role must not find any.
    pub(super) fn wait(&mut self, service: ServiceIndex) {
        if let Some(ending) = self.running.remove(&service) {
            ending.wait();
        }
    }

    /// Whether no connections are being ended.
    pub(super) fn is_settled(&self) -> bool {
        self.running.values().all(|ending| ending.thread.is_finished())
    }
}

impl Drop for StandingDown {
    fn drop(&mut self) {
        std::mem::take(&mut self.running)
            .into_values()
            .for_each(EndingThread::wait);
    }
}

impl EndingThread {
    fn wait(self) {
        drop(self.rests);
        let _ = self.thread.join();
    }
}

/// Waits for [`REST`], or until the agent waits. If the agent does not wait, its precedence is not needed.
fn rest(hurry: &Receiver<()>) {
    let is_hurried = hurry.recv_timeout(REST) == Err(RecvTimeoutError::Disconnected);
    if !is_hurried && let Err(error) = linux::process::yield_precedence() {
        tracing::debug!(%error, "connections end at the agent's priority");
    }
}

fn end_all(vip: SocketAddr, deposed: Option<DeposedService>) {
    tell(vip, linux::network::sockets::destroy(vip));
    if let Some((service, command)) = deposed {
        hook::run(&service, &command);
    }
}

fn tell(vip: SocketAddr, outcome: Result<usize, NetworkError>) {
    match outcome {
        Ok(0) => {}
        Ok(sockets) => tracing::info!(%vip, sockets, "stood down: connections ended silently"),
        Err(error) => tracing::error!(%error, %vip, "stood down, but connections are left; they are mute"),
    }
}
