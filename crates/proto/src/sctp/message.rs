//! Messages: the unit of sending and receiving.

use super::data::UserData;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SctpMessage {
    /// Its stream.
    pub stream: u16,
    /// The application's protocol identifier. SCTP does not look at it.
    pub protocol: u32,
    /// The message is delivered as soon as it is complete, without regard to its stream's order.
    pub is_unordered: bool,
    /// The data, at least one byte.
    pub data: UserData,
}
