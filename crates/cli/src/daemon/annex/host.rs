//! The side of a node that takes connections of a service: an annex, or the primary, to which connections move back.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use linux::raw::RawSender;
use linux::repair::{Pool, RestoredSocket, offered_window};
use proto::Instant;
use proto::action::ServiceIndex;
use proto::annex::ServingNode;
use proto::connection::Endpoint;
use proto::hosting::{AnnexHost, HostGreeting};
use proto::takeover::wake_from;

use super::super::relay::{Handover, HandoverContent, RelayedConnections};
use super::super::sealed::begin;
use super::super::snapshots::MovedConnections;
use super::links::{PING_EVERY, SILENT_MAX};
use super::message::{AnnexReply, AnnexRequest, MAGIC, MESSAGE, StartRequest, WakeAgent, WireHello};
use crate::config::SecretKey;

/// A request, and how to answer it.
pub struct AnnexCall {
    /// The link's number. A later link has a higher one.
    pub link: u64,
    pub vip: SocketAddr,
    /// `None`: the link has ended.
    pub request: Option<AnnexRequest>,
    pub replies: Sender<AnnexReply>,
}

/// Takes links of wires at `listener` that call `own`. The calls come through the returned channel.
///
/// # Errors
/// If no thread can be started.
pub fn serve(
    (listener, own): (TcpListener, ServingNode),
    key: SecretKey,
    waker: WakeAgent,
) -> io::Result<Receiver<AnnexCall>> {
    let (calls, inbox) = channel();
    std::thread::Builder::new()
        .name("annex-links".into())
        .spawn(move || {
            for (link, stream) in (1..).zip(listener.incoming().flatten()) {
                let (calls, key, waker) = (calls.clone(), key.clone(), waker.clone());
                let served = std::thread::Builder::new()
                    .name("annex-link".into())
                    .spawn(move || {
                        if let Err(error) = serve_link((link, stream), own, &key, &calls, &waker) {
                            tracing::debug!(%error, "a wire's link has ended");
                        }
                    });
                if let Err(error) = served {
                    tracing::warn!(%error, "a wire's link is not served");
                }
            }
        })?;
    Ok(inbox)
}

