//! The part of a station in connections of annexes (docs/annex.md): as a wire, as a primary that carries, and as a primary to which
//! connections move back. The daemon's `annexed` does the same on a real node.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use agent::Kernel as _;
use proto::Instant;
use proto::annex::ServingNode;
use proto::hosting::{Having, HostGreeting};
use proto::role::Role;
use proto::service::ServiceInput;

use super::annex::caller::SimLinkEvent;
use super::annex::link::{LinkCall, LinkDatagram, LinkWord};
use super::defect::Defect;
use super::machine::Machine;
use super::station::Station;
use crate::world::Port;

impl Machine {
    /// A packet of a link came in. The link's threads belong to the agent's process.
    pub(super) fn on_link(&mut self, now: Instant, port: Port, datagram: LinkDatagram) {
        if self.has_agent() {
            self.annexes.inbox.push((port, datagram));
        }
        self.work_on_links(now);
    }

    /// Lets the links' threads work.
    pub(super) fn work_on_links(&mut self, now: Instant) {
        if !self.runs(now) || self.config.annexes == 0 {
            return;
        }
        for (port, datagram) in std::mem::take(&mut self.annexes.inbox) {
            if datagram.to_caller {
                self.annexes.links.on_datagram(now, datagram);
            } else {
                self.annexes.server.on_datagram(now, port, datagram);
            }
        }
        self.annexes.links.handle_timeout(now);
        self.annexes.server.handle_timeout(now);
        if self.annexes.links.has_events() || self.annexes.server.has_calls() {
            self.agent.wake(now);
        }
        self.outputs.extend(self.annexes.links.outputs(now));
        self.outputs.extend(self.annexes.server.outputs(now));
    }

    /// The links of this node are reset: what is on its way over them is lost.
    pub fn reset_links(&mut self, now: Instant) {
        let now = self.clock.read(now);
        self.annexes.links.reset(now);
        self.annexes.server.reset();
        self.work_on_links(now);
    }

    /// When the links' threads have something to do.
    pub(super) fn links_due(&self) -> Option<Instant> {
        if !self.has_agent() || self.config.annexes == 0 {
            return None;
        }
        let unread = (!self.annexes.inbox.is_empty()).then_some(self.agent.paused_until);
        let threads = [
            self.annexes.links.poll_timeout(),
            self.annexes.server.poll_timeout(),
            unread,
        ];
        let due = threads.into_iter().flatten().min();
        due.map(|due| due.max(self.agent.paused_until))
    }

    /// The clients in a wire's greeting whose connections live on this machine, the primary.
    fn started_of(&self, greeting: &HostGreeting) -> Vec<SocketAddr> {
        let Having::Known(clients) = &greeting.having else {
            return Vec::new();
        };
        let lives = |client: &&SocketAddr| self.host.find(self.vip, **client).is_some();
        clients.iter().filter(lives).copied().collect()
    }

    /// Carries out a call of the peer's wire about a socket. `exported`: the number of this node's latest snapshot. Returns the answer.
    fn answer_wire(&mut self, now: Instant, word: LinkWord, exported: u64) -> Option<LinkWord> {
        match word {
            LinkWord::Restore {
                endpoint,
                output,
                now: then,
            } => {
                let client = endpoint.client;
                let tcp = self.config.host.tcp.clone();
                let (host, hosted) = (&mut self.host, &mut self.annexes.hosted);
                Some(match hosted.restore(host, &tcp, *endpoint, output, (now, then)) {
                    Ok(()) => {
                        self.judge.borrow_mut().on_made(self.config.number, client);
                        LinkWord::Restored { client, exported }
                    }
                    Err(reason) => LinkWord::Refused { client, reason },
                })
            }
            LinkWord::Start(word) => {
                let (client, program) = (word.client, Rc::clone(&self.config.program));
                let (host, hosted) = (&mut self.host, &mut self.annexes.hosted);
                let exports = self.config.exports().then_some(&self.exports);
                let started = hosted.start(host, now, *word, exports, move || program(client));
                Some(match started {
                    Ok(started) => {
                        self.annexes.hosted.host.forget(&client); // it is an ordinary connection of this primary
                        self.relayed.push(started.socket);
                        self.judge.borrow_mut().on_moved_back(self.config.number, client);
                        started.packets.iter().for_each(|packet| self.transmit(packet));
                        LinkWord::Live(client)
                    }
                    Err(reason) => LinkWord::Refused { client, reason },
                })
            }
            LinkWord::Drop(client) => {
                self.annexes.hosted.drop_one(&mut self.host, &client);
                Some(LinkWord::Dropped(client))
            }
            LinkWord::Hello(_)
            | LinkWord::TakeBack(_)
            | LinkWord::Lives { .. }
            | LinkWord::Ask(_)
            | LinkWord::Receipt(_)
            | LinkWord::Ping
            | LinkWord::Welcome { .. }
            | LinkWord::Superseded
            | LinkWord::Restored { .. }
            | LinkWord::Refused { .. }
            | LinkWord::Dropped(_)
            | LinkWord::Live(_)
            | LinkWord::Told(_)
            | LinkWord::Part(_) => None,
        }
    }
}

