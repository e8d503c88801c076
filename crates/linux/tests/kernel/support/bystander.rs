//! A connection beside the events of a test. The events must not disturb the connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use proto::packet::{Flags, Segment, TcpOptions};

use super::log::LogThread;
use super::{assert_same_stream, stream};

/// A connection that must not be disturbed.
pub struct Bystander {
    pub client: TcpStream,
    pub server: TcpStream,
    /// The client's input so far.
    pub input: Vec<u8>,
    /// The server's output so far.
    pub output: Vec<u8>,
}

impl Bystander {
    pub fn new((client, server): (TcpStream, TcpStream)) -> Self {
        Self {
            client,
            server,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.client.local_addr().expect("connected")
    }

    /// Exchanges a request and a reply of `len` bytes each. The sockets' buffers must have room for `len` bytes.
    #[track_caller]
    pub fn exchange(&mut self, len: usize) {
        let seed = self.input.len() as u64;
        let [request, reply] = [seed, seed + 1].map(|seed| stream(seed, len));
        let mut received = vec![0; len];
        self.client.write_all(&request).expect("request");
        self.server.read_exact(&mut received).expect("request");
        assert_same_stream("request", &received, &request);
        self.server.write_all(&reply).expect("reply");
        self.client.read_exact(&mut received).expect("reply");
        assert_same_stream("reply", &received, &reply);
        self.input.extend(request);
        self.output.extend(reply);
    }

    /// Asserts that the connection continues, and that the log has exactly its bytes.
    #[track_caller]
    pub fn assert_undisturbed(&mut self, reading: &LogThread) {
        self.exchange(1000);
        let log = reading.now();
        log.assert_protected(self.address());
        let transcript = log.transcript(self.address());
        assert_same_stream("the in-log", &transcript.input, &self.input);
        assert_same_stream("the out-log", &transcript.output, &self.output);
    }

    /// A segment with `payload` that fits the connection as the client's next segment. The client has not sent it.
    pub fn forged<'a>(&self, reading: &LogThread, payload: &'a [u8]) -> Segment<'a> {
        let endpoint = reading.now().connection(self.address()).1.endpoint();
        Segment {
            source: endpoint.client,
            destination: endpoint.vip,
            seq: endpoint.receive_next,
            ack: endpoint.send_unacknowledged,
            flags: Flags {
                psh: true,
                ..Flags::ACK
            },
            window: 1000,
            options: TcpOptions::default(),
            payload,
        }
    }
}
