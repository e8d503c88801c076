//! The committed header is the one that cbindgen makes of `src/lib.rs`.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("a configuration");
    let mut header = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/lib.rs"))
        .generate()
        .expect("a header")
        .write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    let path = root.join("include/steadfast.h");
    if env::var_os("STEADFAST_HEADER").is_some_and(|order| order == "write") {
        fs::write(&path, &header).expect("a file that can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, header,
        "regenerate it: STEADFAST_HEADER=write cargo test -p libsteadfast"
    );
}
