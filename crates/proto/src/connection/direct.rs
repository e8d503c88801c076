//! Connections of a service with commit mode `pr` (docs/commit-modes.md): the primary's output bypasses the wire. The log has copies without
//! payload, and a copy can be lost. So the log knows only a lower bound of what the primary has sent, acknowledged and offered. The client's
//! acknowledgements are certain. The bytes are those that this node's own application generates.

use super::{Connection, Endpoint, Takes};
use crate::Offset;
use crate::connection::outlook::SEGMENTS_AT_FIRST;
use crate::follower::Restart;

impl Connection {
    /// Sets that the primary's output bypasses the wire. Call this before any segment is handled.
    pub(crate) fn set_sends_directly(&mut self) {
        self.sends_directly = true;
        self.follower.expect_no_output();
    }

    /// Notes that the primary has sent all output up to `end`: TCP sends in order. Returns false if the log has the output's bytes.
    pub(super) fn note_sent(&mut self, end: Offset) -> bool {
        if !self.sends_directly {
            return false;
        }
        let frontier = self.output.frontier();
        if end > frontier {
            self.output.pass(frontier..end);
        }
        let sent = self.output.frontier();
        self.follower.on_sent(sent, None);
        true
    }

    /// Forgets the regenerated output that the client has acknowledged, unless the client's socket may have been made already.
    pub(super) fn forget_regenerated(&mut self) {
        if self.sends_directly && self.takes == Takes::All {
            let acknowledged = self.client.acknowledged.min(self.output.frontier());
            self.follower.on_sent(self.output.frontier(), Some(acknowledged));
        }
    }

    /// The greatest acknowledgement that the primary may take: all that was sent, the FIN included. A lost copy may have sent more, at most
    /// up to the client's window.
    pub(super) fn sent_max(&self) -> Offset {
        let sent = self.output.end() + u64::from(self.output.fin().is_some());
        if !self.sends_directly || self.output.fin().is_some() {
            return sent;
        }
        sent.max(self.client.acknowledged + u64::from(self.client.window_max))
    }

    /// The furthest edge of the windows that the server may have offered. A lost copy may have offered more than the log knows. Input beyond
    /// the known edge is kept: until the primary has acknowledged it, it is a candidate only.
    pub(super) fn right_edge_max(&self) -> Offset {
        let lost = u64::from(self.server.window_max) * u64::from(self.sends_directly);
        self.server.right_edge + lost
    }

    /// How the application's side continues with the socket that was made from `endpoint`.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn restart_on(&self, endpoint: &Endpoint) -> Result<Restart, String> {
        if self.sends_directly {
            return self.follower.restart_unseen(endpoint.unacknowledged.end);
        }
        self.follower.restart()
    }

    /// Number of bytes of regenerated output that the client's socket must take as already sent, because the client may have them. The
    /// socket ignores an acknowledgement of bytes that it has not sent. Zero if the socket sends all these bytes before any acknowledgement
    /// can come.
    pub fn sent_before(&self, endpoint: &Endpoint) -> u64 {
        if !self.sends_directly {
            return 0;
        }
        let sent = self.output.frontier().since(endpoint.unacknowledged.end);
        let mss = u64::from(endpoint.mss);
        // One MSS is added, because the socket holds back a segment that does not fit the rest of the window.
        if sent + mss <= (SEGMENTS_AT_FIRST * mss).min(endpoint.send_window.into()) {
            return 0;
        }
        sent
    }
}

#[cfg(test)]
mod tests;
