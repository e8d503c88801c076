//! Compiles a C program with the header and the static library, and runs it.

use std::io;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::OnceLock;

#[path = "../../../tests/libraries.rs"]
mod libraries;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| libraries::build("libsteadfast", root(), "libsteadfast.a"))
}

/// A compiled C program, removed with this value.
pub struct CProgram {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl CProgram {
    /// Compiles `source`, a path below `bindings/c`. `None`: there is no C compiler.
    pub fn compile(source: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("program");
        let mut compiler = Command::new("cc");
        compiler
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O1",
                "-Iinclude",
                "-o",
            ])
            .args([path.as_os_str(), source.as_ref(), library().as_os_str()])
            .args(["-lpthread", "-ldl", "-lm"])
            .current_dir(root());
        match compiler.output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("skipped: no C compiler (cc)");
                return None;
            }
            Err(error) => panic!("cc: {error}"),
            Ok(output) => assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
        Some(Self {
            path,
            _directory: directory,
        })
    }

    /// The program as a command that uses the agent at `agent`. An empty path: no agent.
    pub fn command(&self, agent: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.env("STEADFAST_SNAPSHOTS", agent);
        command
    }
}

/// Runs `command` until it ends.
pub fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the program runs")
}

/// A running server, killed with this value.
pub struct CServer {
    child: Child,
    pub addresses: Vec<SocketAddr>,
}

impl CServer {
    /// Starts a server, and reads its addresses from the line that it prints when it is ready.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let addresses = line.strip_prefix("ready:").expect("the line of a ready server");
        let addresses = addresses
            .split_whitespace()
            .map(|address| address.parse().expect("an address"))
            .collect();
        Self { child, addresses }
    }

    /// Kills the server. Returns what it says to people.
    pub fn stop(mut self) -> ChildStderr {
        self.child.kill().expect("it runs");
        self.child.stderr.take().expect("piped")
    }
}

impl Drop for CServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