/// Serves one link until it ends.
fn serve_link(
    (link, stream): (u64, TcpStream),
    own: ServingNode,
    key: &SecretKey,
    calls: &Sender<AnnexCall>,
    waker: &WakeAgent,
) -> io::Result<()> {
    let (mut reader, mut writer) = begin(stream, MAGIC, Some(key), false)?;
    reader.stream.get_ref().set_read_timeout(Some(SILENT_MAX))?;
    let (replies, outbox) = channel::<AnnexReply>();
    let stream = reader.stream.get_ref().try_clone()?;
    let at = stream.local_addr()?;
    let send = std::thread::Builder::new()
        .name("annex-reply".into())
        .spawn(move || {
            let mut next = outbox.recv().map_err(RecvTimeoutError::from); // the answer to the greeting comes first
            loop {
                // Signs of life do not wait for requests: the reading of a long one may take longer than a node may be silent.
                let reply = match next {
                    Ok(reply) => reply,
                    Err(RecvTimeoutError::Timeout) => AnnexReply::Pong,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let bytes = postcard::to_stdvec(&reply).map_err(io::Error::other);
                if bytes.and_then(|bytes| writer.send(MESSAGE, &bytes)).is_err() {
                    let _ = stream.shutdown(std::net::Shutdown::Both); // fails only if it is closed already
                    return;
                }
                next = outbox.recv_timeout(PING_EVERY);
            }
        })?;
    let mut vip = None;
    let outcome = loop {
        let request = reader
            .receive()
            .and_then(|(_, bytes)| postcard::from_bytes::<AnnexRequest>(&bytes).map_err(io::Error::other));
        match request {
            Ok(AnnexRequest::Ping) => {}
            Ok(request) => {
                if let AnnexRequest::Hello(hello) = &request {
                    if let Err(why) = is_meant(hello, own, at) {
                        tracing::warn!(from = %hello.address, why, "a link is refused");
                        break Err(io::Error::other(why));
                    }
                    vip = Some(hello.vip);
                }
                let Some(vip) = vip else {
                    break Err(io::ErrorKind::InvalidData.into());
                };
                let call = AnnexCall {
                    link,
                    vip,
                    request: Some(request),
                    replies: replies.clone(),
                };
                if calls.send(call).is_err() {
                    break Ok(());
                }
                waker();
            }
            Err(error) => break Err(error),
        }
    };
    if let Some(vip) = vip {
        let _ = calls.send(AnnexCall {
            link,
            vip,
            request: None,
            replies,
        }); // fails only if the agent has ended
        waker();
    }
    // Otherwise the node would send signs of life on a link that it does not read any more.
    let _ = reader.stream.get_ref().shutdown(std::net::Shutdown::Both); // fails only if it is closed already
    drop(send);
    outcome
}

/// Whether a greeting is meant for the node `own`, which has accepted the link at `at`.
///
/// # Errors
/// Why not.
fn is_meant(hello: &WireHello, own: ServingNode, at: SocketAddr) -> Result<(), String> {
    if hello.to != own {
        return Err(
            "it calls another annex: one name is at two addresses, or two names are at one".to_owned(),
        );
    }
    let plain = |at: SocketAddr| (at.ip().to_canonical(), at.port());
    if plain(hello.at) != plain(at) {
        return Err(format!("it has connected to {}, but came to {at}", hello.at));
    }
    Ok(())
}

/// A socket that does not speak yet.
struct HostedSocket {
    endpoint: Endpoint,
    /// The output that the client had not acknowledged when the socket was made.
    output: Vec<u8>,
    socket: RestoredSocket,
}

/// What a node needs to take connections of a service.
pub struct HostPlace<'a> {
    pub service: ServiceIndex,
    pub pool: &'a mut Pool,
    pub relay: &'a mut RelayedConnections,
    pub raw: &'a RawSender,
    /// The connections that have moved away.
    pub moved: MovedConnections,
    /// The number of the latest snapshot that its application has exported.
    pub exported: u64,
}

/// What a node has of a service for a wire.
#[derive(Default)]
pub struct HostedConnections {
    /// Sockets that do not speak yet.
    restoring: BTreeMap<SocketAddr, HostedSocket>,
    /// The link that this node obeys, and the connections that were started here.
    pub host: AnnexHost,
}

impl HostedConnections {
    /// As [`AnnexHost::take_list`]. Sockets that do not speak yet end.
    pub fn take_list(&mut self, greeting: &HostGreeting) -> Vec<SocketAddr> {
        self.drop_unstarted();
        self.host.take_list(greeting)
    }

    /// Drops the sockets that do not speak yet, without a packet.
    pub fn drop_unstarted(&mut self) {
        self.restoring.clear();
    }

    /// Carries out a request, except `Hello`. Returns the answer.
    pub fn handle(&mut self, request: AnnexRequest, mut place: HostPlace<'_>) -> Option<AnnexReply> {
        let now = linux::clock::now();
        let (client, outcome) = match request {
            AnnexRequest::Restore {
                endpoint,
                output,
                now: then,
            } => (
                endpoint.client,
                self.restore(*endpoint, output, (now, then), &mut place),
            ),
            AnnexRequest::Start(request) => (request.client, self.start(*request, place)),
            AnnexRequest::Drop(client) => {
                self.restoring.remove(&client);
                return Some(AnnexReply::Dropped(client));
            }
            AnnexRequest::Hello(_)
            | AnnexRequest::Ping
            | AnnexRequest::TakeBack(_)
            | AnnexRequest::Ask(_)
            | AnnexRequest::Receipt(_)
            | AnnexRequest::Lives { .. } => return None,
        };
        Some(outcome.unwrap_or_else(|reason| AnnexReply::Refused { client, reason }))
    }

