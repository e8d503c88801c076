//! All tests on the real kernel, as one program that is linked once. `cargo test -p steadfast-linux --test kernel restore::` runs the tests
//! of one file.

mod acceptance;
mod adopt;
mod annex;
mod bad_packets;
mod cap;
mod death;
mod direct;
mod edge_flood;
mod edge_forward;
mod edge_model;
mod edge_vlan;
mod flood;
mod frame_age;
mod gate;
mod local;
mod multipath;
mod older;
mod options;
mod order;
mod progress;
mod restore;
mod reversed;
mod sctp_wire;
mod stack;
mod states;
mod support;
mod usrsctp;
mod watch;
mod wire;
