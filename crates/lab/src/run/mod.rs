//! The runner of all labs.
//!
//! A lab run is data: a topology, programs, a workload, a schedule of faults, and expectations. It is played in a network of its own
//! ([`LabRun`]), and leaves findings. [`run`] does the rest, in the same way for every lab:
//!
//! 1. It checks the options ([`Lab::check`]), whether the run can happen at all ([`Lab::exception`]), and the machine
//!    ([`Lab::check_machine`]).
//! 2. It plays all [parts](Lab::parts) as often as `--repeat` says, with one seed after the other. A part is one cell of a table, such as
//!    one fault with one arbiter. Each part gets a name, a directory, and a teardown that removes its network and files also after ^C.
//! 3. With `--keep`, it keeps the captures, the logs and `report.json` of each part. With `--repeat`, it keeps only the files of parts that
//!    failed.
//! 4. It adds up all findings, and prints them: text, or with `--json` one object ([`report::LabReport`]). Both forms contain the command
//!    that repeats the first failure.
//! 5. It returns the outcome. `main` converts the outcome to the exit code.
//!
//! A new lab provides:
//!
//! * Its options: a struct that flattens [`RunOptions`] (seed, repeat, json, keep, snap, steadfast). If it runs on the pair, it also
//!   flattens [`crate::pair::LanOptions`] (ipv6, links), and describes its run as a [`crate::pair::PairOptions`], which the pair's testbed,
//!   workload, faults and judge understand.
//! * An implementation of [`Lab`] for these options. Only `play` contains the lab's own steps.
//! * Its [`LabFindings`]: a struct whose fields become fields of the JSON object, with `add`, `holds` and a line of text.
//!
//! `main` lists the command. `scripts/test` runs it.

mod again;
mod directory;
mod lab;
mod machine;
mod options;
mod outcome;
mod progress;
mod report;

pub use self::again::value_name;
pub use self::directory::{LabRun, in_memory};
pub use self::lab::{Lab, run};
pub use self::machine::{LAB_PROGRAMS, Needed, check as check_machine, missing_programs, require_nothing};
pub use self::options::{DaemonOption, RunOptions};
pub use self::outcome::{LabOutcome, WRONG_USE, WrongUse, conclude, exit_code};
pub use self::progress::Progress;
pub use self::report::{LabFindings, SHOWN, append};
