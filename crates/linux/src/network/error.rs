//! Errors of network steps: the step, its object, and the kernel's answer.

use std::fmt;
use std::io;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} {object}: {answer}")]
pub struct NetworkError {
    /// The step's verb: `add address`.
    pub step: &'static str,
    /// The step's object: `10.0.0.100/32 on eth0`.
    pub object: String,
    /// The answer of the kernel or of nft.
    #[source]
    pub answer: io::Error,
}

impl NetworkError {
    pub(super) fn new(step: &'static str, object: impl Into<String>, answer: io::Error) -> Self {
        Self {
            step,
            object: object.into(),
            answer,
        }
    }

    /// [`new`](Self::new) as a function for `map_err`.
    pub(super) fn at(step: &'static str, object: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |answer| Self::new(step, object.to_string(), answer)
    }
}

/// All failures of an undo. If undoing one step fails, the other steps are still undone.
#[derive(Debug)]
pub struct UndoError(pub Vec<NetworkError>);

impl UndoError {
    pub(super) fn of(failed: Vec<NetworkError>) -> Result<(), Self> {
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Self(failed))
        }
    }
}

impl fmt::Display for UndoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UndoError {}

impl From<NetworkError> for UndoError {
    fn from(error: NetworkError) -> Self {
        Self(vec![error])
    }
}

impl From<UndoError> for NetworkError {
    fn from(error: UndoError) -> Self {
        Self::new("restore", "the network as found", io::Error::other(error))
    }
}
