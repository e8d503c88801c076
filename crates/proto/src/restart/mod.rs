//! Restart policies: where a survivor's application starts again, and what of its output the client already has.

pub mod http;
