//! The operator's configuration, checked once and turned into types.
//!
//! The file is TOML and strict: an unknown key is an error. Reading the file once reports all problems. Each problem names
//! file, line and field, and says what is wrong and what is allowed. Every [`Config`] is consistent in itself. [`crate::environment`]
//! checks whether this machine and its network agree with the configuration.

mod annex;
mod arbiter;
mod connect;
mod draft;
mod edge;
mod key;
mod log;
mod parse;
mod peers;
mod places;
mod problem;
mod relations;
mod settings;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use annex::{AnnexFile, AnnexService, RegistrySettings};
pub use arbiter::{ArbiterSettings, EtcdSettings, FenceSettings};
pub use connect::{AcceptSettings, ConnectService, ConnectSettings, WatchPolicy};
pub use edge::{CacheSettings, EdgeSettings, HeartbeatSettings, PortSettings, StringSettings, Subnet};
pub use key::{SecretKey, private};
pub use places::Places;
pub use problem::{ConfigError, Problem};
pub use settings::{
    AfterTakeover, AnnexSettings, AtLimitSetting, Commit, Config, CutReplies, DetectorSettings,
    FOR_MEASURING, HealthSettings, LogSettings, MetricsSettings, NodeFile, NodeRole, NodeSettings,
    OpaqueSetting, PEERS_DIR, PeerSettings, PeerTransport, RecordedOrderSettings, STATE_ROOT,
    ServiceSettings, StateSyncSettings,
};
pub(crate) use table::{NAME, is_name};

impl NodeFile {
    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or has problems. The error lists all problems of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        parse::config(path, &text)
    }

    /// The configuration for `peer`, or for the only peer.
    ///
    /// # Errors
    /// If the node, whose file is `path`, has no such peer, or has several and none is named.
    pub fn pair(self, path: &Path, peer: Option<&str>) -> Result<Config, ConfigError> {
        let line = |config: &Config| config.places.line("peer");
        let names: Vec<_> = self.pairs.iter().map(|config| config.peer.name.clone()).collect();
        let mut pairs = self.pairs;
        let what = match peer {
            None if pairs.len() == 1 => return Ok(pairs.remove(0)),
            None => format!(
                "there are several: say which with --peer; allowed: {}",
                names.join(", ")
            ),
            Some(name) => match names.iter().position(|one| one == name) {
                Some(index) => return Ok(pairs.remove(index)),
                None => format!("none is called {name:?}; allowed: {}", names.join(", ")),
            },
        };
        let problem = Problem {
            line: line(&pairs[0]),
            field: "peer".to_owned(),
            what,
        };
        Err(ConfigError::new(path, vec![problem]))
    }
}

impl Config {
    /// Reads and checks the file `path`, and takes from it what belongs to `peer`. `None`: to the only peer.
    ///
    /// # Errors
    /// If the file cannot be read, or has problems, or if it is not clear which peer is meant.
    pub fn load(path: &Path, peer: Option<&str>) -> Result<Self, ConfigError> {
        NodeFile::load(path)?.pair(path, peer)
    }

    /// Checks `text`, the contents of the file `path` of a node with one peer.
    ///
    /// # Errors
    /// If the text has problems. The error lists all of them.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        parse::config(path, text)?.pair(path, None)
    }
}
