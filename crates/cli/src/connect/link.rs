//! Links: TCP connections between a proxy and a server, or between two servers, with messages that may be sealed.
//!
//! ```text
//!  record   length u16 │ sealed: place u8, part of a message       a message is one record or several
//!  set-up   caller ── psk, e ──▶ server,  server ── e, ee, challenge ──▶ caller         without a key, only the challenge
//! ```
//!
//! Pings and pongs go between the records of a long message. Behind a state of 16 MiB, they would come too late for the owner's lease on a
//! slow path.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::session::certificate::Challenge;
use proto::session::frame::{ClientFrame, CooperationFrame, ServerFrame};
use serde::{Deserialize, Serialize};
use snow::{Builder, StatelessTransportState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Noise pattern and cryptographic primitives.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Prologue of the handshake. The handshake fails if the ends' prologues differ.
const PROLOGUE: &[u8] = b"steadfast connect 3";
/// Bytes of a message in one record.
const PART: usize = 60_000;
/// Bytes of a record's authentication tag.
const TAG: usize = 16;
/// Maximum number of bytes of a message: a state and an in-log of 16 MiB each, and what goes with them.
const MESSAGE_MAX: usize = 40 << 20;
/// Time for connecting and for the handshake.
const SET_UP_MAX: Duration = Duration::from_secs(2);

/// Place of a record: the last one of its message, another one, or a whole message between the records of another message.
const LAST: u8 = 0;
const MORE: u8 = 1;
const BETWEEN: u8 = 2;

/// The key that seals links.
pub type LinkKey = [u8; 32];

/// A message on a link.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFrame {
    /// From a proxy to a server.
    Client(ClientFrame),
    /// From a server to a proxy.
    Server(ServerFrame),
    /// Between two servers.
    Cooperation(CooperationFrame),
}

impl LinkFrame {
    /// Whether the message keeps a lease alive, so it does not wait behind others.
    pub const fn is_urgent(&self) -> bool {
        matches!(
            self,
            Self::Client(ClientFrame::Pong(_)) | Self::Server(ServerFrame::Ping(_))
        )
    }
}

/// A link whose handshake is done.
pub struct OpenLink {
    stream: TcpStream,
    seal: Option<Rc<StatelessTransportState>>,
    /// What the server has drawn for this link.
    pub challenge: Challenge,
}

/// The receiving half of a link.
pub struct LinkReader {
    half: OwnedReadHalf,
    seal: Option<Rc<StatelessTransportState>>,
    count: u64,
    /// The message whose records arrive.
    message: Vec<u8>,
}

/// The sending half of a link.
pub struct LinkWriter {
    half: OwnedWriteHalf,
    seal: Option<Rc<StatelessTransportState>>,
    count: u64,
}

impl OpenLink {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the server does not answer in time, or does not speak the protocol with this key.
    pub async fn call(to: SocketAddr, key: Option<&LinkKey>) -> anyhow::Result<Self> {
        let set_up = async {
            let mut stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            let Some(key) = key else {
                let challenge = read_record(&mut stream).await?;
                let challenge = challenge.try_into().ok().context("no challenge")?;
                return Ok(Self {
                    stream,
                    seal: None,
                    challenge,
                });
            };
            let builder = Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(PROLOGUE)?;
            let mut handshake = builder.build_initiator()?;
            let mut message = vec![0; 128];
            let length = handshake.write_message(&[], &mut message)?;
            write_record(&mut stream, &message[..length]).await?;
            let answer = read_record(&mut stream).await?;
            let mut challenge = vec![0; answer.len()];
            let length = handshake.read_message(&answer, &mut challenge);
            challenge.truncate(length.context("the server does not have this key")?);
            Ok(Self {
                stream,
                seal: Some(Rc::new(handshake.into_stateless_transport_mode()?)),
                challenge: challenge.try_into().ok().context("no challenge")?,
            })
        };
        tokio::time::timeout(SET_UP_MAX, set_up)
            .await
            .context("no answer in time")?
    }

