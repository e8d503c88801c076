//! Compares the random replies that clients have got with what the scripts on the nodes have sent.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::client::ClientReport;
use crate::node::SENT;

/// What random replies show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RandomReplies {
    /// Replies that clients have got, each with the hash that its head announces.
    pub replies: usize,
    /// Executions of the script, on both nodes.
    pub executions: usize,
    /// Executions whose reply no client has got.
    pub discarded: usize,
    /// Requests that were answered with 503 and asked again.
    pub asked_again: u64,
}

/// An execution of the script.
struct NotedExecution {
    hash: String,
    client: SocketAddr,
}

impl RandomReplies {
    /// Compares the replies in `report` with the notes of the scripts in `directory`, and adds what is wrong to `problems`. `sees_clients`:
    /// the scripts must have seen the clients' addresses.
    ///
    /// # Errors
    /// If the notes cannot be read.
    pub fn compare(
        report: &ClientReport,
        directory: &Path,
        sees_clients: bool,
        problems: &mut Vec<String>,
    ) -> Result<Self> {
        let notes = read_notes(directory)?;
        let mut found = Self {
            executions: notes.len(),
            asked_again: report.connections.iter().map(|one| one.asked_again).sum(),
            ..Self::default()
        };
        let mut unseen: BTreeMap<&str, SocketAddr> = notes
            .iter()
            .map(|note| (note.hash.as_str(), note.client))
            .collect();
        for connection in &report.connections {
            for hash in &connection.random {
                found.replies += 1;
                match unseen.remove(hash.as_str()) {
                    None => problems.push(format!(
                        "a client got {hash}, which no script has sent, or got it twice"
                    )),
                    Some(client) if sees_clients && !connection.has_been(client) => problems.push(format!(
                        "the script that sent {hash} saw the client {client}, not {:?}",
                        connection.local
                    )),
                    Some(_) => {}
                }
            }
        }
        found.discarded = unseen.len();
        Ok(found)
    }

    /// The counts, for people.
    pub fn line(&self) -> String {
        let Self {
            replies,
            executions,
            discarded,
            asked_again,
        } = self;
        format!(
            "{replies} random replies, each of one execution; {executions} executions, {discarded} of them without a client's reply; \
             {asked_again} requests refused and asked again"
        )
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.replies += other.replies;
        self.executions += other.executions;
        self.discarded += other.discarded;
        self.asked_again += other.asked_again;
    }
}

fn read_notes(directory: &Path) -> Result<Vec<NotedExecution>> {
    let mut notes = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path().join(SENT);
        let text = fs::read_to_string(&path).unwrap_or_default(); // most directories have no script
        for line in text.lines() {
            let note = parse(line);
            notes.push(note.with_context(|| format!("{}: {line:?}", path.display()))?);
        }
    }
    Ok(notes)
}

fn parse(line: &str) -> Option<NotedExecution> {
    let mut words = line.split(' ');
    let hash = words.next()?.to_owned();
    let address: IpAddr = words.next()?.parse().ok()?;
    let client = SocketAddr::new(address, words.next()?.parse().ok()?);
    Some(NotedExecution { hash, client })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ConnectionReport;

    #[test]
    fn a_reply_must_be_one_that_a_script_has_sent_to_that_client() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("cgi-a");
        fs::create_dir(&own).unwrap();
        let sent = "aa 10.1.0.2 4000 new\nbb 10.1.0.2 4000 1\ncc 10.1.0.2 4001 new\n";
        fs::write(own.join(SENT), sent).unwrap();
        let compare = |hashes: &[&str]| {
            let report = ClientReport {
                connections: vec![ConnectionReport {
                    local: Some("10.1.0.2:4000".parse().unwrap()),
                    random: hashes.iter().map(ToString::to_string).collect(),
                    ..ConnectionReport::default()
                }],
                ..ClientReport::default()
            };
            let mut problems = Vec::new();
            let found = RandomReplies::compare(&report, directory.path(), true, &mut problems).unwrap();
            (found, problems)
        };
        let (found, problems) = compare(&["bb", "aa"]);
        assert_eq!((found.replies, found.executions, found.discarded), (2, 3, 1));
        assert_eq!(problems, [""; 0]);
        for (wrong, word) in [
            (&["dd"][..], "no script has sent"),
            (&["aa", "aa"], "twice"),
            (&["cc"], "10.1.0.2:4001"),
        ] {
            let (_, problems) = compare(wrong);
            assert!(problems.len() == 1 && problems[0].contains(word), "{problems:?}");
        }
    }
}
