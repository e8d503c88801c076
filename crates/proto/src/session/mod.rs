//! Client-initiated migration (Migratory TCP): a session moves between servers with different addresses (docs/connect.md).
//!
//! A session is two streams of bytes with offsets, and a restart point. The client's proxy (`steadfast connect`) has one link to the server
//! that *owns* the session. Any cooperating server can become the next owner. The proxy alone decides when: its *commit* names the new owner.
//!
//! ```text
//!  client program ⇄ ClientSession ⇄ link ⇄ ServerSession ⇄ application      the owner
//!                        └────────── link ⇄ ServerSession                   the target: prepared, and its application does not run yet
//! ```

pub mod certificate;
pub mod client;
mod client_phase;
pub mod frame;
mod holding;
mod log;
pub mod policy;
pub mod server;
mod server_phase;
#[cfg(test)]
mod tests;

pub use client_phase::ClientPhase;
pub use holding::HeldSnapshots;
pub use server_phase::ServerPhase;
