//! Tests of the keeper with real sockets on loopback. The keeper has its own thread. Each test says what the application does.

mod closing;
mod control;
mod door;
mod endings;
mod lab;
mod messages;
mod relaying;
mod rests;
mod turns;
mod writes;
