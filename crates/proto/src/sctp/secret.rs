//! Numbers that others must not guess: tags, first TSNs, nonces, and the keys of cookies. All are derived from one secret, since a state
//! machine without I/O has no other source of randomness.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret of the endpoint, and how many numbers were drawn from it.
#[derive(Clone)]
pub struct SctpSecret {
    secret: [u8; 32],
    drawn: u64,
}

/// An authentication code.
pub(super) type CookieTag = [u8; 32];

impl std::fmt::Debug for SctpSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a secret, {} numbers drawn", self.drawn)
    }
}

impl SctpSecret {
    /// Makes a secret from 32 random bytes. The same bytes give the same numbers, so an endpoint that starts again needs other bytes.
    pub const fn new(secret: [u8; 32]) -> Self {
        Self { secret, drawn: 0 }
    }

    /// A number from the whole range of `u64`.
    pub fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let block = code(&self.secret, &[b"number", &self.drawn.to_be_bytes()]);
        block.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }

    /// A verification tag: 32 bits that are not 0 (RFC 9260 §5.3.1).
    pub fn draw_tag(&mut self) -> u32 {
        loop {
            // The lower half.
            let tag = self.draw() as u32;
            if tag != 0 {
                return tag;
            }
        }
    }

    /// A new secret, derived from this one, for one association.
    pub fn child(&mut self) -> Self {
        self.drawn += 1;
        Self::new(code(&self.secret, &[b"secret", &self.drawn.to_be_bytes()]))
    }

    /// The authentication code of a cookie's content under the key of `epoch`.
    pub(super) fn sign(&self, epoch: u64, content: &[u8]) -> CookieTag {
        let key = code(&self.secret, &[b"cookie", &epoch.to_be_bytes()]);
        code(&key, &[content])
    }

    /// Whether `tag` is the authentication code of the content under the key of `epoch`. Compares in constant time.
    pub(super) fn has_signed(&self, epoch: u64, content: &[u8], tag: &[u8]) -> bool {
        let key = code(&self.secret, &[b"cookie", &epoch.to_be_bytes()]);
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else {
            return false;
        };
        mac.update(content);
        mac.verify_slice(tag).is_ok()
    }
}

fn code(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_belongs_to_its_secret_its_epoch_and_its_content() {
        let (mine, other) = (SctpSecret::new([1; 32]), SctpSecret::new([2; 32]));
        let tag = mine.sign(7, b"content");
        assert!(mine.has_signed(7, b"content", &tag));
        assert!(!mine.has_signed(8, b"content", &tag));
        assert!(!mine.has_signed(7, b"contents", &tag));
        assert!(!mine.has_signed(7, b"content", &tag[..31]));
        assert!(!other.has_signed(7, b"content", &tag));
    }

    #[test]
    fn numbers_differ() {
        let mut secret = SctpSecret::new([1; 32]);
        let (first, mut child) = (secret.draw(), secret.child());
        let second = secret.draw();
        assert!(first != second && child.draw() != second && child.draw() != first);
    }
}
