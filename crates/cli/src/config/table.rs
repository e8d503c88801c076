//! Reads one TOML table field by field. If a field is wrong, the problem is recorded, and the next field is read.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, Places, Problem};

/// State while a file is read: the problems that were found so far, and the lines of the fields.
pub(super) struct ConfigReader<'t> {
    text: &'t str,
    pub(super) problems: Vec<Problem>,
    pub(super) places: Places,
}

impl<'t> ConfigReader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            problems: Vec::new(),
            places: Places::default(),
        }
    }

    /// The number of the line that contains the byte at `position`, counted from 1.
    pub(super) fn line(&self, position: usize) -> usize {
        let before = &self.text.as_bytes()[..position.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Records that `field` is wrong. `what` describes the problem.
    pub(super) fn problem(&mut self, field: &str, what: impl Into<String>) {
        let line = self.places.line(field);
        self.problems.push(Problem {
            line,
            field: field.to_owned(),
            what: what.into(),
        });
    }

    /// Returns the recorded problems as an error, if there are any.
    pub(super) fn verdict(&mut self, file: &Path) -> Result<(), ConfigError> {
        match std::mem::take(&mut self.problems) {
            problems if problems.is_empty() => Ok(()),
            problems => Err(ConfigError::new(file, problems)),
        }
    }
}

/// One table while it is read. Every key that is read becomes a known key. At the end, all other keys of the table are problems.
pub(super) struct ConfigTable<'a, 't> {
    reading: &'a mut ConfigReader<'t>,
    path: String,
    entries: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
}

impl<'a, 't> ConfigTable<'a, 't> {
    /// Begins to read the table `value` at `path`. A table that is absent is read as an empty table.
    pub(super) fn begin(
        reading: &'a mut ConfigReader<'t>,
        path: String,
        value: Option<&'a Spanned<DeValue<'a>>>,
    ) -> Self {
        let mut entries = None;
        if let Some(value) = value {
            let line = reading.line(value.span().start);
            reading.places.insert(path.clone(), line);
            match value.get_ref() {
                DeValue::Table(table) => entries = Some(table),
                other => reading.problem(&path, expected("a table", other)),
            }
        }
        let mut table = Self {
            reading,
            path,
            entries,
            known: Vec::new(),
        };
        table.note_places();
        table
    }

    /// Begins to read the top level of a file whose first keys are in no table.
    pub(super) fn top(reading: &'a mut ConfigReader<'t>, root: &'a DeTable<'a>) -> Self {
        let mut table = Self {
            reading,
            path: String::new(),
            entries: Some(root),
            known: Vec::new(),
        };
        table.note_places();
        table
    }

    /// These keys are read elsewhere.
    pub(super) fn leave(&mut self, keys: &[&'static str]) {
        self.known.extend(keys);
    }

    fn note_places(&mut self) {
        for (key, value) in self.entries.into_iter().flatten() {
            if !value.get_ref().is_table() {
                let line = self.reading.line(key.span().start);
                self.reading.places.insert(self.field(key.get_ref()), line);
            }
        }
    }

    fn field(&self, key: &str) -> String {
        within(&self.path, key)
    }

    /// The value of `key` as `read` parses it. `None` if the key is absent or its value is wrong. A wrong value is recorded as a problem.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.entries?.get(key)?;
        read(value.get_ref()).map_err(|what| self.problem(key, what)).ok()
    }

    /// Whether the table has `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(key))
    }

    /// As [`Self::optional`], but a key that is absent is recorded as a problem, too.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        if !self.has(key) {
            self.known.push(key);
            self.problem(key, format!("is missing; allowed: {allowed}"));
            return None;
        }
        self.optional(key, read)
    }

    /// The table `key` inside this table, as `read` parses it. `None` if the inner table is absent.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut ConfigTable<'_, 't>) -> T,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.entries?.get(key)?;
        let path = self.field(key);
        let mut inner = ConfigTable::begin(self.reading, path, Some(value));
        let found = read(&mut inner);
        inner.end();
        Some(found)
    }

    /// The tables `[[key]]` inside this table, as `read` parses each of them. Empty if there are none.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        counts: RangeInclusive<usize>,
        read: impl Fn(&mut ConfigTable<'_, 't>) -> T,
    ) -> Vec<T> {
        self.known.push(key);
        let Some(value) = self.entries.and_then(|entries| entries.get(key)) else {
            return Vec::new();
        };
        let allowed = format!("at most {} tables", counts.end());
        let array = match value.get_ref() {
            DeValue::Array(array) if counts.contains(&array.len()) => array,
            DeValue::Array(array) => {
                self.problem(key, format!("there are {}; allowed: {allowed}", array.len()));
                return Vec::new();
            }
            other => {
                self.problem(key, expected(&allowed, other));
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for (index, value) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.field(key));
            let mut inner = ConfigTable::begin(self.reading, path, Some(value));
            found.push(read(&mut inner));
            inner.end();
        }
        found
    }

    /// Records that the value of `key` is wrong. `what` describes the problem.
    pub(super) fn problem(&mut self, key: &str, what: impl Into<String>) {
        let field = self.field(key);
        self.reading.problem(&field, what);
    }

    /// Ends the reading of the table. Records a problem for every key that was not read.
    pub(super) fn end(self) {
        let Self {
            reading,
            path,
            entries,
            known,
        } = self;
        for (key, _) in entries.into_iter().flatten() {
            if !known.contains(&key.get_ref().as_ref()) {
                unknown(reading, &within(&path, key.get_ref()), key.span().start, &known);
            }
        }
    }
}

