//! Compiles the eBPF programs with clang; the objects are embedded into the library.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let source_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf");
    let out_dir = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    println!("cargo:rerun-if-changed={}", source_dir.display());
    // Debian keeps <asm/types.h> in a folder named after the architecture.
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let include = format!("-I/usr/include/{machine}-linux-gnu");
    for object in ["steadfast.bpf", "edge.bpf", "numbers.bpf", "order.bpf"] {
        SkeletonBuilder::new()
            .source(source_dir.join(format!("{object}.c")))
            .obj(out_dir.join(format!("{object}.o")))
            .clang_args([include.as_str(), "-Wall", "-Wextra", "-Wno-unused-parameter"])
            .build()
            .unwrap_or_else(|error| {
                panic!("compiling bpf/{object}.c needs clang and libbpf's headers: {error:#}")
            });
    }
}
