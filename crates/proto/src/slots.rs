//! Where a table's connections stand: a slot each, used again when one is over, under a name that is not.

use crate::connection::Connection;

/// Names a connection, for ever: an action may be carried out when its connection has ended and another one has its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    slot: u32,
    /// How many connections had the slot before.
    generation: u32,
}

#[cfg(test)]
impl ConnectionId {
    /// The first name of a slot.
    pub(crate) const fn first_of(slot: u32) -> Self {
        Self { slot, generation: 0 }
    }
}

/// The slots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// In a place of its own: what it takes is given back with it, and it can be handed on as it is.
    connection: Option<Box<Connection>>,
}

impl Slots {
    /// All of them, in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        (0..).zip(&self.slots).filter_map(|(slot, held)| {
            let generation = held.generation;
            Some((ConnectionId { slot, generation }, held.connection.as_deref()?))
        })
    }

    /// How many slots there are, held or free.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Whoever holds a slot.
    pub(crate) fn at(&self, slot: usize) -> Option<&Connection> {
        self.slots.get(slot)?.connection.as_deref()
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.connection
            .as_deref()
            .filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slot_mut(id)?.connection.as_deref_mut()
    }

    fn slot_mut(&mut self, id: ConnectionId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation).then_some(slot)
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
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

    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let slot = self.slot_mut(id)?;
        let connection = slot.connection.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(connection)
    }
}
