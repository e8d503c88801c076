//! How the daemon was started.

use std::path::Path;

use super::recording::RecordingTarget;
use crate::config::Config;
use crate::lock::Lock;

/// How the daemon was started.
#[derive(Debug)]
pub struct Start<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The configuration's file.
    pub file: &'a Path,
    /// The peer, if the node has several.
    pub peer: Option<&'a str>,
    /// Whether this node serves alone if the peer is not heard.
    pub without_peer: bool,
    /// The node's lock.
    pub lock: &'a Lock,
    /// Directory and size limit of the recording, if the node's inputs are recorded.
    pub record: Option<RecordingTarget>,
}
