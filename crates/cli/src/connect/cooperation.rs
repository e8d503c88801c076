//! What servers ask each other: a session's state, and to keep snapshots.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use proto::session::certificate::{CertificateKey, SessionId};
use proto::session::frame::{CooperationFrame, SessionBundle};
use tokio::sync::mpsc::Receiver;

use super::link::{LinkFrame, LinkReader, LinkWriter};
use super::pool::SpareLinks;

/// Time for an answer of another server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause after a failure to reach another server.
const PAUSE: Duration = Duration::from_millis(200);

/// An open link to another server, which has been told who asks.
struct ServerLink {
    reader: LinkReader,
    writer: LinkWriter,
}

impl ServerLink {
    async fn open(pool: &SpareLinks, to: SocketAddr, key: &CertificateKey) -> anyhow::Result<Self> {
        let link = pool.take(to).await?;
        let proof = key.server_proof(&link.challenge);
        let (reader, mut writer) = link.split();
        let hello = LinkFrame::Cooperation(CooperationFrame::Hello(proof));
        writer.write(&hello).await?;
        Ok(Self { reader, writer })
    }

    async fn ask(&mut self, question: CooperationFrame) -> anyhow::Result<CooperationFrame> {
        let exchange = async {
            self.writer.write(&LinkFrame::Cooperation(question)).await?;
            match self.reader.read().await? {
                LinkFrame::Cooperation(answer) => Ok(answer),
                LinkFrame::Client(_) | LinkFrame::Server(_) => bail!("not an answer"),
            }
        };
        tokio::time::timeout(ANSWER_MAX, exchange)
            .await
            .context("no answer in time")?
    }
}

/// Fetches a session's state from its owner.
///
/// # Errors
/// If the owner does not answer, or refuses.
pub async fn fetch(
    pool: &SpareLinks,
    owner: SocketAddr,
    key: &CertificateKey,
    session: SessionId,
    epoch: u64,
) -> anyhow::Result<SessionBundle> {
    let mut link = ServerLink::open(pool, owner, key).await?;
    match link.ask(CooperationFrame::Fetch(session, epoch)).await? {
        CooperationFrame::Bundle(Ok(bundle)) => Ok(*bundle),
        CooperationFrame::Bundle(Err(why)) => Err(anyhow!(why)),
        _ => bail!("not an answer to a fetch"),
    }
}

/// Sends the messages of the queue to another server, one after another. `kept` is told which of them the server has confirmed.
pub async fn push_all(
    pool: SpareLinks,
    to: SocketAddr,
    key: CertificateKey,
    mut queue: Receiver<CooperationFrame>,
    kept: impl Fn(&CooperationFrame),
) {
    let mut link = None;
    while let Some(message) = queue.recv().await {
        if link.is_none() {
            match ServerLink::open(&pool, to, &key).await {
                Ok(open) => link = Some(open),
                Err(error) => {
                    tracing::debug!(server = %to, error = format!("{error:#}"), "a snapshot is not pushed");
                    tokio::time::sleep(PAUSE).await;
                    continue; // a later snapshot replaces this one
                }
            }
        }
        let Some(open) = &mut link else { continue };
        match open.ask(message.clone()).await {
            Ok(CooperationFrame::Kept) => kept(&message),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(server = %to, error = format!("{error:#}"), "the link for snapshots is lost");
                link = None;
            }
        }
    }
}
