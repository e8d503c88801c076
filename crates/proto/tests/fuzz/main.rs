//! Fuzz targets (docs/fuzzing.md): what comes from the network, against parsers that share no code with ours.

mod http;
mod packets;
mod words;
