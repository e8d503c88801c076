//! ns-2's results, as read from `testdata/ns2`.

use std::path::Path;

use steadfast_sim::flow::TcpVariant;

/// The rows of a file, without its header.
pub fn rows(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/ns2")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let fields = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().skip(1).map(fields).collect()
}

pub fn number(field: &str) -> f64 {
    field.parse().unwrap_or_else(|_| panic!("not a number: {field}"))
}

pub fn variant(name: &str) -> TcpVariant {
    match name {
        "Tahoe" => TcpVariant::Tahoe,
        "Reno" => TcpVariant::Reno,
        "NewReno" => TcpVariant::NewReno,
        "SACK" => TcpVariant::Sack1,
        other => panic!("no variant {other}"),
    }
}
