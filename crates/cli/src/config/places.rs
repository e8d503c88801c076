//! The line of each field in the file.

use std::collections::BTreeMap;

/// The line of every field that the file has, by its path (`peer.address`, `service[0].interface`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    lines: BTreeMap<String, usize>,
}

impl Places {
    /// The line of `field`, counted from 1. If the file lacks the field: the line of the innermost table around the field, or 1 if the file
    /// lacks that table, too.
    pub fn line(&self, field: &str) -> usize {
        let mut path = field;
        loop {
            if let Some(line) = self.lines.get(path) {
                return *line;
            }
            match path.rfind('.') {
                Some(dot) => path = &path[..dot],
                None => return 1,
            }
        }
    }

    /// Whether the file has `field`.
    pub fn has(&self, field: &str) -> bool {
        self.lines.contains_key(field)
    }

    pub(super) fn insert(&mut self, field: String, line: usize) {
        self.lines.insert(field, line);
    }
}
