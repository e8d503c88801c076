//! Clients that are slowed: how far each may send.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{ErrorKind, MapCore, MapFlags};
use proto::connection::Cap;

use super::abi::ClientKey;
use super::{Wire, WireError, WireStep};

impl Wire {
    /// From now on the wire reduces the windows that the primary offers this client, so that no window goes beyond `cap`. `None` removes
    /// the cap.
    ///
    /// # Errors
    /// The kernel's error; most likely there are too many slowed clients. Then this client is not slowed.
    pub fn cap_window(&self, index: u16, client: SocketAddr, cap: Option<Cap>) -> Result<(), WireError> {
        let key = ClientKey::new(client, index).to_bytes();
        let (caps, promises) = (self.map("caps"), self.map("promises"));
        let Some(cap) = cap else {
            for map in [caps, promises] {
                match map.delete(&key) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(error).step(|| "forgetting how far a client may send".into());
                    }
                    _ => {}
                }
            }
            return Ok(());
        };
        let pair = |edge: u32, second: u32| [edge.to_ne_bytes(), second.to_ne_bytes()].concat();
        match promises.update(&key, &pair(cap.promised.0, 0), MapFlags::NO_EXIST) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error)
                    .step(|| "telling the wire how far a client was already allowed to send".into());
            }
            _ => {}
        }
        caps.update(&key, &pair(cap.edge.0, cap.shift.into()), MapFlags::ANY)
            .step(|| "telling the wire how far a client may send".into())?;
        self.set_caps(index, true);
        Ok(())
    }

    /// Sets whether the wire looks for caps of this service at all.
    pub fn set_caps(&self, index: u16, any: bool) {
        // SAFETY: within the mapping, aligned; the programs read it as one word.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).caps) };
        word.store(any.into(), Ordering::SeqCst);
    }

    /// Forgets all caps of a dead agent: its successor knows none of the slowed clients.
    pub(super) fn forget_caps(&self) -> Result<(), WireError> {
        for name in ["caps", "promises"] {
            let map = self.map(name);
            let keys: Vec<_> = map.keys().collect();
            for key in keys {
                map.delete(&key)
                    .step(|| "forgetting how far clients may send".into())?;
            }
        }
        Ok(())
    }
}
