//! Header sections: where they end, and what they say about the message's length and the connection's end.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use thiserror::Error;

use super::{HEAD_MAX, body::Body};

/// Maximum number of header fields in one message. More make the connection unprotected.
const FIELDS_MAX: usize = 128;

/// Bytes of the first word that are checked for a method. No method is longer, so later bytes say nothing about the protocol.
const METHOD_MAX: usize = 64;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HttpFault {
    /// Content-Length beside Transfer-Encoding, or several lengths: the two ends may see different bodies.
    #[error("the message's length is given twice")]
    AmbiguousLength,
    /// A line of a request ends in LF without CR. Some receivers take the LF for the line's end, others for a part of the line
    /// (RFC 9112 §2.2).
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
    /// A Transfer-Encoding other than `chunked` alone, either in a request or in a reply that mentions `chunked`. Also any
    /// Transfer-Encoding in HTTP/1.0 (RFC 9112 §6.1).
    #[error("unclear boundary: the Transfer-Encoding gives no length that all receivers agree on")]
    TransferEncoding,
}

/// Request methods, as far as they differ for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of RFC 9110 §9.3 speak for themselves
pub enum Method {
    Connect,
    Delete,
    Get,
    Head,
    Options,
    /// Any other method; treated as neither safe nor idempotent.
    Other,
    Patch,
    Post,
    Put,
    Trace,
}

impl Method {
    /// The method with this name, which is case-sensitive (RFC 9110 §9.1).
    pub fn parse(name: &str) -> Self {
        match name {
            "CONNECT" => Self::Connect,
            "DELETE" => Self::Delete,
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "OPTIONS" => Self::Options,
            "PATCH" => Self::Patch,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

/// A request as described by its header section.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub method: Method,
    /// The client does not want the connection to end with this exchange.
    pub persists: bool,
    /// The request has an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header §2).
    pub has_key: bool,
    /// The request is an HTTP/1.1 GET without range fields, so fields that ask for a range can be added (RFC 9110 §14.2).
    pub takes_range: bool,
    pub body: Option<Body>,
}

impl RequestHead {
    pub fn parse(bytes: &[u8]) -> Result<Self, HttpFault> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut []);
        if has_bare_feed(bytes) {
            return Err(HttpFault::BareLineFeed);
        }
        whole(bytes, request.parse_with_uninit_headers(bytes, &mut fields)?)?;
        let method = Method::parse(request.method.unwrap_or_default());
        let has = |field: &str| {
            request
                .headers
                .iter()
                .any(|header| header.name.eq_ignore_ascii_case(field))
        };
        let has_key = has("idempotency-key");
        let is_whole = request.version == Some(1) && !has("range") && !has("if-range");
        let fields = Fields::read(request.headers, request.version == Some(1))?;
        let body = match fields.length {
            Length::Chunked => Some(Body::chunked()),
            Length::Known(0) | Length::Unsaid => None,
            Length::Known(left) => Some(Body::Length { left }),
            Length::Encoded => return Err(HttpFault::TransferEncoding),
        };
        Ok(Self {
            method,
            persists: fields.persists,
            has_key,
            takes_range: method == Method::Get && is_whole,
            body,
        })
    }
}

/// A reply as described by its header section and the request's method.
#[derive(Debug)]
pub(super) struct ReplyHead {
    pub status: u16,
    /// The server does not mean to end the connection with this exchange.
    pub persists: bool,
    /// `None` if the message ends with its header section.
    pub body: Option<Body>,
}

impl ReplyHead {
    /// Parses a complete header section; `to_head` if the request was a HEAD (RFC 9112 §6.3).
    pub fn parse(bytes: &[u8], to_head: bool) -> Result<Self, HttpFault> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut reply = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        whole(
            bytes,
            parser.parse_response_with_uninit_headers(&mut reply, bytes, &mut fields)?,
        )?;
        let status = reply.code.unwrap_or_default();
        if status < 100 {
            return Err(HttpFault::Syntax(httparse::Error::Status)); // neither interim nor final
        }
        let fields = Fields::read(reply.headers, reply.version == Some(1))?;
        let bodyless = to_head || status < 200 || status == 204 || status == 304;
        let body = match fields.length {
            _ if bodyless => None,
            Length::Chunked => Some(Body::chunked()),
            Length::Known(0) => None,
            Length::Known(left) => Some(Body::Length { left }),
            Length::Encoded | Length::Unsaid => Some(Body::UntilClose),
        };
        let persists = fields.persists && !matches!(body, Some(Body::UntilClose));
        Ok(Self {
            status,
            persists,
            body,
        })
    }

    /// Whether another header section follows for the same request: status 1xx except 101 (Switching Protocols).
    pub const fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }
}