    /// Answers a caller with this challenge.
    ///
    /// # Errors
    /// If the caller does not speak the protocol with this key.
    pub async fn answer(
        mut stream: TcpStream,
        key: Option<&LinkKey>,
        challenge: Challenge,
    ) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        let set_up = async {
            let Some(key) = key else {
                write_record(&mut stream, &challenge).await?;
                return Ok(None);
            };
            let builder = Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(PROLOGUE)?;
            let mut handshake = builder.build_responder()?;
            let call = read_record(&mut stream).await?;
            let mut nothing = [0; 64];
            let read = handshake.read_message(&call, &mut nothing);
            read.context("the caller does not have this server's key")?;
            let mut message = vec![0; 128];
            let length = handshake.write_message(&challenge, &mut message)?;
            write_record(&mut stream, &message[..length]).await?;
            anyhow::Ok(Some(Rc::new(handshake.into_stateless_transport_mode()?)))
        };
        let seal = tokio::time::timeout(SET_UP_MAX, set_up)
            .await
            .context("no handshake in time")??;
        Ok(Self {
            stream,
            seal,
            challenge,
        })
    }

    /// Whether the server has kept the link open, and has said nothing.
    pub fn is_alive(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The two halves. The kernel takes no more bytes than it can send soon, because urgent messages would wait behind them.
    pub fn split(self) -> (LinkReader, LinkWriter) {
        if let Err(error) = linux::application::bound_unsent(&self.stream) {
            tracing::warn!(%error, "a link's buffer is not bounded");
        }
        let (reading, writing) = self.stream.into_split();
        let reader = LinkReader {
            half: reading,
            seal: self.seal.clone(),
            count: 0,
            message: Vec::new(),
        };
        let writer = LinkWriter {
            half: writing,
            seal: self.seal,
            count: 0,
        };
        (reader, writer)
    }
}

impl LinkReader {
    /// The next message.
    ///
    /// # Errors
    /// If the link has ended, or the peer breaks the protocol.
    pub async fn read(&mut self) -> anyhow::Result<LinkFrame> {
        loop {
            let record = read_record(&mut self.half).await?;
            let record = match &self.seal {
                None => record,
                Some(seal) => {
                    let mut opened = vec![0; record.len()];
                    let length = seal.read_message(self.count, &record, &mut opened)?;
                    self.count += 1;
                    opened.truncate(length);
                    opened
                }
            };
            let (place, part) = record.split_first().context("an empty record")?;
            if *place == BETWEEN {
                return decode(part);
            }
            if ![LAST, MORE].contains(place) {
                bail!("a record with the unknown place {place}");
            }
            if self.message.len() + part.len() > MESSAGE_MAX {
                bail!("a message of more than {MESSAGE_MAX} bytes");
            }
            self.message.extend_from_slice(part);
            if *place == LAST {
                return decode(&std::mem::take(&mut self.message));
            }
        }
    }
}

impl LinkWriter {
    /// Sends a message.
    ///
    /// # Errors
    /// If the link has ended.
    pub async fn write(&mut self, frame: &LinkFrame) -> anyhow::Result<()> {
        self.write_with(frame, || None).await
    }

    /// Sends a message, and between its records the urgent ones that come meanwhile.
    ///
    /// # Errors
    /// If the link has ended.
    pub async fn write_with(
        &mut self,
        frame: &LinkFrame,
        mut urgent: impl FnMut() -> Option<LinkFrame>,
    ) -> anyhow::Result<()> {
        let message = postcard::to_stdvec(frame)?;
        let mut parts = message.chunks(PART).peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            self.write_record(if is_last { LAST } else { MORE }, part).await?;
            while let Some(frame) = urgent() {
                self.write_record(BETWEEN, &postcard::to_stdvec(&frame)?).await?;
            }
        }
        Ok(())
    }

    async fn write_record(&mut self, place: u8, part: &[u8]) -> anyhow::Result<()> {
        let mut record = Vec::with_capacity(part.len() + 1);
        record.push(place);
        record.extend_from_slice(part);
        if let Some(seal) = &self.seal {
            let mut sealed = vec![0; record.len() + TAG];
            let length = seal.write_message(self.count, &record, &mut sealed)?;
            self.count += 1;
            sealed.truncate(length);
            record = sealed;
        }
        write_record(&mut self.half, &record).await
    }

    /// The link's socket, for its counters.
    pub fn stream(&self) -> &TcpStream {
        self.half.as_ref()
    }
}

