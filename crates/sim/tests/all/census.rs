//! A wire's new agent asks the primary which clients are connected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::seeds::*;
use proto::follower::RestartPolicy;
use steadfast_sim::exchange::SeededStream;
use steadfast_sim::pair::{SimClient, SimPair, Station, echo, http};
use steadfast_sim::tcp::EndpointState;

const SEEDS: u64 = 40;
/// Number of connections that begin before the agent is killed. They do not fit on one page.
const BEFORE: usize = 70;
/// Number of connections that begin while there is no agent.
const MEANWHILE: usize = 5;
/// Number of connections that begin with the new agent.
const AFTER: usize = 10;
const LATE: usize = BEFORE + MEANWHILE;
/// Time at which the old agent is killed.
const KILLED: Duration = Duration::from_millis(1_000);
/// Time at which the new agent starts.
const BEGUN: Duration = Duration::from_millis(1_100);
/// Time of the last check.
const LOOKED_AT: Duration = Duration::from_millis(4_000);

/// An exchange, a long silence, and another exchange.
fn talk(policy: RestartPolicy, connection: usize) -> SimClient {
    let times = [Duration::ZERO, Duration::from_secs(20)];
    match policy {
        RestartPolicy::Http => {
            let id = 2 * connection as u64;
            let planned = [(id, times[0]), (id + 1, times[1])].map(|(id, after)| http::PlannedRequest {
                request: http::HttpRequest::get(id, SeededStream::new(id, 1000)),
                after,
                pipelined: false,
            });
            SimClient::Http(http::HttpClient::new(planned.into(), false, None))
        }
        RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
            let message = |after| {
                let message = echo::EchoMessage {
                    upload: 10,
                    download: 1000,
                    seed: 1,
                    echo: false,
                    is_last: false,
                };
                (message, after)
            };
            SimClient::Echo(echo::EchoClient::new(times.map(message).into(), false, None))
        }
    }
}

fn older(pair: &SimPair) -> BTreeSet<SocketAddr> {
    let backup = pair.backup();
    let now = backup.machine().time(pair.world.now());
    backup
        .core()
        .service(0)
        .older(now)
        .map(|(client, _)| client)
        .collect()
}

/// Compares the connections that the wire knows at the end with the primary's sockets. Returns the differences.
fn look(pair: &SimPair) -> Vec<String> {
    let (backup, primary) = (pair.backup(), pair.world.node::<Station>(pair.primary));
    let mut complaints = Vec::new();
    if !backup.core().service(0).knows_all() {
        complaints.push("the wire does not know all connections".to_owned());
    }
    let open = primary.machine().host().endpoints().map(|(_, endpoint)| endpoint);
    let open = open.filter(|endpoint| endpoint.state() == EndpointState::Established);
    let open: BTreeSet<_> = open.map(|endpoint| endpoint.remote()).collect();
    let table: BTreeSet<_> = backup
        .core()
        .service(0)
        .table()
        .iter()
        .map(|(_, connection)| connection.client())
        .collect();
    let older = older(pair);
    if open.len() < BEFORE {
        complaints.push(format!("only {} are open", open.len()));
    }
    let unseen: Vec<_> = open
        .iter()
        .filter(|client| !table.contains(client) && !older.contains(client))
        .collect();
    if !unseen.is_empty() {
        complaints.push(format!("unseen: {unseen:?}"));
    }
    let gone: Vec<_> = older.difference(&open).collect();
    if !gone.is_empty() {
        complaints.push(format!("shown, but gone: {gone:?}"));
    }
    complaints
}

#[test]
fn a_new_agent_knows_who_is_there() {
    for_seeds("a_new_agent_knows_who_is_there", 0..SEEDS, |seed, is_one| {
        let mut draw = Draw::new(seed);
        let policy = draw.pick(&[RestartPolicy::Http, RestartPolicy::Replica]);
        let mut config = draw.config(seed, policy);
        config.ring_bytes = 4_000_000;
        config.pace = None;
        config.detector.interval = 20 * MS;
        let mut pair = SimPair::new(&config);
        if is_one {
            pair.world.record();
        }
        for connection in 0..LATE + AFTER {
            let (begin, spread) = match connection {
                ..BEFORE => (START, 300 * MS),
                BEFORE..LATE => (KILLED, 100 * MS),
                LATE.. => (BEGUN, 25 * MS),
            };
            pair.connect(at(begin + draw.time(spread)), talk(policy, connection));
        }
        let backup = pair.backup;
        pair.world.at(at(KILLED), move |world| {
            world.with(backup, |backup: &mut Station, now| {
                backup.kill_agent(now, at(BEGUN))
            })
        });
        // For a random time after the new agent's start, the agents' messages are lost.
        let beats = pair.heartbeats;
        pair.cut(beats, at(BEGUN), at(BEGUN + draw.time(15 * MS)));
        let late: Vec<_> = (LATE..LATE + AFTER).map(SimPair::client_of).collect();
        let mut complaints = Vec::new();
        let mut moment = BEGUN;
        while moment < LOOKED_AT {
            moment += 4 * MS;
            pair.world.run_until(at(moment));
            let older = older(&pair);
            let mistaken = late.iter().filter(|client| older.contains(client));
            complaints.extend(mistaken.map(|client| format!("{moment:?}: {client} is wrongly called older")));
        }
        complaints.extend(look(&pair));
        complaints.extend(pair.run(at(LIMIT)));
        (pair, complaints)
    });
}
