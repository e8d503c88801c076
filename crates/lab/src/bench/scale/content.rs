//! The files that the benchmark's servers offer.

/// Seed of the content.
pub const SEED: u64 = 1;
/// Bytes of one small reply, and of an idle connection's exchange.
pub const SMALL_BYTES: u64 = 1000;

/// Path of the small file.
pub fn small_path() -> String {
    format!("/{}", pattern::file_name(SEED, SMALL_BYTES))
}
