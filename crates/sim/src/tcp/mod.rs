//! A TCP endpoint over real IP packets: bytes and time in, bytes out, no I/O and no clock.
//!
//! ```text
//!        write, shutdown, abort               poll_transmit ──▶ IP packets
//!                  │                                ▲
//!             ┌────▼────┐   ┌───────────┐   ┌───────┴───────┐
//!             │ Sender  ├───┤ NewReno   │   │   Endpoint    │
//!             │ (out)   │   ├───────────┤   │ (state, ACKs, │◀── handle_packet, handle_timeout
//!             └─────────┘   │ Rto       │   │  RSTs, timers)│
//!             ┌─────────┐   ├───────────┤   └───────────────┘
//!             │ Receiver├───┤ Paws      │
//!             │ (in)    │   └───────────┘
//!             └────┬────┘
//!                  ▼ read
//! ```
//!
//! The endpoint implements RFC 9293 with window scale and timestamps (RFC 7323), NewReno (RFC 5681, RFC 6582, RFC 3042), RFC 6298, and the
//! protection of RFC 5961. It sends SACK blocks (RFC 2018), but does not use received blocks to choose what to retransmit. If the RFCs
//! leave a choice, or if Linux differs in a way that a restored connection can notice, the endpoint follows Linux, and a comment says so.

mod config;
mod congestion;
mod endpoint;
mod incoming;
mod paws;
mod receiver;
mod reset;
mod restore;
mod rto;
mod sender;
mod state;
#[cfg(test)]
mod tests;
mod timers;

pub use config::{InvalidTcpConfig, TcpConfig};
pub use endpoint::{Initial, TcpEndpoint, TcpFailure};
pub use reset::reset_for;
pub use restore::{InvalidRestore, NotEstablished, Restore, RestoreWindow, WindowScale};
pub use state::EndpointState;
