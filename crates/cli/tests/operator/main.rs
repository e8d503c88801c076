//! The operator's commands and their effects, on a LAN of network namespaces.

mod application;
mod commands;
mod connect;
mod daemon;
mod edge;
mod failure;
mod gap;
mod keeper;
mod lan;
mod local;
mod migrate;
mod moves;
mod opaque;
mod peers;
mod recorded;
mod replica;
mod requests;
mod sessions;
mod snapshot;
mod stage;
mod start;
mod tunnel;
mod tunnel_options;
mod upgrade;