    fn restore(
        &mut self,
        mut endpoint: Endpoint,
        output: Vec<u8>,
        (now, then): (Instant, u64),
        place: &mut HostPlace<'_>,
    ) -> Result<AnnexReply, String> {
        // The two nodes' clocks are not compared. The time of the request's way is missing from the age, so the socket's clock is a little
        // behind the server's before. It is never behind what the client has seen: that server has said nothing since.
        if let Some(clock) = &mut endpoint.timestamps {
            clock.at = now - Duration::from_nanos(then.saturating_sub(clock.at.as_nanos()));
        }
        let socket = RestoredSocket::new(place.pool, &endpoint, std::iter::once(&output[..]))
            .and_then(|socket| socket.make_ready().map(|()| socket))
            .map_err(|error| error.to_string())?;
        let client = endpoint.client;
        let hosted = HostedSocket {
            endpoint,
            output,
            socket,
        };
        self.restoring.insert(client, hosted);
        Ok(AnnexReply::Restored {
            client,
            exported: place.exported,
        })
    }

    fn start(&mut self, request: StartRequest, place: HostPlace<'_>) -> Result<AnnexReply, String> {
        let StartRequest {
            client,
            late,
            is_quiet,
            acknowledged,
            content,
        } = request;
        let HostPlace {
            service,
            relay,
            raw,
            moved,
            ..
        } = place;
        let HostedSocket {
            mut endpoint,
            output,
            socket,
        } = self.restoring.remove(&client).ok_or("its socket was not made")?;
        socket.feed(&late).map_err(|error| error.to_string())?;
        if !is_quiet {
            // Before the socket speaks, because it may acknowledge more at any time. It may have later segments out of order. If something
            // before them is missing, only the client can repeat it.
            endpoint.receive_next = socket.receive_next().map_err(|error| error.to_string())?;
        }
        endpoint.timestamps = socket.clock().or(endpoint.timestamps); // the socket's own first packet may be one tick ahead of the old clock
        let socket = socket.activate(is_quiet).map_err(|error| error.to_string())?;
        if !is_quiet {
            // Now the socket offers all of its room. If the client has filled the old window, no other packet opens it.
            let offered = offered_window(&socket).unwrap_or(0);
            for packet in wake_from((&endpoint, &output), acknowledged, offered, linux::clock::now()) {
                if let Err(error) = raw.send(&packet) {
                    tracing::warn!(%error, %client, "the client is not woken; it goes on when its own timer ends");
                }
            }
        }
        let id = relay.add_live(service, client, linux::clock::now());
        moved.arrive(service, client);
        relay.hand_over(Handover {
            id,
            service,
            client,
            socket,
            content: HandoverContent::Planned(Box::new(content)),
        });
        self.host.on_started(client);
        Ok(AnnexReply::Live(client))
    }
}

#[cfg(test)]
mod tests {
    use proto::annex::AnnexId;
    use proto::carried::TakeBackNumber;
    use proto::hosting::Greeting;

    use super::*;

    #[test]
    fn a_greeting_is_for_one_node_at_one_address() {
        let annex = |name| ServingNode::Annex(AnnexId::of(name));
        let greeting = Greeting {
            epoch: 1,
            take_back: TakeBackNumber::default(),
            asks: false,
        };
        let at: SocketAddr = "10.0.0.4:7402".parse().unwrap();
        let hello = WireHello {
            to: annex("gamma"),
            at,
            vip: "10.0.0.100:80".parse().unwrap(),
            mac: [0; 6],
            address: "10.0.0.3".parse().unwrap(),
            greeting: greeting.to_host_of(&[]),
        };
        assert_eq!(is_meant(&hello, annex("gamma"), at), Ok(()));
        let mapped = "[::ffff:10.0.0.4]:7402".parse().unwrap();
        assert_eq!(
            is_meant(&hello, annex("gamma"), mapped),
            Ok(()),
            "it listens at [::]"
        );
        for other in [annex("delta"), ServingNode::Primary] {
            assert!(
                is_meant(&hello, other, at)
                    .unwrap_err()
                    .starts_with("it calls another annex")
            );
        }
        let passed_on = is_meant(&hello, annex("gamma"), "10.0.0.5:7402".parse().unwrap());
        assert_eq!(
            passed_on.unwrap_err(),
            "it has connected to 10.0.0.4:7402, but came to 10.0.0.5:7402"
        );
    }
}
