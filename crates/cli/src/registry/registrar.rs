//! An annex's key in etcd: the annex stores it under an etcd lease, keeps the lease alive, and removes the key when it stops.
//!
//! ```text
//!  Seeking ── no key, or its own address is in it ──▶ Registered ── another process has stored its entry ──▶ Ousted
//!     │                                                   │
//!     └── the key names another address: Taken            └── the key has gone: stores it again
//! ```
//!
//! The address tells an annex that was started again, which takes its key back, from another annex with the same name, which must not.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use etcd_client::{Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp};
use tokio::sync::oneshot;

use super::entry::{AnnexEntry, ReadEntry, directory};
use crate::arbiter::members::Members;
use crate::config::{AnnexFile, EtcdSettings, RegistrySettings};
use crate::control::RegistrationStatus;

/// TTL of the etcd lease of an annex's key, in seconds. After this time without a renewal, the key is gone.
const LEASE_SECONDS: i64 = 10;
/// Time between two renewals.
const RHYTHM: Duration = Duration::from_secs(3);

/// The value at the annex's key, and who has stored it.
#[derive(Debug, PartialEq, Eq)]
struct StoredKey {
    /// The address in it, or why there is none.
    address: Result<SocketAddr, String>,
    /// The etcd lease of the process that has stored it.
    lease: i64,
    /// The revision of its last change.
    revision: i64,
}

/// The next step of an annex with its key.
#[derive(Debug, PartialEq, Eq)]
enum KeyStep {
    /// It is in order.
    Keep,
    /// Store the key, if it is still at this revision. 0: if there is no key.
    Store(i64),
    /// Leave the key alone, for this reason.
    Yield(String),
}

/// What the process that has `lease`, and whose address is `own`, does about its key. `has_had`: it has stored the key under this lease or an
/// earlier one.
fn step(stored: Option<&StoredKey>, own: SocketAddr, lease: i64, has_had: bool) -> KeyStep {
    match stored {
        None => KeyStep::Store(0),
        Some(key) if key.lease == lease => KeyStep::Keep,
        Some(StoredKey {
            address, revision, ..
        }) => match address {
            Ok(address) if *address != own => KeyStep::Yield(format!(
                "another annex with this name is registered at {address}; rename one of them"
            )),
            Ok(_) if has_had => KeyStep::Yield(
                "another process with this annex's name and address has stored it; stop one of them"
                    .to_owned(),
            ),
            Ok(_) => KeyStep::Store(*revision),
            Err(fault) => KeyStep::Yield(format!("its value {fault}; correct or delete the key")),
        },
    }
}

/// How the registration stands.
#[derive(Debug, Default)]
struct RegistrationView {
    /// When the key was last known to be in order.
    kept: Option<Instant>,
    /// `None` while the key is in order.
    error: Option<String>,
}

/// An annex's registration. Dropping it removes the key, within a bounded time.
pub struct Registration {
    key: String,
    address: SocketAddr,
    view: Arc<Mutex<RegistrationView>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Registration {
    /// Starts to register. An unreachable etcd is no error; the status shows it.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(registrar: Registrar) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the registry's thread")?;
        let (key, address) = (registrar.key.clone(), registrar.address);
        let view = Arc::clone(&registrar.view);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("registry".into())
            .spawn(move || runtime.block_on(registrar.run(stopped)))?;
        Ok(Self {
            key,
            address,
            view,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Begins to remove the key, so that the pair's nodes learn that no more connections are taken.
    pub fn leave(&mut self) {
        drop(self.stop.take());
    }

    /// For `status`.
    pub fn status(&self) -> RegistrationStatus {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let nanos = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        RegistrationStatus {
            key: self.key.clone(),
            address: self.address,
            is_registered: view.kept.is_some() && view.error.is_none(),
            kept_age_ns: view.kept.map(|at| nanos(at.elapsed())),
            error: view.error.clone(),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.leave();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed
        }
    }
}

/// The thread's work.
pub struct Registrar {
    members: Members,
    key: String,
    address: SocketAddr,
    value: String,
    timeout: Duration,
    view: Arc<Mutex<RegistrationView>>,
    lease: Option<i64>,
    has_had: bool,
}

impl Registrar {
    /// A registrar for the annex with this file, whose `[registry]` is `settings`. Connects to nothing yet.
    ///
    /// # Errors
    /// If certificates cannot be read.
    pub fn new(file: &AnnexFile, settings: &RegistrySettings) -> anyhow::Result<Self> {
        let EtcdSettings { cluster, timeout, .. } = &settings.etcd;
        Ok(Self {
            members: Members::new(&settings.etcd)?,
            key: format!("{}{}", directory(cluster), file.name),
            address: settings.address,
            value: AnnexEntry::of(file, settings.address).sign(&file.key, cluster, &file.name),
            timeout: *timeout,
            view: Arc::default(),
            lease: None,
            has_had: false,
        })
    }

    /// Keeps the key until `stopped`, and removes it.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let outcome = self.renew().await;
            self.note(outcome);
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(RHYTHM) => {}
            }
        }
        let Some(lease) = self.lease else { return };
        // The key goes with the lease, so that another process's key stays.
        let revoke = |mut client: Client| async move { client.lease_revoke(lease).await.map(drop) };
        if let Err(error) = self.members.ask(self.deadline(), revoke).await {
            tracing::warn!(
                key = self.key,
                error,
                "the key is not removed; it disappears with its lease"
            );
        }
    }

    fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.timeout
    }

    fn note(&self, outcome: Result<(), String>) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(()) => {
                if view.kept.is_none() || view.error.is_some() {
                    tracing::info!(key = self.key, address = %self.address, "registered");
                }
                *view = RegistrationView {
                    kept: Some(Instant::now()),
                    error: None,
                };
            }
            Err(error) => {
                if view.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        key = self.key,
                        error,
                        "the annex is not registered; links that are there stay"
                    );
                }
                view.error = Some(error);
            }
        }
    }

    /// Brings the key in order.
    async fn renew(&mut self) -> Result<(), String> {
        let deadline = self.deadline();
        let lease = self.keep_lease(deadline).await?;
        loop {
            let stored = self.read(deadline).await?;
            match step(stored.as_ref(), self.address, lease, self.has_had) {
                KeyStep::Keep => {
                    self.has_had = true;
                    return Ok(());
                }
                KeyStep::Yield(why) => return Err(why),
                KeyStep::Store(revision) => self.store(revision, lease, deadline).await?, // and it is read back
            }
        }
    }

    /// Renews the lease, or takes a new one if it has run out.
    async fn keep_lease(&mut self, deadline: tokio::time::Instant) -> Result<i64, String> {
        if let Some(lease) = self.lease {
            let keep = |mut client: Client| async move {
                match client.lease_keep_alive(lease).await {
                    Ok(_) => Ok(true),
                    Err(Error::LeaseKeepAliveError(_)) => Ok(false), // it has run out
                    Err(error) => Err(error),
                }
            };
            if self.members.ask(deadline, keep).await? {
                return Ok(lease);
            }
        }
        let grant = |mut client: Client| async move { client.lease_grant(LEASE_SECONDS, None).await };
        let lease = self.members.ask(deadline, grant).await?.id();
        self.lease = Some(lease);
        Ok(lease)
    }

    async fn read(&self, deadline: tokio::time::Instant) -> Result<Option<StoredKey>, String> {
        let get = |mut client: Client| {
            let key = self.key.clone();
            async move { client.get(key, None).await }
        };
        let answer = self.members.ask(deadline, get).await?;
        let stored = answer.kvs().first().map(|found| StoredKey {
            address: ReadEntry::parse(found.value()).map(|read| read.entry.address),
            lease: found.lease(),
            revision: found.mod_revision(),
        });
        Ok(stored)
    }

    async fn store(&self, revision: i64, lease: i64, deadline: tokio::time::Instant) -> Result<(), String> {
        let store = |mut client: Client| {
            let unchanged = Compare::mod_revision(self.key.as_str(), CompareOp::Equal, revision);
            let options = PutOptions::new().with_lease(lease);
            let put = TxnOp::put(self.key.as_str(), self.value.clone(), Some(options));
            let transaction = Txn::new().when([unchanged]).and_then([put]);
            async move { client.txn(transaction).await.map(drop) }
        };
        self.members.ask(deadline, store).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annex_takes_its_own_key_back_and_no_other() {
        let own: SocketAddr = "10.0.0.4:7402".parse().unwrap();
        let stored = |address: Result<&str, &str>, lease| StoredKey {
            address: address
                .map(|address| address.parse().unwrap())
                .map_err(str::to_owned),
            lease,
            revision: 8,
        };
        let same = Ok("10.0.0.4:7402");
        let yielded = |step| match step {
            KeyStep::Yield(why) => why,
            KeyStep::Keep | KeyStep::Store(_) => panic!("{step:?}"),
        };
        assert_eq!(step(None, own, 1, false), KeyStep::Store(0));
        assert_eq!(step(None, own, 1, true), KeyStep::Store(0), "it has gone");
        assert_eq!(step(Some(&stored(same, 1)), own, 1, true), KeyStep::Keep);
        let (earlier, other) = (stored(same, 2), stored(Ok("10.0.0.5:7402"), 2));
        assert_eq!(
            step(Some(&earlier), own, 1, false),
            KeyStep::Store(8),
            "its own, before it was started again"
        );
        assert!(yielded(step(Some(&earlier), own, 1, true)).starts_with("another process"));
        for has_had in [false, true] {
            let why = yielded(step(Some(&other), own, 1, has_had));
            assert_eq!(
                why,
                "another annex with this name is registered at 10.0.0.5:7402; rename one of them"
            );
            let why = yielded(step(Some(&stored(Err("is malformed"), 0)), own, 1, has_had));
            assert_eq!(why, "its value is malformed; correct or delete the key");
        }
    }
}