/// `httparse` must find the section's end where [`ends_blank`] found it.
fn whole(bytes: &[u8], parsed: httparse::Status<usize>) -> Result<(), HttpFault> {
    match parsed {
        httparse::Status::Complete(length) if length == bytes.len() => Ok(()),
        _ => Err(HttpFault::Syntax(httparse::Error::NewLine)),
    }
}

/// The fields that decide the message's length and whether the connection persists.
struct Fields {
    length: Length,
    persists: bool,
}

enum Length {
    Chunked,
    /// A transfer coding without a recognisable end.
    Encoded,
    Known(u64),
    Unsaid,
}

impl Fields {
    fn read(headers: &[httparse::Header<'_>], is_http_1_1: bool) -> Result<Self, HttpFault> {
        let (mut length, mut codings) = (None, Vec::new());
        let (mut close, mut keep_alive) = (false, false);
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                if length.replace(decimal(header.value)?).is_some() {
                    return Err(HttpFault::AmbiguousLength);
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                codings.extend(header.value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii));
            } else if header.name.eq_ignore_ascii_case("connection") {
                close |= elements(header.value).any(|option| option.eq_ignore_ascii_case(b"close"));
                keep_alive |= elements(header.value).any(|option| option.eq_ignore_ascii_case(b"keep-alive"));
            }
        }
        let length = match (length, codings.as_slice()) {
            (None, []) => Length::Unsaid,
            (Some(length), []) => Length::Known(length),
            (Some(_), _) => return Err(HttpFault::AmbiguousLength),
            (None, _) if !is_http_1_1 => return Err(HttpFault::TransferEncoding),
            (None, [only]) if only.eq_ignore_ascii_case(CHUNKED) => Length::Chunked,
            (None, codings) if codings.iter().any(|coding| mentions_chunked(coding)) => {
                return Err(HttpFault::TransferEncoding);
            }
            (None, _) => Length::Encoded,
        };
        Ok(Self {
            length,
            persists: !close && (is_http_1_1 || keep_alive),
        })
    }
}

const CHUNKED: &[u8] = b"chunked";

/// Whether a coding is `chunked`, or a careless receiver may read it as `chunked`: quoted, with parameters, or after a stray
/// character.
fn mentions_chunked(coding: &[u8]) -> bool {
    coding
        .windows(CHUNKED.len())
        .any(|word| word.eq_ignore_ascii_case(CHUNKED))
}

/// The non-empty elements of a comma-separated list (RFC 9110 §5.6.1).
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

fn decimal(value: &[u8]) -> Result<u64, HttpFault> {
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(HttpFault::ContentLength); // from_str would take a sign
    }
    str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(HttpFault::ContentLength)
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

/// Moves bytes from the front of `bytes` to `section`, up to the blank line that ends the section. True when the blank line is
/// there.
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

/// Moves bytes from the front of `bytes` to `line`, up to the next line feed. True when the line feed is there.
pub(super) fn take_line(line: &mut Vec<u8>, bytes: &mut &[u8]) -> bool {
    let end = memchr::memchr(b'\n', bytes).map(|feed| feed + 1);
    let (taken, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
    line.extend_from_slice(taken);
    *bytes = rest;
    end.is_some()
}

/// Whether a line of `section` ends in LF without CR.
fn has_bare_feed(section: &[u8]) -> bool {
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

/// Whether the last line of `section` is blank. As most receivers do, takes a bare LF for a line's end.
pub(super) fn ends_blank(section: &[u8]) -> bool {
    let body = section
        .strip_suffix(b"\r\n")
        .or_else(|| section.strip_suffix(b"\n"));
    body.is_some_and(|body| body.is_empty() || body.ends_with(b"\n"))
}

/// Whether output that begins with `bytes` can be a reply.
pub(super) fn begins_as_reply(bytes: &[u8]) -> bool {
    bytes.iter().zip(b"HTTP/").all(|(one, other)| one == other)
}

/// Whether `begun` and `next` can begin a request: the first word is printable and, if it has ended, is followed by a space or a
/// tab.
pub(super) fn begins_with_method(begun: &[u8], next: &[u8]) -> bool {
    let mut first = begun.iter().chain(next).take(METHOD_MAX);
    let end = first.find(|byte| !byte.is_ascii_graphic());
    end.is_none_or(|end| matches!(end, b' ' | b'\t'))
}
