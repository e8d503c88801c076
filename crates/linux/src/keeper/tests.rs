//! Tests of the keeper with real sockets on loopback. The keeper has its own thread. Each test provides the application's behaviour.

mod closing;
mod control;
mod door;
mod endings;
mod lab;
mod messages;
mod prefix;
mod relaying;
mod rests;
mod turns;
mod writes;
