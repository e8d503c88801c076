//! The library under test.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[path = "../../../tests/libraries.rs"]
mod libraries;

/// The library's file.
pub fn path() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        libraries::build("steadfast-order", root, "libsteadfast_order.so")
    })
}
