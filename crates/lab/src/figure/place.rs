//! Finds the positions of fields in a TOML text.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The positions of all fields in one TOML text.
pub struct FieldSpans<'t> {
    text: &'t str,
    is_toml: bool,
    /// Each field's path, like `table.array[0].key`, and the byte ranges of its key and of its value.
    fields: Vec<(String, [Range<usize>; 2])>,
}

impl<'t> FieldSpans<'t> {
    /// Finds the fields of `text`. If `text` is not valid TOML, the list of fields is empty.
    pub fn of(text: &'t str) -> Self {
        let mut places = Self {
            text,
            is_toml: false,
            fields: Vec::new(),
        };
        if let Ok(root) = DeTable::parse(text) {
            places.is_toml = true;
            places.collect("", root.get_ref());
        }
        places
    }

    fn collect(&mut self, above: &str, table: &DeTable) {
        for (key, value) in table {
            let path = if above.is_empty() {
                key.get_ref().to_string()
            } else {
                format!("{above}.{}", key.get_ref())
            };
            self.collect_value(&path, key.span(), value);
        }
    }

    fn collect_value(&mut self, path: &str, key: Range<usize>, value: &Spanned<DeValue>) {
        self.fields.push((path.to_owned(), [key, value.span()]));
        match value.get_ref() {
            DeValue::Table(table) => self.collect(path, table),
            DeValue::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.collect_value(&format!("{path}[{index}]"), value.span(), value);
                }
            }
            _ => (),
        }
    }

    /// The keys at the top level, in the text's order. `None` if the text is not valid TOML.
    pub fn tables(&self) -> Option<Vec<&str>> {
        let top = self.fields.iter().filter(|(path, _)| !path.contains(['.', '[']));
        let mut top: Vec<_> = top.map(|(path, [key, _])| (key.start, path.as_str())).collect();
        top.sort_unstable();
        self.is_toml
            .then(|| top.into_iter().map(|(_, path)| path).collect())
    }

    /// Number of the line with the byte at offset `byte`, counted from 1.
    pub fn line_at(&self, byte: usize) -> usize {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Path of the innermost field that contains the byte at offset `byte`. If the text is not valid TOML, the text before the first `=` on
    /// that byte's line. Empty if there is no such field or text.
    pub fn field_at(&self, byte: usize) -> String {
        if !self.is_toml {
            let line = self.text.lines().nth(self.line_at(byte) - 1);
            let key = line
                .and_then(|line| line.split_once('='))
                .map(|(key, _)| key.trim());
            return key.unwrap_or_default().to_owned();
        }
        let within = |spans: &[Range<usize>; 2]| spans.iter().any(|span| span.contains(&byte));
        let innermost = self
            .fields
            .iter()
            .filter(|(_, spans)| within(spans))
            .max_by_key(|(path, _)| path.len());
        innermost.map(|(path, _)| path.clone()).unwrap_or_default()
    }

    /// Number of the line with the key of the field at `path`. If the text lacks this field, the line of the field's innermost enclosing
    /// table that the text contains. If the text contains no such table, line 1.
    pub fn line_of(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some((_, [key, _])) = self.fields.iter().find(|(field, _)| field == path) {
                return self.line_at(key.start);
            }
            match path.rsplit_once('.') {
                Some((above, _)) => path = above,
                None => return 1,
            }
        }
    }
}
