//! The data that both sides of a connection send, from its beginning to its end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use proto::connection::OutputEnd;

use super::socket::{tcp_info, tcp_state};
use super::takeover::TakenOver;
use super::testbed::say;
use super::{assert_same_stream, eventually, stream};

/// All that both sides send, and how far the client has written and read.
pub struct Talk {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    pub client_wrote: usize,
    pub client_read: usize,
    pub client_closed: bool,
}

impl Talk {
    /// A talk of 300 kB in each direction, of which nothing has been sent yet.
    pub fn new() -> Self {
        Self {
            input: stream(1, 300_000),
            output: stream(2, 300_000),
            client_wrote: 0,
            client_read: 0,
            client_closed: false,
        }
    }

    /// Each side sends `len` bytes, and the other side reads them.
    pub fn exchange(&mut self, client: &TcpStream, server: &TcpStream, len: usize) {
        say(client, server, &self.input[self.client_wrote..][..len]);
        say(server, client, &self.output[self.client_read..][..len]);
        self.client_wrote += len;
        self.client_read += len;
    }

    /// The client writes `len` bytes.
    pub fn client_writes(&mut self, mut client: &TcpStream, len: usize) {
        client
            .write_all(&self.input[self.client_wrote..][..len])
            .expect("write");
        self.client_wrote += len;
    }

    /// Both sides send the rest and close. Compares every byte, and checks that the client's socket ends in the state CLOSE.
    pub fn carry_to_the_end(&self, client: &TcpStream, taken: &TakenOver) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.client_says_the_rest(client));
            scope.spawn(|| {
                let mut output = Vec::new();
                { client }.read_to_end(&mut output).expect("the output");
                assert_same_stream("the output", &output, &self.output[self.client_read..]);
            });
            if taken.endpoint.output == OutputEnd::Open {
                scope.spawn(|| {
                    let rest = taken.rest_of(&self.output);
                    (&taken.socket).write_all(rest).expect("the rest");
                    taken.socket.shutdown(Shutdown::Write).expect("shutdown");
                });
            }
            let mut input = taken.input.clone();
            if !taken.endpoint.input_ended {
                (&taken.socket).read_to_end(&mut input).expect("the input");
            }
            assert_same_stream("the input", &input, &self.input);
        });
        eventually("the client's socket is closed", || {
            tcp_state(client).closed.then_some(())
        });
        eventually("all is acknowledged", || {
            (tcp_info(&taken.socket).tcpi_unacked == 0).then_some(())
        });
    }

    fn client_says_the_rest(&self, mut client: &TcpStream) {
        if !self.client_closed {
            client
                .write_all(&self.input[self.client_wrote..])
                .expect("the rest");
            client.shutdown(Shutdown::Write).expect("shutdown");
        }
    }

    /// The client closes its side of the connection.
    pub fn client_closes(&mut self, client: &TcpStream) {
        client.shutdown(Shutdown::Write).expect("shutdown");
        self.input.truncate(self.client_wrote);
        self.client_closed = true;
    }

    /// The server closes its side after `output_end` bytes.
    pub fn server_closes(&mut self, server: &TcpStream, output_end: usize) {
        server.shutdown(Shutdown::Write).expect("shutdown");
        self.output.truncate(output_end);
    }
}
