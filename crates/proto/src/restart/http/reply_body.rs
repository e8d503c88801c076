//! The body of a reply, followed: how much of it was said, its hash, and where it stands in its framing.

use super::body::{Body, Piece};
use super::digest::Digest;
use super::head::Fault;
use super::rest::Rest;
use super::resume::{BodyPrefix, Position};

/// A reply whose header is complete and whose body is not.
#[derive(Debug)]
pub(super) struct ReplyBody {
    pub head: Vec<u8>,
    /// The server does not end the connection with it.
    pub persists: bool,
    body: Body,
    said: Digest,
}

impl ReplyBody {
    /// At its first byte.
    pub fn new(head: Vec<u8>, persists: bool, body: Body) -> Self {
        Self {
            head,
            persists,
            body,
            said: Digest::new(),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    /// Bytes of the body that have not been said yet, if its header gives the length.
    pub const fn left(&self) -> Option<u64> {
        match self.body {
            Body::Length { left } => Some(left),
            Body::Chunked(_) | Body::UntilClose => None,
        }
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
            self.said.write(payload);
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
            bytes: self.said.bytes(),
            digest: self.said.of_all(),
            position,
        }
    }

    /// What of it an application may be asked for, instead of all of it.
    pub fn rest(&self) -> Option<Rest> {
        match self.body {
            Body::Length { left } => Rest::of(&self.head, self.said.bytes() + left, &self.said),
            Body::Chunked(_) | Body::UntilClose => None,
        }
    }
}
