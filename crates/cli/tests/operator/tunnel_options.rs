//! Command lines of `steadfast tunnel` that cannot work.

use crate::lan::{CommandOutput, steadfast};

/// Options that work.
const WELL: &str = "--listen 127.0.0.1:8099 --to 127.0.0.2:9899 --via 127.0.0.1";
/// Changes of these options: a part of them, what takes its place, and a part of the error.
const WRONG_OPTIONS: &[(&str, &str, &str)] = &[
    (
        "--via 127.0.0.1",
        "",
        "required arguments were not provided:\n  --via <ADDRESS>",
    ),
    (
        "--to 127.0.0.2:9899",
        "",
        "required arguments were not provided:\n  --to <HOST:PORT>",
    ),
    ("--listen 127.0.0.1:8099", "", "this end needs"),
    (
        "--listen 127.0.0.1:8099",
        "--forward 127.0.0.1:80",
        "this end needs `listen` and no `connect`",
    ),
    (
        "--listen",
        "--forward 127.0.0.1:80 --listen",
        "cannot be used with",
    ),
    ("--listen", "--config x --listen", "cannot be used with"),
    (
        "127.0.0.1:8099",
        "127.0.0.1",
        "invalid value '127.0.0.1' for '--listen <ADDRESS:PORT>'",
    ),
    (
        "127.0.0.1:8099",
        "web",
        "invalid value 'web' for '--listen <ADDRESS:PORT>'",
    ),
    (
        "127.0.0.1:8099",
        "127.0.0.1:0",
        "listen: allowed are ports from 1 to 65535",
    ),
    (
        "127.0.0.1:8099",
        "192.0.2.1:8099",
        "192.0.2.1 is no loopback address",
    ),
    (
        "127.0.0.2:9899",
        "127.0.0.2",
        "to: 127.0.0.2: invalid socket address; allowed: HOST:PORT",
    ),
    (
        "127.0.0.2:9899",
        "127.0.0.2:99999",
        "to: 127.0.0.2:99999: invalid port value",
    ),
    (
        "127.0.0.2:9899",
        "127.0.0.2:0",
        "to: 127.0.0.2:0: allowed are ports from 1 to 65535",
    ),
    (
        "127.0.0.2:9899",
        "nobody.invalid:9899",
        "to: nobody.invalid:9899: failed to lookup",
    ),
    (
        "127.0.0.2:9899",
        "[::1]:9899",
        "to: no address has the family of an address of `via`",
    ),
    (
        "--via 127.0.0.1",
        "--via 127.0.0.300",
        "invalid value '127.0.0.300' for '--via <ADDRESS>'",
    ),
    (
        "--via 127.0.0.1",
        "--via 192.0.2.1",
        "192.0.2.1 is no loopback address",
    ),
    (
        "--via 127.0.0.1",
        "--via 127.0.0.1,127.0.0.1",
        "via: 127.0.0.1 is named twice",
    ),
];

/// A command line that cannot work is refused with exit code 2, and the error names the option.
#[test]
fn wrong_options_are_refused_by_name() {
    for (from, to, error) in WRONG_OPTIONS {
        assert!(WELL.contains(from), "{from}");
        let options = WELL.replacen(from, to, 1);
        let mut command = steadfast(&["tunnel"]);
        let outcome = CommandOutput::of(command.args(options.split_whitespace()));
        assert_eq!(outcome.code, 2, "{options}: {}", outcome.errors);
        assert!(outcome.errors.contains(error), "{options}: {}", outcome.errors);
    }
}
