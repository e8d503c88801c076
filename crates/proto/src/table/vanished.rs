//! Connections that end without a packet: a client disappears, its server gives up, and no kernel sends anything. So the wire asks at
//! intervals whether the primary's kernel still has the connections that have been silent for a long time.

use std::net::SocketAddr;
use std::time::Duration;

use super::Table;
use crate::Instant;
use crate::census::QUESTION_MAX;
use crate::connection::Connection;

/// Silence after which a connection may be gone. A server that has closed keeps its half (FIN-WAIT-2) for at most this long.
pub(super) const SILENT: Duration = Duration::from_secs(60);
/// Time between two questions. Ten thousand silent connections are all asked about within some five minutes.
const EVERY: Duration = Duration::from_secs(1);
/// Number of slots that are looked at for one question.
const LOOKED_AT_MAX: usize = 4096;

impl Table {
    /// The restored socket that had this client's last connection is gone, so no socket answers this client.
    pub(crate) fn forget_socket(&mut self, client: SocketAddr) {
        self.ended.forget_socket(client);
    }

    /// The clients whose connections may be gone, if it is time to ask.
    pub(super) fn poll_vanished(&mut self, now: Instant) -> Vec<SocketAddr> {
        let places = self.slots.places();
        if now.since(self.round.at) < EVERY || places == 0 {
            return Vec::new();
        }
        self.round.at = now;
        let mut silent = Vec::new();
        for _ in 0..places.min(LOOKED_AT_MAX) {
            if silent.len() == QUESTION_MAX {
                break;
            }
            self.round.slot = (self.round.slot + 1) % places;
            let there = self.slots.at(self.round.slot);
            silent.extend(there.filter(|it| is_silent(it, now)).map(Connection::client));
        }
        silent
    }

    /// The primary, asked at `asked`, has no connection of this client.
    pub(super) fn on_vanished(&mut self, asked: Instant, client: SocketAddr) {
        let id = self.find(client);
        if let Some(id) = id
            && self.get(id).is_some_and(|it| is_silent(it, asked))
        {
            self.discard(id);
        }
    }
}

fn is_silent(connection: &Connection, now: Instant) -> bool {
    now.since(connection.silent_since()) >= SILENT
}
