//! Spare links: one to each server that may be needed, so that a move does not wait for a handshake.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use super::link::{LinkKey, OpenLink};

/// The spare links of a proxy or a server.
#[derive(Clone)]
pub struct SpareLinks {
    key: Option<LinkKey>,
    spares: Rc<RefCell<BTreeMap<SocketAddr, OpenLink>>>,
}

impl SpareLinks {
    /// No spare links.
    pub fn new(key: Option<LinkKey>) -> Self {
        Self {
            key,
            spares: Rc::default(),
        }
    }

    /// A link to this server: the spare one, or a new one. A new spare link is opened in the background.
    ///
    /// # Errors
    /// If there is no spare link and the server does not answer.
    pub async fn take(&self, to: SocketAddr) -> anyhow::Result<OpenLink> {
        let spare = self.spares.borrow_mut().remove(&to).filter(OpenLink::is_alive);
        let link = match spare {
            Some(link) => link,
            None => OpenLink::call(to, self.key.as_ref()).await?,
        };
        self.fill(to);
        Ok(link)
    }

    /// Opens a spare link to this server, if there is none.
    pub fn fill(&self, to: SocketAddr) {
        if self.spares.borrow().get(&to).is_some_and(OpenLink::is_alive) {
            return;
        }
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            match OpenLink::call(to, pool.key.as_ref()).await {
                Ok(link) => drop(pool.spares.borrow_mut().insert(to, link)),
                Err(error) => {
                    tracing::debug!(server = %to, error = format!("{error:#}"), "no spare link; the next move waits for a handshake");
                }
            }
        });
    }
}
