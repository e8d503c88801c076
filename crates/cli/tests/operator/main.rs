//! What an operator types, and what then happens, on a LAN of network namespaces.

mod commands;
mod daemon;
mod lan;
mod opaque;
mod upgrade;
