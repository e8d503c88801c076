//! Compares an application's repeated output with the logged output, until all further output is new.

use proto::restart::{http, replay, replica};

use super::status::ConnectionEnding;

/// The abnormal end of a connection, and the reason as a phrase.
pub(super) struct RelayAbort(pub ConnectionEnding, pub String);

/// Compares the output that the application repeats with the logged output.
pub(super) enum OutputFilter {
    Http(Box<http::HttpResumer>),
    Replica(replica::ReplicaResumer),
    Replay(Box<replay::RepetitionFilter>),
    /// Nothing is left to be compared.
    Transparent,
}

impl OutputFilter {
    /// Frees the memory of a filter that has nothing left to compare.
    pub fn settle(&mut self) {
        let is_over = match self {
            Self::Http(resumer) => resumer.is_over(),
            Self::Replica(resumer) => resumer.is_transparent(),
            Self::Replay(filter) => filter.is_transparent(),
            Self::Transparent => true,
        };
        if is_over {
            *self = Self::Transparent;
        }
    }

    /// Takes the next input. Returns how many of `bytes`, from the beginning, must be passed to the application.
    pub fn on_input(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Http(resumer) => resumer.on_input(bytes),
            Self::Replica(_) | Self::Replay(_) | Self::Transparent => bytes.len(),
        }
    }

    /// Whether the application must repeat output that the client has already.
    pub fn awaits_reply(&self) -> bool {
        match self {
            Self::Http(resumer) => resumer.awaits_reply(),
            Self::Replica(resumer) => !resumer.is_transparent(),
            Self::Replay(filter) => !filter.is_transparent(),
            Self::Transparent => false,
        }
    }

    /// Number of bytes that the client has already and the application has yet to repeat. Unknown with policy `http`, whose applications
    /// have a time limit of their own.
    pub fn missing(&self) -> u64 {
        match self {
            Self::Replica(resumer) => resumer.missing(),
            Self::Replay(filter) => filter.missing(),
            Self::Http(_) | Self::Transparent => 0,
        }
    }

    pub fn is_transparent(&self) -> bool {
        match self {
            Self::Http(resumer) => resumer.is_transparent(),
            Self::Replica(resumer) => resumer.is_transparent(),
            Self::Replay(filter) => filter.is_transparent(),
            Self::Transparent => true,
        }
    }

    /// Whether the connection's last reply is complete. Only an HTTP reply can say that it is the last one.
    pub const fn is_finished(&self) -> bool {
        match self {
            Self::Http(resumer) => resumer.is_finished(),
            Self::Replica(_) | Self::Replay(_) | Self::Transparent => false,
        }
    }

    pub fn on_application(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) -> Result<(), RelayAbort> {
        match self {
            Self::Http(resumer) => resumer.on_application(bytes, to_client).map_err(mismatch),
            Self::Replica(resumer) => resumer.on_application(bytes, to_client).map_err(mismatch),
            Self::Replay(filter) => filter.on_application(bytes, to_client).map_err(mismatch),
            Self::Transparent => {
                to_client.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    pub fn on_application_end(&mut self, to_client: &mut Vec<u8>) -> Result<(), RelayAbort> {
        match self {
            Self::Http(resumer) => resumer.on_application_end(to_client).map_err(mismatch),
            Self::Replica(resumer) => resumer.on_application_end().map_err(mismatch),
            Self::Replay(filter) => filter.on_application_end().map_err(mismatch),
            Self::Transparent => Ok(()),
        }
    }

    /// The application's connection is lost. Returns whether the output ends cleanly all the same.
    pub fn on_application_lost(&mut self, why: http::RequestRefusal, to_client: &mut Vec<u8>) -> bool {
        match self {
            Self::Http(resumer) => resumer.on_application_lost(why, to_client),
            Self::Replica(_) | Self::Replay(_) | Self::Transparent => false,
        }
    }
}

fn mismatch(mismatch: impl std::error::Error) -> RelayAbort {
    RelayAbort(ConnectionEnding::Mismatch, mismatch.to_string())
}
