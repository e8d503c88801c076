//! The steps by which the daemon continues a connection, in the daemon's order.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use proto::action::Gate;
use proto::connection::{Endpoint, OutputEnd};
use proto::takeover;
use socket2::SockRef;
use steadfast_linux::clock;
use steadfast_linux::raw::RawSender;
use steadfast_linux::repair::{Pool, RestoredSocket, offered_window};

use super::assert_same_stream;
use super::lan::{Family, LanHost, patient};
use super::log::LogThread;
use super::socket::timestamp_clock;
use super::wire_on::WireOn;

/// A connection that was taken over.
pub struct TakenOver {
    pub socket: TcpStream,
    /// The endpoint that the socket was made from.
    pub endpoint: Endpoint,
    /// The input that the old primary may have received. The first byte that the socket reads comes right after this input.
    pub input: Vec<u8>,
}

/// Sets the gate to takeover, and continues `client`'s connection on `backup`.
pub fn take_over(
    backup: &LanHost,
    wire: &WireOn,
    reading: &LogThread,
    client: SocketAddr,
    family: Family,
) -> TakenOver {
    let mut pool = Pool::new(family.vip());
    backup.run(|| pool.fill(1, 1)).expect("a socket");
    let raw = backup.run(RawSender::open).expect("raw sockets");

    wire.set_gates(Gate::Takeover);
    let log = reading.now();
    log.assert_protected(client);
    let connection = log.connection(client).1;
    let endpoint = connection.endpoint();
    let unacknowledged = connection.output().slices(endpoint.unacknowledged.clone());
    let restored = RestoredSocket::new(&mut pool, &endpoint, unacknowledged).expect("restore");
    let at = usize::try_from(endpoint.input_frontier.0).expect("fits memory");
    let input = log.transcript(client).input[..at].to_vec();
    drop(log);

    restored.make_ready().expect("make ready");
    let log = reading.now();
    let connection = log.connection(client).1;
    let late = endpoint.input_frontier..connection.input().frontier();
    connection
        .input()
        .slices(late)
        .for_each(|bytes| restored.feed(bytes).expect("feed"));
    let is_quiet = connection.is_quiet(&endpoint);
    let socket = TcpStream::from(restored.activate(is_quiet).expect("activate"));
    if !is_quiet {
        let offered = offered_window(&socket).expect("a window");
        let wake = takeover::wake(connection, offered, clock::now());
        wake.iter().for_each(|packet| raw.send(packet).expect("wake"));
    }
    drop(log);
    if let Some(seen) = endpoint.timestamps {
        let due = seen.start_value(clock::now());
        // + 2: `due` is rounded up to an even number and the clock is rounded down, so the clock may seem up to 2 behind.
        let ahead = timestamp_clock(&socket).wrapping_sub(due).cast_signed() + 2;
        assert!(
            ahead >= 0,
            "the socket's timestamp clock is {} ms behind its start value",
            2 - ahead
        );
    }

    socket.set_nonblocking(false).expect("blocking");
    patient(&socket);
    if endpoint.output == OutputEnd::FinSent {
        SockRef::from(&socket)
            .shutdown(std::net::Shutdown::Write)
            .expect("shutdown");
    }
    TakenOver {
        socket,
        endpoint,
        input,
    }
}

impl TakenOver {
    /// The part of the whole output that is still to be sent.
    pub fn rest_of<'a>(&self, output: &'a [u8]) -> &'a [u8] {
        &output[usize::try_from(self.endpoint.unacknowledged.end.0).expect("fits memory")..]
    }

    /// Reads until the whole input is there, and compares it.
    #[track_caller]
    pub fn read_input(&self, expected: &[u8]) {
        let mut input = self.input.clone();
        let mut rest = vec![0; expected.len() - input.len()];
        (&self.socket)
            .read_exact(&mut rest)
            .expect("the rest of the input");
        input.extend(rest);
        assert_same_stream("the input", &input, expected);
    }
}
