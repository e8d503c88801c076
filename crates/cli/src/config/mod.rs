//! The operator's configuration, checked once and turned into types.
//!
//! The file is TOML and strict: an unknown key is an error. Reading the file once reports all problems. Each problem names
//! file, line and field, and says what is wrong and what is allowed. Every [`Config`] is consistent in itself. [`crate::environment`]
//! checks whether this machine and its network agree with the configuration.

mod arbiter;
mod connect;
mod draft;
mod edge;
mod key;
mod log;
mod parse;
mod places;
mod problem;
mod relations;
mod settings;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use arbiter::{ArbiterSettings, FenceSettings, WitnessSettings};
pub use connect::{AcceptSettings, ConnectService, ConnectSettings, WatchPolicy};
pub use edge::{CacheSettings, EdgeSettings, HeartbeatSettings, PortSettings, StringSettings, Subnet};
pub use key::{SecretKey, private};
pub use places::Places;
pub use problem::{ConfigError, Problem};
pub use settings::{
    AfterTakeover, AtLimitSetting, Commit, Config, CutReplies, DetectorSettings, FOR_MEASURING,
    HealthSettings, LogSettings, MetricsSettings, NodeRole, NodeSettings, OpaqueSetting, PeerSettings,
    PeerTransport, RecordedOrderSettings, STATE_ROOT, ServiceSettings, StateSyncSettings,
};

impl Config {
    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or has problems. The error lists all problems of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, &text)
    }

    /// Checks `text`, the contents of the file `path`.
    ///
    /// # Errors
    /// If the text has problems. The error lists all of them.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        parse::config(path, text)
    }
}
