//! Decides what is wrong with a run. The verdict uses the judge's findings about the packets, and the clients' checks of every byte. The
//! nodes' own state is used only to decide whether the pair is whole again. A connection of the scenario may be lost only in these cases:
//!
//! * At some time, no node could continue the connection, or the connection's known output had a gap when a node had to continue it.
//! * The pair may have to cut the connection's reply.
//! * Only an annex had the connection, and a second failure came.
//! * Both nodes may have spoken to the client: in a split, or because a node spoke after its lease was over, or spoke within its lease but
//!   the other node does not know what was said.

use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::role::Role;
use proto::state_sync::{StateSync, StateSyncProgress};

use super::outcome::{RunOutcome, Violation};
use super::scenario::Scenario;
use super::silence::Silences;
use crate::pair::{SimClient, SimCommit, SimPair};
use crate::tcp::{EndpointState, TcpEndpoint, TcpFailure};

/// Time after the end of a failure in which nodes still react to it.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Number of characters of a client's description that are kept.
const SAID_MAX: usize = 400;

/// The failures of a run.
#[derive(Clone, Copy)]
pub(super) struct Failures<'a> {
    /// When the agents did not hear each other.
    pub silences: &'a Silences,
    /// Beginning and end of each.
    pub all: &'a [(Instant, Instant)],
}

impl Failures<'_> {
    /// Whether a second failure comes with one that happens at `at`, or later. A failure has effects for [`AFTERWARDS`].
    fn is_double(&self, at: Instant) -> bool {
        self.all.iter().filter(|(_, end)| *end + AFTERWARDS >= at).count() > 1
    }
}

/// Adds the violations to `outcome`: first those with a time, in the order in which they happened, then those that are found at the end.
/// `seen` holds the violations that were seen during the run.
pub(super) fn judge(
    scenario: &Scenario,
    pair: &SimPair,
    failures: Failures<'_>,
    mut seen: Vec<(Instant, Violation)>,
    outcome: &mut RunOutcome,
) {
    let judge = pair.judge();
    // Under `fail-stop` two living nodes that do not hear each other may both go on.
    let may_split = |at: &&Instant| scenario.arbiter.is_none() && failures.silences.covers(**at);
    let split_at = judge.splits().iter().filter(may_split).min().copied();
    outcome.was_split = split_at.is_some();
    outcome.connections = pair.count();
    let is_before = |at| split_at.is_none_or(|split| at < split);
    let broken = judge.violations_with_times();
    let broken = broken.filter(|(at, _)| is_before(*at));
    seen.extend(broken.map(|(at, line)| (at, Violation::of_judge(line))));
    seen.sort_by_key(|(at, _)| *at);
    let violations = &mut outcome.violations;
    violations.extend(seen.into_iter().map(|(_, violation)| violation));
    if !outcome.was_split {
        // Two cases are excused: a node spoke to the client after the node's lease was over; or a node spoke within its lease, and the
        // other node does not know what was said. In both cases, both nodes may execute the requests of this client.
        let is_excused = |id| {
            let is_vain = |client| judge.was_lent_in_vain(client) || judge.was_outlasted(client);
            clients(pair)
                .any(|(_, client, talk)| is_vain(client) && talk.is_some_and(|(talk, _)| talk.has_sent(id)))
        };
        let again = pair.ledger().violations_of_many(is_excused);
        violations.extend(again.into_iter().map(|what| Violation::new("execution", what)));
    }
    for (index, client, talk) in clients(pair) {
        let is_late = index >= scenario.connections.len();
        let (was_lent_in_vain, was_outlasted) = (judge.was_lent_in_vain(client), judge.was_outlasted(client));
        outcome.lent_in_vain += usize::from(was_lent_in_vain);
        outcome.outlasted += usize::from(was_outlasted);
        let Some((talk, endpoint)) = talk else {
            let what = format!("connection {index} was never opened");
            violations.push(Violation::new("liveness", what));
            continue;
        };
        let is_orphaned = judge.is_orphaned(client) && !talk.is_complete();
        outcome.orphaned += usize::from(is_orphaned);
        let what = || {
            let said: String = format!("{talk:?}").chars().take(SAID_MAX).collect();
            let (state, failure) = (endpoint.state(), endpoint.failure());
            format!("connection {index} ({client}): {state:?}, {failure:?}, {said}")
        };
        let had_hole = judge.had_hole(client);
        if is_late {
            let was_under_way = index == scenario.connections.len() + 1;
            // With commit mode `immediate`, its packets may have passed unlogged before the node lost its power.
            let had_gap = is_orphaned && scenario.commit == SimCommit::Immediate;
            if !(talk.is_complete() || was_under_way && (had_hole || had_gap)) {
                violations.push(Violation::new("liveness", what()));
            }
        } else if outcome.was_split || talk.is_complete() {
            // after a split anything may happen; a complete connection is fine
        } else if was_lent_in_vain || was_outlasted {
            // two nodes may have sent different bytes at the same offset
        } else if talk
            .wrong()
            .is_some_and(|wrong| !wrong.starts_with("the stream ended"))
        {
            violations.push(Violation::new("bytes", what()));
        } else if talk.wrong().is_some()
            && endpoint.failure() != Some(TcpFailure::Reset)
            && !judge.died_alone(client)
        {
            violations.push(Violation::new("premature end", what()));
        } else if judge
            .unprotected_at(client)
            .is_some_and(|at| failures.is_double(at))
        {
            // only an annex had the connection, and the node that passed its packets, or the annex, may have failed as well
        } else if !is_orphaned && !had_hole && !talk.may_be_cut() {
            violations.push(Violation::new("survival", what()));
        }
    }
}

