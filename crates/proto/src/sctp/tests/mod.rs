//! Tests of packets.

mod packets;