fn decode(message: &[u8]) -> anyhow::Result<LinkFrame> {
    let (frame, rest) = postcard::take_from_bytes(message)?;
    if !rest.is_empty() {
        bail!("{} bytes behind a message", rest.len());
    }
    Ok(frame)
}

async fn read_record(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> anyhow::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut record = vec![0; usize::from(length)];
    stream.read_exact(&mut record).await?;
    Ok(record)
}

async fn write_record(
    stream: &mut (impl tokio::io::AsyncWrite + Unpin),
    record: &[u8],
) -> anyhow::Result<()> {
    let mut wire = u16::try_from(record.len())?.to_be_bytes().to_vec();
    wire.extend_from_slice(record);
    Ok(stream.write_all(&wire).await?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proto::Offset;

    use super::*;

    async fn pair(keys: [Option<LinkKey>; 2]) -> anyhow::Result<(OpenLink, OpenLink)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let to = listener.local_addr()?;
        let answer = async {
            let (stream, _) = listener.accept().await?;
            OpenLink::answer(stream, keys[1].as_ref(), [7; 32]).await
        };
        tokio::try_join!(OpenLink::call(to, keys[0].as_ref()), answer)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn messages_of_all_sizes_arrive() {
        for key in [None, Some([1; 32])] {
            run(async move {
                let (caller, server) = pair([key, key]).await.unwrap();
                assert_eq!((caller.challenge, server.challenge), ([7; 32], [7; 32]));
                assert!(caller.is_alive());
                let ((_, mut writer), (mut reader, _)) = (caller.split(), server.split());
                for length in [0, 1, PART - 20, PART, 3 * PART] {
                    let data = ClientFrame::Data {
                        at: Offset(9),
                        bytes: vec![5; length],
                    };
                    let frame = LinkFrame::Client(data);
                    let (sent, got) = tokio::join!(writer.write(&frame), reader.read());
                    sent.unwrap();
                    assert_eq!(got.unwrap(), frame);
                }
                drop(writer);
                assert!(reader.read().await.is_err());
            });
        }
    }

    #[test]
    fn an_urgent_message_does_not_wait_behind_a_long_one() {
        run(async {
            let (caller, server) = pair([Some([1; 32]); 2]).await.unwrap();
            let ((_, mut writer), (mut reader, _)) = (caller.split(), server.split());
            let bytes = vec![5; 20 << 20];
            let long = LinkFrame::Server(ServerFrame::Data { at: Offset(9), bytes });
            let ping = LinkFrame::Server(ServerFrame::Ping(1));
            assert!(ping.is_urgent() && !long.is_urgent());
            let (asked, has_come) = (Cell::new(false), Cell::new(false));
            let write = writer.write_with(&long, || {
                (asked.get() && !has_come.replace(true)).then_some(LinkFrame::Server(ServerFrame::Ping(1)))
            });
            let read = async {
                // The kernel's buffers are full. Nothing of the long message was read yet.
                tokio::time::sleep(Duration::from_millis(50)).await;
                asked.set(true);
                [reader.read().await.unwrap(), reader.read().await.unwrap()]
            };
            let (written, [first, second]) = tokio::join!(write, read);
            written.unwrap();
            assert!(first == ping, "the ping comes first");
            assert!(second == long, "the long message is whole");
        });
    }

    #[test]
    fn another_key_makes_no_link() {
        run(async {
            assert!(pair([Some([1; 32]), Some([2; 32])]).await.is_err());
        });
    }

    #[test]
    fn a_closed_spare_link_is_noticed() {
        run(async {
            let (caller, server) = pair([None, None]).await.unwrap();
            drop(server);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = caller.stream.readable().await;
            assert!(!caller.is_alive());
        });
    }

    /// A fuzz target (docs/fuzzing.md).
    #[test]
    fn a_message_is_read_or_refused() {
        fuzz::target!("session_frames", |input| {
            if let Ok(frame) = decode(input) {
                let said = postcard::to_stdvec(&frame).expect("what was read can be told");
                assert_eq!(decode(&said).expect("it can be read again"), frame);
            }
        });
    }
}
