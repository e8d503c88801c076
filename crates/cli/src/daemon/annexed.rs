//! The agent's part in moves to and from annexes ([`super::annex`]): passes on what links say, and takes connections that move back.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use agent::{Core, Kernel as _};
use linux::network::sockets;
use proto::action::ServiceIndex;
use proto::annex::{AnnexId, ServingNode};
use proto::connection::{Connection, Endpoint};
use proto::hosting::{Having, HostGreeting};
use proto::role::Role;
use proto::service::ServiceInput;

use super::annex::host::{AnnexCall, HostPlace};
use super::annex::links::{FromLink, LinkEvent};
use super::annex::message::{AnnexReply, AnnexRequest, StartRequest};
use super::kernel::LinuxKernel;

/// Largest number of bytes of input that moves with a connection.
const INPUT_MAX: usize = 60 << 20;

/// The clients in a wire's greeting whose connections live on this node, the primary. The kernel knows it, also of those that an earlier
/// agent has started. If it cannot be asked, they count as live: two nodes must not speak for one.
fn started_of(vip: SocketAddr, greeting: &HostGreeting) -> Vec<SocketAddr> {
    let Having::Known(clients) = &greeting.having else {
        return Vec::new();
    };
    match sockets::terms(vip, clients) {
        Ok(told) => {
            let live = told.into_iter().filter(|(_, terms)| terms.is_some());
            live.map(|(client, _)| client).collect()
        }
        Err(error) => {
            tracing::warn!(%error, "cannot look up connections; they count as started");
            clients.clone()
        }
    }
}

impl LinuxKernel {
    /// Tells the node what the annexes say.
    pub fn hear_annexes(&mut self, node: &mut Core) {
        if let Some(entries) = self.arbiter.annexes() {
            self.annexes.take_entries(&entries, &self.wire);
        }
        for service in (0..).take(self.services.len()) {
            let greeting = node.service(service).greeting();
            self.annexes.set_greeting(service, greeting.as_ref());
            self.annexes
                .name_unconfirmed(service, node.service(service).unconfirmed());
            if node.service(service).role() != Role::Primary {
                // Nobody starts them now. Their kernel would acknowledge what clients send, which no application would ever get.
                self.services[usize::from(service)].hosted.drop_unstarted();
            }
        }
        while let Some(FromLink {
            service,
            node: of,
            event,
        }) = self.annexes.poll_link()
        {
            let input = match event {
                LinkEvent::Up { mac, has, carries } => {
                    self.on_link_up(node, (service, of), mac, (has, carries));
                    None
                }
                LinkEvent::Down => Some(ServiceInput::AnnexIsUp {
                    node: of,
                    is_up: false,
                }),
                LinkEvent::Reply(reply) => self.input_of(service, of, reply),
            };
            let Some(input) = input else { continue };
            self.read_all(node);
            node.handle(self.now(), service, input);
        }
    }

    /// The next call of the other node's wire. Before [`answer_wire`](Self::answer_wire), the node's actions must be carried out: when the wire
    /// asks for a socket to be started, the kernel must know that the connection lives here, which an earlier call has said. Otherwise it drops
    /// what the socket says first.
    pub fn poll_call(&self) -> Option<AnnexCall> {
        self.annexes.poll_call()
    }

    /// A node has answered the greeting.
    fn on_link_up(
        &mut self,
        node: &mut Core,
        (service, of): (ServiceIndex, ServingNode),
        mac: [u8; 6],
        (has, carries): (Vec<SocketAddr>, Vec<(SocketAddr, AnnexId)>),
    ) {
        if let Some(number) = self.annexes.number(service, of)
            && let Err(error) = self.wire.set_annex(service, number, mac)
        {
            tracing::error!(%error, "an annex gets no connections");
            return;
        }
        if of == ServingNode::Primary {
            self.annexes.tell_primary(service);
            self.annexes.expect(service, carries);
        }
        for input in node.service(service).on_link(of, has) {
            self.read_all(node);
            node.handle(self.now(), service, input);
        }
    }

    /// What a node's reply means. `None`: nothing to decide.
    fn input_of(&self, service: ServiceIndex, of: ServingNode, reply: AnnexReply) -> Option<ServiceInput> {
        match reply {
            AnnexReply::Dropped(client) => Some(ServiceInput::DroppedAt { client, node: of }),
            AnnexReply::Restored { client, exported } => Some(ServiceInput::RestoredAt {
                client,
                node: of,
                exported,
            }),
            AnnexReply::Refused { client, reason } => {
                let name = self.annexes.name(service, of);
                tracing::debug!(%client, node = name, reason, "a node does not have the connection");
                Some(ServiceInput::RefusedAt {
                    client,
                    node: of,
                    reason,
                })
            }
            // The primary sends its own parts and answers to the backup.
            AnnexReply::Part(part) => of.annex().map(|annex| ServiceInput::PartAt { annex, part }),
            AnnexReply::Told(told) => of.annex().map(|annex| {
                let told = told.into_iter().map(Into::into).collect();
                ServiceInput::ToldAt { annex, told }
            }),
            AnnexReply::Live(client) => Some(ServiceInput::SpeaksAt { client, node: of }),
            AnnexReply::Welcome { .. } | AnnexReply::Superseded | AnnexReply::Pong => None,
        }
    }

