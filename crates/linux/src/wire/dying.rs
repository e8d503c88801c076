//! Connections whose process died on this node (the map `dying`). The map keeps a connection until the client opens a new connection from
//! the same port, or until the agent forgets the connection. The map is in the kernel, so its content survives the agent.

use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi::ClientKey;
use super::{Wire, WireError, WireStep};

/// Hides the ends of single connections from their clients, as the program `death` does for those of dead processes.
pub struct HiddenEnds(MapHandle);

impl HiddenEnds {
    /// From now on the client does not hear that its connection ends. If the kernel refuses, it hears it.
    pub fn hide(&self, index: u16, client: SocketAddr) {
        let value = u32::from(index).to_ne_bytes();
        let _ = self
            .0
            .update(&ClientKey::new(client, index).to_bytes(), &value, MapFlags::ANY);
    }

    /// The client hears again that its connection ends.
    pub fn show(&self, index: u16, client: SocketAddr) {
        let _ = self.0.delete(&ClientKey::new(client, index).to_bytes()); // fails if it is gone already
    }
}

impl Wire {
    /// For a thread that may close the last descriptor of a connection.
    pub fn hidden_ends(&self) -> HiddenEnds {
        HiddenEnds(self.map("dying"))
    }

    /// The clients of a service that have a connection in the map `dying`.
    pub fn dying(&self, index: u16) -> Vec<SocketAddr> {
        self.clients_in("dying", index)
    }

    /// Forgets these clients. Call this after their connections were continued, or when the connections cannot be continued any more.
    /// Afterwards, RSTs to these clients may leave again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn forget_dying(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        self.delete_clients("dying", index, clients)
    }

    /// The clients of a service in a map whose keys are clients.
    pub(super) fn clients_in(&self, map: &str, index: u16) -> Vec<SocketAddr> {
        let of_service = |key: &Vec<u8>| key.ends_with(&index.to_ne_bytes());
        let map = self.map(map);
        let keys = map.keys().filter(of_service);
        keys.filter_map(|key| ClientKey::client(&key)).collect()
    }

    pub(super) fn delete_clients(
        &self,
        map: &str,
        index: u16,
        clients: &[SocketAddr],
    ) -> Result<(), WireError> {
        let mut clients = clients.iter();
        clients.try_for_each(|&client| self.delete_key(map, &ClientKey::new(client, index).to_bytes()))
    }

    /// Deletes a key. It is no error if the key is gone already.
    pub(super) fn delete_key(&self, map: &str, key: &[u8]) -> Result<(), WireError> {
        match self.map(map).delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(error).step(|| format!("deleting a client from the map {map}"))
            }
            _ => Ok(()),
        }
    }
}
