//! `[log]`: limits of the log, and the treatment of a connection whose log is full.

use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

use super::table::{ConfigReader, ConfigTable, integer, narrow, power_of_two, text};
use super::{AtLimitSetting, LogSettings};

/// Default size of the second ring in MiB. The wire uses the second ring when the first ring (always 16 MiB) is full. At 1.2 GB/s, 3–8 MB
/// are normally unread, and the first ring has room for them. So the second ring is a reserve for times when the agent is slow.
const RING_MB: u64 = 64;
const SYN_RING_KB: u64 = 1024;
const PER_CONNECTION_MB: u64 = 64;
const TOTAL_MB: u64 = 2048;
const SPILL_MB: u64 = 8192;
/// Default directory for spill files. The Filesystem Hierarchy Standard provides it for temporary files that outlive a boot, so it is on a
/// disk (FHS 3.0, section 5.15). It exists on every machine.
const SPILL_DIR: &str = "/var/tmp";

const KB: u64 = 1024;
const MB: u64 = 1024 * KB;

pub(super) fn log(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> LogSettings {
    let mut table = ConfigTable::begin(reading, "log".to_owned(), root.get("log"));
    let ring = table
        .optional("ring_mb", power_of_two(1..=1024))
        .unwrap_or(RING_MB);
    let syn_ring = table
        .optional("syn_ring_kb", power_of_two(64..=65_536))
        .unwrap_or(SYN_RING_KB);
    let per_connection = table
        .optional("per_connection_mb", integer(1..=65_536))
        .unwrap_or(PER_CONNECTION_MB);
    let total = table
        .optional("total_mb", integer(1..=1_048_576))
        .unwrap_or(TOTAL_MB);
    let at_limit = table.optional("at_limit", at_limit).unwrap_or_default();
    let absolute = |path: &str| path.starts_with('/').then(|| PathBuf::from(path));
    let spill_dir = table
        .optional("spill_dir", text("an absolute path", absolute))
        .unwrap_or_else(|| SPILL_DIR.into());
    let spill = table
        .optional("spill_mb", integer(1..=16_777_216))
        .unwrap_or(SPILL_MB);
    table.end();
    LogSettings {
        ring_bytes: narrow(ring * MB),
        syn_ring_bytes: narrow(syn_ring * KB),
        per_connection_bytes: per_connection * MB,
        total_bytes: total * MB,
        at_limit,
        spill_dir,
        spill_bytes: spill * MB,
    }
}

/// Reads the value of the key `at_limit`. The key can be in `[log]` and, for one service, in that service's table.
pub(super) fn at_limit(value: &DeValue<'_>) -> Result<AtLimitSetting, String> {
    text("\"unprotect\", \"spill\" or \"slow\"", |name| match name {
        "unprotect" => Some(AtLimitSetting::Unprotect),
        "spill" => Some(AtLimitSetting::Spill),
        "slow" => Some(AtLimitSetting::Slow),
        _ => None,
    })(value)
}
