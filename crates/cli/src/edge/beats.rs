//! Heartbeats between the edges, over each string through its node.
//!
//! A heartbeat is a UDP datagram in an IP packet to the other edge. This edge itself puts the packet into a frame to the string's node. So
//! the heartbeat needs no route, and takes exactly the way of the flows. Each string has its own sealer and opener: the frames' tags
//! ([`frame`]) cover the string's name, so a heartbeat that somebody repeats on another string is refused.
//!
//! Each string has a thread that sends its heartbeats, at real-time priority. So a port whose queue is full does not delay the heartbeats
//! of other strings. The thread repeats the agent's last heartbeat for at most `agent_timeout_ms`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use etherparse::{
    IpDscp, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    PacketBuilder,
};
use linux::edge::Injector;
use proto::edge::switch::EdgeBeat;
use socket2::{Domain, Socket, Type};

use super::kernel::port_index;
use crate::config::{ConfigError, EdgeSettings, Problem, SecretKey, StringSettings};
use crate::daemon::frame::{self, FrameKind, Opener, Refused, Sealer};

/// Receive buffer in bytes. Larger than the largest heartbeat, which describes eight strings with the longest names.
const DATAGRAM_MAX: usize = 4096;
/// Maximum number of datagrams taken from one string at a time: a flood must not keep the edge from its other work.
const RECEIVE_MAX: usize = 64;
const HOPS: u8 = 64;
/// Least time between two warnings of heartbeats that this edge's key does not authenticate.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// The heartbeats of all strings.
pub(super) struct Beats {
    strings: Vec<StringReceiver>,
    said: Vec<Arc<LastBeat>>,
    /// Number of datagrams that were refused, by reason.
    refused: BTreeMap<Refused, u64>,
    warning: KeyWarning,
    /// Index of the string to read next, and number of datagrams that were read from it in this turn.
    next: (usize, usize),
}

/// The warning that heartbeats are not authenticated by this edge's key.
struct KeyWarning {
    /// The edge's configuration: the file with the problem `edge.key_file`, which has no text yet.
    wrong: ConfigError,
    peer: String,
    /// When the last warning was given.
    last: Option<Instant>,
}

/// The receiving side of one string.
struct StringReceiver {
    name: String,
    socket: UdpSocket,
    peer: IpAddr,
    opener: Opener,
}

/// The sending side of one string.
struct StringSender {
    injector: Injector,
    next_hop: IpAddr,
    from: SocketAddr,
    to: SocketAddr,
    sealer: Sealer,
}

/// The agent's last heartbeat for a string, shared with the thread that repeats it.
struct LastBeat {
    word: Mutex<BeatWord>,
    changed: Condvar,
    /// Number of heartbeats that the port has taken.
    sent: AtomicU64,
}

#[derive(Default)]
struct BeatWord {
    beat: Option<EdgeBeat>,
    at: Option<Instant>,
    /// The heartbeat has news that the thread has not sent yet.
    is_fresh: bool,
    is_over: bool,
}

impl Beats {
    /// Opens the sockets, and starts a thread for each string. `file` is the file with the settings.
    pub fn open(settings: &EdgeSettings, file: &Path) -> anyhow::Result<Self> {
        let key = SecretKey::read(&settings.key_file).map_err(anyhow::Error::msg)?;
        let (mut strings, mut said) = (Vec::new(), Vec::new());
        for string in &settings.strings {
            let (sealer, opener) = authenticated((&settings.name, &settings.peer), &string.name, &key);
            let at = || format!("opening the heartbeats of the string {}", string.name);
            let socket = receiver(string, settings.heartbeat.port).with_context(at)?;
            let index = port_index(&string.port)?;
            let sender = StringSender {
                injector: Injector::open(index).with_context(at)?,
                next_hop: next_hop(string),
                from: (string.address, settings.heartbeat.port).into(),
                to: (string.peer_address, settings.heartbeat.port).into(),
                sealer,
            };
            said.push(LastBeat::start(sender, settings)?);
            strings.push(StringReceiver {
                name: string.name.clone(),
                socket,
                peer: string.peer_address,
                opener,
            });
        }
        Ok(Self {
            strings,
            said,
            refused: BTreeMap::new(),
            warning: KeyWarning::new(settings, file),
            next: (0, 0),
        })
    }

    /// Gives the heartbeats, one for each string, to the threads. A thread sends its heartbeat at the next beat, or at once if the
    /// heartbeat has news.
    pub fn say(&self, beats: impl Iterator<Item = EdgeBeat>) {
        for (said, beat) in self.said.iter().zip(beats) {
            let mut word = said.lock();
            word.is_fresh |= word.beat.as_ref() != Some(&beat);
            word.beat = Some(beat);
            word.at = Some(Instant::now());
            if word.is_fresh {
                said.changed.notify_one();
            }
        }
    }

