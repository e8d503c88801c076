//! Checks the peers of a node against each other, and finds the peer of each service.

use proto::follower::RestartPolicy;

use super::draft::Draft;
use super::table::ConfigReader;
use super::{NodeSettings, PeerSettings};

/// Maximum length of the name of an agent of a node with several peers.
const INSTANCE_MAX: usize = 32;

/// The field `key` of the peer with this index.
fn field(peers: &[Option<PeerSettings>], index: usize, key: &str) -> String {
    if peers.len() == 1 {
        format!("peer.{key}")
    } else {
        format!("peer[{index}].{key}")
    }
}

/// Checks the names of the peers: each differs from the node's and from the others'.
pub(super) fn names(
    reading: &mut ConfigReader<'_>,
    node: Option<&NodeSettings>,
    peers: &[Option<PeerSettings>],
) {
    for (index, peer) in peers.iter().enumerate() {
        let Some(PeerSettings { name, .. }) = peer else {
            continue;
        };
        let is_same = |other: &Option<PeerSettings>| other.as_ref().is_some_and(|other| other.name == *name);
        if let Some(first) = peers[..index].iter().position(is_same) {
            let what = format!("{name:?} is the name of peer[{first}] too; names must be unique");
            reading.problem(&field(peers, index, "name"), what);
        }
        let Some(node) = node else { continue };
        if node.name == *name {
            let what = format!("is {name:?}, as [node] name; the two must differ");
            reading.problem(&field(peers, index, "name"), what);
        }
        if peers.len() > 1 && node.beside(name).instance.len() > INSTANCE_MAX {
            let what = format!(
                "is too long: it and the node's name have more than {} characters together",
                INSTANCE_MAX - 1
            );
            reading.problem(&field(peers, index, "name"), what);
        }
    }
}

/// The index of the service's peer.
pub(super) fn of(
    reading: &mut ConfigReader<'_>,
    index: usize,
    draft: &Draft,
    peers: &[Option<PeerSettings>],
) -> Option<usize> {
    let is_meant = |peer: &Option<PeerSettings>| {
        let name = peer.as_ref().map(|peer| &peer.name);
        name == draft.peer.as_ref()
    };
    let found = match &draft.peer {
        None if peers.len() == 1 => return Some(0),
        None => None,
        Some(_) => peers.iter().position(is_meant),
    };
    let are_known = !peers.is_empty() && peers.iter().all(Option::is_some);
    if found.is_none() && are_known {
        let names: Vec<_> = peers
            .iter()
            .flatten()
            .map(|peer| format!("{:?}", peer.name))
            .collect();
        let is = draft
            .peer
            .as_ref()
            .map_or("is missing".to_owned(), |name| format!("is {name:?}"));
        let what = format!("{is}; allowed: {}", names.join(", "));
        reading.problem(&format!("service[{index}].peer"), what);
    }
    found
}

/// Checks what the agents of a node with several peers share. `peer_of` has the peer of each service.
pub(super) fn shares(
    reading: &mut ConfigReader<'_>,
    peers: &[Option<PeerSettings>],
    peer_of: &[Option<usize>],
    drafts: &[Draft],
) {
    for index in 0..peers.len() {
        if peers[index].is_some() && !peer_of.is_empty() && !peer_of.contains(&Some(index)) {
            let what = "no service has this peer; allowed: a peer of one service or more";
            reading.problem(&field(peers, index, "name"), what);
        }
    }
    let exporting = |&at: &usize| drafts[at].policy == Some(RestartPolicy::Snapshot);
    let mut exporting = (0..drafts.len()).filter(exporting);
    let Some(first) = exporting.next() else { return };
    if let Some(other) = exporting.find(|&at| peer_of[at] != peer_of[first]) {
        let what = format!(
            "differs from service[{first}]; services with policy \"snapshot\" share one snapshot_socket, so they must have \
             the same peer"
        );
        reading.problem(&format!("service[{other}].peer"), what);
    }
}
