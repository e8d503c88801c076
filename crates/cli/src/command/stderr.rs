//! Lines on stderr. Stderr may be a pipe whose reader has died or no longer reads. In both cases, a program must go on.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::cli::LogFormat;

/// How long [`tell`] waits for room on stderr, in milliseconds.
const TELL_WAIT: u16 = 1000;
/// A pipe that poll(2) calls writable takes this many bytes without waiting (pipe(7)).
const PIPE_BUF: usize = 4096;

/// Writes a line for people to stderr. If nobody reads stderr, the line is lost, and the program goes on.
pub(super) fn tell(line: fmt::Arguments<'_>) {
    let _ = write_within(
        &mut io::stderr().lock(),
        format!("{line}\n").as_bytes(),
        TELL_WAIT.into(),
    );
}

/// The log's output. A line for which there is no room is lost, because the program must not wait for the log's reader. The next line for
/// which there is room comes after a notice that says how many lines were lost.
pub(super) struct LossyLog<W> {
    output: W,
    format: LogFormat,
    lost_lines: u64,
    /// The last line was written in part.
    is_cut: bool,
}

impl<W> LossyLog<W> {
    pub fn new(output: W, format: LogFormat) -> LossyLog<W> {
        LossyLog {
            output,
            format,
            lost_lines: 0,
            is_cut: false,
        }
    }

    fn notice(&self) -> String {
        let mut time = String::new();
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let end_of_cut = if self.is_cut { "\n" } else { "" };
        let text = "lines of the log are lost here: they were not read in time";
        match self.format {
            LogFormat::Text => format!("{end_of_cut}{time}  WARN {} {text}\n", self.lost_lines),
            LogFormat::Json => format!(
                "{end_of_cut}{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"message\":\"{text}\",\"lines\":{}}}\n",
                self.lost_lines
            ),
        }
    }
}

impl<W: Write + AsFd> LossyLog<W> {
    /// Writes as much of the line as there is room for. Returns whether the whole line was written.
    fn put(&mut self, line: &[u8]) -> io::Result<bool> {
        let written = write_within(&mut self.output, line, PollTimeout::ZERO)?;
        self.is_cut = 0 < written && written < line.len();
        Ok(written == line.len())
    }
}

/// Takes a whole line with each call.
impl<W: Write + AsFd> Write for LossyLog<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lost_lines > 0 && self.put(self.notice().as_bytes())? {
            self.lost_lines = 0;
        }
        if self.lost_lines > 0 || !self.put(line)? {
            self.lost_lines += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Writes `bytes`, but stops when there is still no room after `timeout`. Returns the number of bytes written.
fn write_within(output: &mut (impl Write + AsFd), bytes: &[u8], timeout: PollTimeout) -> io::Result<usize> {
    let mut written = 0;
    for part in bytes.chunks(PIPE_BUF) {
        let mut polled = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut polled, timeout) == Ok(0) {
            break;
        }
        output.write_all(part)?;
        written += part.len();
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Number of lines that are together longer than a pipe's buffer (64 KB).
    const LINES: usize = 100_000 / LINE.len();
    const LINE: &str = "2026-01-01T00:00:00.000000Z  INFO the peer is heard again\n";

    #[test]
    fn a_log_that_is_not_read_loses_lines_and_counts_them() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let (mut reader, writer) = io::pipe().unwrap();
            let mut log = LossyLog::new(writer, format);
            for _ in 0..LINES {
                log.write_all(LINE.as_bytes()).unwrap();
            }
            let kept = LINES - usize::try_from(log.lost_lines).unwrap();
            assert!(kept < LINES && kept > LINES / 4, "{kept} of {LINES}");
            let mut read = vec![0; kept * LINE.len()];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(read, LINE.repeat(kept).into_bytes());

            log.write_all(LINE.as_bytes()).unwrap();
            drop(log);
            let mut rest = String::new();
            reader.read_to_string(&mut rest).unwrap();
            let [notice, line] = rest.lines().collect::<Vec<_>>()[..] else {
                panic!("{rest}");
            };
            assert!(notice.contains("lines of the log are lost"), "{notice}");
            assert!(notice.contains(&(LINES - kept).to_string()), "{notice}");
            if let LogFormat::Json = format {
                serde_json::from_str::<serde_json::Value>(notice).unwrap();
            }
            assert_eq!(line, LINE.trim_end());
        }
    }

    #[test]
    fn a_line_that_was_cut_ends_before_the_next_one() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut log = LossyLog::new(writer, LogFormat::Text);
        let long = "x".repeat(100_000) + "\n";
        log.write_all(long.as_bytes()).unwrap();
        assert_eq!(log.lost_lines, 1);
        let mut read = vec![0; 60_000];
        reader.read_exact(&mut read).unwrap();
        log.write_all(LINE.as_bytes()).unwrap();
        drop(log);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let lines: Vec<_> = rest.lines().collect();
        assert_eq!(lines.len(), 3, "{rest}");
        assert!(lines[1].contains("1 lines of the log"), "{rest}");
    }
}
