//! Restart policies: where a survivor's application starts again, and what of its output the client already has.
//!
//! A protected connection is two logged streams and a restart point. Whoever takes over feeds the application the
//! in-log from the restart point on and drops what it says until the end of the out-log; a policy decides *when the
//! restart point moves* and *how output is known to be the same*:
//!
//! | policy | restart point | what was already said is recognised by |
//! |---|---|---|
//! | [`http`] | the first request whose reply is not complete | header lines, body length and hash |
//! | [`replica`] | moves with every byte: a second application runs along | the bytes themselves |

pub mod http;
pub mod replica;
