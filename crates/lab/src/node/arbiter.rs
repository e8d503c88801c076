//! Who decides which node may speak when they do not hear each other, as the daemons are told of it.

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
    /// The table that node `index` has in its configuration.
    pub(super) fn table(&self, index: usize) -> String {
        match self {
            Self::None => String::new(),
            Self::Fence(commands) => format!("\n[fence]\ncommand = [{}]\n", quoted(&commands[index])),
            Self::Etcd {
                endpoints,
                directory,
                clients,
            } => {
                let file = |name: String| directory.join(name).display().to_string();
                let client = &clients[index];
                format!(
                    "\n[witness]\nkind = \"etcd\"\nendpoints = [{}]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
                    quoted(endpoints),
                    file("ca.crt".to_owned()),
                    file(format!("{client}.crt")),
                    file(format!("{client}.key")),
                )
            }
        }
    }
}

fn quoted(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_own_command_and_certificate() {
        assert_eq!(Arbiter::None.table(0), "");
        let fence = Arbiter::Fence([vec!["off".to_owned(), "b".to_owned()], vec!["off".to_owned()]]);
        assert_eq!(fence.table(0), "\n[fence]\ncommand = [\"off\", \"b\"]\n");
        let etcd = Arbiter::Etcd {
            endpoints: vec!["https://10.2.0.20:2379".to_owned()],
            directory: "/tls".into(),
            clients: ["node-a".to_owned(), "node-b".to_owned()],
        };
        let table: toml::Table = etcd.table(1).parse().unwrap();
        let witness = &table["witness"];
        assert_eq!(witness["endpoints"][0].as_str(), Some("https://10.2.0.20:2379"));
        assert_eq!(witness["key"].as_str(), Some("/tls/node-b.key"));
    }
}
