//! The body of a reply, followed: how much of it was said, its hash, and where it stands in its framing.

use twox_hash::xxhash3_128;

use super::body::{Body, Piece};
use super::head::Fault;
use super::resume::{BodyPrefix, Position};

/// A reply whose header is complete and whose body is not.
#[derive(Debug)]
pub(super) struct ReplyBody {
    pub head: Vec<u8>,
    /// The server does not end the connection with it.
    pub persists: bool,
    body: Body,
    bytes: u64,
    hash: Hash,
}

/// XXH3-128 with the trait that it lacks.
#[derive(Clone)]
struct Hash(xxhash3_128::Hasher);

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hash")
    }
}

impl ReplyBody {
    /// At its first byte.
    pub fn new(head: Vec<u8>, persists: bool, body: Body) -> Self {
        Self {
            head,
            persists,
            body,
            bytes: 0,
            hash: Hash(xxhash3_128::Hasher::new()),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    /// What of `bytes` belongs to it.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<(), Fault> {
        if let Body::Length { left } = &mut self.body
            && *left <= bytes.len() as u64
        {
            // The reply becomes complete: nobody will ask for its hash.
            *bytes = &bytes[usize::try_from(*left).unwrap_or(bytes.len())..];
            *left = 0;
        } else if let Some(Piece::Payload(payload)) = self.body.next(bytes)? {
            self.hash.0.write(payload);
            self.bytes += payload.len() as u64;
        }
        Ok(())
    }

    /// What was said of it.
    pub fn prefix(&self) -> BodyPrefix {
        let position = match &self.body {
            Body::Chunked(chunked) => Position::Chunked(chunked.position.clone()),
            Body::Length { .. } => Position::Length,
            Body::UntilClose => Position::UntilClose,
        };
        BodyPrefix {
            bytes: self.bytes,
            digest: self.hash.0.finish_128().to_be_bytes(),
            position,
        }
    }
}
