//! Clients that check every byte.
//!
//! A client process ([`main`]) is started in the client's network namespace and gets a [`ClientPlan`]; its parent holds a
//! [`ClientProcess`]. Every connection asks for content of a [`pattern`], compares each byte as it
//! arrives, and measures its own waits: a [`Gap`] is time in which a reply was due and not one byte
//! came. `stall_ms` is computed from these gaps.

mod connection;
mod plan;
mod process;
mod progress;
mod replies;
mod report;
mod requests;
mod run;
mod workload;

pub use plan::{ClientEvent, ClientOrder, ClientPlan, Protocol, Until, Workload};
pub use process::{CLIENT, ClientProcess};
pub use progress::Gap;
#[cfg(test)]
pub use progress::ProgressSample;
#[cfg(test)]
pub use report::ConnectionReport;
pub use report::{ClientFailure, ClientReport, Spread};
pub use run::main;

#[cfg(test)]
mod tests;
