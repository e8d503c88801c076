//! Encrypts an association: after one Noise handshake on stream 0, each message is sealed separately (docs/tunnel.md).
//!
//! ```text
//!   opening end                       serving end
//!      Handshake ── psk, e ──────────▶ Handshake
//!      Ready ◀────────── e, ee ─────── Ready
//! ```

use anyhow::{Context, bail};
use bytes::Bytes;
use proto::tunnel::TunnelRole;
use snow::{Builder, HandshakeState, StatelessTransportState};

/// Noise pattern and cryptographic primitives.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Prologue of the handshake. The handshake fails if the ends' prologues differ.
const PROLOGUE: &[u8] = b"steadfast tunnel 1";
/// Bytes of a message's authentication tag.
const TAG: usize = 16;
/// Bits of the nonce that count the messages of a stream. The other bits are the stream's number.
const COUNT_BITS: u32 = 48;

/// A secret that both ends share.
pub type TunnelKey = [u8; 32];

enum SealState {
    /// There is no key: messages are sent as they are.
    Plain,
    Handshake(Box<HandshakeState>),
    Ready(Box<StatelessTransportState>),
    /// The handshake failed, or a handshake message came at a wrong time.
    Broken,
}

/// Seals and opens the messages of one association.
pub struct Seal {
    state: SealState,
    /// Messages sealed and opened so far, per stream.
    sealed: Vec<u64>,
    opened: Vec<u64>,
}

impl Seal {
    /// Makes the seal of an association with streams 0 to `streams`. The opening end also gets the first message of the handshake, which it
    /// must send.
    ///
    /// # Errors
    /// If `snow` refuses the pattern or the key. Neither is expected.
    pub fn new(
        key: Option<&TunnelKey>,
        role: TunnelRole,
        streams: u16,
    ) -> anyhow::Result<(Self, Option<Vec<u8>>)> {
        let count = usize::from(streams) + 1;
        let mut seal = Self {
            state: SealState::Plain,
            sealed: vec![0; count],
            opened: vec![0; count],
        };
        let Some(key) = key else {
            return Ok((seal, None));
        };
        let builder = Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(PROLOGUE)?;
        let (handshake, first) = match role {
            TunnelRole::Opening => {
                let mut handshake = builder.build_initiator()?;
                let hello = handshake_message(&mut handshake)?;
                (handshake, Some(hello))
            }
            TunnelRole::Serving => (builder.build_responder()?, None),
        };
        seal.state = SealState::Handshake(Box::new(handshake));
        Ok((seal, first))
    }

    /// Whether messages can be sealed and opened.
    pub const fn is_ready(&self) -> bool {
        matches!(self.state, SealState::Plain | SealState::Ready(_))
    }

    /// Handles a message of stream 0. Returns the answer, if there is one.
    ///
    /// # Errors
    /// If the peer does not have the key, or no handshake is under way.
    pub fn handle_handshake(&mut self, message: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let SealState::Handshake(mut handshake) = std::mem::replace(&mut self.state, SealState::Broken)
        else {
            bail!("unexpected handshake message");
        };
        let mut nothing = [0; 64];
        let read = handshake.read_message(message, &mut nothing);
        read.context("the peer does not have this end's key")?;
        let answer = if handshake.is_handshake_finished() {
            None
        } else {
            Some(handshake_message(&mut handshake)?)
        };
        let transport = handshake.into_stateless_transport_mode()?;
        self.state = SealState::Ready(Box::new(transport));
        Ok(answer)
    }

    /// Seals the next message of a stream.
    ///
    /// # Errors
    /// If the handshake is not done, or the stream does not exist.
    pub fn seal(&mut self, stream: u16, message: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        match &self.state {
            SealState::Plain => Ok(message),
            SealState::Ready(transport) => {
                let nonce = next(&mut self.sealed, stream)?;
                let mut out = vec![0; message.len() + TAG];
                let length = transport.write_message(nonce, &message, &mut out)?;
                out.truncate(length);
                Ok(out)
            }
            SealState::Handshake(_) | SealState::Broken => bail!("the Noise handshake is not complete"),
        }
    }

