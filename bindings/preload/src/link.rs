//! Where the record goes, and where it comes from: a file, or this node's agent.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use proto::order::frames::{
    ALONE, CHILD, COUNTS, DATAGRAMS, END, HEAD, HELLO, PART, RECEIPT, REFUSED, RESUME, RESUMED, ROLE_NONE,
    ROLE_PLAY, ROLE_RECORD, VERSION, frame, payload_len,
};
use proto::order::{OnDivergence, OrderCounts, OrderPlayback, OrderRecorder};

use crate::datagrams::DatagramLink;
use crate::system;

/// The data of the agent's link in the server's epoll instance. No server uses it, because it is no pointer and no descriptor.
pub const LINK_DATA: u64 = 0x5f73_7465_6164_6661;
/// The same for the socket to the backup.
pub const DATAGRAM_DATA: u64 = LINK_DATA + 1;
/// Bytes that the agent has not taken. With more, the backup's kernel is offered nothing, so that the server waits for its agent.
const UNSENT_MAX: usize = 1 << 20;
const READ_SIZE: usize = 16 << 10;
/// How long the library waits for the agent when the server starts.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a child does with its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ChildRole {
    /// It records.
    Record,
    /// It plays back.
    Play(OnDivergence),
}

/// What a library does in its server.
pub enum OrderRole {
    /// It records the order of the connections to this address. `None`: of all connections.
    Record(RecordSink, Option<SocketAddr>),
    /// It plays a record back.
    Play(RecordSource, OnDivergence),
    /// Nothing.
    None,
}

impl OrderRole {
    /// The role that the environment names: `record:FILE`, `play:FILE` or `agent:SOCKET`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn from_setting(setting: &str) -> Result<Self, String> {
        let (kind, path) = setting.split_once(':').unwrap_or((setting, ""));
        let failed = |error: io::Error| format!("{path}: {error}");
        match kind {
            "record" => {
                let file = fs::File::create(path).map_err(failed)?;
                Ok(Self::Record(RecordSink::File(file), None))
            }
            "play" => {
                let file = fs::File::open(path).map_err(failed)?;
                Ok(Self::Play(RecordSource::File(file), OnDivergence::Unprotect))
            }
            "agent" => Self::from_agent(Path::new(path)).map_err(failed),
            _ => Err(format!("{kind} is none of record, play and agent")),
        }
    }

    fn from_agent(path: &Path) -> io::Result<Self> {
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() >= PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        (&stream).write_all(&frame(HELLO, &[VERSION]))?;
        let mut head = [0; HEAD];
        (&stream).read_exact(&mut head)?;
        let mut payload = vec![0; payload_len(&head).min(READ_SIZE)];
        (&stream).read_exact(&mut payload)?;
        stream.set_read_timeout(None)?;
        let link = AgentLink {
            is_exact: false,
            ..AgentLink::of_child(stream.as_raw_fd())
        };
        let role = match (head[0], &payload[..]) {
            (ROLE_RECORD, [ip @ .., high, low]) if ip.len() == 16 => {
                let ip: [u8; 16] = ip.try_into().expect("16 bytes");
                let ip: IpAddr = Ipv6Addr::from(ip).to_canonical();
                let service = SocketAddr::new(ip, u16::from_be_bytes([*high, *low]));
                Self::Record(RecordSink::Agent(link), Some(service))
            }
            (ROLE_PLAY, [policy]) => {
                let on_divergence = if *policy == 1 {
                    OnDivergence::TrustLog
                } else {
                    OnDivergence::Unprotect
                };
                Self::Play(RecordSource::Agent(link), on_divergence)
            }
            (ROLE_NONE, _) => return Ok(Self::None),
            _ => {
                return Err(io::Error::other(
                    "the agent speaks another version of the protocol",
                ));
            }
        };
        let _ = stream.into_raw_fd(); // the link has it
        Ok(role)
    }
}

/// The connection to this node's agent. It stays open until the server ends.
pub struct AgentLink {
    fd: c_int,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// A child's link. It reads one frame at a time: a program that the child starts goes on with the next one.
    is_exact: bool,
    /// Bytes of a child's next frame, which was looked at and is still in the socket.
    looked_at: usize,
    /// Descriptors that have come, and whose frames were not handled yet.
    passed: VecDeque<c_int>,
    datagrams: Option<DatagramLink>,
    /// The epoll instance that has the link.
    watched_in: Option<c_int>,
}

