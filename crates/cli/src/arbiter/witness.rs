//! The witness: an etcd cluster that gives each epoch of a service to one node.
//!
//! ```text
//! /<cluster>/services/<service>   {"epoch", "owner", "at"}               without an etcd lease: a node may speak while etcd is down
//! /<cluster>/nodes/<node>         {"peer", "peer_address", "services"}  with an etcd lease: which nodes are there, for people
//! /<cluster>/annexes/<annex>      which annexes are there (crate::registry)
//! ```
//!
//! A node takes an epoch by compare-and-set in one transaction, so only one node gets it. A node that does not know whether its
//! transaction was carried out reads the stored record before it answers. All of this happens on a thread of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, PutOptions, Txn, TxnOp};
use proto::standing::ArbiterVerdict;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::members::Members;
use super::question::{ArbiterNames, ArbiterOutbox, ArbiterQuestion};
use super::record::{EpochRecord, judge};
use crate::config;
use crate::control::{OwnerStatus, WitnessStatus};

/// TTL of the etcd lease of a node's presence key, in seconds. After this time without a renewal, the node is not shown any more.
const LEASE_SECONDS: i64 = 10;
/// Time between two renewals of this node's presence key, and between two reads of all nodes' keys.
const RHYTHM: Duration = Duration::from_secs(3);

/// A message to the witness's thread.
enum WitnessMessage {
    Ask(ArbiterQuestion),
    Stop,
}

/// The witness, as the agent sees it.
pub struct Witness {
    orders: UnboundedSender<WitnessMessage>,
    view: Arc<Mutex<WitnessView>>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the witness, for `status`.
#[derive(Default)]
struct WitnessView {
    answered: Option<std::time::Instant>,
    /// `None` while the witness answers.
    error: Option<String>,
    owners: BTreeMap<String, OwnerStatus>,
    nodes: Vec<String>,
    annexes: Option<Arc<AnnexEntries>>,
}

/// The values at the keys of annexes.
#[derive(Debug)]
pub struct AnnexEntries {
    /// When it was asked for.
    pub read_at: proto::Instant,
    /// The values, by the annexes' names.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// The value of a node's presence key.
#[derive(Serialize)]
struct NodePresence<'a> {
    /// The other node, and the address at which this node reaches the other node.
    peer: &'a str,
    peer_address: IpAddr,
    services: &'a [String],
}

impl Witness {
    /// Starts the thread. An unreachable etcd is no error; the status shows it.
    ///
    /// # Errors
    /// If certificates cannot be read, or there is no thread.
    pub fn open(
        config: &config::EtcdSettings,
        names: ArbiterNames,
        outbox: ArbiterOutbox,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the witness's thread")?;
        let (orders, received) = unbounded_channel();
        let view = Arc::<Mutex<WitnessView>>::default();
        let cluster = EtcdCluster {
            members: Members::new(config)?,
            prefix: format!("/{}", config.cluster),
            timeout: config.timeout,
            names,
            view: Arc::clone(&view),
        };
        let run = move || {
            let cluster = Rc::new(cluster);
            let local = LocalSet::new();
            runtime.block_on(local.run_until(serve(cluster, outbox, received)));
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(run)?;
        Ok(Self {
            orders,
            view,
            thread: Some(thread),
        })
    }

    /// Asks for an epoch. The answer goes to the outbox.
    pub fn ask(&self, question: ArbiterQuestion) {
        // Cannot fail: the thread lives as long as `self`.
        let _ = self.orders.send(WitnessMessage::Ask(question));
    }

    /// The values at the keys of annexes, as they were last read.
    pub fn annexes(&self) -> Option<Arc<AnnexEntries>> {
        lock(&self.view).annexes.clone()
    }

    /// The state of the witness.
    pub fn status(&self) -> WitnessStatus {
        let view = lock(&self.view);
        let nanos = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        WitnessStatus {
            reachable: view.answered.is_some() && view.error.is_none(),
            answer_age_ns: view.answered.map(|at| nanos(at.elapsed())),
            error: view.error.clone(),
            owners: view.owners.clone(),
            nodes: view.nodes.clone(),
        }
    }
}

impl Drop for Witness {
    /// Removes this node's presence key, within a bounded time.
    fn drop(&mut self) {
        let _ = self.orders.send(WitnessMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed
        }
    }
}

fn lock(view: &Mutex<WitnessView>) -> MutexGuard<'_, WitnessView> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's work: answers questions, several at the same time.
async fn serve(
    cluster: Rc<EtcdCluster>,
    outbox: ArbiterOutbox,
    mut orders: UnboundedReceiver<WitnessMessage>,
) {
    let presence = tokio::task::spawn_local(keep_presence(Rc::clone(&cluster)));
    while let Some(WitnessMessage::Ask(question)) = orders.recv().await {
        let (cluster, outbox) = (Rc::clone(&cluster), outbox.clone());
        tokio::task::spawn_local(async move {
            let verdict = cluster.decide(question).await;
            outbox.tell(question, verdict);
        });
    }
    presence.abort();
    let _ = presence.await; // otherwise the task might store the presence key again after `leave`
    cluster.leave().await;
}

/// The etcd cluster.
struct EtcdCluster {
    members: Members,
    prefix: String,
    timeout: Duration,
    names: ArbiterNames,
    view: Arc<Mutex<WitnessView>>,
}

/// A record in etcd, and the revision of its last change.
struct Stored {
    record: EpochRecord,
    revision: i64,
}

impl EtcdCluster {
    /// The verdict about `question`, within the time that a question may take.
    async fn decide(&self, question: ArbiterQuestion) -> ArbiterVerdict {
        let ArbiterQuestion { service, epoch } = question;
        let service = self.names.services[usize::from(service)].as_str();
        let deadline = Instant::now() + self.timeout;
        match self.take(service, epoch, deadline).await {
            Ok(verdict) => {
                tracing::info!(service, epoch, ?verdict, "the witness answered");
                verdict
            }
            Err(error) => {
                tracing::warn!(service, epoch, error, "the witness gave no answer");
                ArbiterVerdict::Failed
            }
        }
    }

