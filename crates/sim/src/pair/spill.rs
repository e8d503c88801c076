//! In-memory files for spilled logs.

use std::io;
use std::net::SocketAddr;

use proto::connection::{AtLimit, Protection};
use proto::spill::{Depot, Spill, Spills};

use super::Station;

impl Station {
    /// Bytes of logs that are in files.
    pub fn spilled(&self) -> u64 {
        let spills = self.core.service(0).table().config().at_limit.spills();
        spills.map_or(0, |spills| spills.bytes())
    }

    /// Number of connections whose first input the other node has sent.
    pub fn joined(&self) -> u64 {
        self.core.service(0).prefixes().0
    }

    /// The clients of the connections that a takeover would continue.
    pub fn protected(&self) -> Vec<SocketAddr> {
        let connections = self.core.service(0).table().iter();
        let protected =
            connections.filter(|(_, connection)| connection.protection() == Protection::Protected);
        protected.map(|(_, connection)| connection.client()).collect()
    }

    /// Number of connections whose clients are slowed.
    pub fn capped(&self) -> usize {
        let connections = self.core.service(0).table().iter();
        connections
            .filter(|(_, connection)| connection.is_capped())
            .count()
    }
}

/// How the pair treats a connection whose log is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullLogPolicy {
    /// The connection loses its protection.
    Unprotected,
    /// The connection's input goes to a file.
    Spilled,
    /// The connection's client is slowed before the log is full.
    Slowed,
}

impl FullLogPolicy {
    /// The value for the core's configuration.
    pub(super) fn of_core(self) -> AtLimit {
        match self {
            Self::Unprotected => AtLimit::Unprotect,
            Self::Spilled => AtLimit::Spill(Spills::new(Box::new(MemorySpillFiles), u64::MAX)),
            Self::Slowed => AtLimit::Slow,
        }
    }
}

/// Opens in-memory files.
#[derive(Debug)]
struct MemorySpillFiles;

#[derive(Debug)]
struct MemorySpillFile {
    bytes: Vec<u8>,
    released: usize,
}

impl Depot for MemorySpillFiles {
    fn open(&self) -> io::Result<Box<dyn Spill>> {
        let (bytes, released) = (Vec::new(), 0);
        Ok(Box::new(MemorySpillFile { bytes, released }))
    }
}

impl Spill for MemorySpillFile {
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(at, self.bytes.len() as u64, "spill files are written in order");
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        assert!(at >= self.released, "a released part is not read again");
        bytes.copy_from_slice(&self.bytes[at..][..bytes.len()]);
        Ok(())
    }

    fn release(&mut self, to: u64) -> io::Result<()> {
        self.released = usize::try_from(to).map_err(io::Error::other)?;
        Ok(())
    }
}
