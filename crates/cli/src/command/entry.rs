//! The functions that the commands call.

use crate::config::Config;
use crate::daemon::Start;

/// The functions that the commands call.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Runs the node until it is told to stop.
    pub run: fn(&Start<'_>) -> anyhow::Result<()>,
    /// Names the features that the node needs and this kernel lacks.
    pub features: fn(&Config) -> Vec<String>,
}