    /// The next heartbeat of the other edge, with the index of the string by which it came. `None` if there is none now.
    pub fn receive(&mut self) -> Option<(usize, EdgeBeat)> {
        let mut buffer = [0; DATAGRAM_MAX];
        while self.next.0 < self.strings.len() {
            let index = self.next.0;
            let string = &mut self.strings[index];
            let received = match self.next.1 {
                RECEIVE_MAX => Err(io::ErrorKind::WouldBlock.into()),
                _ => string.socket.recv_from(&mut buffer),
            };
            let Ok((length, from)) = received else {
                self.next = (index + 1, 0);
                continue;
            };
            self.next.1 += 1;
            match string.open(&buffer[..length], from.ip()) {
                Ok(Some(beat)) => return Some((index, beat)),
                Ok(None) => {}
                Err(reason) => {
                    *self.refused.entry(reason).or_default() += 1;
                    if let Some(warning) = self.warning.due(reason, &string.name, Instant::now()) {
                        tracing::warn!("{warning}");
                    }
                }
            }
        }
        self.next = (0, 0);
        None
    }

    /// Number of refused datagrams, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (String, u64)> {
        self.refused
            .iter()
            .map(|(reason, count)| (reason.to_string(), *count))
    }

    /// Number of heartbeats that were sent over string `index`.
    pub fn sent(&self, index: usize) -> u64 {
        self.said[index].sent.load(Ordering::Relaxed)
    }

    /// The sockets, to wait for heartbeats.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.strings.iter().map(|string| string.socket.as_fd()).collect()
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        for said in &self.said {
            said.lock().is_over = true;
            said.changed.notify_one();
        }
    }
}

/// The sealer and the opener of a string's heartbeats. Their tags cover the names of the edge and of the string.
fn authenticated((edge, peer): (&str, &str), string: &str, key: &SecretKey) -> (Sealer, Opener) {
    let name_of = |edge: &str| format!("{edge}/{string}");
    frame::open((&name_of(edge), &name_of(peer)), Some(key), frame::VERSIONS, draw)
}

impl KeyWarning {
    fn new(settings: &EdgeSettings, file: &Path) -> Self {
        let field = "edge.key_file".to_owned();
        let problem = Problem {
            line: settings.places.line(&field),
            field,
            what: String::new(),
        };
        Self {
            wrong: ConfigError::new(file, vec![problem]),
            peer: settings.peer.clone(),
            last: None,
        }
    }

    /// The warning about a datagram of the string `string` that was refused for `reason`, as the problems of a configuration are written.
    /// `None` if the reason is another one, or if a warning was given in the last [`WARN_EVERY`].
    fn due(&mut self, reason: Refused, string: &str, now: Instant) -> Option<ConfigError> {
        let cause = match reason {
            Refused::WrongTag => "are authenticated by another key, or for other names of edges and strings",
            Refused::NoTag => "are not authenticated",
            _ => return None,
        };
        if self.last.is_some_and(|last| now - last < WARN_EVERY) {
            return None;
        }
        self.last = Some(now);
        let mut wrong = self.wrong.clone();
        wrong.problems[0].what = format!(
            "heartbeats on the string {string} {cause}, and are refused; allowed: the key that {} has, too",
            self.peer
        );
        Some(wrong)
    }
}

impl StringReceiver {
    /// Reads the heartbeat in a datagram. `None` if a newer heartbeat has come before.
    fn open(&mut self, datagram: &[u8], from: IpAddr) -> Result<Option<EdgeBeat>, Refused> {
        if from.to_canonical() != self.peer {
            return Err(Refused::Name);
        }
        let opened = self.opener.open(datagram)?;
        if opened.kind != FrameKind::Heartbeat {
            return Err(Refused::Kind);
        }
        let beat: EdgeBeat = serde_json::from_slice(opened.contents).map_err(|_| Refused::Contents)?;
        if beat.string != self.name {
            return Err(Refused::Name);
        }
        Ok((!opened.is_late).then_some(beat))
    }
}

impl LastBeat {
    /// Starts the thread of a string.
    fn start(mut sender: StringSender, settings: &EdgeSettings) -> io::Result<Arc<Self>> {
        let said = Arc::new(Self {
            word: Mutex::default(),
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
        });
        let (repeated, rhythm, patience) = (
            Arc::clone(&said),
            settings.heartbeat.interval,
            settings.agent_timeout,
        );
        let repeat = move || {
            if let Err(error) = linux::process::run_in_real_time() {
                tracing::warn!(%error, "heartbeats at ordinary priority: false alarms are more likely");
            }
            repeated.repeat(&mut sender, rhythm, patience);
        };
        std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(repeat)?;
        Ok(said)
    }