/// The agent has ended, or the link is broken.
pub struct LinkLost;

impl AgentLink {
    /// A link for a child that is about to be forked.
    pub fn connect(agent: &Path) -> Option<Self> {
        let stream = UnixStream::connect(agent).ok()?;
        Some(Self::of_child(stream.into_raw_fd()))
    }

    /// The link of a child, at this descriptor.
    pub fn of_child(fd: c_int) -> Self {
        Self {
            fd,
            received: Vec::new(),
            unsent: Vec::new(),
            is_exact: true,
            looked_at: 0,
            passed: VecDeque::new(),
            datagrams: None,
            watched_in: None,
        }
    }

    /// Says whose link this is: a child with this `stream`, which depends on the first `len` bytes of its parent's stream.
    pub fn introduce(&mut self, stream: u32, parent: u32, len: u64) {
        let payload = [
            &[VERSION][..],
            &stream.to_le_bytes(),
            &parent.to_le_bytes(),
            &len.to_le_bytes(),
        ]
        .concat();
        self.unsent.extend(frame(CHILD, &payload));
        let _ = self.send(); // the child notices an agent that has ended
    }

    /// Moves the link to this descriptor, and leaves it to programs that this process starts.
    pub fn move_to(&mut self, fd: c_int) {
        if system::dup3(self.fd, fd, 0) == fd {
            let _ = system::close(self.fd);
            self.fd = fd;
        } else {
            system::keep_on_exec(self.fd);
        }
    }

    /// Moves the link to a free descriptor from this one on, and leaves it to programs that this process starts.
    pub fn leave(&mut self, from: c_int) {
        match system::duplicate_from(self.fd, from) {
            Ok(copy) => {
                let _ = system::close(self.fd);
                self.fd = copy;
            }
            // The limit of open files is below that number.
            Err(_) => system::keep_on_exec(self.fd),
        }
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> c_int {
        self.fd
    }

    /// Goes on with the stream of the program that has started this one. Returns the stream's length. `None`: the agent has ended.
    pub fn resume(&mut self) -> Option<u64> {
        self.unsent.extend(frame(RESUME, &[]));
        self.send().ok()?;
        loop {
            let mut len = None;
            self.receive(|kind, payload| {
                if kind == RESUMED {
                    len = payload.first_chunk().map(|len| u64::from_le_bytes(*len));
                }
            })
            .ok()?;
            if len.is_some() {
                return len;
            }
            let _ = system::poll(&mut [system::readable(self.fd)], -1);
        }
    }

    /// Reads one frame, if it has arrived whole.
    fn receive_one(&mut self, each: impl FnMut(u8, &[u8])) -> Result<(), LinkLost> {
        self.look(each)?;
        self.take()
    }

    /// Takes the frame that was looked at last, and looks at the next one, if it has arrived whole.
    fn look(&mut self, mut each: impl FnMut(u8, &[u8])) -> Result<(), LinkLost> {
        self.take()?;
        let mut head = [0; HEAD];
        let peek = |buffer: &mut [u8]| loop {
            match system::receive_now(self.fd, buffer, libc::MSG_PEEK) {
                Ok(0) => return Err(LinkLost),
                Ok(count) => return Ok(count as usize == buffer.len()),
                Err(libc::EAGAIN) => return Ok(false),
                Err(libc::EINTR) => {}
                Err(_) => return Err(LinkLost),
            }
        };
        if !peek(&mut head)? {
            return Ok(());
        }
        let mut frame = vec![0; HEAD + payload_len(&head)];
        if peek(&mut frame)? {
            self.looked_at = frame.len();
            each(head[0], &frame[HEAD..]);
        }
        Ok(())
    }

    /// Takes the frame that was looked at last.
    fn take(&mut self) -> Result<(), LinkLost> {
        let mut frame = vec![0; std::mem::take(&mut self.looked_at)];
        if !frame.is_empty() && system::receive_now(self.fd, &mut frame, 0) != Ok(frame.len() as u64) {
            return Err(LinkLost);
        }
        Ok(())
    }

    /// The agent has said whether the backup's kernel takes datagrams.
    fn set_datagrams(&mut self, payload: &[u8]) {
        let socket = if payload.is_empty() {
            None
        } else {
            self.passed.pop_front()
        };
        let new = DatagramLink::new(payload, socket);
        if let Some(old) = std::mem::replace(&mut self.datagrams, new) {
            if let Some(epoll) = self.watched_in {
                system::epoll_remove(epoll, old.descriptor()); // a child may have a copy
            }
            old.close();
        }
        if let Some(epoll) = self.watched_in {
            self.watch_datagrams(epoll);
        }
    }

    fn watch_datagrams(&self, epoll: c_int) {
        if let Some(datagrams) = &self.datagrams {
            watch(epoll, datagrams.descriptor(), DATAGRAM_DATA);
        }
    }

    fn send(&mut self) -> Result<(), LinkLost> {
        while !self.unsent.is_empty() {
            match system::send_now(self.fd, &self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count as usize)),
                Err(libc::EAGAIN) => return Ok(()),
                Err(libc::EINTR) => {}
                Err(_) => return Err(LinkLost),
            }
        }
        Ok(())
    }

    /// Reads what has arrived, and gives each whole frame to `each`.
    fn receive(&mut self, mut each: impl FnMut(u8, &[u8])) -> Result<(), LinkLost> {
        if self.is_exact {
            return self.receive_one(each);
        }
        let mut buffer = [0; READ_SIZE];
        let mut is_lost = false;
        loop {
            match system::receive_with(self.fd, &mut buffer) {
                Ok((0, _)) => is_lost = true,
                Ok((count, passed)) => {
                    self.passed.extend(passed);
                    self.received.extend(&buffer[..count as usize]);
                    // The kernel ends a read at a descriptor.
                    if count as usize == READ_SIZE || passed.is_some() {
                        continue;
                    }
                }
                Err(libc::EINTR) => continue,
                Err(libc::EAGAIN) => {}
                Err(_) => is_lost = true,
            }
            break;
        }
        let mut rest = &self.received[..];
        while let Some((head, payloads)) = rest.split_first_chunk()
            && let Some((payload, others)) = payloads.split_at_checked(payload_len(head))
        {
            each(head[0], payload);
            rest = others;
        }
        let used = self.received.len() - rest.len();
        self.received.drain(..used);
        if is_lost { Err(LinkLost) } else { Ok(()) }
    }
}

