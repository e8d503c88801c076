//! Kernel settings of the hosts and the router.

use std::fs;
use std::io;

use linux::netns::{self, Netns};
use thiserror::Error;

use super::ip::IpError;
use crate::teardown::TeardownError;

/// An error while the network is built.
#[derive(Debug, Error)]
pub enum NetError {
    /// A namespace operation failed.
    #[error(transparent)]
    Namespace(#[from] netns::NetnsError),
    /// An `ip` command failed.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// A kernel setting was refused.
    #[error("{place}: cannot set {key} = {value}")]
    Setting {
        /// The namespace, or the machine.
        place: String,
        /// Path below `/proc/sys/net`.
        key: &'static str,
        /// The value that was written.
        value: String,
        /// The reason.
        source: io::Error,
    },
    /// The watchdog could not be informed.
    #[error(transparent)]
    Teardown(#[from] TeardownError),
}

/// Settings below `/proc/sys/net` of every host. They are set before the host's interfaces are created, so that the interfaces inherit
/// them.
const HOST_SETTINGS: &[(&str, &str)] = &[
    // Addresses can be used at once, without two seconds of duplicate address detection.
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    // The effective value is the larger one of `all` and the interface's.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
];

/// Settings of the router on top of [`HOST_SETTINGS`].
const ROUTER_SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
];

/// Makes the kernel settings of a host. Call it before the host has interfaces, which inherit the settings.
///
/// # Errors
/// Names the setting that is refused.
pub fn set_up_host(host: &Netns) -> Result<(), NetError> {
    set_up_kernel(host, HOST_SETTINGS)
}

/// Makes the kernel settings of a router.
///
/// # Errors
/// Names the setting that is refused.
pub fn set_up_router(router: &Netns) -> Result<(), NetError> {
    set_up_kernel(router, HOST_SETTINGS)?;
    set_up_kernel(router, ROUTER_SETTINGS)
}

/// Makes these kernel settings in `namespace`.
///
/// # Errors
/// Names the setting that is refused.
pub fn set_up_kernel(
    namespace: &Netns,
    settings: &'static [(&'static str, &'static str)],
) -> Result<(), NetError> {
    namespace.run(|| {
        settings
            .iter()
            .try_for_each(|&(key, value)| set(namespace.name(), key, value))
    })?
}

/// Writes `value` to `/proc/sys/net/KEY` in the calling thread's network namespace. An error names this namespace
/// as `place`.
///
/// # Errors
/// If the setting is refused.
pub fn set(place: &str, key: &'static str, value: &str) -> Result<(), NetError> {
    fs::write(format!("/proc/sys/net/{key}"), value).map_err(|source| NetError::Setting {
        place: place.to_owned(),
        key,
        value: value.to_owned(),
        source,
    })
}
