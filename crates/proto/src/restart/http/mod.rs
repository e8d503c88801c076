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
mod head;
mod last_reply;
mod lines;
mod reason;
mod rest;
mod resume;
mod resumer;
mod rules;
mod section;
mod stage;
mod staged;
#[cfg(test)]
mod tests;
mod tracker;
mod unanswered;

pub use body::{BodyPosition, ChunkPosition};
pub use head::{Method, begins_request};
pub use lines::{Volatile, VolatileError, VolatileRule};
pub use reason::{HttpMismatch, HttpReason};
pub use rest::Rest;
pub use resume::{BodyPrefix, Feed, HttpResume, PendingRequest, ReplyPrefix};
pub use resumer::{HttpResumer, RequestRefusal};
pub use rules::{Reexecute, Rules};
pub use section::HttpFault;
pub use stage::{ReplyStage, StageAction, StageRules};
pub use staged::StagedPoint;
pub use tracker::{Switched, Tracker};

/// Maximum length in bytes of a header section or chunked trailer. A longer one makes the connection unprotected. Common servers
/// themselves refuse headers longer than 8 to 64 KiB.
pub const HEAD_MAX: usize = 64 * 1024;

/// Maximum length in bytes of a chunk-size line, extensions included.
pub const SIZE_LINE_MAX: usize = 1024;

/// Maximum number of characters of a request's method and target that are kept for logs and reports.
pub const LABEL_MAX: usize = 80;

/// Maximum number of unanswered requests per connection. More make the connection unprotected.
pub const REQUESTS_MAX: usize = 4096;

/// Header line of a reexecuted request. It tells the application that a dead server may have executed the request.
pub const MARK: &[u8] = b"Steadfast-Reexecuted: 1\r\n";

/// The reply to a request that must not be executed again (RFC 9110 §15.6.4). It has no body, so it also suits a HEAD. It ends
/// the connection, because later requests may depend on the refused one.
pub const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Retry-After: 1\r\n\
    Content-Length: 0\r\n\
    Connection: close\r\n\
    \r\n";
