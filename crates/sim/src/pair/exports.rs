//! Policy `snapshot`: applications that export their state while they serve, as with `libsteadfast`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use proto::Seq;
use proto::export::{ExportOutcome, ExportPlace};
use proto::service::ExportCall;

/// Bytes that an application reads and writes before it exports its state again.
const EXPORT_EVERY: u64 = 700;

/// The exports of one machine's applications. Clones share them.
#[derive(Clone, Default)]
pub(super) struct SimExports(Rc<RefCell<ExportQueue>>);

#[derive(Default)]
struct ExportQueue {
    /// On their way to the agent.
    calls: VecDeque<ExportCall>,
    kept: u64,
    imported: u64,
}

impl SimExports {
    /// The next call for the agent.
    pub fn take(&self) -> Option<ExportCall> {
        self.0.borrow_mut().calls.pop_front()
    }

    /// Whether there is a call for the agent.
    pub fn has_calls(&self) -> bool {
        !self.0.borrow().calls.is_empty()
    }

    /// Notes the outcome of calls.
    pub fn finish(&self, outcome: &ExportOutcome) {
        self.0.borrow_mut().kept += u64::from(*outcome == ExportOutcome::Kept);
    }

    /// Notes that an application goes on from an imported state.
    pub fn note_import(&self) {
        self.0.borrow_mut().imported += 1;
    }

    /// Number of outcomes that said that the backup keeps a snapshot, and number of imported states.
    pub fn counts(&self) -> (u64, u64) {
        let queue = self.0.borrow();
        (queue.kept, queue.imported)
    }

    /// Forgets the calls: the agent that would have taken them is dead.
    pub fn clear(&self) {
        self.0.borrow_mut().calls.clear();
    }
}

/// The exports of one connection's application.
pub(super) struct ConnectionExports {
    exports: SimExports,
    client: SocketAddr,
    /// The sequence numbers of the first byte that the application reads and of the first one that it writes.
    begins_at: (Seq, Seq),
    read: u64,
    written: u64,
    /// The sum of both at the last export.
    exported: u64,
}

impl ConnectionExports {
    /// No export yet.
    pub fn new(exports: SimExports, client: SocketAddr, begins_at: (Seq, Seq)) -> Self {
        Self {
            exports,
            client,
            begins_at,
            read: 0,
            written: 0,
            exported: 0,
        }
    }

    fn place(&self) -> ExportPlace {
        let (input, output) = self.begins_at;
        ExportPlace {
            input: input + self.read as u32,
            output: output + self.written as u32,
        }
    }

    /// The application has read and written this much more. Exports its state, which `state` returns, if it is time.
    pub fn on_progress(&mut self, read: usize, written: usize, state: impl FnOnce() -> Option<Vec<u8>>) {
        self.read += read as u64;
        self.written += written as u64;
        let done = self.read + self.written;
        if done < self.exported + EXPORT_EVERY {
            return;
        }
        self.exported = done;
        if let Some(state) = state() {
            self.exports.0.borrow_mut().calls.push_back(ExportCall {
                call: done,
                waits: done.is_multiple_of(2),
                client: self.client,
                place: self.place(),
                state: state.into(),
            });
        }
    }
}
