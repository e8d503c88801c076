//! Who decides which node may speak when they do not hear each other, as the daemons are told of it.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

/// The kinds that a pair can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assume {
    /// Nobody: silence is taken for death.
    #[default]
    FailStop,
    /// A command that turns the other node's power off.
    Fence,
    /// etcd, outside of the nodes.
    Etcd,
}

/// The same with what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Arbiter {
    /// Nobody.
    #[default]
    None,
    /// For each node the command, with its arguments, that turns the other one's power off.
    Fence([Vec<String>; 2]),
    /// The members' URLs, and the directory with `ca.crt` and each node's `NAME.crt` and `NAME.key`.
    Etcd {
        /// Where clients reach the members.
        endpoints: Vec<String>,
        /// The certificates.
        directory: PathBuf,
        /// The nodes' names in that directory.
        clients: [String; 2],
    },
}

impl Arbiter {
    /// What node `index` has in its `[[service]]` table.
    pub(super) fn of_service(&self, index: usize) -> String {
        match self {
            Self::None => String::new(),
            Self::Fence(commands) => format!("fence = [{}]\n", quoted(&commands[index])),
            Self::Etcd { .. } => "witness = \"etcd\"\n".to_owned(),
        }
    }

    /// Its tables of its own.
    pub(super) fn tables(&self, index: usize) -> String {
        let Self::Etcd {
            endpoints,
            directory,
            clients,
        } = self
        else {
            return String::new();
        };
        let mut table = format!("\n[etcd]\nendpoints = [{}]\n", quoted(endpoints));
        let client = &clients[index];
        for (key, file) in [
            ("ca", "ca.crt".to_owned()),
            ("certificate", format!("{client}.crt")),
            ("key", format!("{client}.key")),
        ] {
            // Writing to a String does not fail.
            let _ = writeln!(table, "{key} = \"{}\"", directory.join(file).display());
        }
        table
    }
}

fn quoted(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}
