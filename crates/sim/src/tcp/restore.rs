//! Exports a connection from an endpoint, and restores an endpoint from the export, as `TCP_REPAIR` does in Linux.

use std::net::SocketAddr;

use proto::{Instant, Offset, Seq};
use thiserror::Error;

use super::endpoint::TcpEndpoint;
use super::paws::Paws;
use super::receiver::TcpReceiver;
use super::sender::TcpSender;
use super::state::{EndpointState, TcpEvent};
use super::{Initial, TcpConfig};

/// Everything that a connection in state ESTABLISHED needs to continue elsewhere.
///
/// As in Linux, the restored endpoint lacks what this type does not contain: congestion state (the window starts at 10 segments),
/// round-trip times (the retransmission timeout starts at 3 s), the peer's last timestamp, and data that came out of order, even
/// if SACK reported this data to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Sequence number of `sent[0]`: a lower bound of what the peer has acknowledged.
    pub snd_una: Seq,
    /// Output loaded "as sent": everything that the peer may have. An acknowledgement beyond what was sent is ignored.
    pub sent: Vec<u8>,
    /// Output after `sent`, written normally: it leaves as the windows allow.
    pub unsent: Vec<u8>,
    /// The next byte expected from the peer, after `received`.
    pub rcv_nxt: Seq,
    /// Input that the application has not read.
    pub received: Vec<u8>,
    /// Largest segment to be sent, in bytes of payload and options.
    pub mss: u16,
    /// The shifts of both sides. `None` if not agreed; then no window exceeds 65,535 bytes.
    pub window_scale: Option<WindowScale>,
    /// Whether SACK was agreed.
    pub sack: bool,
    /// Value of the timestamp clock at the moment of restoring, if timestamps were agreed. If the value is behind what the peer has
    /// seen, the peer drops everything (PAWS). As in Linux, bit 0 makes the clock count microseconds.
    pub timestamp: Option<u32>,
    /// The windows of both sides.
    pub window: RestoreWindow,
    /// Whether the endpoint starts with a window probe, which the peer acknowledges. In Linux a socket that leaves repair mode sends
    /// this probe, except with `TCP_REPAIR_OFF_NO_WP`.
    pub window_probe: bool,
}

/// The shifts of both sides (RFC 7323 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScale {
    /// Shift of the windows that the peer advertises.
    pub send: u8,
    /// Shift of the windows that we advertise.
    pub receive: u8,
}

/// The windows of both sides: `struct tcp_repair_window`, in bytes, not scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreWindow {
    /// Sequence number of the segment that advertised `snd_wnd`.
    pub snd_wl1: Seq,
    /// The peer's window.
    pub snd_wnd: u32,
    /// The largest window that the peer ever advertised.
    pub max_window: u32,
    /// Our window, in bytes after `rcv_wup`.
    pub rcv_wnd: u32,
    /// The acknowledgement with which our window was advertised.
    pub rcv_wup: Seq,
}

/// Why a [`Restore`] describes no connection. In these cases Linux returns an error: `EFBIG` for the window scale, otherwise `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidRestore {
    /// With a smaller size, options would leave no room for data.
    #[error("mss must be at least {min}, not {0}", min = TcpConfig::MSS_MIN)]
    Mss(u16),
    /// Larger than RFC 7323 §2.3 allows.
    #[error("window_scale must be at most {max}, not {0}", max = TcpConfig::WINDOW_SCALE_MAX)]
    WindowScale(u8),
    /// More was acknowledged than received.
    #[error("rcv_wup is {0} bytes after rcv_nxt")]
    AcknowledgedAhead(i32),
    /// The segment that advertised the peer's last window is beyond our receive window, so it cannot have come.
    #[error("snd_wl1 is beyond the receive window")]
    WindowFromTheFuture,
    /// The largest window is smaller than the current one.
    #[error("max_window {max_window} is below snd_wnd {snd_wnd}")]
    MaxWindow {
        /// The given `max_window`.
        max_window: u32,
        /// The given `snd_wnd`, which is larger.
        snd_wnd: u32,
    },
}

/// Only a connection in state ESTABLISHED can be exported. A half-closed connection continues elsewhere like this:
/// it is restored in state ESTABLISHED, and then half-closed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the connection is {0:?}, not Established")]
pub struct NotEstablished(pub EndpointState);

impl TcpEndpoint {
    /// Everything that this connection needs to continue elsewhere. The endpoint is unchanged. The caller drops it without sending anything
    /// to the peer.
    ///
    /// # Errors
    /// If the connection is not in state ESTABLISHED.
    pub fn export(&self, now: Instant) -> Result<Restore, NotEstablished> {
        if self.state != EndpointState::Established {
            return Err(NotEstablished(self.state));
        }
        let (sent, unsent) = self.sender.queued();
        let (mss, window_scale, sack, _) = self.agreed();
        let bytes = |window: u64| u32::try_from(window).expect("a window is at most 2³⁰ bytes");
        Ok(Restore {
            local: self.local,
            remote: self.remote,
            snd_una: self.sender.una(),
            sent,
            unsent,
            rcv_nxt: self.receiver.next_seq(),
            received: self.receiver.queued(),
            mss,
            window_scale,
            sack,
            timestamp: self.paws.as_ref().map(|paws| paws.export(now)),
            window: RestoreWindow {
                snd_wl1: self.sender.window_from(),
                snd_wnd: bytes(self.sender.window()),
                max_window: bytes(self.sender.window_max()),
                rcv_wnd: bytes(self.receiver.window_from_acknowledged()),
                rcv_wup: self.receiver.acknowledged_seq(),
            },
            window_probe: true,
        })
    }

