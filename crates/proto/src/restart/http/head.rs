//! Header sections: what they say about the message's length and the connection's end.

use std::mem::MaybeUninit;

use super::body::Body;
use super::section::{FIELDS_MAX, HttpFault, elements, has_bare_feed, next_section, whole};

/// Number of bytes of the first word that are checked for a method. A longer word passes this check. The parser of the header section then
/// decides.
const METHOD_MAX: usize = 64;

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
    /// The client wants the connection to stay open after this exchange.
    pub persists: bool,
    /// The request has an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header §2).
    pub has_key: bool,
    /// The client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expects_continue: bool,
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
        let expects = request.version == Some(1) && has("expect");
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
            expects_continue: expects && body.is_some(),
            takes_range: method == Method::Get && is_whole,
            body,
        })
    }
}

/// A reply as described by its header section and the request's method.
#[derive(Debug)]
pub(super) struct ReplyHead {
    pub status: u16,
    /// The connection stays open after this reply, as far as the reply says.
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

fn decimal(value: &[u8]) -> Result<u64, HttpFault> {
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(HttpFault::ContentLength); // from_str would take a sign
    }
    str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(HttpFault::ContentLength)
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

/// Whether `bytes` begin with the complete header section of a request whose connection the tracker can follow (every method but CONNECT).
pub fn begins_request(mut bytes: &[u8]) -> bool {
    let section = match bytes.first() {
        Some(first) if first.is_ascii_alphabetic() => next_section(&mut Vec::new(), &mut bytes),
        _ => return false,
    };
    let Ok(Some(section)) = section else { return false };
    RequestHead::parse(&section).is_ok_and(|request| request.method != Method::Connect)
}
