//! Answers of a primary's kernel about its connections, for the peer's wire. The daemon's `look_up` and `list` give
//! the same answers on a real node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::census::Terms;
use proto::census::{CensusPage, PAGE_MAX, PageQuery};

use super::machine::{AGENTS, Machine, PEER};
use super::thread::{AgentDatagram, AgentMessage};
use crate::host::Host;
use crate::tcp::{EndpointState, TcpEndpoint};
use crate::world::Output;

impl Machine {
    /// Sends a message to the peer's agent.
    pub(super) fn say_word(&mut self, word: &AgentMessage) {
        self.agent.said += 1;
        let said = AgentDatagram {
            incarnation: self.agent.number,
            number: self.agent.said,
            word: word.clone(),
        };
        let packet = serde_json::to_vec(&said).expect("a word has a JSON form");
        if self.config.service_link {
            let packet = packet.clone();
            self.outputs.push_back(Output::Transmit { port: PEER, packet });
        }
        self.outputs.push_back(Output::Transmit { port: AGENTS, packet });
    }

    pub(super) fn look_up(&mut self, clients: Vec<SocketAddr>) {
        let open = self.open();
        let told = clients
            .into_iter()
            .map(|client| (client, open.get(&client).copied()));
        self.say_word(&AgentMessage::Told(told.collect()));
    }

    pub(super) fn list(&mut self, query: PageQuery) {
        let open = self.open();
        let mut behind = open.into_iter().filter(|(client, _)| Some(*client) > query.after);
        let connections = behind.by_ref().take(PAGE_MAX).collect();
        let is_last = behind.next().is_none();
        self.say_word(&AgentMessage::Page(CensusPage {
            query,
            connections,
            is_last,
        }));
    }

    /// The stack's connections that are open both ways, by client.
    fn open(&self) -> BTreeMap<SocketAddr, Terms> {
        open_at(&self.host, self.vip, |state| state == EndpointState::Established)
    }
}

/// The connections of a stack's server at `vip` that are in such a state, by client.
pub(super) fn open_at(
    stack: &Host,
    vip: SocketAddr,
    is_open: impl Fn(EndpointState) -> bool,
) -> BTreeMap<SocketAddr, Terms> {
    let terms = |endpoint: &TcpEndpoint| {
        let (mss, scale, sack, timestamps) = endpoint.agreed();
        let terms = Terms {
            mss,
            window_scale: scale.map(|scale| (scale.send, scale.receive)),
            sack,
            timestamps,
            microseconds: false,
        };
        is_open(endpoint.state()).then_some((endpoint.remote(), terms))
    };
    let endpoints = stack.endpoints().map(|(_, endpoint)| endpoint);
    let ours = endpoints.filter(|endpoint| endpoint.local() == vip);
    ours.filter_map(terms).collect()
}
