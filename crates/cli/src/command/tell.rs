//! Lines for people on stderr.

use std::fmt;
use std::io::{self, Write as _};

/// Writes a line to stderr. If nobody reads stderr any more, the line is lost, and the program goes on.
pub(super) fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
