//! Limits the windows of clients whose logs grow.

use super::Node;
use crate::action::{Action, ServiceIndex};
use crate::connection::Word;

impl Node {
    /// Queues the actions that the table wants for clients' windows.
    pub(super) fn tell_wire(&mut self, index: ServiceIndex) {
        let words = &mut self.services[usize::from(index)].table;
        while let Some((client, word)) = words.poll_word() {
            let cap = match word {
                Word::Cap(cap) => Some(cap),
                Word::Forget => None,
                Word::Update(packet) => {
                    self.actions.push_back(Action::Transmit(packet));
                    continue;
                }
            };
            self.actions.push_back(Action::CapWindow {
                service: index,
                client,
                cap,
            });
        }
    }
}
