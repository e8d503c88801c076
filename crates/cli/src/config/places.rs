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

    /// The places of one pair of a node with several peers: those of the peer with this index as `peer`, and those of `services` in this order.
    pub(super) fn of_pair(&self, peer: usize, services: &[usize]) -> Self {
        let own = format!("peer[{peer}]");
        let renamed = |field: &str| {
            if let Some(rest) = field.strip_prefix(&own) {
                return Some(format!("peer{rest}"));
            }
            let Some((index, rest)) = field
                .strip_prefix("service[")
                .and_then(|rest| rest.split_once(']'))
            else {
                return (!field.starts_with("peer[")).then(|| field.to_owned());
            };
            let index: usize = index.parse().ok()?;
            let local = services.iter().position(|service| *service == index)?;
            Some(format!("service[{local}]{rest}"))
        };
        let lines = self
            .lines
            .iter()
            .filter_map(|(field, line)| Some((renamed(field)?, *line)));
        Self {
            lines: lines.collect(),
        }
    }

    pub(super) fn insert(&mut self, field: String, line: usize) {
        self.lines.insert(field, line);
    }
}
