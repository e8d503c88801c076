//! The judge's rule "one voice": only one node at a time speaks to a client. The judge also notes two things here: the segments that a node
//! sent by its lease and that the other node does not know, and the times at which two nodes may have spoken.

use std::net::SocketAddr;

use proto::Instant;

use super::judge::{Judge, WatchedConnection};
use super::ledger::PacketSpeaker;

impl Judge {
    /// The gate of a node has changed. `alone_in`: the epoch in which the gate lets the node speak alone, if it does.
    pub(super) fn on_gate(&mut self, node: usize, alone_in: Option<u64>) {
        let other = 1 - node;
        if alone_in.is_some() && alone_in != self.alone_now[node] {
            let is_second = self.alone_now[other].is_some() || self.began[other] >= alone_in;
            self.splits.extend(is_second.then_some(self.now));
            self.began[node] = self.began[node].max(alone_in);
            self.flows.values_mut().for_each(WatchedConnection::look_for_hole);
        }
        self.alone_now[node] = alone_in;
    }

    /// A node was given this epoch: it may speak alone without a time limit. This node does not know
    /// the segments that the other node has sent by a lease, in this epoch or an earlier one.
    pub(super) fn on_given(&mut self, node: usize, epoch: u64) {
        self.given.insert((epoch, node));
        self.given_now[node] = self.given_now[node].max(Some(epoch));
        for flow in self.flows.values_mut() {
            match flow.lent {
                Some((lent, who)) if who == node && lent <= epoch => flow.lent = None,
                Some((lent, _)) if lent <= epoch => flow.lose_lent(),
                _ => {}
            }
        }
    }

    /// A node says something to a client.
    pub(super) fn on_voice(&mut self, client: SocketAddr, voice: PacketSpeaker) {
        let PacketSpeaker {
            node,
            epoch,
            is_alone,
            is_lent,
            is_outlasted,
        } = voice;
        let is_behind = self
            .given
            .iter()
            .any(|&(later, who)| who != node && later > epoch);
        self.splits.extend(is_behind.then_some(self.now));
        let before = self.alone;
        // The lease must be over before the other node is given the epoch, even if the other node has said nothing yet.
        let is_late = before.is_some_and(|(latest, who)| who != node && epoch <= latest)
            || is_lent && self.given_now[1 - node] >= Some(epoch);
        if is_late && is_outlasted {
            if let Some(flow) = self.flows.get_mut(&client) {
                flow.was_outlasted = true;
            }
            return;
        }
        if is_late {
            self.two_voices(client, &format!("{voice:?} after {before:?}"));
            return;
        }
        if is_alone && !is_lent {
            self.alone = self.alone.max(Some((epoch, node)));
        }
        if self.is_off[node] {
            return; // the packet is late: the node has lost its power, and its words are forgotten
        }
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        if flow.lent.is_some_and(|(lent, who)| who != node && lent <= epoch) {
            flow.lose_lent();
        }
        if is_alone && is_lent {
            flow.lent = Some((epoch, node));
        }
        let last = flow.voice.replace(voice);
        match last {
            Some(last) if last.node != node && last.epoch == epoch => {
                if flow.silenced == Some(node) {
                    self.two_voices(client, &format!("{voice:?} after {last:?}"));
                } else {
                    flow.silenced = Some(last.node);
                }
            }
            Some(last) if last.epoch > epoch && last.node != node => {
                self.two_voices(client, &format!("{voice:?} after {last:?}"));
            }
            Some(last) if last.epoch != epoch => flow.silenced = None,
            _ => {}
        }
    }

    pub(super) fn two_voices(&mut self, client: SocketAddr, what: &str) {
        self.splits.push(self.now);
        self.record(client, &format!("one voice: {what}"));
    }

    /// The times at which two nodes may have spoken:
    /// * A node got the right to speak alone, although the other node had this right at that time, or had had it in the same epoch or a
    ///   later one.
    /// * A node spoke, although the other node had been given a later epoch.
    /// * The rule "one voice" was broken in another way.
    /// * A node that had spoken alone lost its power, and the other node had connections then.
    pub fn splits(&self) -> &[Instant] {
        &self.splits
    }

    /// Whether the words that a node said to this client by its lease are lost: the other node does not know them. The
    /// words are saved only if an arbiter gives the node the lease's epoch in time: before the node loses its power, and
    /// before the other node continues.
    pub fn was_lent_in_vain(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.was_lent_in_vain)
    }

    /// Whether a node spoke to this client after its lease was over, because the node's clock had stood still (docs/roles.md, *A clock that
    /// stands still*).
    pub fn was_outlasted(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.was_outlasted)
    }
}