impl Station {
    /// Tells the core what the annexes say.
    pub(super) fn hear_annexes(&mut self, now: Instant) {
        if self.machine.config.annexes == 0 {
            return;
        }
        let greeting = self.core.service(0).greeting();
        let unconfirmed = self.core.service(0).unconfirmed();
        self.machine.annexes.links.name_unconfirmed(unconfirmed);
        self.machine.annexes.links.set_greeting(now, greeting);
        if self.core.service(0).role() != Role::Primary && !self.machine.is(Defect::KeepUnstarted) {
            let machine = &mut self.machine;
            machine.annexes.hosted.drop_restoring(&mut machine.host);
        }
        while let Some((node, event)) = self.machine.annexes.links.poll_event() {
            for input in self.hear_of_annex(node, event) {
                self.machine.read_log(self.machine.log_end, &mut self.core);
                self.core.handle(now, 0, input);
            }
        }
        self.machine.work_on_links(now);
    }

    /// Answers a call of the peer's wire. The agent's actions are carried out before each call. Returns whether there are more calls.
    pub(super) fn answer_wire(&mut self, now: Instant) -> bool {
        while let Some(call) = self.machine.annexes.server.poll_call() {
            self.answer_call(now, call);
            if !self.machine.is(Defect::AnswerAtOnce) {
                break;
            }
        }
        self.machine.work_on_links(now);
        self.machine.annexes.server.has_calls()
    }

    fn hear_of_annex(&mut self, node: ServingNode, event: SimLinkEvent) -> Vec<ServiceInput> {
        vec![match event {
            SimLinkEvent::Up { has, carries } => {
                if node == ServingNode::Primary {
                    self.machine.annexes.links.tell_primary();
                    self.machine.annexes.links.expect(carries);
                }
                let has = match self.machine.config.defect {
                    Some(Defect::TrustStarts) if node == ServingNode::Primary => {
                        self.core.service(0).unconfirmed()
                    }
                    Some(Defect::DenyStarts) if node == ServingNode::Primary => Vec::new(),
                    _ => has,
                };
                return self.core.service(0).on_link(node, has).collect();
            }
            SimLinkEvent::Down => {
                let is_up = false;
                ServiceInput::AnnexIsUp { node, is_up }
            }
            SimLinkEvent::Reply(LinkWord::Dropped(client)) => ServiceInput::DroppedAt { client, node },
            SimLinkEvent::Reply(LinkWord::Restored { client, exported }) => ServiceInput::RestoredAt {
                client,
                node,
                exported,
            },
            SimLinkEvent::Reply(LinkWord::Refused { .. })
                if node == ServingNode::Primary && self.machine.is(Defect::TrustStarts) =>
            {
                return Vec::new();
            }
            SimLinkEvent::Reply(LinkWord::Refused { client, reason }) => {
                ServiceInput::RefusedAt { client, node, reason }
            }
            SimLinkEvent::Reply(LinkWord::Live(client)) => ServiceInput::SpeaksAt { client, node },
            SimLinkEvent::Reply(word) => {
                let Some(annex) = node.annex() else {
                    return Vec::new();
                };
                match word {
                    LinkWord::Told(told) => ServiceInput::ToldAt { annex, told },
                    LinkWord::Part(part) => ServiceInput::PartAt { annex, part },
                    _ => return Vec::new(),
                }
            }
        }]
    }

    fn answer_call(&mut self, now: Instant, call: LinkCall) {
        let LinkCall { id, link, word } = call;
        let Some(word) = word else { return };
        let is_primary = self.core.service(0).role() == Role::Primary;
        let machine = &mut self.machine;
        let reply = match word {
            LinkWord::Hello(greeting) => {
                machine.annexes.hosted.take_list(&mut machine.host, &greeting);
                machine.annexes.hosted.host.obey(link, &greeting);
                // A client's SYN ends a carried connection in the kernel only.
                let there: BTreeSet<_> = machine.annexed().into_iter().map(|(client, _)| client).collect();
                let carries = self.core.service(0).offered_guests();
                Some(LinkWord::Welcome {
                    has: machine.started_of(&greeting),
                    carries: carries.filter(|(client, _)| there.contains(client)).collect(),
                })
            }
            _ if !machine.annexes.hosted.host.obeys(link) => return,
            LinkWord::Lives { places, is_all } => {
                let places = places
                    .into_iter()
                    .map(|(client, annex)| (client, annex.into()))
                    .collect();
                return self.core.handle(now, 0, ServiceInput::LiveAt { places, is_all });
            }
            LinkWord::Restore { endpoint, .. } if !is_primary => Some(LinkWord::Refused {
                client: endpoint.client,
                reason: "the other node is not the primary".to_owned(),
            }),
            word => machine.answer_wire(now, word, self.core.service(0).exported()),
        };
        if let Some(reply) = reply {
            machine.annexes.server.reply(id, reply);
        }
    }
}
