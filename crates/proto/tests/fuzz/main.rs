//! Fuzz targets (docs/fuzzing.md). Most compare our parsers of network input with parsers that share no code with them. The targets of
//! `association` and `words` check that no input from the peer breaks a state machine.

mod association;
mod http;
mod packets;
mod sctp;
mod words;
