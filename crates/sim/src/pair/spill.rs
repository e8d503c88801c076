//! Files of logs, in memory.

use std::io;

use proto::spill::{Depot, Spill};

use super::Station;

impl Station {
    /// Bytes of logs that are in files.
    pub fn spilled(&self) -> u64 {
        let spills = &self.core.table(0).config().spills;
        spills.as_ref().map_or(0, |spills| spills.bytes())
    }
}

/// Makes files.
#[derive(Debug)]
pub(super) struct Files;

#[derive(Debug)]
struct File {
    bytes: Vec<u8>,
    released: usize,
}

impl Depot for Files {
    fn open(&self) -> io::Result<Box<dyn Spill>> {
        let (bytes, released) = (Vec::new(), 0);
        Ok(Box::new(File { bytes, released }))
    }
}

impl Spill for File {
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(at, self.bytes.len() as u64, "it is written from front to back");
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        assert!(at >= self.released, "what is read was not given up");
        bytes.copy_from_slice(&self.bytes[at..][..bytes.len()]);
        Ok(())
    }

    fn release(&mut self, to: u64) -> io::Result<()> {
        self.released = usize::try_from(to).map_err(io::Error::other)?;
        Ok(())
    }
}
