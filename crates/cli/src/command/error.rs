//! Why a command failed, and the exit code of each reason.

use crate::config::ConfigError;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The configuration is wrong. Each line of the message names file, line and field.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Wrong use.
    #[error("steadfast: {0}")]
    Use(String),
    /// The command cannot run on this machine. The list names what is missing.
    #[error("steadfast: cannot run here; missing: {}", .0.join("; "))]
    Missing(Vec<String>),
    /// The command was tried and failed.
    #[error("steadfast: {0:#}")]
    Failed(#[from] anyhow::Error),
}

impl CommandError {
    /// Wraps an error of a library.
    pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(error.into())
    }

    /// The exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Config(_) | Self::Use(_) => 2,
            Self::Missing(_) => 3,
        }
    }
}