    fn lock(&self) -> MutexGuard<'_, BeatWord> {
        self.word.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread. Sends the last heartbeat every `rhythm`, and news at once. Sends nothing while the last heartbeat is older than
    /// `patience`.
    fn repeat(&self, sender: &mut StringSender, rhythm: Duration, patience: Duration) {
        let mut due = Instant::now();
        let mut word = self.lock();
        while !word.is_over {
            let now = Instant::now();
            let is_alive = word.at.is_some_and(|at| at.elapsed() < patience);
            let beat = word.beat.clone();
            if let Some(beat) = beat.filter(|_| is_alive && (now >= due || word.is_fresh)) {
                word.is_fresh = false;
                drop(word);
                if sender.send(&beat) {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                }
                word = self.lock();
            }
            if now >= due {
                due = (due + rhythm).max(now);
            }
            let pause = due.saturating_duration_since(Instant::now());
            word = self
                .changed
                .wait_timeout(word, pause)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(word, _)| word);
        }
    }
}

impl StringSender {
    /// Sends the heartbeat. Returns whether the port has taken it.
    fn send(&mut self, beat: &EdgeBeat) -> bool {
        let contents = serde_json::to_vec(beat).expect("a heartbeat has string keys only");
        let datagram = self.sealer.seal(FrameKind::Heartbeat, &contents);
        let packet = udp_packet(self.from, self.to, &datagram);
        let sent = self.injector.send(&packet, self.next_hop);
        if let Err(error) = &sent {
            tracing::trace!(%error, to = %self.to, "heartbeat not sent"); // the port may be down
        }
        sent.is_ok()
    }
}

/// Makes a UDP datagram in an IP packet with the DSCP of network control (CS6, RFC 2474). If queues have priorities, the packet does not
/// wait behind data.
fn udp_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    const HEADERS_MAX: usize = 48;
    let mut packet = Vec::with_capacity(payload.len() + HEADERS_MAX);
    let builder = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = Ipv4Header::new(0, HOPS, IpNumber::UDP, from.octets(), to.octets())
                .expect("no payload fits into a packet");
            header.dscp = IpDscp::CS6;
            PacketBuilder::ip(IpHeaders::Ipv4(header, Ipv4Extensions::default()))
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let header = Ipv6Header {
                traffic_class: IpDscp::CS6.value() << 2,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: 0,
                next_header: IpNumber::UDP,
                hop_limit: HOPS,
                source: octets(from),
                destination: octets(to),
            };
            PacketBuilder::ip(IpHeaders::Ipv6(header, Ipv6Extensions::default()))
        }
    };
    let builder = builder.udp(from.port(), to.port());
    builder
        .write(&mut packet, payload)
        .expect("a heartbeat fits into a packet");
    packet
}

/// The next hop of a string's heartbeats, which is the string's node.
fn next_hop(string: &StringSettings) -> IpAddr {
    let v4 = string.next_hop_v4.map(IpAddr::from);
    let v6 = string.next_hop_v6.map(IpAddr::from);
    match string.address {
        IpAddr::V4(_) => v4.or(v6),
        IpAddr::V6(_) => v6.or(v4),
    }
    .expect("the configuration requires it")
}

/// A socket for the heartbeats of a string. It receives only datagrams that arrive at the string's port.
fn receiver(string: &StringSettings, port: u16) -> io::Result<UdpSocket> {
    let address = SocketAddr::new(string.address, port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), None)?;
    socket.bind_device(Some(string.port.interface.as_bytes()))?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// An unpredictable number other than 0.