    /// Carries out a call of the other node's wire, while this node is the primary.
    pub fn answer_wire(&mut self, node: &mut Core, call: AnnexCall) {
        let AnnexCall {
            link,
            vip,
            request,
            replies,
        } = call;
        let (Some(service), Some(request)) = (self.service_at(vip), request) else {
            return;
        };
        let is_primary = node.service(service).role() == Role::Primary;
        let resources = &mut self.services[usize::from(service)];
        let reply = match request {
            AnnexRequest::Hello(hello) => {
                resources.hosted.take_list(&hello.greeting);
                resources.hosted.host.obey(link, &hello.greeting);
                // A client's SYN ends a carried connection in the kernel only.
                let there: BTreeSet<_> = self.wire.annexed(service).into_iter().map(|(it, _)| it).collect();
                let carries = node.service(service).offered_guests();
                Some(AnnexReply::Welcome {
                    mac: resources.mac,
                    has: started_of(vip, &hello.greeting),
                    carries: carries.filter(|(client, _)| there.contains(client)).collect(),
                })
            }
            _ if !resources.hosted.host.obeys(link) => return, // a later link has taken this one's place
            AnnexRequest::Lives { places, is_all } => {
                let places = places
                    .into_iter()
                    .map(|(client, annex)| (client, annex.into()))
                    .collect();
                node.handle(self.now(), service, ServiceInput::LiveAt { places, is_all });
                return;
            }
            AnnexRequest::Restore { ref endpoint, .. } if !is_primary => Some(AnnexReply::Refused {
                client: endpoint.client,
                reason: "the other node is not the primary".to_owned(),
            }),
            request => {
                let place = HostPlace {
                    service,
                    pool: &mut resources.pool,
                    relay: &mut self.relay,
                    raw: &self.raw,
                    moved: self.exports.moved(),
                    exported: node.service(service).exported(),
                };
                resources.hosted.handle(request, place)
            }
        };
        if let Some(AnnexReply::Live(client)) = &reply {
            resources.hosted.host.forget(client); // it is an ordinary connection of this primary
        }
        if let Some(reply) = reply {
            let _ = replies.send(reply); // fails only if the link has ended
        }
    }

    /// Asks another node to make a socket.
    pub(super) fn ask_to_restore<'a>(
        &self,
        service: ServiceIndex,
        node: ServingNode,
        endpoint: &Endpoint,
        output: impl Iterator<Item = &'a [u8]>,
    ) {
        let request = AnnexRequest::Restore {
            endpoint: Box::new(endpoint.clone()),
            output: output.flatten().copied().collect(),
            now: self.now().as_nanos(),
        };
        self.annexes.send(service, node, request);
    }

    /// Asks another node to start the socket that it has made.
    pub(super) fn ask_to_start<'a>(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        (endpoint, connection): (&Endpoint, &Connection),
        late: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        let late: Vec<u8> = late.flatten().copied().collect();
        let content = self
            .relay
            .plan_elsewhere(service, connection, endpoint)
            .ok_or("its application cannot go on")?
            .map_err(|error| format!("its spilled input cannot be read: {error}"))?;
        if late.len() + content.input.len() > INPUT_MAX {
            return Err("its input is too long".to_owned());
        }
        let is_quiet = connection.is_quiet(endpoint);
        let request = AnnexRequest::Start(Box::new(StartRequest {
            client: endpoint.client,
            late,
            is_quiet,
            acknowledged: connection.endpoint().send_unacknowledged,
            content,
        }));
        self.annexes.send(service, node, request);
        Ok(())
    }

    /// From now on, this node has the packets of the client's connection.
    pub(super) fn guide_to(&mut self, service: ServiceIndex, client: SocketAddr, node: ServingNode) {
        let number = self.annexes.number(service, node);
        if node != ServingNode::Primary && number.is_none() {
            tracing::error!(%client, "the annex is not in the list any more");
            return;
        }
        self.annexes.note_guest(service, client, node);
        if let Err(error) = self.wire.guide(service, client, number) {
            tracing::error!(%error, %client, "the client's packets do not reach the node that has its connection");
        }
    }
}