    /// Opens the next message of a stream.
    ///
    /// # Errors
    /// If the message is not the next one that the peer has sealed for this stream.
    pub fn open(&mut self, stream: u16, message: Bytes) -> anyhow::Result<Bytes> {
        match &self.state {
            SealState::Plain => Ok(message),
            SealState::Ready(transport) => {
                let nonce = next(&mut self.opened, stream)?;
                let mut out = vec![0; message.len()];
                let opened = transport.read_message(nonce, &message, &mut out);
                let length = opened.with_context(|| format!("a message of stream {stream} is forged"))?;
                out.truncate(length);
                Ok(out.into())
            }
            SealState::Handshake(_) | SealState::Broken => {
                bail!("a message of stream {stream} before the handshake")
            }
        }
    }
}

fn handshake_message(handshake: &mut HandshakeState) -> anyhow::Result<Vec<u8>> {
    let mut out = vec![0; 128];
    let length = handshake.write_message(&[], &mut out)?;
    out.truncate(length);
    Ok(out)
}

/// The nonce of a stream's next message. No nonce is used twice, because message numbers do not wrap.
fn next(counts: &mut [u64], stream: u16) -> anyhow::Result<u64> {
    let count = counts
        .get_mut(usize::from(stream))
        .context("the stream does not exist")?;
    let number = *count;
    if number >> COUNT_BITS != 0 {
        bail!("stream {stream} has sent all messages that one key allows");
    }
    *count += 1;
    Ok(u64::from(stream) << COUNT_BITS | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two ends after the handshake.
    fn pair(opening: &TunnelKey, serving: &TunnelKey) -> anyhow::Result<[Seal; 2]> {
        let (mut near, hello) = Seal::new(Some(opening), TunnelRole::Opening, 4)?;
        let (mut far, none) = Seal::new(Some(serving), TunnelRole::Serving, 4)?;
        assert!(none.is_none() && !near.is_ready());
        let answer = far
            .handle_handshake(&hello.expect("this end begins"))?
            .expect("an answer");
        assert!(near.handle_handshake(&answer)?.is_none());
        Ok([near, far])
    }

    #[test]
    fn messages_open_in_the_order_of_their_stream_only() {
        let [mut near, mut far] = pair(&[7; 32], &[7; 32]).unwrap();
        let sealed: Vec<Bytes> = [(1, "a"), (1, "b"), (2, "c"), (1, "d")]
            .map(|(stream, text)| near.seal(stream, text.into()).unwrap().into())
            .to_vec();
        assert_eq!(far.open(2, sealed[2].clone()).unwrap(), "c");
        assert_eq!(far.open(1, sealed[0].clone()).unwrap(), "a");
        assert!(far.open(1, sealed[0].clone()).is_err(), "a replay");
        let [mut near, mut far] = pair(&[7; 32], &[7; 32]).unwrap();
        let first: Bytes = near.seal(1, b"a".to_vec()).unwrap().into();
        let second: Bytes = near.seal(1, b"b".to_vec()).unwrap().into();
        assert!(far.open(2, first.clone()).is_err(), "another stream");
        assert!(far.open(1, second).is_err(), "out of order");
        let [mut near, mut far] = pair(&[7; 32], &[7; 32]).unwrap();
        let mut changed = near.seal(1, b"a".to_vec()).unwrap();
        changed[0] ^= 1;
        assert!(far.open(1, changed.into()).is_err(), "a changed bit");
        let [mut near, _] = pair(&[7; 32], &[7; 32]).unwrap();
        let own: Bytes = near.seal(1, b"a".to_vec()).unwrap().into();
        assert!(near.open(1, own).is_err(), "reflected");
    }

    #[test]
    fn another_key_is_noticed_by_the_first_message() {
        let error = pair(&[7; 32], &[8; 32]).err().expect("refused");
        assert!(
            format!("{error:#}").contains("does not have this end's key"),
            "{error:#}"
        );
    }

    #[test]
    fn nothing_is_opened_before_the_handshake() {
        let (mut far, _) = Seal::new(Some(&[7; 32]), TunnelRole::Serving, 4).unwrap();
        assert!(far.open(1, Bytes::from_static(b"data")).is_err());
        assert!(far.seal(1, b"data".to_vec()).is_err());
    }
}
