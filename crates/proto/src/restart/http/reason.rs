//! Why a connection cannot be continued.

use thiserror::Error;

use super::head::{HttpFault, Method};
use super::tracker::REQUESTS_MAX;
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
    #[error("the server spoke without being asked")]
    UnexpectedReply,
    /// 101: the bytes that follow are not HTTP.
    #[error("the connection was upgraded to another protocol")]
    Upgraded,
}
