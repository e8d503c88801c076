//! Libraries under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library `file` of the crate `package`, built in this test's profile and target directory. Cargo builds neither a static nor a dynamic
/// library for a test by itself. `root`: the crate's directory.
pub fn build(package: &str, root: &Path, file: &str) -> PathBuf {
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
            package,
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(built.parent().expect("TARGET/PROFILE"))
        .current_dir(root)
        .status()
        .expect("cargo runs");
    assert!(outcome.success());
    built.join(file)
}