/// The path of `key` in the table at `path`. The top level has an empty path.
fn within(path: &str, key: &str) -> String {
    if path.is_empty() {
        return key.to_owned();
    }
    format!("{path}.{key}")
}

/// The tables `[[key]]`, as `read` parses each of them with its index. `allowed` says how many there must be.
pub(super) fn tables<T>(
    reading: &mut ConfigReader<'_>,
    root: &DeTable<'_>,
    (key, counts, allowed): (&str, RangeInclusive<usize>, &str),
    read: impl Fn(&mut ConfigReader<'_>, usize, &Spanned<DeValue<'_>>) -> T,
) -> Vec<T> {
    let Some(value) = root.get(key) else {
        reading.problem(key, format!("is missing; allowed: {allowed}"));
        return Vec::new();
    };
    let line = reading.line(value.span().start);
    reading.places.insert(key.to_owned(), line);
    let what = match value.get_ref() {
        DeValue::Array(array) if counts.contains(&array.len()) => {
            let tables = array.iter().enumerate();
            return tables.map(|(index, value)| read(reading, index, value)).collect();
        }
        DeValue::Array(array) if array.is_empty() => format!("is empty; allowed: {allowed}"),
        DeValue::Array(array) => format!("there are {}; allowed: {allowed}", array.len()),
        other => expected(allowed, other),
    };
    reading.problem(key, what);
    Vec::new()
}

/// Records that the key `field` at `position` is unknown. Only `known` keys are allowed there.
pub(super) fn unknown(reading: &mut ConfigReader<'_>, field: &str, position: usize, known: &[&str]) {
    let line = reading.line(position);
    let what = format!("unknown key; allowed here: {}", known.join(", "));
    reading.problems.push(Problem {
        line,
        field: field.to_owned(),
        what,
    });
}

/// The message for a value of the wrong type: "is of type integer; allowed: a string".
pub(super) fn expected(allowed: &str, found: &DeValue<'_>) -> String {
    format!("is of type {}; allowed: {allowed}", found.type_str())
}

/// Reads an integer within `range`.
pub(super) fn integer(range: RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Result<u64, String> {
    let allowed = format!("an integer from {} to {}", range.start(), range.end());
    number(allowed, move |number| range.contains(&number))
}

/// Reads a power of two within `range`.
pub(super) fn power_of_two(range: RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Result<u64, String> {
    let allowed = format!("a power of two from {} to {}", range.start(), range.end());
    number(allowed, move |number| {
        range.contains(&number) && number.is_power_of_two()
    })
}

/// Converts `number` to the type of its field. The number fits, because its range was checked before.
pub(super) fn narrow<T: TryFrom<u64>>(number: u64) -> T {
    T::try_from(number).ok().expect("the field's range fits its type")
}

fn number(allowed: String, fits: impl Fn(u64) -> bool) -> impl Fn(&DeValue<'_>) -> Result<u64, String> {
    move |value| {
        let integer = value.as_integer().ok_or_else(|| expected(&allowed, value))?;
        u64::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .filter(|number| fits(*number))
            .ok_or_else(|| format!("is {integer}; allowed: {allowed}"))
    }
}

/// Reads a string that `parse` accepts; `parse` rejects by returning `None`.
pub(super) fn text<T>(
    allowed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let text = value.as_str().ok_or_else(|| expected(allowed, value))?;
        parse(text).ok_or_else(|| format!("is {text:?}; allowed: {allowed}"))
    }
}

/// Reads an array whose elements `read` accepts.
pub(super) fn list<T>(
    read: impl Fn(&DeValue<'_>) -> Result<T, String>,
) -> impl Fn(&DeValue<'_>) -> Result<Vec<T>, String> {
    move |value| {
        let array = value.as_array().ok_or_else(|| expected("an array", value))?;
        let element = |(index, element): (usize, &Spanned<DeValue<'_>>)| {
            read(element.get_ref()).map_err(|what| format!("element {index} {what}"))
        };
        array.iter().enumerate().map(element).collect()
    }
}

/// The allowed names of a node or a service, for error messages.
pub(crate) const NAME: &str = "1 to 32 letters, digits, - and _, beginning with a letter";

/// Reads a name. It must be valid in an nftables identifier, in a path of eBPF pins and on a command line.
pub(super) fn name(value: &DeValue<'_>) -> Result<String, String> {
    text(NAME, |name| is_name(name).then(|| name.to_owned()))(value)
}

/// Whether a text has the form of a name.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name.len() <= 32 && name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(fits)
}

/// The allowed addresses of a node or a service, for error messages.
pub(super) const ADDRESS: &str = "an IPv4 or IPv6 unicast address, neither loopback nor link-local";

/// Reads the address of a machine or a service on a network.
pub(super) fn address(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let fits = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast() && v4.octets()[0] != 0,
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
    };
    let general = |address: &IpAddr| {
        !address.is_loopback() && !address.is_multicast() && !address.is_unspecified() && fits(address)
    };
    text(ADDRESS, |text| text.parse().ok().filter(general))(value)
}