    /// The size of segments, the window scaling, and whether there are SACK and timestamps, as the handshake agreed.
    pub fn agreed(&self) -> (u16, Option<WindowScale>, bool, bool) {
        let scale = self.window_scale.then_some(WindowScale {
            send: self.sender.shift(),
            receive: self.receiver.shift(),
        });
        (self.sender.mss(), scale, self.sack, self.paws.is_some())
    }

    /// An endpoint in state ESTABLISHED that continues a connection, as in Linux when a socket leaves repair mode. `config` gives the
    /// buffer sizes and timings, and `restore` gives what the handshake agreed.
    ///
    /// # Errors
    /// Names the invalid part of `restore`.
    ///
    /// # Panics
    /// If the configuration is invalid ([`TcpConfig::check`]).
    pub fn restore(config: TcpConfig, restore: &Restore, now: Instant) -> Result<Self, InvalidRestore> {
        restore.check()?;
        let window = restore.window;
        let initial = Initial {
            seq: restore.snd_una - 1,
            timestamp: 0,
        };
        let mut endpoint = Self::connect(config, restore.local, restore.remote, initial);
        endpoint.state = endpoint.state.after(TcpEvent::Opened);
        endpoint.due.handshake = false;
        endpoint.due.probe = restore.window_probe;
        endpoint.sack = restore.sack;
        endpoint.window_scale = restore.window_scale.is_some();
        endpoint.paws = restore.timestamp.map(|value| Paws::restore(value, now));
        endpoint.rto.on_opened();

        let shift = restore
            .window_scale
            .unwrap_or(WindowScale { send: 0, receive: 0 });
        let mut sender = TcpSender::new(restore.snd_una, endpoint.config.send_buffer, restore.mss);
        sender.set_peer(restore.mss, shift.send);
        // The answer to a window probe must update the window, so snd_wl1 is lower than the sequence number that the answer will have (as
        // in tcp_send_window_probe).
        let window_from = if restore.window_probe {
            restore.rcv_nxt - 1
        } else {
            window.snd_wl1
        };
        sender.set_window(
            u64::from(window.snd_wnd),
            window_from,
            u64::from(window.max_window),
        );
        sender.load_sent(&restore.sent);
        sender.load_unsent(&restore.unsent);
        endpoint.sender = sender;

        let unread = Offset(restore.received.len() as u64).to_seq(Seq(0));
        let first = restore.rcv_nxt - unread.0;
        let mut receiver = TcpReceiver::new(first, endpoint.config.receive_buffer, endpoint.config.mss);
        receiver.set_shift(shift.receive);
        receiver.load(&restore.received, window.rcv_wup, window.rcv_wnd);
        endpoint.receiver = receiver;
        Ok(endpoint)
    }

    /// Appends bytes to those that were received, as writing to the receive queue of a socket in repair mode does. Does not check
    /// whether the peer has sent these bytes meanwhile.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.receiver.feed(bytes);
    }

    /// Takes bytes as already sent, as writing to the send queue of a socket in repair mode does, and probes the peer's window. The
    /// endpoint must have nothing to send.
    pub fn load_as_sent(&mut self, bytes: &[u8]) {
        self.sender.load_sent(bytes);
        self.due.probe = true;
    }

    /// Probes the peer's window, as leaving repair mode does.
    pub fn probe(&mut self) {
        self.due.probe = true;
    }

    /// The part of the offered window that is not used yet, in bytes.
    pub fn offered_window(&self) -> u32 {
        u32::try_from(self.receiver.offered()).unwrap_or(u32::MAX)
    }

    /// The next number expected from the peer.
    pub const fn receive_next(&self) -> Seq {
        self.receiver.next_seq()
    }

    /// The sequence numbers of the first byte from the peer and of the first byte to the peer. The endpoint must not be a restored one.
    pub fn stream_starts(&self) -> (Seq, Seq) {
        (self.receiver.first(), self.initial + 1)
    }
}

impl Restore {
    fn check(&self) -> Result<(), InvalidRestore> {
        if self.mss < TcpConfig::MSS_MIN {
            return Err(InvalidRestore::Mss(self.mss));
        }
        let shift = self.window_scale.unwrap_or(WindowScale { send: 0, receive: 0 });
        for shift in [shift.send, shift.receive] {
            if shift > TcpConfig::WINDOW_SCALE_MAX {
                return Err(InvalidRestore::WindowScale(shift));
            }
        }
        let window = self.window;
        let ahead = window.rcv_wup.distance_from(self.rcv_nxt);
        if ahead > 0 {
            return Err(InvalidRestore::AcknowledgedAhead(ahead));
        }
        if window.snd_wl1.distance_from(self.rcv_nxt + window.rcv_wnd) > 0 {
            return Err(InvalidRestore::WindowFromTheFuture);
        }
        if window.max_window < window.snd_wnd {
            return Err(InvalidRestore::MaxWindow {
                max_window: window.max_window,
                snd_wnd: window.snd_wnd,
            });
        }
        Ok(())
    }
}
