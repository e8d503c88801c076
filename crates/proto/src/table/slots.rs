//! The slots of a table's connections. A slot is reused after its connection ends. A connection's id comes again only after
//! 2³² connections of its slot.

use serde::{Deserialize, Serialize};

/// Identifies a connection. An action may be carried out after its connection has ended and another connection has the slot. So an id is
/// used again only after 2³² connections of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId {
    slot: u32,
    /// Number of connections that had the slot before, modulo 2³².
    generation: u32,
}

#[cfg(test)]
impl ConnectionId {
    /// The first id of a slot.
    pub(crate) const fn first_of(slot: u32) -> Self {
        Self { slot, generation: 0 }
    }
}

/// The slots.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// Boxed, so that the connection's memory is freed with it and the connection can be passed on without a copy.
    connection: Option<Box<T>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// All connections, in a fixed order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, held)| {
            let generation = held.generation;
            Some((ConnectionId { slot, generation }, held.connection.as_deref()?))
        })
    }

    /// Number of slots, held or free.
    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }

    /// The connection that holds this slot.
    pub(super) fn at(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.connection.as_deref()
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&T> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.connection
            .as_deref()
            .filter(|_| slot.generation == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut T> {
        self.slot_mut(id)?.connection.as_deref_mut()
    }

    fn slot_mut(&mut self, id: ConnectionId) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation).then_some(slot)
    }

    pub(super) fn insert(&mut self, connection: T) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                connection: None,
            });
            u32::try_from(self.slots.len() - 1).expect("2³² connections do not fit in memory")
        });
        let held = &mut self.slots[slot as usize];
        held.connection = Some(Box::new(connection));
        ConnectionId {
            slot,
            generation: held.generation,
        }
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Box<T>> {
        let slot = self.slot_mut(id)?;
        let connection = slot.connection.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(connection)
    }
}
