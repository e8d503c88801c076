//! Restart policy `http`: the restart point moves at message boundaries.
//!
//! The application runs on the primary only. The backup follows both logged streams with one [`Tracker`] per connection. At a
//! takeover [`Tracker::resume`] says which replies are owed to the client. The relay feeds the unanswered requests to the local
//! application. A [`HttpResumer`] checks that the regenerated reply begins with the part that the client already has, and drops
//! that part.
//!
//! The scheme follows CoRAL (Aghdaie and Tamir), with one difference: CoRAL logs a whole reply before its first byte leaves. Here
//! a reply is released as it comes, and a reply that was cut in the middle is continued. Messages are those of RFC 9112.

mod body;
mod continued;
mod digest;
mod feed;
mod head;
mod last_reply;
mod lines;
mod reason;
mod reexecute;
mod reply_body;
mod rest;
mod resume;
mod resumer;
mod rules;
mod switched;
#[cfg(test)]
mod tests;
mod tracker;
mod unanswered;

pub use feed::Feed;
pub use head::{HttpFault, Method};
pub use lines::{Volatile, VolatileError, VolatileRule};
pub use reexecute::Reexecute;
pub use rest::Rest;
pub use resume::{BodyPosition, BodyPrefix, ChunkPosition, HttpResume, PendingRequest, ReplyPrefix};
pub use resumer::{HttpMismatch, HttpResumer, RequestRefusal};
pub use rules::Rules;
pub use switched::Switched;
pub use tracker::{HttpReason, REQUESTS_MAX, Tracker};

/// Whether `bytes` begin with the complete header section of a request that can be followed.
pub fn begins_request(mut bytes: &[u8]) -> bool {
    let section = match bytes.first() {
        Some(first) if first.is_ascii_alphabetic() => head::next_section(&mut Vec::new(), &mut bytes),
        _ => return false,
    };
    let Ok(Some(section)) = section else { return false };
    head::RequestHead::parse(&section).is_ok_and(|request| request.method != Method::Connect)
}

/// Maximum length in bytes of a header section or chunked trailer. A longer one makes the connection unprotected. Common servers
/// themselves refuse headers longer than 8 to 64 KiB.
pub const HEAD_MAX: usize = 64 * 1024;

/// Maximum length in bytes of a chunk-size line, extensions included.
pub const SIZE_LINE_MAX: usize = 1024;

/// Maximum number of characters of a request's method and target that are kept for logs and reports.
pub const LABEL_MAX: usize = 80;

/// The header line that tells an application that a server that died may have executed this request before.
pub const MARK: &[u8] = b"Steadfast-Reexecuted: 1\r\n";

/// The reply to a request that must not be executed again (RFC 9110 §15.6.4). It has no body, so it also suits a HEAD. It ends
/// the connection, because later requests may depend on the refused one.
pub const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Retry-After: 1\r\n\
    Content-Length: 0\r\n\
    Connection: close\r\n\
    \r\n";