fn draw() -> u64 {
    linux::process::random_seed() as u64 | 1
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proto::edge::switch::StringBeat;

    use super::*;

    fn key() -> SecretKey {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "7".repeat(64)).unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).unwrap();
        SecretKey::read(file.path()).unwrap()
    }

    const R1: &str = "10.11.0.1";
    const R2: &str = "10.21.0.1";

    /// An edge's end of a string.
    struct StringEnd {
        sealer: Sealer,
        receiver: StringReceiver,
    }

    impl StringEnd {
        fn new((edge, peer): (&str, &str), string: &str, peer_address: &str) -> Self {
            let (sealer, opener) = authenticated((edge, peer), string, &key());
            Self {
                sealer,
                receiver: StringReceiver {
                    name: string.to_owned(),
                    socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
                    peer: peer_address.parse().unwrap(),
                    opener,
                },
            }
        }

        /// A heartbeat for the string `string`, sent over this one.
        fn beat(&mut self, string: &str, epoch: u64) -> Vec<u8> {
            let told = StringBeat {
                name: string.to_owned(),
                epoch,
                is_usable: true,
                is_heard: true,
                is_steady: true,
            };
            let beat = EdgeBeat {
                string: string.to_owned(),
                strings: vec![told],
            };
            let contents = serde_json::to_vec(&beat).unwrap();
            self.sealer.seal(FrameKind::Heartbeat, &contents)
        }

        /// The epoch in a heartbeat that comes from `from`.
        fn hear(&mut self, datagram: &[u8], from: &str) -> Result<Option<u64>, Refused> {
            let beat = self.receiver.open(datagram, from.parse().unwrap())?;
            Ok(beat.map(|beat| beat.strings[0].epoch))
        }
    }

    /// The ends of a string at r1 and r2, which have heard each other.
    fn string(name: &str) -> [StringEnd; 2] {
        let mut r1 = StringEnd::new(("r1", "r2"), name, R2);
        let mut r2 = StringEnd::new(("r2", "r1"), name, R1);
        assert_eq!(r1.hear(&r2.beat(name, 0), R2), Err(Refused::Unproved));
        assert_eq!(r2.hear(&r1.beat(name, 0), R1), Ok(Some(0)));
        assert_eq!(r1.hear(&r2.beat(name, 0), R2), Ok(Some(0)));
        [r1, r2]
    }

    #[test]
    fn a_heartbeat_is_heard_once_and_in_order() {
        let [mut r1, mut r2] = string("a");
        let (first, second) = (r2.beat("a", 1), r2.beat("a", 2));
        assert_eq!(r1.hear(&second, R2), Ok(Some(2)));
        assert_eq!(
            r1.hear(&second, R2),
            Err(Refused::Again),
            "replayed on its string"
        );
        assert_eq!(r1.hear(&first, R2), Ok(None), "older than the last one");
        assert_eq!(r1.hear(&first, R2), Err(Refused::Again));
        let mapped = format!("::ffff:{R2}");
        assert_eq!(r1.hear(&r2.beat("a", 3), &mapped), Ok(Some(3)));
    }

    #[test]
    fn a_heartbeat_counts_only_on_its_own_string() {
        let [_, mut r2_a] = string("a");
        let [mut r1_b, mut r2_b] = string("b");
        assert_eq!(r1_b.hear(&r2_a.beat("a", 9), R2), Err(Refused::WrongTag));
        assert_eq!(
            r1_b.hear(&r2_b.beat("a", 9), R2),
            Err(Refused::Name),
            "r2 itself has mixed up its strings"
        );
        assert_eq!(r1_b.hear(&r2_b.beat("b", 1), R2), Ok(Some(1)));
    }

    #[test]
    fn only_the_peer_is_heard() {
        let [mut r1, mut r2] = string("a");
        let mut r3 = StringEnd::new(("r3", "r1"), "a", R1);
        assert_eq!(r1.hear(&r3.beat("a", 9), R2), Err(Refused::WrongTag));
        let own = r1.beat("a", 9);
        assert_eq!(r1.hear(&own, R2), Err(Refused::WrongTag), "its own, sent back");
        assert_eq!(r1.hear(&r2.beat("a", 9), "10.21.0.7"), Err(Refused::Name));
        assert_eq!(r1.hear(&r2.beat("a", 1), R2), Ok(Some(1)));
    }

    #[test]
    fn a_wrong_key_is_warned_of_every_ten_seconds() {
        let wrong = ConfigError::new(
            Path::new("e.toml"),
            vec![Problem {
                line: 4,
                field: "edge.key_file".to_owned(),
                what: String::new(),
            }],
        );
        let mut warning = KeyWarning {
            wrong,
            peer: "r2".to_owned(),
            last: None,
        };
        let begun = Instant::now();
        let mut at = |reason, second| warning.due(reason, "a", begun + Duration::from_secs(second));
        assert_eq!(at(Refused::Again, 0), None);
        let first = at(Refused::WrongTag, 1).unwrap().to_string();
        let expected = "e.toml:4: edge.key_file: heartbeats on the string a are authenticated by another key";
        assert!(first.starts_with(expected), "{first}");
        assert_eq!(at(Refused::WrongTag, 10), None);
        assert_eq!(at(Refused::NoTag, 10), None);
        let second = at(Refused::NoTag, 11).unwrap().to_string();
        assert!(second.contains("are not authenticated"), "{second}");
    }
}
