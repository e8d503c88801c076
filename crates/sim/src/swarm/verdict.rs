//! What is wrong with a run. Nothing here asks the cores what they did: the judge read the packets, the clients checked every
//! byte, and what may be lost is what no node held any more.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proto::role::Role;
use serde::{Deserialize, Serialize};

use super::run::{Outcome, clients};
use super::scenario::Scenario;
use crate::pair::{Scene, Talk, is_excused};
use crate::tcp::{Endpoint, Failure, State};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which one.
    pub rule: String,
    /// When, and how.
    pub what: String,
}

impl Violation {
    pub(super) fn new(rule: &str, what: String) -> Self {
        Self {
            rule: rule.to_owned(),
            what,
        }
    }

    /// Of a line of the judge: time, client, rule, what.
    fn of_judge(line: &str) -> Self {
        let rule = line.split(": ").nth(1).unwrap_or("judge");
        Self::new(rule, line.to_owned())
    }
}

/// So many characters of what a client has said tell enough.
const SAID_MAX: usize = 400;

/// Adds what is wrong.
pub(super) fn judge(scenario: &Scenario, scene: &Scene, outcome: &mut Outcome) {
    let judge = scene.judge();
    let is_no_fail_stop = scenario.faults.iter().any(|fault| fault.kind.is_no_fail_stop());
    let have_split =
        judge.voices_too_many() > 0 || judge.is_split() || judge.has_lost_voice() || both_were_alone(scene);
    outcome.was_split = have_split && is_no_fail_stop && scenario.arbiter.is_none();
    outcome.connections = scene.count();
    if !outcome.was_split {
        let in_vain: Vec<_> = (0..scene.count())
            .map(Scene::client_of)
            .filter(|client| judge.was_lent_in_vain(*client))
            .collect();
        outcome.lent_in_vain = in_vain.len();
        let outlasted: Vec<_> = (0..scene.count())
            .map(Scene::client_of)
            .filter(|client| judge.was_outlasted(*client))
            .collect();
        outcome.outlasted = outlasted.len();
        let is_excused = |line: &&String| {
            let mut excused = in_vain.iter().chain(&outlasted);
            excused.any(|client| line.contains(&format!(" {client}: ")))
        };
        let broken = judge.violations().iter().filter(|line| !is_excused(line));
        outcome
            .violations
            .extend(broken.map(|line| Violation::of_judge(line)));
        let again = scene.ledger().violations_of_many();
        outcome
            .violations
            .extend(again.into_iter().map(|what| Violation::new("execution", what)));
    }
    let excused = excused(scene);
    for (index, client, talk) in clients(scene) {
        let is_late = index >= scenario.connections.len();
        // It was there when a node was lost; the other two came when nothing happened.
        let was_under_way = index == scenario.connections.len() + 1;
        let is_orphaned = judge.is_orphaned(client);
        outcome.orphaned += usize::from(is_orphaned);
        let Some((talk, endpoint)) = talk else {
            let what = format!("connection {index} was never opened");
            outcome.violations.push(Violation::new("liveness", what));
            continue;
        };
        let what = || {
            let said: String = format!("{talk:?}").chars().take(SAID_MAX).collect();
            let (state, failure) = (endpoint.state(), endpoint.failure());
            format!("connection {index} ({client}): {state:?}, {failure:?}, {said}")
        };
        if is_late && !(was_under_way && excused.contains(&client)) {
            if !talk.is_complete() {
                outcome.violations.push(Violation::new("liveness", what()));
            }
        } else if outcome.was_split || talk.is_complete() {
            // it may be anything; or all is well
        } else if talk
            .wrong()
            .is_some_and(|wrong| !wrong.starts_with("the stream ended"))
        {
            outcome.violations.push(Violation::new("bytes", what()));
        } else if talk.wrong().is_some()
            && endpoint.failure() != Some(Failure::Reset)
            && !judge.died_alone(client)
        {
            outcome.violations.push(Violation::new("a false end", what()));
        } else if !is_orphaned
            && !judge.was_lent_in_vain(client)
            && !judge.was_outlasted(client)
            && !excused.contains(&client)
            && !talk.may_be_cut()
        {
            outcome.violations.push(Violation::new("survival", what()));
        }
    }
}

/// Clients whose connections the nodes could not continue, for a reason that is theirs.
fn excused(scene: &Scene) -> BTreeSet<SocketAddr> {
    let lost = scene.stations().flat_map(|station| station.lost());
    lost.filter(|(_, reason)| is_excused(reason))
        .map(|(client, _)| *client)
        .collect()
}

/// Whether both nodes had the right to speak alone in one epoch. Then one may say, later too, what contradicts the other.
fn both_were_alone(scene: &Scene) -> bool {
    let [one, other] = [0, 1].map(|index| {
        let station = scene.stations().nth(index);
        station.map_or(&[][..], |station| &station.alone_in)
    });
    one.iter().any(|epoch| other.contains(epoch))
}

fn roles(scene: &Scene) -> Vec<(Role, u64)> {
    scene.stations().map(|station| station.core().role(0)).collect()
}

/// Whether both nodes do their part, and the wire knows who is connected.
fn is_whole(scene: &Scene) -> bool {
    let roles = roles(scene);
    let has = |role| roles.iter().any(|(one, _)| *one == role);
    let knows_all = scene.stations().all(|station| station.core().knows_all(0));
    knows_all && has(Role::Primary) && has(Role::Backup) && roles[0].1 == roles[1].1
}

/// That not both nodes do their part, if it is so.
pub(super) fn not_whole(scene: &Scene) -> Option<Violation> {
    let what = || format!("not duplex: {:?}", roles(scene));
    (!is_whole(scene)).then(|| Violation::new("liveness", what()))
}

/// Whether every connection has come to its end, but those that need not, and the pair is whole.
pub(super) fn is_recovered(scene: &Scene) -> bool {
    is_whole(scene) && is_served(scene)
}

/// The first half of that.
pub(super) fn is_served(scene: &Scene) -> bool {
    let judge = scene.judge();
    let excused = excused(scene);
    let is_over = |talk: &Talk, endpoint: &Endpoint| {
        talk.is_complete() || matches!(endpoint.state(), State::Closed | State::TimeWait)
    };
    clients(scene).all(|(_, client, talk)| {
        let is_done = talk.is_some_and(|(talk, endpoint)| is_over(talk, endpoint) || talk.may_be_cut());
        is_done || judge.is_orphaned(client) || excused.contains(&client)
    })
}
