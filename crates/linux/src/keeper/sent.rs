//! Output that the old primary may have sent, and whose bytes are not in the log (commit mode `pr`, docs/commit-modes.md). The application
//! generates it again. The client's socket takes it as already sent. Otherwise, if the client has more of it than the socket can send at
//! once, the socket would ignore the client's acknowledgement for ever.

use std::io;

use tokio::net::TcpStream;

use super::filter::RelayAbort;
use super::status::ConnectionEnding;
use crate::repair;

/// The part of the output that was sent before.
pub(super) struct SentBefore {
    left: u64,
    bytes: Vec<u8>,
}

impl SentBefore {
    /// The next `left` bytes of the output were sent before.
    pub const fn new(left: u64) -> Self {
        let bytes = Vec::new();
        Self { left, bytes }
    }

    /// Number of bytes that the application has yet to generate.
    pub const fn missing(&self) -> u64 {
        self.left
    }

    /// The application has ended its output.
    ///
    /// # Errors
    /// The application has yet to generate bytes that the client may have.
    pub fn check_end(&self) -> Result<(), RelayAbort> {
        if self.left == 0 {
            return Ok(());
        }
        let why = format!("the application ended its output {} bytes too early", self.left);
        Err(RelayAbort(ConnectionEnding::Mismatch, why))
    }

    /// Takes the bytes that were sent before out of `output`, the next bytes for the client. When all of them are there, gives them to the
    /// client's socket.
    pub fn take(&mut self, client: &TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
        if self.left == 0 || output.is_empty() {
            return Ok(());
        }
        let count = usize::try_from(self.left).map_or(output.len(), |left| left.min(output.len()));
        self.bytes.extend(output.drain(..count));
        self.left -= count as u64;
        if self.left == 0 {
            repair::load_as_sent(client, &std::mem::take(&mut self.bytes))?;
        }
        Ok(())
    }
}
