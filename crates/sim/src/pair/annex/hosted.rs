//! The sockets of a node that takes connections from their wire: an annex, or the primary, to which connections move back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::connection::Endpoint as Known;
use proto::hosting::{AnnexHost, HostGreeting};
use proto::takeover::wake_from;

use super::link::StartWord;
use crate::host::{EndpointId, Host};
use crate::pair::application::SimApplication;
use crate::pair::exports::{ConnectionExports, SimExports};
use crate::pair::relay::{RelayAdoption, SimRelay};
use crate::tcp::{Restore, RestoreWindow, TcpConfig, TcpEndpoint, WindowScale};

/// A socket that does not speak yet.
#[derive(Debug)]
struct WaitingSocket {
    endpoint: Known,
    /// The output that the client had not acknowledged when the socket was made.
    output: Vec<u8>,
    socket: EndpointId,
}

/// What a node has for a wire.
#[derive(Debug, Default)]
pub(in crate::pair) struct HostedSockets {
    /// The link that this node obeys, and the connections that were started here.
    pub host: AnnexHost,
    restoring: BTreeMap<SocketAddr, WaitingSocket>,
}

/// A connection that was started.
pub(in crate::pair) struct StartedSocket {
    pub socket: EndpointId,
    /// Packets that wake the client.
    pub packets: Vec<Vec<u8>>,
}

impl HostedSockets {
    /// As [`AnnexHost::take_list`]. Sockets that do not speak yet end.
    pub fn take_list(&mut self, stack: &mut Host, greeting: &HostGreeting) -> Vec<SocketAddr> {
        self.drop_restoring(stack);
        self.host.take_list(greeting)
    }

    /// Drops the sockets that do not speak yet.
    pub fn drop_restoring(&mut self, stack: &mut Host) {
        for waiting in std::mem::take(&mut self.restoring).into_values() {
            stack.take(waiting.socket);
        }
    }

    /// Drops a client's socket, if there is one that does not speak yet.
    pub fn drop_one(&mut self, stack: &mut Host, client: &SocketAddr) {
        if let Some(waiting) = self.restoring.remove(client) {
            stack.take(waiting.socket);
        }
    }

    /// Makes a socket. `times`: this node's clock, and the wire's when it asked, in nanoseconds.
    pub fn restore(
        &mut self,
        stack: &mut Host,
        tcp: &TcpConfig,
        mut endpoint: Known,
        output: Vec<u8>,
        (now, then): (Instant, u64),
    ) -> Result<(), String> {
        let client = endpoint.client;
        if stack.find(endpoint.vip, client).is_some() {
            return Err("the address is in use".to_owned());
        }
        if let Some(clock) = &mut endpoint.timestamps {
            clock.at = now - Duration::from_nanos(then.saturating_sub(clock.at.as_nanos()));
        }
        let restore = restore_of(&endpoint, output.clone(), now);
        let made = TcpEndpoint::restore(tcp.clone(), &restore, now).map_err(|error| error.to_string())?;
        let socket = stack.adopt(now, made, Box::new(|_: Instant, _: &mut TcpEndpoint| None));
        let waiting = WaitingSocket {
            endpoint,
            output,
            socket,
        };
        self.restoring.insert(client, waiting);
        Ok(())
    }

    /// Lets a socket speak, and gives it to a relay, which starts a program with `program`. With `exports`, the program exports its state.
    pub fn start(
        &mut self,
        stack: &mut Host,
        now: Instant,
        word: StartWord,
        exports: Option<&SimExports>,
        program: impl FnOnce() -> Box<dyn SimApplication> + 'static,
    ) -> Result<StartedSocket, String> {
        let WaitingSocket {
            mut endpoint,
            output,
            socket,
        } = self
            .restoring
            .remove(&word.client)
            .ok_or("its socket was not made")?;
        let adoption: RelayAdoption =
            serde_json::from_str(&word.adoption).map_err(|error| error.to_string())?;
        // The client's packets may have reached the socket before the wire has read them in its log.
        let has = stack.endpoint(socket).map(TcpEndpoint::receive_next);
        let came = has.map_or(0, |has| has.distance_from(endpoint.receive_next));
        let late = word.late.get(usize::try_from(came).unwrap_or(0)..);
        stack.with(now, socket, |socket| socket.feed(late.unwrap_or_default()));
        let mut packets = Vec::new();
        if !word.is_quiet {
            let has = stack.endpoint(socket).map(TcpEndpoint::receive_next);
            endpoint.receive_next = has.unwrap_or(endpoint.receive_next);
            let offered = stack.endpoint(socket).map_or(0, TcpEndpoint::offered_window);
            packets = wake_from((&endpoint, &output), word.acknowledged, offered, now);
        }
        let (mut made, _) = stack.take(socket).ok_or("its socket has gone")?;
        if !word.is_quiet {
            made.probe();
        }
        let exports = exports.zip(word.begins_at).map(|(exports, begins_at)| {
            if adoption.imports() {
                exports.note_import();
            }
            ConnectionExports::new(exports.clone(), word.client, begins_at)
        });
        let relay = SimRelay::new(now, adoption, exports, program);
        let socket = stack.adopt(now, made, Box::new(relay));
        self.host.on_started(word.client);
        Ok(StartedSocket { socket, packets })
    }
}

/// The values that the stack needs in order to restore a connection.
pub(in crate::pair) fn restore_of(endpoint: &Known, sent: Vec<u8>, now: Instant) -> Restore {
    Restore {
        local: endpoint.vip,
        remote: endpoint.client,
        snd_una: endpoint.send_unacknowledged,
        sent,
        unsent: Vec::new(),
        rcv_nxt: endpoint.receive_next,
        received: Vec::new(),
        mss: endpoint.mss,
        window_scale: endpoint.window_scale.map(|(theirs, ours)| WindowScale {
            send: theirs,
            receive: ours,
        }),
        sack: endpoint.sack,
        timestamp: endpoint.timestamps.map(|clock| clock.start_value(now)),
        window: RestoreWindow {
            snd_wl1: endpoint.send_window_seq,
            snd_wnd: endpoint.send_window,
            max_window: endpoint.send_window_max,
            rcv_wnd: endpoint.receive_window,
            rcv_wup: endpoint.receive_window_from,
        },
        window_probe: false, // `activate` probes, when the socket leaves repair mode
    }
}
