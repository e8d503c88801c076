//! Restart policies: where a survivor's application starts again, and which part of its output the client already has.
//!
//! A protected connection is two logged streams and a restart point. The survivor feeds its application the in-log from the
//! restart point on, and drops the application's output up to the end of the out-log. A policy decides *when the restart
//! point moves* and *how regenerated output is recognised as the same*:
//!
//! | policy | restart point | output that the client already has is recognised by |
//! |---|---|---|
//! | [`http`] | the first request whose reply is not complete | header lines, body length and hash |
//! | [`replica`] | moves with every byte: a second application runs on the backup | the bytes themselves |
//! | [`replay`] | stays at the connection's start | length and hash |
//! | [`snapshot`] | the application's last snapshot | length and hash, from the snapshot on |

pub mod catch_up;
mod digest;
pub mod http;
pub mod kept;
pub mod prefix;
pub mod replay;
pub mod replica;
pub mod snapshot;
