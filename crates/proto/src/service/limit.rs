//! Limits the windows of clients whose logs grow.

use super::Service;
use crate::action::ServiceAction;
use crate::connection::CapChange;

impl Service {
    /// Queues the actions that the table wants for clients' windows.
    pub(super) fn tell_wire(&mut self) {
        let words = &mut self.table;
        while let Some((client, word)) = words.poll_word() {
            let cap = match word {
                CapChange::Cap(cap) => Some(cap),
                CapChange::Forget => None,
                CapChange::Update(packet) => {
                    self.actions.push_back(ServiceAction::Transmit(packet));
                    continue;
                }
            };
            self.actions.push_back(ServiceAction::CapWindow { client, cap });
        }
    }
}
