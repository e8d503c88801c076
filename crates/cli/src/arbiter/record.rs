//! What the witness keeps of a service, and what follows from it.

use serde::{Deserialize, Serialize};

use super::Verdict;

/// Who has the latest epoch that was given away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub epoch: u64,
    pub owner: String,
    /// Unix time, in seconds; for people.
    pub at: u64,
}

/// What `stored` says to `node`, which wants `epoch` and knows of epochs up to `known`. Nothing if it may try to take it.
///
/// A node that has the epoch already is told so again: the first answer may have been lost. One that has not heard of what was given
/// away since is refused, whatever it asks for: it is behind.
pub fn judge(stored: Option<&Record>, node: &str, epoch: u64, known: u64) -> Option<Verdict> {
    let stored = stored?;
    if stored.epoch == epoch && stored.owner == node {
        return Some(Verdict::Granted);
    }
    let is_given_away = stored.epoch >= epoch || stored.epoch > known;
    is_given_away.then_some(Verdict::Refused { epoch: stored.epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_given_to_one_node() {
        let record = |epoch, owner: &str| Record {
            epoch,
            owner: owner.to_owned(),
            at: 0,
        };
        let refused = |epoch| Some(Verdict::Refused { epoch });
        let cases = [
            (None, 5, 4, None),
            (Some(record(4, "b")), 5, 4, None),
            (Some(record(1, "b")), 5, 4, None),
            (Some(record(4, "a")), 5, 4, None),
            (Some(record(5, "a")), 5, 4, Some(Verdict::Granted)),
            (Some(record(5, "b")), 5, 4, refused(5)),
            (Some(record(6, "b")), 5, 4, refused(6)),
            (Some(record(6, "a")), 5, 4, refused(6)),
            (Some(record(5, "b")), 6, 4, refused(5)),
            (Some(record(5, "b")), 6, 5, None),
        ];
        for (stored, epoch, known, expected) in cases {
            let verdict = judge(stored.as_ref(), "a", epoch, known);
            assert_eq!(verdict, expected, "{stored:?}, {epoch} after {known}");
        }
    }
}
