//! Follows the body of a reply: the number of bytes that were sent, their hash, and the place in the framing.

use super::body::{Body, BodyPiece};
use super::digest::Digest;
use super::head::HttpFault;
use super::rest::Rest;
use super::resume::{BodyPosition, BodyPrefix};

/// A reply whose header is complete and whose body is not.
#[derive(Debug)]
pub(super) struct ReplyBody {
    pub head: Vec<u8>,
    /// Whether the connection stays open after this reply.
    pub persists: bool,
    body: Body,
    said: Digest,
}

impl ReplyBody {
    /// A body at its first byte.
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

    /// Bytes of the body that have not been sent yet, if the header gives the length.
    pub const fn left(&self) -> Option<u64> {
        match self.body {
            Body::Length { left } => Some(left),
            Body::Chunked(_) | Body::UntilClose => None,
        }
    }

    /// Takes bytes of this body from the front of `bytes`.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<(), HttpFault> {
        if let Body::Length { left } = &mut self.body
            && *left <= bytes.len() as u64
        {
            // The reply is complete now, so its hash is not needed.
            *bytes = &bytes[usize::try_from(*left).unwrap_or(bytes.len())..];
            *left = 0;
        } else if let Some(BodyPiece::Payload(payload)) = self.body.next(bytes)? {
            self.said.write(payload);
        }
        Ok(())
    }

    /// The part of the body that was sent.
    pub fn prefix(&self) -> BodyPrefix {
        let position = match &self.body {
            Body::Chunked(chunked) => BodyPosition::Chunked(chunked.position.clone()),
            Body::Length { .. } => BodyPosition::Length,
            Body::UntilClose => BodyPosition::UntilClose,
        };
        BodyPrefix {
            bytes: self.said.bytes(),
            digest: self.said.of_all(),
            position,
        }
    }

    /// The part of the body for which an application may be asked, instead of the whole body.
    pub fn rest(&self) -> Option<Rest> {
        match self.body {
            Body::Length { left } => Rest::of(&self.head, self.said.bytes() + left, &self.said),
            Body::Chunked(_) | Body::UntilClose => None,
        }
    }
}
