//! The library under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library, built in this test's profile and target directory. Cargo builds no dynamic library for a test by itself.
pub fn path() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = env::current_exe().expect("this program");
        let built = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/TEST");
        let profile = match built.file_name().and_then(|name| name.to_str()).expect("PROFILE") {
            "debug" => "dev",
            profile => profile,
        };
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let outcome = Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "--offline",
                "--package",
                "steadfast-order",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(built.parent().expect("TARGET/PROFILE"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(outcome.success());
        built.join("libsteadfast_order.so")
    })
}
