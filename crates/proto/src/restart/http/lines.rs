//! Completes a cut header section with the lines of a regenerated one. Each logged line must be regenerated, or belong to a volatile field.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use super::reason::HttpMismatch;
use super::section::ends_blank;

/// How to continue when the log ends inside a volatile field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolatileRule {
    /// Halves of two values must not be mixed: the regenerated line must begin with the logged part.
    Refuse,
    /// The value is only informative: it is completed from the regenerated value, by position.
    Splice,
}

/// The header fields that may differ between two executions of one request. The logged value is kept. Clones share one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, VolatileRule>")]
pub struct Volatile(#[serde(serialize_with = "serialize_fields")] Arc<BTreeMap<String, VolatileRule>>);

fn serialize_fields<S: Serializer>(
    fields: &BTreeMap<String, VolatileRule>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    fields.serialize(serializer)
}

/// A field that cannot be volatile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the header field {0:?} frames or identifies the reply and cannot be volatile")]
pub struct VolatileError(pub String);

impl Default for Volatile {
    /// * `Date`, `Age`, `Expires`: clocks. A spliced `Date` of the same day is not later than the regenerated one.
    /// * `Server-Timing`, `X-Request-Id`, `X-Correlation-Id`, `X-Response-Time`, `X-Runtime`: read by people only.
    /// * `Keep-Alive`: a hint that counts the requests of a connection. A reexecuted request is the first on its new connection.
    /// * `Connection`: a server that counts requests may send `close`. The relay does what the logged header says.
    /// * `Set-Cookie`: a new session for each execution. Halves of two sessions' cookies would make no valid cookie.
    fn default() -> Self {
        let splice = [
            "age",
            "date",
            "expires",
            "keep-alive",
            "server-timing",
            "x-correlation-id",
            "x-request-id",
            "x-response-time",
            "x-runtime",
        ];
        let refuse = ["connection", "set-cookie"];
        let fields = splice.map(|name| (name, VolatileRule::Splice)).into_iter();
        let fields = fields
            .chain(refuse.map(|name| (name, VolatileRule::Refuse)))
            .map(|(name, cut)| (name.into(), cut));
        Self(Arc::new(fields.collect()))
    }
}

impl TryFrom<BTreeMap<String, VolatileRule>> for Volatile {
    type Error = VolatileError;

    /// Accepts names in upper or lower case.
    ///
    /// # Errors
    /// For fields that say where the body ends, and for fields that identify the body.
    fn try_from(fields: BTreeMap<String, VolatileRule>) -> Result<Self, VolatileError> {
        const FIXED: [&str; 6] = [
            "content-encoding",
            "content-length",
            "content-range",
            "etag",
            "trailer",
            "transfer-encoding",
        ];
        let fields: BTreeMap<_, _> = fields
            .into_iter()
            .map(|(name, cut)| (name.to_ascii_lowercase(), cut))
            .collect();
        match fields.keys().find(|name| FIXED.contains(&name.as_str())) {
            Some(name) => Err(VolatileError(name.clone())),
            None => Ok(Self(Arc::new(fields))),
        }
    }
}

impl Volatile {
    /// The default fields and `names`, in upper or lower case. A cut value of one of `names` is spliced, unless the default for that field
    /// is [`VolatileRule::Refuse`].
    ///
    /// # Errors
    /// As for [`TryFrom`].
    pub fn with<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, VolatileError> {
        let mut fields = Arc::unwrap_or_clone(Self::default().0);
        for name in names {
            fields
                .entry(name.to_ascii_lowercase())
                .or_insert(VolatileRule::Splice);
        }
        Self::try_from(fields)
    }

    /// The rule for a line whose name is complete; `None` if the field is not volatile or the line is not a field.
    fn rule(&self, line: &[u8]) -> Option<VolatileRule> {
        let name = str::from_utf8(name(line)?).ok()?;
        self.0.get(&name.to_ascii_lowercase()).copied()
    }

    /// Whether a line, whose name is complete, is a line of a volatile field.
    pub(super) fn has(&self, line: &[u8]) -> bool {
        self.rule(line).is_some()
    }

    /// The bytes to send after `logged` so that the client gets the header section `regenerated`, except that volatile fields
    /// keep their logged value. `logged` may end anywhere, also after its blank line.
    ///
    /// # Errors
    /// If a logged line that is not volatile differs from the regenerated line at its place.
    pub(super) fn continue_section(
        &self,
        logged: &[u8],
        regenerated: &[u8],
    ) -> Result<Vec<u8>, HttpMismatch> {
        let mut candidates = Candidates::new(self, regenerated);
        let (complete, tail) = logged.split_at(
            logged
                .iter()
                .rposition(|&b| b == b'\n')
                .map_or(0, |feed| feed + 1),
        );
        for line in complete.split_inclusive(|&byte| byte == b'\n') {
            candidates.match_line(line)?;
        }
        if ends_blank(complete) {
            return Ok(Vec::new());
        }
        let mut continuation = candidates.finish_line(tail)?;
        if !ends_blank(&[tail, &continuation].concat()) {
            candidates
                .0
                .iter()
                .for_each(|candidate| continuation.extend_from_slice(candidate.line));
        }
        Ok(continuation)
    }
}

/// The regenerated lines without a counterpart in the log yet, in order.
struct Candidates<'a>(Vec<LineCandidate<'a>>, &'a Volatile);

#[derive(Clone, Copy)]
struct LineCandidate<'a> {
    line: &'a [u8],
    rule: Option<VolatileRule>,
}

