//! Values under `/proc/sys/net`, of the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Reads `key`, such as `ipv4/conf/eth0/arp_ignore`: with slashes, because interfaces' names may have dots.
pub(super) fn read(key: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(key))?.trim_end().to_owned())
}

pub(super) fn write(key: &str, value: &str) -> io::Result<()> {
    fs::write(path(key), value)
}

fn path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys/net").join(key)
}
