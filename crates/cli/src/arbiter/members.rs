//! The members of an etcd cluster, asked one after the other. A member that hangs or is gone uses up only a part of the time limit, so
//! another member can still answer.

use std::cell::{Cell, RefCell};
use std::fs;
use std::time::Duration;

use anyhow::Context;
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config;

/// Time between two rounds through all members.
const PAUSE: Duration = Duration::from_millis(20);

/// The members. The member that answered last is asked first.
pub struct Members {
    endpoints: Vec<String>,
    options: ConnectOptions,
    clients: RefCell<Vec<Option<Client>>>,
    preferred: Cell<usize>,
    /// How long one member may take to answer.
    patience: Duration,
}

impl Members {
    /// Takes the members from `config`, and connects to none of them yet.
    ///
    /// # Errors
    /// If a file with certificates cannot be read.
    pub fn new(config: &config::EtcdSettings) -> anyhow::Result<Self> {
        let count = config.endpoints.len();
        let patience = config.timeout / (u32::try_from(count).expect("few") + 1);
        let mut options = ConnectOptions::new()
            .with_connect_timeout(patience)
            .with_timeout(patience)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = &config.user {
            options = options.with_user(user, password);
        }
        let read =
            |path: &std::path::Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
        if let Some(ca) = &config.ca {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let Some((certificate, key)) = &config.identity {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        Ok(Self {
            endpoints: config.endpoints.clone(),
            options,
            clients: RefCell::new(vec![None; count]),
            preferred: Cell::new(0),
            patience,
        })
    }

    /// Returns the answer of the first member that answers by `deadline`. `request` may be called several times. A request that was not
    /// answered may have been carried out.
    ///
    /// # Errors
    /// The error of the member asked last, with its URL.
    pub async fn ask<T, F>(
        &self,
        deadline: Instant,
        mut request: impl FnMut(Client) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            for turn in 0..self.endpoints.len() {
                let index = (self.preferred.get() + turn) % self.endpoints.len();
                let by = deadline.min(Instant::now() + self.patience);
                let asked = async { request(self.client(index).await?).await };
                let reason = match timeout_at(by, asked).await {
                    Ok(Ok(answer)) => {
                        self.preferred.set(index);
                        return Ok(answer);
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no answer within {:?}", self.patience),
                };
                // The connection may be dead, so the next question opens a new one.
                self.clients.borrow_mut()[index] = None;
                if Instant::now() >= deadline {
                    return Err(format!("{}: {reason}", self.endpoints[index]));
                }
            }
            sleep_until(deadline.min(Instant::now() + PAUSE)).await;
        }
    }

    async fn client(&self, index: usize) -> Result<Client, Error> {
        if let Some(client) = &self.clients.borrow()[index] {
            return Ok(client.clone());
        }
        let endpoint = [self.endpoints[index].as_str()];
        let client = Client::connect(endpoint, Some(self.options.clone())).await?;
        self.clients.borrow_mut()[index] = Some(client.clone());
        Ok(client)
    }
}
