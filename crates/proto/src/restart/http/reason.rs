//! Why a connection cannot be continued: what the tracker finds before a takeover, and what the relay's filter finds after it.

use thiserror::Error;

use super::REQUESTS_MAX;
use super::head::Method;
use super::section::HttpFault;
use crate::spill::LogFull;

/// Why a connection, or its next reply, cannot be continued.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpReason {
    /// HTTP/2 with prior knowledge.
    #[error("the connection speaks HTTP/2")]
    Http2,
    /// The stream does not begin with a method.
    #[error("the connection does not speak HTTP")]
    NotHttp,
    /// The primary may have executed the request, which must not be executed twice. After a takeover, the request would be refused, or
    /// its reply cut. This reason ends when the reply is complete.
    #[error("a {0:?} request is unanswered and must not be executed again")]
    NotRepeatable(Method),
    /// Like `NotRepeatable`, but the request cannot be repeated because the log could not keep all of it. [`LogFull`] says why.
    #[error("a {0:?} request is unanswered and was not kept: {1}")]
    NotKept(Method, LogFull),
    /// The reply cannot be followed.
    #[error("reply: {0}")]
    Reply(HttpFault),
    /// A request cannot be followed.
    #[error("request: {0}")]
    Request(HttpFault),
    /// A TLS handshake instead of a request.
    #[error("the connection is encrypted (TLS)")]
    Tls,
    /// More than [`REQUESTS_MAX`] pipelined requests.
    #[error("more than {REQUESTS_MAX} requests are unanswered")]
    TooManyRequests,
    /// CONNECT: the bytes that follow are not HTTP.
    #[error("the connection is a tunnel (CONNECT)")]
    Tunnel,
    /// The server sent output that answers no request.
    #[error("the server sent output that answers no request")]
    UnexpectedReply,
    /// 101: the bytes that follow are not HTTP.
    #[error("the connection was upgraded to another protocol")]
    Upgraded,
}

/// Why a regenerated reply cannot continue the logged one. The connection must end in a way that the client notices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpMismatch {
    /// The regenerated body begins with other bytes than the client has.
    #[error("the first {bytes} bytes of the body differ")]
    Body {
        /// Payload bytes that the client has.
        bytes: u64,
    },
    /// The regenerated body has more bytes after the end that the client was told.
    #[error("the body goes on where the client was told that it ends")]
    BodyTooLong,
    /// The regenerated body is shorter than the part that the client has, or than the length that the client was told.
    #[error("the body is shorter than the client was sent or told")]
    BodyTooShort,
    /// The log ends inside a chunk extension that was not regenerated.
    #[error("the log ends inside a chunk extension that is not regenerated")]
    ChunkExtension,
    /// The application closed in the middle of the reply.
    #[error("the application closed before the end of its reply")]
    EndedEarly,
    /// The header that the client gets has another framing than the regenerated header.
    #[error("the continued header has another framing than the regenerated one")]
    Framing,
    /// A header line differs, and its field is not volatile.
    #[error("the header differs: {logged:?} was sent, {regenerated:?} is regenerated")]
    Header {
        /// The logged line, possibly shortened.
        logged: String,
        /// The regenerated line at its place, empty if there is none.
        regenerated: String,
    },
    /// The application was asked for the rest of the body, but sent another part, or a part of another body.
    #[error("expected {asked:?}, but the application sent {regenerated:?}")]
    Rest {
        /// The part or the validator that was asked for.
        asked: String,
        /// The part or the validator that the application sent; empty if there is none.
        regenerated: String,
    },
    /// The regenerated reply is not HTTP/1.
    #[error("the regenerated reply cannot be followed: {0}")]
    Malformed(#[from] HttpFault),
}
