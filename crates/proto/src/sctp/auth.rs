//! Proof that a caller knows a shared key: an AUTH chunk (RFC 4895 §4.1) in front of its COOKIE ECHO.
//!
//! ```text
//!    2 bytes         2 bytes           32 bytes
//!   ┌───────────────┬─────────────────┬──────────────────────────────────────────────────┬─────────────┬─ ─
//!   │ key number: 0 │ SHA-256: 3      │ HMAC of this chunk with zeros here, and the rest │ COOKIE ECHO │
//!   └───────────────┴─────────────────┴──────────────────────────────────────────────────┴─────────────┴─ ─
//! ```
//!
//! The called end makes an association only for a cookie with this proof, so a host without the key cannot open one. The cookie is never
//! the same twice, so a proof serves one call. RFC 4895 uses random numbers for this purpose (RANDOM), and negotiates which chunks need a
//! proof (CHUNKS). Here both ends are configured with the shared key.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::chunk::SctpChunk;

/// Type of the AUTH chunk.
pub const AUTH: u8 = 15;
/// The number of the key, and of HMAC-SHA-256 (RFC 4895 §3.3).
const PREFIX: [u8; 4] = [0, 0, 0, 3];
/// Length of the HMAC in bytes.
const CODE: usize = 32;

/// The key that callers must prove they know.
#[derive(Clone, PartialEq, Eq)]
pub struct CallKey([u8; 32]);

impl std::fmt::Debug for CallKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key of calls")
    }
}

impl CallKey {
    /// Derives the key from a key that both ends share, so that the shared key may serve other purposes as well.
    pub fn derive(shared: &[u8; 32]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(shared).expect("HMAC takes keys of any length");
        mac.update(b"steadfast: calls of SCTP");
        Self(mac.finalize().into_bytes().into())
    }

    /// The AUTH chunk that goes in front of `chunks` and proves the knowledge of this key.
    pub(super) fn prove(&self, chunks: &[SctpChunk]) -> SctpChunk {
        auth(&self.mac(chunks).finalize().into_bytes())
    }

    /// Whether the first of these chunks is an AUTH chunk that proves the knowledge of this key for the others. Compares in constant time.
    pub(super) fn is_proven(&self, chunks: &[SctpChunk]) -> bool {
        let Some((
            SctpChunk::Other {
                kind: AUTH, value, ..
            },
            rest,
        )) = chunks.split_first()
        else {
            return false;
        };
        let code = value.strip_prefix(&PREFIX);
        code.is_some_and(|code| self.mac(rest).verify_slice(code).is_ok())
    }

    fn mac(&self, chunks: &[SctpChunk]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        let mut covered = auth(&[0; CODE]).to_bytes().to_vec();
        for chunk in chunks {
            chunk.emit(&mut covered);
        }
        mac.update(&covered);
        mac
    }
}

fn auth(code: &[u8]) -> SctpChunk {
    SctpChunk::Other {
        kind: AUTH,
        flags: 0,
        value: Bytes::from([&PREFIX[..], code].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_belongs_to_its_key_and_its_chunks() {
        let (key, other) = (CallKey::derive(&[1; 32]), CallKey::derive(&[2; 32]));
        let echo = |cookie: &'static [u8]| SctpChunk::CookieEcho(Bytes::from_static(cookie));
        let proof = key.prove(&[echo(b"cookie")]);
        let proves = |key: &CallKey, chunks: &[SctpChunk]| key.is_proven(chunks);
        assert!(proves(&key, &[proof.clone(), echo(b"cookie")]));
        assert!(!proves(&other, &[proof.clone(), echo(b"cookie")]));
        assert!(!proves(&key, &[proof.clone(), echo(b"cookies")]));
        assert!(!proves(
            &key,
            &[proof.clone(), echo(b"cookie"), SctpChunk::CookieAck]
        ));
        assert!(!proves(&key, std::slice::from_ref(&proof)));
        assert!(!proves(&key, &[echo(b"cookie")]) && !proves(&key, &[]));
        let SctpChunk::Other { value, .. } = proof else {
            unreachable!("an AUTH chunk")
        };
        for bit in 0..value.len() * 8 {
            let mut forged = value.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            let chunk = SctpChunk::Other {
                kind: AUTH,
                flags: 0,
                value: forged.into(),
            };
            assert!(!proves(&key, &[chunk, echo(b"cookie")]), "bit {bit}");
        }
        for length in 0..value.len() {
            let chunk = SctpChunk::Other {
                kind: AUTH,
                flags: 0,
                value: value.slice(..length),
            };
            assert!(!proves(&key, &[chunk, echo(b"cookie")]), "{length} bytes");
        }
    }
}
