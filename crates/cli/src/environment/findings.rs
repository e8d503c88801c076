//! The problems that the checks of this machine and its network have found.

use crate::config::Problem;

/// The problems that the checks have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that keep the node from running.
    pub problems: Vec<Problem>,
    /// Problems that do not keep the node from running, but will do harm later.
    pub warnings: Vec<Problem>,
}
