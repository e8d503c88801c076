//! What an operator types, and what then happens, on a LAN of network namespaces.

mod application;
mod commands;
mod daemon;
mod gap;
mod half_closed;
mod keeper;
mod lan;
mod opaque;
mod upgrade;
