//! Finds the node that a command is about.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::cli::NodeOption;
use super::error::CommandError;
use crate::config::{
    AcceptSettings, AnnexFile, ConnectSettings, EdgeSettings, NodeFile, PEERS_DIR, STATE_ROOT,
};
use crate::tunnel::TunnelFile;

/// A node of this machine, or the agent for one peer of a node with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalNode {
    pub(super) name: String,
    pub(super) state_dir: PathBuf,
}

impl LocalNode {
    /// The node `name` with its state in the usual place.
    pub(super) fn usual(name: String) -> Self {
        Self {
            state_dir: Path::new(STATE_ROOT).join(&name),
            name,
        }
    }

    /// The agents of the node. A node with one peer is its own agent.
    pub(super) fn agents(&self) -> Vec<Self> {
        let peers = self.state_dir.join(PEERS_DIR);
        let agents: Vec<_> = folders(&peers)
            .into_iter()
            .map(|peer| Self {
                name: format!("{}-{peer}", self.name),
                state_dir: peers.join(peer),
            })
            .collect();
        if agents.is_empty() {
            return vec![self.clone()];
        }
        agents
    }
}

impl NodeOption {
    /// The agents that the options name: all of the node, or the one for `--peer`.
    pub(super) fn agents(
        &self,
        candidates: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<Vec<LocalNode>, CommandError> {
        let node = self.choose(candidates)?;
        let mut agents = node.agents();
        if let Some(peer) = &self.peer {
            agents.retain(|agent| agent.state_dir == node.state_dir.join(PEERS_DIR).join(peer));
            if agents.is_empty() {
                let LocalNode { name, .. } = node;
                return Err(CommandError::Use(format!(
                    "node {name} has no agent of its own for a peer {peer}"
                )));
            }
        }
        Ok(agents)
    }

    /// The node that the options name. If they name none: the only one of `candidates`.
    pub(super) fn choose(
        &self,
        candidates: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<LocalNode, CommandError> {
        if let Some(file) = &self.config {
            if EdgeSettings::is_in(file) {
                let EdgeSettings { name, state_dir, .. } = EdgeSettings::load(file)?;
                return Ok(LocalNode { name, state_dir });
            }
            if AnnexFile::is_in(file) {
                let AnnexFile { name, state_dir, .. } = AnnexFile::load(file)?;
                return Ok(LocalNode { name, state_dir });
            }
            if TunnelFile::is_in(file) {
                let contents = TunnelFile::read(file).map_err(CommandError::Use)?;
                let told = |error: String| CommandError::Use(format!("{}: {error}", file.display()));
                let (name, state_dir) = contents.place().map_err(told)?;
                return Ok(LocalNode { name, state_dir });
            }
            if ConnectSettings::is_in(file) {
                let ConnectSettings { name, state_dir, .. } = ConnectSettings::load(file)?;
                return Ok(LocalNode { name, state_dir });
            }
            if AcceptSettings::is_in(file) {
                let AcceptSettings { name, state_dir, .. } = AcceptSettings::load(file)?;
                return Ok(LocalNode { name, state_dir });
            }
            let NodeFile { name, state_dir, .. } = NodeFile::load(file)?;
            return Ok(LocalNode { name, state_dir });
        }
        if let Some(name) = &self.node {
            // The same characters as in the configuration, so that `--node ../x` cannot leave the directory.
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(fits) {
                return Err(CommandError::Use(format!(
                    "--node {name:?} is not the name of a node"
                )));
            }
            return Ok(LocalNode::usual(name.clone()));
        }
        let mut candidates = candidates().into_iter();
        match (candidates.next(), candidates.next()) {
            (Some(name), None) => Ok(LocalNode::usual(name)),
            (Some(first), Some(second)) => {
                let names = [first, second]
                    .into_iter()
                    .chain(candidates)
                    .collect::<Vec<_>>()
                    .join(", ");
                Err(CommandError::Use(format!(
                    "say which node with --node NAME; there are {names}"
                )))
            }
            (None, _) => Err(CommandError::Missing(vec![format!(
                "a node of steadfast: {STATE_ROOT} has no node's state. If an agent should run here, see its log: \
                 journalctl -u steadfast. If the node's state is elsewhere, use --config FILE"
            )])),
        }
    }
}

/// The names of the folders in `root`.
pub(super) fn folders(root: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
