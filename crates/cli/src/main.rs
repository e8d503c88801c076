//! `steadfast`: see `steadfast --help`.

use std::process::ExitCode;

use steadfast::command::{self, Program};
use steadfast::daemon;

fn main() -> ExitCode {
    command::main(&Program {
        run: daemon::run,
        features: |_| linux::features::missing(),
    })
}
