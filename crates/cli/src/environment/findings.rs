//! The results of the checks.

use crate::config::Problem;

/// The results of the checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that keep the node from running.
    pub problems: Vec<Problem>,
    /// Problems that will matter later.
    pub warnings: Vec<Problem>,
}
