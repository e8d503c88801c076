//! Every order in which two sides can end a connection.

use std::time::Duration;

use crate::scenario::{MS, RoutedNetwork, at, rough_link};
use proto::Instant;
use steadfast_sim::host::Host;
use steadfast_sim::link::LinkConfig;
use steadfast_sim::tcp::{EndpointState, TcpConfig, TcpEndpoint, TcpFailure};
use steadfast_sim::world::NodeId;

/// An application that sends `word` immediately and ends its stream at the time `end`, whatever the peer does.
fn says(word: &'static [u8], end: Instant) -> impl FnMut(Instant, &mut TcpEndpoint) -> Option<Instant> {
    let mut said = false;
    move |now, endpoint| {
        if !std::mem::replace(&mut said, true) {
            assert_eq!(endpoint.write(word), word.len());
        }
        endpoint.read(&mut Vec::new(), usize::MAX);
        if now >= end {
            endpoint.shutdown();
            return None;
        }
        Some(end)
    }
}

struct Both {
    scenario: RoutedNetwork,
}

impl Both {
    fn new(wan: &LinkConfig, seed: u64, client_end: Duration, server_end: Duration) -> Self {
        let mut scenario = RoutedNetwork::new(seed, wan, &TcpConfig::default(), None);
        scenario.serve(move || says(b"server", at(server_end)));
        scenario.connect(says(b"client", at(client_end)));
        Self { scenario }
    }

    fn endpoint(&self, node: NodeId) -> &TcpEndpoint {
        let host: &Host = self.scenario.world.node(node);
        host.endpoints().next().expect("an endpoint").1
    }

    fn states_at(&mut self, time: Duration) -> (EndpointState, EndpointState) {
        self.scenario.world.run_until(at(time));
        let (client, server) = (self.scenario.client, self.scenario.server);
        (self.endpoint(client).state(), self.endpoint(server).state())
    }
}

fn quiet() -> LinkConfig {
    LinkConfig {
        delay: 10 * MS,
        ..LinkConfig::default()
    }
}

#[test]
fn one_side_first_then_the_other() {
    for client_first in [true, false] {
        let (client_end, server_end) = if client_first {
            (100 * MS, 200 * MS)
        } else {
            (200 * MS, 100 * MS)
        };
        let mut both = Both::new(&quiet(), 1, client_end, server_end);
        let mut ordered = |time| {
            let (client, server) = both.states_at(time);
            if client_first {
                (client, server)
            } else {
                (server, client)
            }
        };
        assert_eq!(
            ordered(99 * MS),
            (EndpointState::Established, EndpointState::Established)
        );
        assert_eq!(
            ordered(105 * MS),
            (EndpointState::FinWait1, EndpointState::Established)
        );
        assert_eq!(
            ordered(115 * MS),
            (EndpointState::FinWait1, EndpointState::CloseWait)
        );
        assert_eq!(
            ordered(130 * MS),
            (EndpointState::FinWait2, EndpointState::CloseWait)
        );
        assert_eq!(
            ordered(205 * MS),
            (EndpointState::FinWait2, EndpointState::LastAck)
        );
        assert_eq!(
            ordered(215 * MS),
            (EndpointState::TimeWait, EndpointState::LastAck)
        );
        assert_eq!(
            ordered(225 * MS),
            (EndpointState::TimeWait, EndpointState::Closed)
        );
        assert_eq!(
            ordered(Duration::from_secs(60)),
            (EndpointState::TimeWait, EndpointState::Closed)
        );
        assert_eq!(
            ordered(Duration::from_secs(61)),
            (EndpointState::Closed, EndpointState::Closed)
        );
    }
}

#[test]
fn both_at_once() {
    let mut both = Both::new(&quiet(), 1, 100 * MS, 100 * MS);
    assert_eq!(
        both.states_at(105 * MS),
        (EndpointState::FinWait1, EndpointState::FinWait1)
    );
    assert_eq!(
        both.states_at(115 * MS),
        (EndpointState::Closing, EndpointState::Closing)
    );
    assert_eq!(
        both.states_at(125 * MS),
        (EndpointState::TimeWait, EndpointState::TimeWait)
    );
    assert_eq!(
        both.states_at(Duration::from_secs(61)),
        (EndpointState::Closed, EndpointState::Closed)
    );
}

#[test]
fn every_order_ends_whatever_is_lost() {
    let offsets = [0_u64, 1, 5, 10, 11, 20, 21, 40, 100];
    for seed in 0..40 {
        for client_end in offsets {
            for server_end in [0_u64, 10, 11, 30] {
                let wan = LinkConfig {
                    loss: 0.2,
                    ..rough_link(seed)
                };
                let (client_end, server_end) = (
                    MS * client_end.try_into().unwrap(),
                    MS * server_end.try_into().unwrap(),
                );
                let mut both = Both::new(&wan, seed, client_end, server_end);
                both.scenario.world.run_until(at(Duration::from_secs(3_000)));
                let context = format!("seed {seed}, client ends {client_end:?}, server {server_end:?}");
                let server_knows = both.scenario.host(both.scenario.server).endpoints().count() > 0;
                let nodes = [both.scenario.client, both.scenario.server];
                for node in nodes
                    .into_iter()
                    .filter(|node| *node == both.scenario.client || server_knows)
                {
                    let endpoint = both.endpoint(node);
                    assert_eq!(endpoint.state(), EndpointState::Closed, "{context}");
                    // If every copy of the last acknowledgement is lost, the side in TIME-WAIT forgets the connection. It then answers the
                    // next repeated FIN with a RST.
                    assert!(
                        matches!(endpoint.failure(), None | Some(TcpFailure::Reset)),
                        "{context}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_abort_resets_the_other_side() {
    let mut scenario = RoutedNetwork::new(1, &quiet(), &TcpConfig::default(), None);
    scenario.serve(|| says(b"server", at(Duration::from_secs(9))));
    let (id, local) = scenario.connect(says(b"client", at(Duration::from_secs(9))));
    scenario.world.run_until(at(100 * MS));
    scenario.world.with(scenario.client, |host: &mut Host, now| {
        host.with(now, id, TcpEndpoint::abort);
    });
    scenario.world.run_until(at(120 * MS));
    let client = scenario.host(scenario.client);
    assert_eq!(client.endpoint(id).unwrap().failure(), Some(TcpFailure::Aborted));
    let server = scenario.host(scenario.server);
    assert_eq!(server.find(crate::scenario::server_socket(), local), None);
    assert_eq!(
        server.endpoints().next().unwrap().1.failure(),
        Some(TcpFailure::Reset)
    );
}
