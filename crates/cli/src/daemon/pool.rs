//! Sockets that are kept ready for connections that may have to be taken over.

use anyhow::Context;
use linux::repair::{Pool, RestoreError};
use proto::role::Role;
use proto::service::Service;

/// Maximum number of sockets kept ready for a takeover, per service. Enough for most services; each socket takes about 4 KB in the kernel.
const POOL_MAX: usize = 4096;
/// Divisor of the limit of open files: at most 1/4 may be sockets kept ready, because connections that are taken over need descriptors too.
const POOL_SHARE: usize = 4;
/// Maximum number of sockets that a service's pool gains between two looks at the rings.
const POOL_STEP: usize = 32;

/// Maximum number of sockets kept ready per service, for `services` services.
pub(super) fn pool_max(services: usize) -> anyhow::Result<usize> {
    let descriptors = linux::process::file_limit().context("asking for the limit of open files")?;
    Ok(POOL_MAX.min(descriptors / POOL_SHARE / services.max(1)))
}

/// Prepares at most `max` sockets for the connections of `service`, in case this node has to take the connections over.
pub(super) fn fill(pool: &mut Pool, service: &Service, max: usize) -> Result<usize, RestoreError> {
    let wanted = match service.role() {
        Role::Backup => service.table().len().min(max),
        Role::Joining
        | Role::Primary
        | Role::Claiming
        | Role::Returning
        | Role::TakingOver
        | Role::Sole
        | Role::Standby => 0,
    };
    pool.fill(wanted, POOL_STEP)
}
