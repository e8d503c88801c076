//! Fuzz targets (docs/fuzzing.md): our parsers of network input against parsers that share no code with them.

mod association;
mod http;
mod packets;
mod sctp;
mod words;