/// Watches a socket for input, which is reported with this data. Returns whether that is possible.
fn watch(epoll: c_int, fd: c_int, data: u64) -> bool {
    let event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: data,
    };
    system::epoll_add(epoll, fd, event).is_ok()
}

/// Where a record goes.
pub enum RecordSink {
    /// A file. Writes do not wait.
    File(fs::File),
    /// The agent.
    Agent(AgentLink),
}

impl RecordSink {
    fn link(&self) -> Option<&AgentLink> {
        match self {
            Self::File(_) => None,
            Self::Agent(link) => Some(link),
        }
    }

    /// The descriptor of the agent's link. It is readable when there is something to [`receive`](Self::receive).
    pub fn descriptor(&self) -> Option<c_int> {
        self.link().map(|link| link.fd)
    }

    /// The socket to the backup. It is readable when there are [receipts](Self::receive_datagrams).
    pub fn datagram_descriptor(&self) -> Option<c_int> {
        Some(self.link()?.datagrams.as_ref()?.descriptor())
    }

    /// Watches the link and the socket to the backup in an epoll instance, from now on.
    pub fn watch(&mut self, epoll: c_int) {
        if let Self::Agent(link) = self
            && link.watched_in.is_none()
            && watch(epoll, link.fd, LINK_DATA)
        {
            link.watched_in = Some(epoll);
            link.watch_datagrams(epoll);
        }
    }

    /// Ends the watch, and closes the socket to the backup.
    pub fn unwatch(&mut self) {
        let Self::Agent(link) = self else {
            return;
        };
        link.set_datagrams(&[]);
        if let Some(epoll) = link.watched_in.take() {
            system::epoll_remove(epoll, link.fd);
        }
    }

    /// This process is a child, which does not use its parent's sockets. Returns the link.
    pub fn forget(mut self) -> Option<c_int> {
        if let Self::Agent(link) = &mut self
            && let Some(datagrams) = link.datagrams.take()
        {
            datagrams.close();
        }
        self.descriptor()
    }

    /// Offers the record to the backup's kernel. Returns whether anything was sent.
    pub fn offer(&mut self, recorder: &mut OrderRecorder) -> bool {
        match self {
            Self::Agent(link) if link.unsent.len() < UNSENT_MAX => {
                let datagrams = link.datagrams.as_mut();
                datagrams.is_some_and(|datagrams| datagrams.offer(recorder))
            }
            _ => false,
        }
    }

