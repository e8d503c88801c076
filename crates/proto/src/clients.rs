//! Tables by client address. Clients choose their addresses; a seed keeps them from choosing addresses that collide.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use rustc_hash::FxSeededState;

/// A hash table by client address.
pub(crate) type ClientMap<T> = HashMap<SocketAddr, T, FxSeededState>;

/// An empty hash table. `seed` makes the hash unpredictable.
pub(crate) fn client_map<T>(seed: usize) -> ClientMap<T> {
    ClientMap::with_hasher(FxSeededState::with_seed(seed))
}

/// A bounded memory of clients: the client that was entered first is forgotten first.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    by_client: ClientMap<(u64, T)>,
    /// Clients with the numbers of their entries. A removed entry stays here for a while.
    order: VecDeque<(SocketAddr, u64)>,
    entered: u64,
    max: usize,
}

impl<T> Recent<T> {
    /// An empty memory for at most `max` clients.
    pub(crate) fn new(max: usize, seed: usize) -> Self {
        Self {
            by_client: client_map(seed),
            order: VecDeque::new(),
            entered: 0,
            max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_client.len()
    }

    pub(crate) fn contains(&self, client: SocketAddr) -> bool {
        self.by_client.contains_key(&client)
    }

    pub(crate) fn get(&self, client: SocketAddr) -> Option<&T> {
        self.by_client.get(&client).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, client: SocketAddr) -> Option<&mut T> {
        self.by_client.get_mut(&client).map(|(_, value)| value)
    }

    /// Enters a client, replacing its earlier value. Returns that value, or the value that was forgotten to make room.
    pub(crate) fn insert(&mut self, client: SocketAddr, value: T) -> Option<T> {
        let before = self.remove(client);
        let forgotten = (self.len() >= self.max).then(|| self.pop_first()).flatten();
        self.entered += 1;
        self.order.push_back((client, self.entered));
        self.by_client.insert(client, (self.entered, value));
        if self.order.len() > 2 * self.max {
            let by_client = &self.by_client;
            self.order
                .retain(|(client, number)| by_client.get(client).is_some_and(|(entry, _)| entry == number));
        }
        before.or(forgotten.map(|(_, value)| value))
    }

    pub(crate) fn remove(&mut self, client: SocketAddr) -> Option<T> {
        self.by_client.remove(&client).map(|(_, value)| value)
    }

    /// Removes the client that was entered first.
    pub(crate) fn pop_first(&mut self) -> Option<(SocketAddr, T)> {
        loop {
            let (client, number) = self.order.pop_front()?;
            let is_there = self
                .by_client
                .get(&client)
                .is_some_and(|(entry, _)| *entry == number);
            if is_there {
                return self.remove(client).map(|value| (client, value));
            }
        }
    }

    /// All clients, in the order in which they were entered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SocketAddr, &T)> {
        (0..self.order.len()).filter_map(|place| self.at(place))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.by_client.values_mut().map(|(_, value)| value)
    }

    /// Number of places in the order. Some of them are empty.
    pub(crate) fn places(&self) -> usize {
        self.order.len()
    }

    /// The client at this place. `None` if the place is empty.
    pub(crate) fn at(&self, place: usize) -> Option<(SocketAddr, &T)> {
        let (client, number) = self.order.get(place)?;
        let (entry, value) = self.by_client.get(client)?;
        (entry == number).then_some((*client, value))
    }

    pub(crate) fn clear(&mut self) {
        self.by_client.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u16) -> SocketAddr {
        ([10, 0, 0, 1], number).into()
    }

    #[test]
    fn the_first_is_forgotten_first_and_who_is_entered_anew_is_the_last() {
        let mut recent = Recent::new(2, 1);
        assert_eq!(recent.insert(client(1), 'a'), None);
        assert_eq!(recent.insert(client(2), 'b'), None);
        assert_eq!(recent.insert(client(1), 'c'), Some('a'));
        assert_eq!(recent.insert(client(3), 'd'), Some('b'));
        assert_eq!((recent.get(client(2)), recent.len()), (None, 2));
        assert_eq!(recent.pop_first(), Some((client(1), 'c')));
        assert_eq!(recent.pop_first(), Some((client(3), 'd')));
        assert_eq!(recent.pop_first(), None);
    }

    #[test]
    fn what_was_removed_costs_nothing_for_ever() {
        let mut recent = Recent::new(4, 1);
        for _ in 0..100 {
            recent.insert(client(1), ());
            recent.remove(client(1));
        }
        assert!(recent.order.len() <= 8, "{}", recent.order.len());
        recent.insert(client(2), ());
        assert_eq!(recent.pop_first(), Some((client(2), ())));
    }
}
