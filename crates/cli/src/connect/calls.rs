//! Requests from the control socket and from the metrics, in a program that runs in tokio.

use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::Receiver;

use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;

use crate::control::{Asker, Call, ControlServer, ControlServerError};

/// The requests.
pub struct ControlCalls {
    calls: Receiver<Call>,
    called: Rc<Notify>,
}

impl ControlCalls {
    /// Opens the control socket in `state_dir`.
    ///
    /// # Errors
    /// If the socket or its thread cannot be made.
    pub fn open(state_dir: &Path) -> Result<(ControlServer, Asker, Self), ControlServerError> {
        let (wakes, mut woken) = unbounded_channel();
        let (server, asker, calls) = ControlServer::open(state_dir, move || {
            let _ = wakes.send(()); // fails if the program has stopped
        })?;
        let called = Rc::new(Notify::new());
        let notified = Rc::clone(&called);
        tokio::task::spawn_local(async move {
            while woken.recv().await.is_some() {
                notified.notify_one();
            }
        });
        Ok((server, asker, Self { calls, called }))
    }

    /// Answers requests for ever.
    pub async fn serve(&self, answer: impl Fn(Call)) {
        loop {
            while let Ok(call) = self.calls.try_recv() {
                answer(call);
            }
            self.called.notified().await;
        }
    }
}
