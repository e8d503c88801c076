//! `steadfast tunnel`.

use super::cli::TunnelOptions;
use super::error::CommandError;
use super::run::start_log;
use crate::tunnel::{self, TunnelFile, TunnelService};

/// Checks everything, and runs the tunnel of the file or of the options.
pub(super) fn run(options: TunnelOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let file = match options.config {
        Some(file) => TunnelFile::read(&file).map_err(CommandError::Use)?,
        None => TunnelFile {
            via: options.via,
            to: options.to,
            udp_port: options.udp_port,
            key_file: options.key_file,
            service: vec![TunnelService {
                name: options.service,
                listen: options.listen,
                connect: options.forward,
            }],
            watch_ms: options.watch_ms,
            ..TunnelFile::default()
        },
    };
    let settings = file.check().map_err(CommandError::Use)?;
    tunnel::run(&settings).map_err(CommandError::Failed)
}