    /// Takes `epoch` if no node has it. The verdict comes only from a stored record that was read back.
    async fn take(&self, service: &str, epoch: u64, deadline: Instant) -> Result<ArbiterVerdict, String> {
        let key = format!("{}/services/{service}", self.prefix);
        let node = self.names.node.as_str();
        loop {
            let stored = self.read(&key, deadline).await?;
            let verdict = stored
                .as_ref()
                .and_then(|stored| judge(&stored.record, node, epoch));
            if let Some(verdict) = verdict {
                return Ok(verdict);
            }
            let revision = stored.map_or(0, |stored| stored.revision);
            let record = EpochRecord {
                epoch,
                owner: node.to_owned(),
                at: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |since| since.as_secs()),
            };
            let value = serde_json::to_vec(&record).expect("a record has a JSON form");
            // Even an answered transaction is read back, so there is only one path to a verdict.
            self.ask(deadline, |mut client| {
                let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
                let put = TxnOp::put(key.as_str(), value.clone(), None);
                let transaction = Txn::new().when([unchanged]).and_then([put]);
                async move { client.txn(transaction).await.map(drop) }
            })
            .await?;
        }
    }

    async fn read(&self, key: &str, deadline: Instant) -> Result<Option<Stored>, String> {
        let answer = self
            .ask(deadline, |mut client| {
                let key = key.to_owned();
                async move { client.get(key, None).await }
            })
            .await?;
        let Some(found) = answer.kvs().first() else {
            return Ok(None);
        };
        let record = serde_json::from_slice(found.value())
            .map_err(|error| format!("{key} has no valid record: {error}; correct or delete the key"))?;
        let revision = found.mod_revision();
        Ok(Some(Stored { record, revision }))
    }

    /// As [`Members::ask`]; records the outcome for `status`.
    async fn ask<T, F>(&self, deadline: Instant, request: impl FnMut(Client) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let outcome = self.members.ask(deadline, request).await;
        let mut view = lock(&self.view);
        match &outcome {
            Ok(_) => {
                if view.error.take().is_some() {
                    tracing::info!("the witness answers again");
                }
                view.answered = Some(std::time::Instant::now());
            }
            Err(error) => {
                if view.error.is_none() {
                    tracing::warn!(
                        error,
                        "the witness does not answer; a node that speaks already goes on"
                    );
                }
                view.error = Some(error.clone());
            }
        }
        outcome
    }

