//! What servers ask each other: a session's state, and to keep snapshots.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use proto::session::certificate::{CertificateKey, SessionId};
use proto::session::frame::{CooperationFrame, SessionBundle};
use tokio::sync::mpsc::{Receiver, channel};

use super::link::{LinkFrame, LinkReader, LinkWriter};
use super::pool::SpareLinks;

/// Time for an answer of another server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Number of messages to another server that wait for their answers.
const UNANSWERED_MAX: usize = 64;
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

    /// Sends `first`, then the messages of the queue until it ends. The answers come in the same order. No message waits for the answer to the
    /// one before: otherwise, snapshots that an application makes faster than one per round trip would come later and later.
    async fn push(
        self,
        first: CooperationFrame,
        queue: &mut Receiver<CooperationFrame>,
        kept: &impl Fn(&CooperationFrame),
    ) -> anyhow::Result<()> {
        let Self {
            mut reader,
            mut writer,
        } = self;
        let (sent, mut unanswered) = channel(UNANSWERED_MAX);
        let write = async move {
            let mut next = Some(first);
            while let Some(message) = next {
                sent.send(message.clone()).await?; // before it is written, because the time for its answer begins now
                writer.write(&LinkFrame::Cooperation(message)).await?;
                next = queue.recv().await;
            }
            anyhow::Ok(())
        };
        let read = async {
            while let Some(message) = unanswered.recv().await {
                let answer = tokio::time::timeout(ANSWER_MAX, reader.read()).await;
                match answer.context("no answer in time")?? {
                    LinkFrame::Cooperation(CooperationFrame::Kept) => kept(&message),
                    LinkFrame::Cooperation(_) => {}
                    LinkFrame::Client(_) | LinkFrame::Server(_) => bail!("not an answer"),
                }
            }
            anyhow::Ok(())
        };
        tokio::try_join!(write, read).map(drop)
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

/// Sends the messages of the queue to another server. `kept` is told which of them the server has confirmed.
pub async fn push_all(
    pool: SpareLinks,
    to: SocketAddr,
    key: CertificateKey,
    mut queue: Receiver<CooperationFrame>,
    kept: impl Fn(&CooperationFrame),
) {
    while let Some(first) = queue.recv().await {
        let pushed = match ServerLink::open(&pool, to, &key).await {
            Ok(link) => link.push(first, &mut queue, &kept).await,
            Err(error) => Err(error),
        };
        if let Err(error) = pushed {
            tracing::debug!(server = %to, error = format!("{error:#}"), "snapshots are not pushed"); // later ones replace them
            tokio::time::sleep(PAUSE).await;
        }
    }
}