    /// Takes the receipts of the backup's kernel.
    pub fn receive_datagrams(&mut self, recorder: &mut OrderRecorder) {
        if let Self::Agent(link) = self
            && let Some(datagrams) = &mut link.datagrams
        {
            datagrams.receive(recorder);
        }
    }

    /// Whether the agent may get the record later, because the backup's kernel answers.
    pub fn may_defer(&self) -> bool {
        let datagrams = self.link().and_then(|link| link.datagrams.as_ref());
        datagrams.is_some_and(DatagramLink::is_trusted)
    }

    /// The backup's kernel has not answered in time.
    pub fn distrust_datagrams(&mut self) {
        if let Self::Agent(link) = self
            && let Some(datagrams) = &mut link.datagrams
        {
            datagrams.distrust();
        }
    }

    /// Sends what was recorded.
    ///
    /// # Errors
    /// The record cannot go on.
    pub fn send(&mut self, recorder: &mut OrderRecorder) -> Result<(), LinkLost> {
        let count = recorder.unsent().len();
        match self {
            Self::File(file) if count > 0 => {
                file.write_all(recorder.unsent()).map_err(|_| LinkLost)?;
                recorder.sent(count);
            }
            Self::File(_) => {}
            Self::Agent(link) => {
                if count > 0 {
                    link.unsent.extend(frame(PART, recorder.unsent()));
                    recorder.sent(count);
                }
                link.send()?;
            }
        }
        Ok(())
    }

    /// Handles receipts.
    ///
    /// # Errors
    /// The record cannot go on.
    pub fn receive(&mut self, recorder: &mut OrderRecorder) -> Result<(), LinkLost> {
        let Self::Agent(link) = self else {
            return Ok(());
        };
        let mut has_ended = false;
        let mut datagrams = Vec::new();
        let received = link.receive(|kind, payload| match (kind, payload.first_chunk()) {
            (RECEIPT, Some(arrived)) => recorder.receipt(u64::from_le_bytes(*arrived)),
            (ALONE, _) => recorder.alone(),
            (END, _) => has_ended = true,
            (DATAGRAMS, _) => datagrams.push(payload.to_vec()),
            _ => {}
        });
        for payload in datagrams {
            link.set_datagrams(&payload);
        }
        received?;
        if has_ended { Err(LinkLost) } else { Ok(()) }
    }

    /// Says why recording ends.
    pub fn refuse(&mut self, reason: &str) {
        if let Self::Agent(link) = self {
            link.unsent.extend(frame(REFUSED, reason.as_bytes()));
            let _ = link.send();
        }
    }
}

/// Where a record comes from.
pub enum RecordSource {
    /// A file that is complete.
    File(fs::File),
    /// The agent.
    Agent(AgentLink),
}

impl RecordSource {
    /// The descriptor that is readable when there is more to [`receive`](Self::receive).
    pub fn descriptor(&self) -> Option<c_int> {
        match self {
            Self::File(_) => None,
            Self::Agent(link) => Some(link.fd),
        }
    }

    /// Tells the agent how the playback goes.
    pub fn report(&mut self, counts: OrderCounts, first: &str) {
        if let Self::Agent(link) = self {
            let mut payload = counts.played.to_le_bytes().to_vec();
            payload.extend(counts.divergences.to_le_bytes());
            payload.extend(first.as_bytes());
            link.unsent.extend(frame(COUNTS, &payload));
            let _ = link.send(); // an agent that has ended needs no counts
        }
    }

    /// All events that have arrived were played. Until then, a child's event stays in the socket: a program that the child starts may need it.
    pub fn on_played(&mut self) {
        if let Self::Agent(link) = self {
            let _ = link.take(); // a lost link is noticed by the next look
        }
    }

    /// Takes what has arrived. If nothing can follow, the record ends.
    pub fn receive(&mut self, playback: &mut OrderPlayback) {
        match self {
            Self::File(file) => {
                let mut bytes = Vec::new();
                let _ = file.read_to_end(&mut bytes); // what was read is a part of the record
                playback.feed(&bytes);
                playback.end();
            }
            Self::Agent(link) => {
                let mut has_ended = false;
                let each = |kind: u8, payload: &[u8]| match kind {
                    PART => playback.feed(payload),
                    END => has_ended = true,
                    _ => {}
                };
                let received = if link.is_exact {
                    link.look(each)
                } else {
                    link.receive(each)
                };
                if has_ended || received.is_err() {
                    playback.end();
                }
            }
        }
    }
}
