//! One line over a Unix stream, bounded in length and in time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream with one deadline for all reads and writes together.
pub(super) struct LineStream {
    stream: UnixStream,
    deadline: Instant,
}

impl LineStream {
    pub(super) fn new(stream: UnixStream, within: Duration) -> Self {
        Self {
            stream,
            deadline: Instant::now() + within,
        }
    }

    /// Reads a line of at most `limit` bytes. The line end is not returned.
    pub(super) fn read(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut chunk = [0; 65_536];
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            let count = match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the line has no end",
                    ));
                }
                Ok(count) => count,
                Err(error) if again(&error) => continue,
                Err(error) => return Err(error),
            };
            let end = chunk[..count].iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&chunk[..end.unwrap_or(count)]);
            if line.len() > limit {
                let what = format!("the line is longer than {limit} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            if end.is_some() {
                return Ok(line);
            }
        }
    }

    /// Writes `line` and a line end.
    pub(super) fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if again(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the other side is too slow",
            ));
        }
        Ok(left)
    }
}

/// Whether a read or write that ended with `error` should be tried again.
fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
