//! The arbiter of a pair, and its table in the daemons' configuration.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// Margin by which the delay of a fence exceeds the duration of the other node's command.
const FENCE_DELAY_MARGIN: Duration = Duration::from_millis(500);

/// The kinds of arbiter that a pair can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assume {
    /// No arbiter: a node that is not heard counts as dead.
    #[default]
    FailStop,
    /// A command that turns the other node's power off.
    Fence,
    /// As `fence`, with a command that takes two seconds.
    SlowFence,
    /// etcd, outside of the nodes.
    Etcd,
}

impl Assume {
    /// The programs that the arbiter needs, each with the Debian package that contains it.
    pub fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Etcd => &[("etcd", "etcd-server"), ("openssl", "openssl")],
            Self::Fence | Self::SlowFence | Self::FailStop => &[],
        }
    }

    /// Time that the arbiter's answer takes, beyond the time for a process and a few packets.
    pub fn takes(self) -> Duration {
        match self {
            Self::FailStop | Self::Fence | Self::Etcd => Duration::ZERO,
            Self::SlowFence => Duration::from_secs(2),
        }
    }

    /// Time that node `index` waits before it runs its fence command, as docs/witness.md recommends: the usual primary, node a, waits for
    /// longer than the command of node b takes. Zero: not configured.
    pub fn fence_delay(self, index: usize) -> Duration {
        match self {
            Self::SlowFence if index == 0 => self.takes() + FENCE_DELAY_MARGIN,
            Self::FailStop | Self::Fence | Self::SlowFence | Self::Etcd => Duration::ZERO,
        }
    }
}

/// The arbiter with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArbiterSetup {
    /// No arbiter.
    #[default]
    None,
    /// For each node, the fence that turns the other node's power off.
    Fence([FenceSetup; 2]),
    /// The members' URLs, and the directory with `ca.crt` and each node's `NAME.crt` and `NAME.key`.
    Etcd {
        /// URLs of the members.
        endpoints: Vec<String>,
        /// The certificates.
        directory: PathBuf,
        /// The nodes' names in that directory.
        clients: [String; 2],
    },
}

/// A node's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceSetup {
    /// The command, with its arguments.
    pub command: Vec<String>,
    /// Milliseconds for which the node waits before it runs the command; `None`: not configured.
    pub delay_ms: Option<u32>,
}

impl FenceSetup {
    fn table(&self) -> String {
        let delay = self
            .delay_ms
            .map_or_else(String::new, |ms| format!("delay_ms = {ms}\n"));
        format!("\n[fence]\ncommand = [{}]\n{delay}", quoted(&self.command))
    }
}

impl ArbiterSetup {
    /// The table in the configuration of node `index`.
    pub fn table(&self, index: usize) -> String {
        match self {
            Self::None => String::new(),
            Self::Fence(fences) => fences[index].table(),
            Self::Etcd { .. } => self.etcd("witness", index),
        }
    }

    /// The table in the configuration of an annex that registers in the same etcd, with the certificate of node a.
    pub fn registry(&self) -> String {
        self.etcd("registry", 0)
    }

    fn etcd(&self, table: &str, index: usize) -> String {
        match self {
            Self::None | Self::Fence(_) => String::new(),
            Self::Etcd {
                endpoints,
                directory,
                clients,
            } => {
                let file = |name: String| directory.join(name).display().to_string();
                let client = &clients[index];
                format!(
                    "\n[{table}]\nkind = \"etcd\"\nendpoints = [{}]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
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
        assert_eq!(ArbiterSetup::None.table(0), "");
        let fence = |command: &[&str], delay_ms| FenceSetup {
            command: command.iter().map(|&word| word.to_owned()).collect(),
            delay_ms,
        };
        let fences = ArbiterSetup::Fence([fence(&["off", "b"], None), fence(&["off"], Some(500))]);
        assert_eq!(fences.table(0), "\n[fence]\ncommand = [\"off\", \"b\"]\n");
        assert_eq!(
            fences.table(1),
            "\n[fence]\ncommand = [\"off\"]\ndelay_ms = 500\n"
        );
        let etcd = ArbiterSetup::Etcd {
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