impl<'a> Candidates<'a> {
    fn new(volatile: &'a Volatile, section: &'a [u8]) -> Self {
        let lines = section.split_inclusive(|&byte| byte == b'\n');
        Self(
            lines
                .map(|line| LineCandidate {
                    line,
                    rule: volatile.rule(line),
                })
                .collect(),
            volatile,
        )
    }

    /// Removes the counterpart of a complete logged line.
    fn match_line(&mut self, logged: &[u8]) -> Result<(), HttpMismatch> {
        if self.1.rule(logged).is_some() {
            // A volatile field may also be regenerated twice, or not at all. Neither is a mismatch.
            self.take(|candidate| same_name(candidate.line, logged));
            return Ok(());
        }
        match self.first_fixed() {
            Some(index) if self.0[index].line == logged => {
                self.0.remove(index);
                Ok(())
            }
            _ => Err(self.mismatch(logged, |candidate| candidate.rule.is_none())),
        }
    }

    /// Removes the counterpart of the cut line `tail` and returns the rest of that line.
    fn finish_line(&mut self, tail: &[u8]) -> Result<Vec<u8>, HttpMismatch> {
        if tail.is_empty() {
            return Ok(Vec::new());
        }
        match self.1.rule(tail) {
            Some(VolatileRule::Splice) => {
                let counterpart = self.take(|candidate| same_name(candidate.line, tail));
                Ok(splice(
                    tail,
                    counterpart.map_or(b"\r\n", |candidate| candidate.line),
                ))
            }
            Some(VolatileRule::Refuse) => match self.take(|candidate| candidate.line.starts_with(tail)) {
                Some(candidate) => Ok(candidate.line[tail.len()..].to_vec()),
                None => Err(self.mismatch(tail, |candidate| same_name(candidate.line, tail))),
            },
            None => {
                // A cut name may belong to any volatile field, or to the next field that is not volatile.
                let first_fixed = self.first_fixed();
                let may_be = |index: usize, candidate: &LineCandidate<'_>| {
                    candidate.line.starts_with(tail)
                        && (candidate.rule.is_some() || Some(index) == first_fixed)
                };
                match (0..self.0.len()).find(|&index| may_be(index, &self.0[index])) {
                    Some(index) => Ok(self.0.remove(index).line[tail.len()..].to_vec()),
                    None => Err(self.mismatch(tail, |candidate| candidate.rule.is_none())),
                }
            }
        }
    }

    fn take(&mut self, matches: impl FnMut(&LineCandidate<'_>) -> bool) -> Option<LineCandidate<'a>> {
        let index = self.0.iter().position(matches)?;
        Some(self.0.remove(index))
    }

    /// Returns the index of the next regenerated line that is not volatile. Lines that are not volatile must be in the same order in the
    /// log and in the regenerated section. The blank line is the last of these lines, so a logged blank line matches only after all others
    /// have matched.
    fn first_fixed(&self) -> Option<usize> {
        self.0.iter().position(|candidate| candidate.rule.is_none())
    }

    fn mismatch(&self, logged: &[u8], counterpart: impl FnMut(&&LineCandidate<'_>) -> bool) -> HttpMismatch {
        let regenerated = self
            .0
            .iter()
            .find(counterpart)
            .map_or(&b""[..], |candidate| candidate.line);
        HttpMismatch::Header {
            logged: printable(logged),
            regenerated: printable(regenerated),
        }
    }
}

/// Returns the rest of the cut line `tail`: the bytes of its counterpart from the same position on. If the counterpart is shorter, the rest
/// is only the line's end.
fn splice(tail: &[u8], counterpart: &[u8]) -> Vec<u8> {
    if tail.ends_with(b"\r") {
        return b"\n".to_vec();
    }
    let value_end = counterpart.trim_ascii_end().len();
    if tail.len() <= value_end {
        counterpart[tail.len()..].to_vec()
    } else {
        b"\r\n".to_vec()
    }
}

pub(super) fn name(line: &[u8]) -> Option<&[u8]> {
    line.iter()
        .position(|&byte| byte == b':')
        .map(|colon| &line[..colon])
}

pub(super) fn same_name(one: &[u8], other: &[u8]) -> bool {
    name(one)
        .zip(name(other))
        .is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
}

/// A line for an error message: at most 80 characters, without its end.
fn printable(line: &[u8]) -> String {
    let line = line.trim_ascii_end();
    line[..line.len().min(80)].escape_ascii().to_string()
}