fn roles(pair: &SimPair) -> Vec<(Role, u64)> {
    let roles = pair.stations().map(|station| {
        let service = station.core().service(0);
        (service.role(), service.epoch())
    });
    roles.collect()
}

/// Whether the wire's server has a copy of the state of the primary's server. Also true if the service does not copy state at all.
fn is_synced(pair: &SimPair) -> bool {
    let syncs = pair
        .stations()
        .filter_map(|station| station.core().service(0).state_sync());
    let mut states = syncs.map(StateSync::state).peekable();
    states.peek().is_none() || states.any(|state| state == StateSyncProgress::Synced)
}

/// Whether the pair is whole: it has a primary and a backup with the same epoch, the wire knows all connections, and the wire's server has
/// the copied state.
fn is_whole(pair: &SimPair) -> bool {
    let roles = roles(pair);
    let has = |role| roles.iter().any(|(one, _)| *one == role);
    let knows_all = pair
        .stations()
        .all(|station| station.core().service(0).knows_all());
    knows_all && is_synced(pair) && has(Role::Primary) && has(Role::Backup) && roles[0].1 == roles[1].1
}

/// Returns a violation, unless the pair is whole.
pub(super) fn not_whole(pair: &SimPair) -> Option<Violation> {
    let what = || format!("not duplex: {:?}", roles(pair));
    (!is_whole(pair)).then(|| Violation::new("liveness", what()))
}

/// Whether the pair is whole, and every connection that must end has ended.
pub(super) fn is_recovered(pair: &SimPair) -> bool {
    is_whole(pair) && is_served(pair)
}

/// Whether every connection that must end has ended.
pub(super) fn is_served(pair: &SimPair) -> bool {
    let judge = pair.judge();
    let is_over = |talk: &SimClient, endpoint: &TcpEndpoint| {
        talk.is_complete() || matches!(endpoint.state(), EndpointState::Closed | EndpointState::TimeWait)
    };
    clients(pair).all(|(_, client, talk)| {
        let is_done = talk.is_some_and(|(talk, endpoint)| is_over(talk, endpoint) || talk.may_be_cut());
        is_done || judge.is_orphaned(client) || judge.had_hole(client)
    })
}

/// The clients: number, address, program and endpoint of each. First come the clients of the scenario's connections, in order. Then come
/// three more clients: the first connects after all faults are repaired, the second shortly before a node loses its power for good, and the
/// third after this loss of power.
fn clients(pair: &SimPair) -> impl Iterator<Item = (usize, SocketAddr, Option<(&SimClient, &TcpEndpoint)>)> {
    (0..pair.count()).map(|index| (index, SimPair::client_of(index), pair.talk(index)))
}
