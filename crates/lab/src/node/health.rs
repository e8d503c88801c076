//! The health probe of an application.

/// A health probe of the application: a request on a connection of its own, and the beginning of the expected answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthProbe {
    /// The request.
    pub send: &'static str,
    /// The beginning of the answer.
    pub expect: &'static str,
}

/// Milliseconds between two health probes.
const HEALTH_INTERVAL_MS: u32 = 50;
/// Milliseconds without an answer after which a health probe has failed. On busy CPUs, a server that does not hang may need 100 ms.
const HEALTH_TIMEOUT_MS: u32 = 200;
/// Number of failed health probes in a row after which the application counts as dead.
const HEALTH_FAILURES: u32 = 3;

impl HealthProbe {
    /// The table `[service.health]` of the daemon's configuration.
    pub(super) fn table(self) -> String {
        let Self { send, expect } = self;
        // For these strings, Debug and TOML's basic strings use the same escapes.
        format!(
            "
[service.health]
interval_ms = {HEALTH_INTERVAL_MS}
timeout_ms = {HEALTH_TIMEOUT_MS}
failures = {HEALTH_FAILURES}
send = {send:?}
expect = {expect:?}
"
        )
    }
}
