//! One end of an SCTP association, for `bench paths`: the counterpart of usrsctp's program.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use clap::Args;
use linux::clock;
use linux::sctp::{SCTP_UDP_PORT, SctpWire, WirePlan};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use proto::sctp::association::{Association, AssociationEvent};
use proto::sctp::endpoint::AssociationId;
use proto::sctp::{SctpConfig, SctpMessage, UserData};

use super::figures::{PERIOD, PeerFigures, content};

/// SCTP port of both ends.
pub const SCTP_PEER_PORT: u16 = 5000;
/// Maximum number of batches of packets that are read from the sockets in one turn.
const BATCHES: usize = 16;

/// An end that sends or receives a number of bytes.
#[derive(Clone, Debug, Args)]
pub struct SctpPeerOptions {
    /// Bytes to send, or to receive.
    #[arg(long)]
    bytes: u64,
    /// Bytes of a message.
    #[arg(long)]
    message: usize,
    /// Local addresses.
    #[arg(long, value_delimiter = ',')]
    via: Vec<IpAddr>,
    /// The peer's address. With this option, this end connects to the peer and sends. Without it, this end receives.
    #[arg(long)]
    to: Option<IpAddr>,
}

struct SctpPeer {
    wire: SctpWire,
    id: Option<AssociationId>,
    figures: PeerFigures,
    begun: Option<Instant>,
    /// Time of the last received data.
    last: Option<Instant>,
    is_over: bool,
    content: Bytes,
}

/// Runs one end of the association, and prints its figures.
///
/// # Errors
/// If the sockets cannot be opened, or the content differs.
pub fn main(options: &SctpPeerOptions) -> Result<()> {
    let plan = WirePlan {
        addresses: options.via.clone(),
        udp_port: SCTP_UDP_PORT,
        peer_udp_port: SCTP_UDP_PORT,
        port: SCTP_PEER_PORT,
        associations_max: 1,
    };
    let config = SctpConfig::wire(SctpWire::lower_headers(&plan));
    let mut peer = SctpPeer {
        wire: SctpWire::open(config, &plan)?,
        id: None,
        figures: PeerFigures::default(),
        begun: None,
        last: None,
        is_over: false,
        content: content(options.message),
    };
    say!("ready");
    if let Some(to) = options.to {
        peer.id = Some(peer.wire.endpoint.connect(clock::now(), &[to], SCTP_PEER_PORT)?);
        peer.begun = Some(Instant::now());
    }
    while !peer.is_over {
        peer.turn(options)?;
        peer.rest();
    }
    peer.wire.flush(clock::now());
    peer.figures.took = peer.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    say!("{}", peer.figures.line()?);
    Ok(())
}

impl SctpPeer {
    fn turn(&mut self, options: &SctpPeerOptions) -> Result<()> {
        let now = clock::now();
        self.wire.receive(now, BATCHES);
        self.wire.endpoint.handle_timeout(now);
        match options.to {
            Some(_) => self.send(options)?,
            None => self.receive(options)?,
        }
        self.wire.flush(now);
        while let Some((id, event)) = self.wire.endpoint.poll_event() {
            self.id.get_or_insert(id);
            match event {
                AssociationEvent::Established => {
                    self.begun.get_or_insert(Instant::now());
                }
                AssociationEvent::Closed(_) => self.is_over = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, options: &SctpPeerOptions) -> Result<()> {
        let Some(association) = self.id.and_then(|id| self.wire.endpoint.association_mut(id)) else {
            return Ok(());
        };
        while self.figures.moved < options.bytes {
            let length = (options.bytes - self.figures.moved).min(options.message as u64) as usize;
            let at = self.figures.moved as usize % PERIOD;
            let message = SctpMessage {
                stream: 1,
                protocol: 0,
                is_unordered: false,
                data: UserData::Bytes(self.content.slice(at..at + length)),
            };
            if association.send(message).is_err() {
                break;
            }
            self.figures.moved += length as u64;
        }
        Ok(())
    }

    fn receive(&mut self, options: &SctpPeerOptions) -> Result<()> {
        let Some(id) = self.id else {
            return Ok(());
        };
        if !self
            .wire
            .endpoint
            .association(id)
            .is_some_and(Association::has_unread)
        {
            return Ok(());
        }
        let Some(association) = self.wire.endpoint.association_mut(id) else {
            return Ok(());
        };
        while let Some(message) = association.receive() {
            let UserData::Bytes(data) = message.data else {
                bail!("a message has no payload bytes");
            };
            let at = self.figures.moved as usize % PERIOD;
            if self.content.get(at..at + data.len()) != Some(&data[..]) {
                bail!("the content differs at byte {}", self.figures.moved);
            }
            self.figures.moved += data.len() as u64;
            let now = Instant::now();
            let gap = self.last.map_or(Duration::ZERO, |last| now - last);
            self.figures.gap = self.figures.gap.max(gap);
            self.last = Some(now);
        }
        if self.figures.moved >= options.bytes {
            association.shutdown(clock::now());
        }
        Ok(())
    }

    fn rest(&self) {
        let now = clock::now();
        let due = self.wire.endpoint.poll_timeout().map(|at| at.since(now));
        let limit = Duration::from_secs(1);
        let sleep = due.map_or(limit, |due| due.min(limit));
        let fds = self.wire.fds();
        let mut fds: Vec<PollFd<'_>> = fds
            .iter()
            .map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN))
            .collect();
        let _ = ppoll(&mut fds, Some(TimeSpec::from(sleep)), None);
    }
}