    /// Keeps this node's presence key in etcd. If the key's etcd lease `lease` is still valid, renews the lease. Otherwise takes a new
    /// lease and stores the key under it. Returns the lease.
    async fn appear(&self, lease: Option<i64>) -> Result<i64, String> {
        let deadline = Instant::now() + self.timeout;
        if let Some(lease) = lease {
            let kept = self
                .ask(deadline, |mut client| async move {
                    match client.lease_keep_alive(lease).await {
                        Ok(_) => Ok(true),
                        Err(Error::LeaseKeepAliveError(_)) => Ok(false), // it has run out
                        Err(error) => Err(error),
                    }
                })
                .await?;
            if kept {
                return Ok(lease);
            }
        }
        let key = self.node_key();
        let presence = NodePresence {
            peer: &self.names.peer,
            peer_address: self.names.peer_address,
            services: &self.names.services,
        };
        let value = serde_json::to_vec(&presence).expect("it has a JSON form");
        self.ask(deadline, |mut client| {
            let (key, value) = (key.clone(), value.clone());
            async move {
                let lease = client.lease_grant(LEASE_SECONDS, None).await?.id();
                let options = PutOptions::new().with_lease(lease);
                client.put(key, value, Some(options)).await?;
                Ok(lease)
            }
        })
        .await
    }

    /// Reads what all nodes and annexes have stored.
    async fn look(&self) -> Result<(), String> {
        let read_at = linux::clock::now();
        let deadline = Instant::now() + self.timeout;
        let prefix = format!("{}/", self.prefix);
        let answer = self
            .ask(deadline, |mut client| {
                let prefix = prefix.clone();
                async move { client.get(prefix, Some(GetOptions::new().with_prefix())).await }
            })
            .await?;
        let (mut owners, mut nodes, mut values) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for found in answer.kvs() {
            let key = String::from_utf8_lossy(found.key());
            let Some((kind, name)) = key.strip_prefix(&prefix).and_then(|rest| rest.split_once('/')) else {
                continue;
            };
            match kind {
                "nodes" => nodes.push(name.to_owned()),
                "annexes" => {
                    values.insert(name.to_owned(), found.value().to_vec());
                }
                _ => {
                    if let Ok(EpochRecord { epoch, owner, .. }) = serde_json::from_slice(found.value()) {
                        owners.insert(name.to_owned(), OwnerStatus { epoch, owner });
                    }
                }
            }
        }
        let mut view = lock(&self.view);
        (view.owners, view.nodes) = (owners, nodes);
        view.annexes = Some(Arc::new(AnnexEntries { read_at, values }));
        Ok(())
    }

    /// Removes this node's presence key, if possible.
    async fn leave(&self) {
        let (deadline, key) = (Instant::now() + self.timeout, self.node_key());
        let gone = self.ask(deadline, |mut client| {
            let key = key.clone();
            async move { client.delete(key, None).await }
        });
        let _ = gone.await; // if this fails, the key disappears when its lease expires
    }

    fn node_key(&self) -> String {
        format!("{}/nodes/{}", self.prefix, self.names.node)
    }
}

/// Renews this node's presence key and reads all nodes' keys, every [`RHYTHM`].
async fn keep_presence(cluster: Rc<EtcdCluster>) {
    let mut lease = None;
    loop {
        // `ask` has recorded any failure.
        lease = cluster.appear(lease).await.ok().or(lease);
        let _ = cluster.look().await;
        tokio::time::sleep(RHYTHM).await;
    }
}

/// Asks every member separately. Returns the faults of the members that do not answer.
///
/// # Errors
/// If certificates cannot be read.
pub fn unreachable(config: &config::EtcdSettings) -> anyhow::Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let mut faults = Vec::new();
    for endpoint in &config.endpoints {
        let alone = config::EtcdSettings {
            endpoints: vec![endpoint.clone()],
            ..config.clone()
        };
        let members = Members::new(&alone)?;
        let key = format!("/{}/", config.cluster);
        let answer = runtime.block_on(async {
            let deadline = Instant::now() + config.timeout;
            let look = |mut client: Client| {
                let key = key.clone();
                async move { client.get(key, None).await.map(drop) }
            };
            members.ask(deadline, look).await
        });
        faults.extend(answer.err());
    }
    Ok(faults)
}
