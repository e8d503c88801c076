//! Header sections and trailers: where they end, and whether all receivers see the same end.

use std::borrow::Cow;

use thiserror::Error;

use super::HEAD_MAX;

/// Maximum number of header fields in one message. More make the connection unprotected.
pub(super) const FIELDS_MAX: usize = 128;

/// Reasons to refuse a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HttpFault {
    /// Content-Length beside Transfer-Encoding, or several lengths: client and server may see different bodies.
    #[error("the message's length is given twice")]
    AmbiguousLength,
    /// A line of a request's header, or of a trailer, ends in LF without CR. Some receivers take the LF for the line's end, others for a
    /// part of the line (RFC 9112 §2.2).
    #[error("unclear boundary: a line ends in a line feed without a carriage return")]
    BareLineFeed,
    /// Chunk data is not followed by CRLF.
    #[error("chunk data does not end where its size says")]
    ChunkEnd,
    /// A chunk's size line is not a hexadecimal number, or is longer than [`SIZE_LINE_MAX`](super::SIZE_LINE_MAX).
    #[error("a chunk's size line does not parse")]
    ChunkSize,
    /// Content-Length is not a decimal number below 2⁶⁴.
    #[error("the Content-Length is not a number")]
    ContentLength,
    /// The header section is longer than [`HEAD_MAX`].
    #[error("the header is longer than {HEAD_MAX} bytes")]
    HeadTooLong,
    /// The header section is not HTTP/1.
    #[error("the header does not parse: {0}")]
    Syntax(#[from] httparse::Error),
    /// A request's Transfer-Encoding is anything but exactly `chunked`. Or a reply's Transfer-Encoding mentions `chunked` and is not
    /// exactly `chunked`. Or a message of HTTP/1.0 has any Transfer-Encoding (RFC 9112 §6.1).
    #[error("unclear boundary: the Transfer-Encoding gives no length that all receivers agree on")]
    TransferEncoding,
}

/// Takes a section that begins in `begun` and goes on at the front of `bytes`. Returns `None` while the section's end is missing. Copies
/// nothing in the usual case that `bytes` has the whole section.
pub(super) fn next_section<'a>(
    begun: &mut Vec<u8>,
    bytes: &mut &'a [u8],
) -> Result<Option<Cow<'a, [u8]>>, HttpFault> {
    let end = || memchr::memchr_iter(b'\n', bytes).find(|&feed| ends_blank(&bytes[..=feed]));
    if begun.is_empty()
        && let Some(feed) = end().filter(|&feed| feed < HEAD_MAX)
    {
        let (section, rest) = bytes.split_at(feed + 1);
        *bytes = rest;
        return Ok(Some(section.into()));
    }
    let is_whole = take_section(begun, bytes)?;
    Ok(is_whole.then(|| std::mem::take(begun).into()))
}

/// Moves bytes from the front of `bytes` to `section`, up to the blank line that ends the section. Returns true once the blank line is in
/// `section`.
pub(super) fn take_section(section: &mut Vec<u8>, bytes: &mut &[u8]) -> Result<bool, HttpFault> {
    while !bytes.is_empty() {
        let ended = take_line(section, bytes);
        if section.len() > HEAD_MAX {
            return Err(HttpFault::HeadTooLong);
        }
        if ended && ends_blank(section) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves bytes from the front of `bytes` to `line`, up to the next line feed. Returns true once the line feed is in `line`.
pub(super) fn take_line(line: &mut Vec<u8>, bytes: &mut &[u8]) -> bool {
    let end = memchr::memchr(b'\n', bytes).map(|feed| feed + 1);
    let (taken, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
    line.extend_from_slice(taken);
    *bytes = rest;
    end.is_some()
}

/// Whether the last line of `section` is blank. A bare LF also ends a line, as for most receivers.
pub(super) fn ends_blank(section: &[u8]) -> bool {
    let body = section
        .strip_suffix(b"\r\n")
        .or_else(|| section.strip_suffix(b"\n"));
    body.is_some_and(|body| body.is_empty() || body.ends_with(b"\n"))
}

/// Whether a line of `section` ends in LF without CR.
pub(super) fn has_bare_feed(section: &[u8]) -> bool {
    let mut feeds = memchr::memchr_iter(b'\n', section);
    feeds.any(|feed| !section[..feed].ends_with(b"\r"))
}

/// Checks that all receivers read trailer fields, with the blank line that ends them, in the same way (RFC 9112 §7.1.2).
pub(super) fn check_trailer(section: &[u8]) -> Result<(), HttpFault> {
    if has_bare_feed(section) {
        return Err(HttpFault::BareLineFeed);
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(section, &mut fields)? {
        httparse::Status::Complete((length, _)) => whole(section, httparse::Status::Complete(length)),
        httparse::Status::Partial => whole(section, httparse::Status::Partial),
    }
}

/// `httparse` must find the section's end where [`ends_blank`] found it.
pub(super) fn whole(bytes: &[u8], parsed: httparse::Status<usize>) -> Result<(), HttpFault> {
    match parsed {
        httparse::Status::Complete(length) if length == bytes.len() => Ok(()),
        _ => Err(HttpFault::Syntax(httparse::Error::NewLine)),
    }
}

/// The non-empty elements of a comma-separated list (RFC 9110 §5.6.1).
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}
