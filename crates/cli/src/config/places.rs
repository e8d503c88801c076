//! The line of each field in the file.

use std::collections::BTreeMap;

/// The line of every field that the file has, by its path (`peer.address`, `service[0].interface`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    lines: BTreeMap<String, usize>,
    /// The tables that have another path in the file, each with this path: `service[0]` may be `service[2]` there.
    names: BTreeMap<String, String>,
}

/// The path of the outermost table of `field`, and the rest.
fn split(field: &str) -> (&str, &str) {
    field.split_at(field.find('.').unwrap_or(field.len()))
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

    /// The places of one pair of a node with several peers: those of the peer with this index as `peer`, and those of `services` in this order.
    pub(super) fn of_pair(&self, peer: usize, services: &[usize]) -> Self {
        let renamed = services.iter().enumerate();
        let renamed =
            renamed.map(|(local, index)| (format!("service[{local}]"), format!("service[{index}]")));
        let names: BTreeMap<_, _> = renamed
            .chain([("peer".to_owned(), format!("peer[{peer}]"))])
            .collect();
        let is_of_one = |table: &str| table.starts_with("service[") || table.starts_with("peer[");
        let mut lines = BTreeMap::new();
        for (field, line) in &self.lines {
            let (table, rest) = split(field);
            let local = names
                .iter()
                .find(|(_, name)| *name == table)
                .map(|(local, _)| local);
            match local {
                Some(local) => lines.insert(format!("{local}{rest}"), *line),
                None if is_of_one(table) => None, // of another pair
                None => lines.insert(field.clone(), *line),
            };
        }
        Self { lines, names }
    }

    /// The path of `field` in the file.
    pub(super) fn name(&self, field: &str) -> String {
        let (table, rest) = split(field);
        self.names
            .get(table)
            .map_or_else(|| field.to_owned(), |name| format!("{name}{rest}"))
    }

    pub(super) fn insert(&mut self, field: String, line: usize) {
        self.lines.insert(field, line);
    }
}
