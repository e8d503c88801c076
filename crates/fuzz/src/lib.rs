//! Code that the fuzz targets share (docs/fuzzing.md). A target is a unit test that calls [`target!`], beside the code that it
//! tests.
//!
//! ```text
//! fuzz/corpus/TARGET/*     inputs, one per file
//! fuzz/TARGET.dict         phrases of the input's language, in libFuzzer's format
//! ```
//!
//! `cargo test` runs a target on its corpus. Then it runs the target for [`TIME`] on inputs made from corpus and dictionary. In a build by
//! `scripts/fuzz`, libFuzzer makes the inputs instead, guided by coverage.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use bolero;
use bolero::{Driver, ValueGenerator};

mod mutation;

/// Whether libFuzzer makes the inputs.
pub const IS_GUIDED: bool = cfg!(fuzzing);

/// How long `cargo test` runs a target with generated inputs, unless `BOLERO_RANDOM_TEST_TIME_MS` is set.
pub const TIME: Duration = Duration::from_secs(2);

/// Fuzzes a function of `&[u8]` as the target with this name. The function panics to report a finding.
#[macro_export]
macro_rules! target {
    ($name:literal, $holds:expr) => {{
        let holds: fn(&[u8]) = $holds;
        if $crate::IS_GUIDED {
            $crate::bolero::check!().for_each(|input: &[u8]| holds(input));
        } else {
            let target = $crate::FuzzTarget::open($name);
            target.replay(holds);
            $crate::bolero::check!()
                .with_generator(target.inputs())
                .with_test_time($crate::TIME)
                .for_each(|input: &$crate::FuzzInput| target.run(holds, &input.0));
        }
    }};
}

/// A target under `cargo test`. On drop it prints how many inputs it ran.
#[derive(Debug)]
pub struct FuzzTarget {
    name: &'static str,
    corpus: Vec<(PathBuf, Vec<u8>)>,
    phrases: Vec<Vec<u8>>,
    runs: AtomicU64,
    begun: Instant,
}

/// An input, shown as text.
#[derive(Clone)]
pub struct FuzzInput(pub Vec<u8>);

impl fmt::Debug for FuzzInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl FuzzTarget {
    /// The target with its corpus and dictionary.
    ///
    /// # Panics
    /// If corpus or dictionary cannot be read, or the corpus is empty.
    pub fn open(name: &'static str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let directory = root.join("corpus").join(name);
        let entries =
            fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let paths = entries.map(|entry| entry.expect("a directory's entry").path());
        let mut corpus: Vec<_> = paths
            .map(|path| {
                let input = fs::read(&path).expect("a readable input");
                (path, input)
            })
            .collect();
        corpus.sort();
        assert!(!corpus.is_empty(), "{} is empty", directory.display());
        let dictionary = fs::read_to_string(root.join(name).with_extension("dict")).expect("a dictionary");
        Self {
            name,
            corpus,
            phrases: dictionary.lines().filter_map(phrase).collect(),
            runs: AtomicU64::new(0),
            begun: Instant::now(),
        }
    }

    /// Runs all inputs of the corpus, unchanged.
    pub fn replay(&self, holds: fn(&[u8])) {
        for (path, input) in &self.corpus {
            let file = PanicReporter(path);
            self.run(holds, input);
            drop(file);
        }
    }

    /// Runs one input.
    pub fn run(&self, holds: fn(&[u8]), input: &[u8]) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        holds(input);
    }

    /// A generator of inputs made from corpus and dictionary.
    pub fn inputs(&self) -> impl ValueGenerator<Output = FuzzInput> + '_ {
        Inputs(self)
    }
}

impl Drop for FuzzTarget {
    fn drop(&mut self) {
        let (runs, time) = (
            self.runs.load(Ordering::Relaxed),
            self.begun.elapsed().as_secs_f64(),
        );
        let finding = if std::thread::panicking() { 1 } else { 0 };
        // Not println!, because the test harness captures its output.
        let _ = writeln!(
            io::stderr(),
            "fuzz {}: {} inputs in the corpus, {runs} executions in {time:.1} s ({:.0}/s), {finding} findings",
            self.name,
            self.corpus.len(),
            runs as f64 / time,
        );
    }
}

/// Prints the name of a corpus file if the target panics on the file's input.
struct PanicReporter<'a>(&'a Path);

impl Drop for PanicReporter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(io::stderr(), "fuzz: the input is {}", self.0.display());
        }
    }
}

struct Inputs<'a>(&'a FuzzTarget);

impl ValueGenerator for Inputs<'_> {
    type Output = FuzzInput;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<FuzzInput> {
        mutation::input(driver, &self.0.corpus, &self.0.phrases).map(FuzzInput)
    }
}

/// Returns the phrase in a line of a dictionary: `name="text"`, with the escapes `\\`, `\"` and `\xAB`. `None` for a comment.
fn phrase(line: &str) -> Option<Vec<u8>> {
    if line.starts_with('#') {
        return None;
    }
    let (_, quoted) = line.split_once('"')?;
    let mut rest = quoted.strip_suffix('"')?.as_bytes();
    let mut phrase = Vec::new();
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, behind) = match (byte, behind) {
            (b'\\', [b'x', high, low, behind @ ..]) => {
                let digits = [*high, *low];
                let digits = str::from_utf8(&digits).ok()?;
                (u8::from_str_radix(digits, 16).ok()?, behind)
            }
            (b'\\', [escaped, behind @ ..]) => (*escaped, behind),
            _ => (byte, behind),
        };
        phrase.push(byte);
        rest = behind;
    }
    Some(phrase)
}
