//! The witness's record of a service, and the verdict that follows from it.

use proto::standing::ArbiterVerdict;
use serde::{Deserialize, Serialize};

/// The latest epoch that was granted, and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRecord {
    pub epoch: u64,
    pub owner: String,
    /// Unix time, in seconds; for people.
    pub at: u64,
}

/// The verdict that follows from `stored` for `node`, which asks for `epoch`. `None` if the node may try to take the epoch.
///
/// If the node owns the epoch already, the verdict is `Granted` again: the first answer may have been lost.
pub fn judge(stored: &EpochRecord, node: &str, epoch: u64) -> Option<ArbiterVerdict> {
    if stored.epoch == epoch && stored.owner == node {
        return Some(ArbiterVerdict::Granted);
    }
    (stored.epoch >= epoch).then(|| ArbiterVerdict::Refused {
        epoch: stored.epoch,
        is_own: stored.owner == node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_given_to_one_node() {
        let record = |epoch, owner: &str| EpochRecord {
            epoch,
            owner: owner.to_owned(),
            at: 0,
        };
        let refused = |epoch, is_own| Some(ArbiterVerdict::Refused { epoch, is_own });
        let cases = [
            (record(4, "b"), None),
            (record(1, "b"), None),
            (record(4, "a"), None),
            (record(5, "a"), Some(ArbiterVerdict::Granted)),
            (record(5, "b"), refused(5, false)),
            (record(6, "b"), refused(6, false)),
            (record(6, "a"), refused(6, true)),
        ];
        for (stored, expected) in cases {
            assert_eq!(judge(&stored, "a", 5), expected, "{stored:?}");
        }
    }
}
