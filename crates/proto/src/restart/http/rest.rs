//! Asks the application for the rest of a reply that was cut, with a range request, as for a resumed download (RFC 9110 §14.2, §13.1.5).
//!
//! The strong ETag identifies the reply's content. It changes whenever a byte of the content changes (§8.8.1), so partial replies with the
//! same strong ETag are parts of one whole (§15.3.7.3). The requested range begins with the last bytes that were already sent, so that they
//! can be compared.

use serde::{Deserialize, Serialize};

use super::body::Body;
use super::lines::{Volatile, name, same_name};
use super::reason::HttpMismatch;
use super::section::elements;
use crate::restart::digest::Digest;

/// Minimum number of bytes that a range request must save. If it saves less, the whole reply is regenerated and compared.
pub(super) const SAVES_MIN: u64 = 64 * 1024;
/// Maximum length in bytes of an ETag without its quotes. A reply with a longer ETag is regenerated as a whole.
const ETAG_MAX: usize = 256;

/// The part of a cut reply's content that is requested from the application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// Offset of the part's first byte in the content.
    pub from: u64,
    /// Length of the whole content in bytes.
    pub length: u64,
    /// The hash of the bytes at the start of this part that were already sent to the client.
    pub digest: [u8; 16],
    /// The strong ETag of the whole content, with its quotes.
    pub etag: Box<str>,
}

impl Rest {
    /// The part to ask for. `head` is the reply's header, `length` the content's length in bytes, and `said` the digest of the bytes
    /// that were sent. `None` if the header does not identify the content, or if a range request would save little.
    pub(super) fn of(head: &[u8], length: u64, said: &Digest) -> Option<Self> {
        let (from, digest) = said.of_end().filter(|(from, _)| *from >= SAVES_MIN)?;
        let values = |field: &'static str| lines(head).filter_map(move |line| value_of(line, field));
        let takes_ranges = values("accept-ranges")
            .flat_map(elements)
            .any(|unit| unit.eq_ignore_ascii_case(b"bytes"));
        // A partial reply has its own digest (RFC 9530 §2). This digest differs from the digest of the whole reply, so the two cannot be
        // compared.
        let is_other = ["content-encoding", "content-digest", "content-md5", "digest"];
        let is_other = is_other.into_iter().any(|field| values(field).next().is_some());
        let mut tags = values("etag");
        let etag = tags.next().filter(|etag| is_strong(etag))?;
        if !is_ok(head) || !takes_ranges || is_other || tags.next().is_some() {
            return None;
        }
        Some(Self {
            from,
            length,
            digest,
            etag: str::from_utf8(etag).ok()?.into(),
        })
    }

    /// The header fields that ask for the part. An application whose content has changed, or that does not support ranges, replies
    /// with the whole content.
    pub(super) fn fields(&self) -> Vec<u8> {
        format!("Range: bytes={}-\r\nIf-Range: {}\r\n", self.from, self.etag).into_bytes()
    }

    /// Checks that a 206 reply with the header `regenerated` is this part. Its ETag must be the same, and its range must be the
    /// requested one. No field, except Content-Length and volatile fields, may contradict the header `told` that the client
    /// already has.
    pub(super) fn check(
        &self,
        told: &[u8],
        regenerated: &[u8],
        body: Option<&Body>,
        volatile: &Volatile,
    ) -> Result<(), HttpMismatch> {
        let left = self.length.checked_sub(self.from).filter(|left| *left > 0);
        let left = left.ok_or(HttpMismatch::Framing)?;
        let wanted = format!("bytes {}-{}/{}", self.from, self.length - 1, self.length);
        let other = |asked: &str, regenerated: &[u8]| HttpMismatch::Rest {
            asked: asked.to_owned(),
            regenerated: regenerated.escape_ascii().to_string(),
        };
        let only = |field: &'static str, asked: &str| {
            let mut values = lines(regenerated).filter_map(move |line| value_of(line, field));
            match (values.next(), values.next()) {
                (Some(value), None) if value == asked.as_bytes() => Ok(()),
                (value, _) => Err(other(asked, value.unwrap_or_default())),
            }
        };
        only("content-range", &wanted)?;
        only("etag", &self.etag)?;
        if body != Some(&Body::Length { left }) {
            return Err(HttpMismatch::Framing);
        }
        for line in lines(regenerated).filter(|line| !volatile.has(line)) {
            let mut counterparts = lines(told).filter(|told| same_name(told, line)).peekable();
            let is_framing = value_of(line, "content-length").is_some();
            if !is_framing && counterparts.peek().is_some() && counterparts.all(|told| told != line) {
                return Err(other("the whole's fields", line));
            }
        }
        Ok(())
    }
}

/// The field lines of a header section.
fn lines(section: &[u8]) -> impl Iterator<Item = &[u8]> {
    section
        .split(|&byte| byte == b'\n')
        .skip(1)
        .map(<[u8]>::trim_ascii_end)
}

/// The value of `line` if it is a line of the header field `field`.
fn value_of<'a>(line: &'a [u8], field: &str) -> Option<&'a [u8]> {
    let found = name(line)?;
    found
        .eq_ignore_ascii_case(field.as_bytes())
        .then(|| line[found.len() + 1..].trim_ascii())
}

fn is_ok(head: &[u8]) -> bool {
    head.split(|&byte| byte == b' ')
        .nth(1)
        .is_some_and(|status| status.starts_with(b"200"))
}

/// Whether an ETag is strong: `"…"`, not `W/"…"` (RFC 9110 §8.8.3).
fn is_strong(etag: &[u8]) -> bool {
    let inner = etag.strip_prefix(b"\"").and_then(|etag| etag.strip_suffix(b"\""));
    inner.is_some_and(|inner| {
        inner.len() <= ETAG_MAX && inner.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"')
    })
}
