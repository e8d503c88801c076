//! Sockets that are frozen because their connections move to the other node (docs/migration.md).

use super::*;
use crate::Seq;
use crate::migration::{MigrationBeat, OfferAnswer, OfferState};
use crate::packet::{Checksum, Flags, TcpOptions};
use crate::table::Direction;

/// What the kernels know of a connection that moves from one node to the other.
#[derive(Default)]
pub(super) struct FrozenSockets {
    /// The other node has said something.
    has_spoken: bool,
    /// The other node has its socket.
    is_there: bool,
}

fn client() -> SocketAddr {
    "10.0.0.1:4000".parse().unwrap()
}

impl Two {
    pub(super) fn thaw(&mut self, index: usize, clients: Vec<SocketAddr>) {
        let (thawed, spoken) = if self.kernel.has_spoken {
            (Vec::new(), clients)
        } else {
            (clients, Vec::new())
        };
        let now = self.now;
        self.nodes[index].handle(now, 0, ServiceInput::Thawed { thawed, spoken });
        self.read_old_input(index);
    }

    /// The node reads from its log what the client has sent while the socket was frozen.
    fn read_old_input(&mut self, index: usize) {
        let (now, node) = (self.now, &mut self.nodes[index]);
        let segment = Segment {
            source: client(),
            destination: node.service(0).vip(),
            seq: Seq(1),
            ack: Seq(1001),
            flags: Flags::ACK,
            window: 1000,
            options: TcpOptions::default(),
            payload: b"input",
        };
        node.handle_packet(now, 0, Direction::In, &segment.emit(), Checksum::Unverified, None);
    }

    pub(super) fn look_for(&mut self, index: usize, clients: Vec<SocketAddr>) {
        let (now, is_here) = (self.now, self.kernel.is_there);
        for client in clients {
            self.nodes[index].handle(now, 0, ServiceInput::LookedFor { client, is_here });
        }
    }

    /// The agent of node `owner` died when it had released a connection.
    fn with_frozen(owner: usize, kernel: FrozenSockets) -> Self {
        let mut two = Self::new(Arbiter::FailStop);
        two.pass(SHORT);
        two.network[owner].clear();
        two.kernel = kernel;
        two.replace_with(owner, vec![client()]);
        two
    }

    /// What became of the frozen socket of node `owner`.
    fn fate(&self, owner: usize) -> Vec<&'static str> {
        let steps = self.network[owner].iter().copied();
        steps
            .filter(|step| ["freeze", "thaw", "release"].contains(step))
            .collect()
    }
}

#[test]
fn what_the_other_node_has_is_destroyed_here() {
    for owner in [0, 1] {
        let (has_spoken, is_there) = (false, true);
        let mut two = Two::with_frozen(owner, FrozenSockets { has_spoken, is_there });
        two.pass(SHORT);
        assert_eq!(two.fate(owner), ["release"], "node {owner}");
        let report = two.nodes[owner].service(0).migrations();
        assert_eq!((report.moved, report.pending), (1, 0));
    }
}

#[test]
fn what_the_other_node_does_not_have_goes_on() {
    for (owner, has_spoken) in [(0, false), (1, false), (0, true), (1, true)] {
        let is_there = false;
        let mut two = Two::with_frozen(owner, FrozenSockets { has_spoken, is_there });
        two.pass(SHORT);
        let fate: &[_] = if has_spoken {
            &["thaw", "release"]
        } else {
            &["thaw"]
        };
        assert_eq!(two.fate(owner), fate, "node {owner}");
        let report = two.nodes[owner].service(0).migrations();
        assert_eq!((report.stayed, report.pending), (1, 0));
        let is_reversed = two.nodes[owner].service(0).is_reversed_here(&client());
        assert_eq!(is_reversed, owner == 1 && !has_spoken);
    }
}

/// The socket goes on only behind the gate of a node that speaks alone.
#[test]
fn what_the_other_node_had_when_it_failed_goes_on() {
    for (owner, has_spoken) in [(0, false), (1, false), (0, true), (1, true)] {
        let is_there = true;
        let mut two = Two::with_frozen(owner, FrozenSockets { has_spoken, is_there });
        two.kill(1 - owner).pass(LONG);
        assert_eq!(two.roles()[owner].0, Role::Sole);
        let fate: &[_] = if has_spoken {
            &["thaw", "release"]
        } else {
            &["thaw"]
        };
        assert_eq!(two.fate(owner), fate, "node {owner}");
        let step = |what| two.network[owner].iter().position(|step| *step == what);
        let gate = if owner == 0 { "speak" } else { "close the gate" };
        assert!(step(gate) < step("thaw"), "{:?}", two.network[owner]);
        assert_eq!(two.nodes[owner].service(0).migrations().pending, 0);
        let is_reset = two.network[owner].contains(&"reset");
        assert_eq!(
            is_reset, has_spoken,
            "what goes on is answered by its socket only"
        );
    }
}

/// An older version of the backup's agent leads its segments through the primary only when it has spoken.
#[test]
fn a_socket_is_frozen_only_if_the_kernel_notices_what_the_backup_says() {
    for leads_first in [false, true] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT);
        let (now, until) = (two.now, two.now + LONG);
        let (clients, annex) = (vec![client()], None);
        two.nodes[0].handle(
            now,
            0,
            ServiceInput::Migrate {
                clients,
                annex,
                until,
            },
        );
        let offers = two
            .heartbeat(0)
            .services
            .remove(0)
            .migration
            .expect("said")
            .offers;
        two.now += BEAT;
        let now = two.now;
        two.nodes[1].handle_timeout(now);
        let mut answer = two.heartbeat(1);
        answer.services[0].migration = Some(MigrationBeat {
            answers: vec![OfferAnswer {
                number: offers[0].number,
                state: OfferState::Prepared,
            }],
            leads_first,
            ..MigrationBeat::default()
        });
        two.nodes[0].handle_heartbeat(now, answer);
        two.hears = false;
        two.carry_out(0);
        let fate: &[_] = if leads_first {
            &["freeze"]
        } else {
            &["freeze", "release"]
        };
        assert_eq!(two.fate(0), fate, "{leads_first}");
    }
}
