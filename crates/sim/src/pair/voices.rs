//! The judge's ear: one voice, and what a lease costs.

use std::net::SocketAddr;

use super::books::Voice;
use super::judge::Judge;

impl Judge {
    /// A node may speak alone in this epoch, for good.
    pub(super) fn on_given(&mut self, node: usize, epoch: u64) {
        self.given.insert((epoch, node));
    }

    /// Somebody says something to a client.
    pub(super) fn on_voice(&mut self, client: SocketAddr, voice: Voice) {
        let Voice {
            node,
            epoch,
            is_alone,
            is_lent,
            is_outlasted,
        } = voice;
        self.is_split |= self
            .given
            .iter()
            .any(|&(later, who)| who != node && later > epoch);
        let before = self.alone;
        let is_late = before.is_some_and(|(latest, who)| who != node && epoch <= latest);
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
            return; // late on its way: what it said is forgotten
        }
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
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

    fn two_voices(&mut self, client: SocketAddr, what: &str) {
        self.two_voices += 1;
        self.violation(client, &format!("one voice: {what}"));
    }

    /// Whether a node spoke in an epoch after which the other one had the right to speak alone, though it may not have used that yet.
    pub const fn is_split(&self) -> bool {
        self.is_split
    }

    /// How often two nodes spoke where one may.
    pub const fn voices_too_many(&self) -> u64 {
        self.two_voices
    }

    /// Whether a node spoke to this client by its lease alone, and nobody was ever told that it had the epoch: the other node may go
    /// on without knowing what was said.
    pub fn was_lent_in_vain(&self, client: SocketAddr) -> bool {
        let lent = self.flows.get(&client).and_then(|flow| flow.lent);
        lent.is_some_and(|lent| !self.given.contains(&lent))
    }

    /// Whether a node spoke to this client by a lease that was over, and its clock could not tell (docs/roles.md, *A clock that stands
    /// still*).
    pub fn was_outlasted(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.was_outlasted)
    }

    /// Whether a node that spoke alone lost its power while the other one had connections: what was said is not known there.
    pub const fn has_lost_voice(&self) -> bool {
        self.has_lost_voice
    }
}
