//! Problems in a configuration, and their places.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One thing that is wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// The field's path, `service[0].port`; empty if the file cannot be read or is not TOML.
    pub field: String,
    /// The problem, and what is allowed.
    pub what: String,
}

/// All that is wrong in one configuration file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// `problems` of `file`, sorted by line, each once.
    pub fn new(file: &Path, mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup(); // the TOML parser reports each bad character of a line
        Self {
            file: file.to_owned(),
            problems,
        }
    }

    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let what = match error.kind() {
            io::ErrorKind::InvalidData => "the file is not UTF-8 text".to_owned(),
            _ => format!("the file cannot be read: {error}"),
        };
        Self::new(
            file,
            vec![Problem {
                line: 1,
                field: String::new(),
                what,
            }],
        )
    }
}

impl fmt::Display for ConfigError {
    /// One line per problem: `FILE:LINE: FIELD: WHAT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { line, field, what }) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{line}: ", self.file.display())?;
            if !field.is_empty() {
                write!(f, "{field}: ")?;
            }
            write!(f, "{what}")?;
        }
        Ok(())
    }
}
