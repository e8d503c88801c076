//! Programs that serve connections: on the primary behind an endpoint, on the backup as a replica or behind the relay.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;

use super::exports::{ConnectionExports, SimExports};
use crate::host::App;
use crate::tcp::TcpEndpoint;

/// A program that serves one connection: bytes in, bytes out.
///
/// Its output must not depend on how the input is cut into pieces, nor on when the input comes.
pub trait SimApplication {
    /// The client's next bytes.
    fn on_input(&mut self, now: Instant, bytes: &[u8]);

    /// The client has ended its stream.
    fn on_input_end(&mut self, now: Instant);

    /// Appends the output that is ready, at most `limit` bytes.
    fn speak(&mut self, now: Instant, limit: usize, into: &mut Vec<u8>);

    /// Whether the program has said everything that it will ever say.
    fn is_finished(&self) -> bool;

    /// When the program may have output without further input.
    fn wakes_at(&self) -> Option<Instant>;

    /// The state from which another run of this program could go on. `None`: this program has no such state.
    fn export_state(&self) -> Option<Vec<u8>> {
        None
    }

    /// The program goes on from this state, which another run of it has exported. Called before any other method.
    fn import_state(&mut self, _now: Instant, _state: &[u8]) {}
}

/// Starts the program for a client's connection.
pub type ApplicationFactory = Rc<dyn Fn(SocketAddr) -> Box<dyn SimApplication>>;

/// How fast a program reads: some bytes, then a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPace {
    /// Bytes per read.
    pub bytes: usize,
    /// Time from one read to the next.
    pub every: Duration,
}

impl ReadPace {
    /// Reads as much as the pace allows. `next` is the earliest time of the next read. Returns the bytes.
    pub(super) fn read(
        pace: Option<Self>,
        now: Instant,
        next: &mut Instant,
        endpoint: &mut TcpEndpoint,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some(pace) = pace else {
            endpoint.read(&mut bytes, usize::MAX);
            return bytes;
        };
        if now >= *next && endpoint.read(&mut bytes, pace.bytes) > 0 {
            *next = now + pace.every;
        }
        bytes
    }
}

/// Runs an application on an endpoint.
pub(super) struct Served {
    application: Box<dyn SimApplication>,
    pace: Option<ReadPace>,
    next_read: Instant,
    input_ended: bool,
    /// What exports need, until the endpoint's sequence numbers are known.
    to_export: Option<(SimExports, SocketAddr)>,
    exports: Option<ConnectionExports>,
}

impl Served {
    /// `application` on an endpoint, reading at `pace`. With `exports`, it exports its state while it serves.
    pub fn new(
        application: Box<dyn SimApplication>,
        pace: Option<ReadPace>,
        exports: Option<(SimExports, SocketAddr)>,
    ) -> Self {
        Self {
            application,
            pace,
            next_read: Instant::ZERO,
            input_ended: false,
            to_export: exports,
            exports: None,
        }
    }
}

impl App for Served {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        if let Some((exports, client)) = self.to_export.take() {
            self.exports = Some(ConnectionExports::new(exports, client, endpoint.stream_starts()));
        }
        let mut bytes = ReadPace::read(self.pace, now, &mut self.next_read, endpoint);
        if !bytes.is_empty() {
            self.application.on_input(now, &bytes);
        }
        if endpoint.is_read_finished() && !std::mem::replace(&mut self.input_ended, true) {
            self.application.on_input_end(now);
        }
        let read = bytes.len();
        bytes.clear();
        self.application.speak(now, endpoint.writable(), &mut bytes);
        endpoint.write(&bytes);
        if self.application.is_finished() {
            endpoint.shutdown();
        } else if let Some(exports) = &mut self.exports {
            exports.on_progress(read, bytes.len(), || self.application.export_state());
        }
        let read_at = (endpoint.readable() > 0).then_some(self.next_read);
        // Output that waits for room in the endpoint needs no timer: the acknowledgement that makes room drives the application.
        self.application
            .wakes_at()
            .into_iter()
            .chain(read_at)
            .filter(|at| *at > now)
            .min()
    }
}
