//! Tests of packets and of whole conversations.

mod causes;
mod data;
mod failover;
mod forgeries;
mod mtu;
mod net;
mod packets;
mod paths;
mod random;
mod setup;
