//! A recording contains all inputs of a node and the actions that the node returned. A replay puts the inputs into a new node and compares
//! the actions.
//!
//! The first line of a recording names the format. A sequence of [`Entry`]s follows. Each entry has its length before it (32 bits,
//! little-endian). A recording contains the service's traffic, so it is as secret as this traffic.

use std::io::{self, Read, Write};

use proto::Instant;
use proto::action::{Action, Heartbeat, ServiceIndex};
use proto::connection::Endpoint;
use proto::node::{Node, NodeConfig};
use proto::packet::Checksum;
use proto::service::ServiceInput;
use proto::stream::{OnShelf, Shelf};
use proto::table::{ConnectionId, Direction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first line of a recording.
pub const FORMAT: &[u8] = b"steadfast recording 2\n";

/// Maximum length of an entry in bytes. If the length before an entry is larger, the bytes are no entry.
const ENTRY_MAX: u32 = 64 << 20;

/// Takes the entries of a recording.
pub trait EntryRecorder {
    /// Writes one entry. A recorder that cannot go on tells the operator and ignores all further entries.
    fn write(&mut self, entry: &Entry);
}

/// One thing that went into a node, or came out. Structured values are JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "an entry is the method of `Node` of the same name")]
pub enum Entry {
    Start {
        now: Instant,
        config: String,
    },
    Service {
        now: Instant,
        service: ServiceIndex,
        input: String,
    },
    Packet {
        at: Instant,
        service: ServiceIndex,
        direction: Direction,
        packet: Vec<u8>,
        checksum: Checksum,
        is_on_shelf: bool,
    },
    Keep,
    HandOver {
        now: Instant,
        service: ServiceIndex,
        connection: ConnectionId,
        endpoint: String,
    },
    ReplicaOutput {
        service: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<Vec<u8>>,
    },
    Carrier {
        now: Instant,
        service: ServiceIndex,
        has_carrier: bool,
    },
    /// `handle_handover`: the operator's order.
    SwapRoles {
        now: Instant,
        service: ServiceIndex,
    },
    Stop {
        now: Instant,
    },
    Pause {
        now: Instant,
    },
    Answer {
        now: Instant,
    },
    Heartbeat {
        now: Instant,
        heartbeat: String,
    },
    Timeout {
        now: Instant,
    },
    /// The action that the node returned, in its `Debug` form. `None`: the node had no action.
    Polled {
        action: Option<String>,
    },
    Admit {
        now: Instant,
        is_admitted: bool,
    },
    /// The node had no action left and was asked to plan more. `has_planned`: it planned more.
    Idle {
        has_planned: bool,
    },
    /// Whether the keeper is behind, when this has changed.
    Behind {
        is_behind: bool,
    },
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("the values have a JSON form")
}

impl Entry {
    pub(crate) fn start(now: Instant, config: &NodeConfig) -> Self {
        let config = json(config);
        Self::Start { now, config }
    }

    pub(crate) fn service(now: Instant, service: ServiceIndex, input: &ServiceInput) -> Self {
        let input = json(input);
        Self::Service { now, service, input }
    }

    pub(crate) fn hand_over(
        now: Instant,
        service: ServiceIndex,
        connection: ConnectionId,
        endpoint: &Endpoint,
    ) -> Self {
        Self::HandOver {
            now,
            service,
            connection,
            endpoint: json(endpoint),
        }
    }

    pub(crate) fn replica_output(
        service: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
    ) -> Self {
        Self::ReplicaOutput {
            service,
            connection,
            bytes: bytes.map(<[u8]>::to_vec),
        }
    }

    pub(crate) fn heartbeat(now: Instant, heartbeat: &Heartbeat) -> Self {
        let heartbeat = json(heartbeat);
        Self::Heartbeat { now, heartbeat }
    }

    pub(crate) fn polled(action: Option<&Action>) -> Self {
        let action = action.map(|action| format!("{action:?}"));
        Self::Polled { action }
    }

    /// The time at which the entry went into the node. `None` if the entry has no time.
    const fn now(&self) -> Option<Instant> {
        match self {
            Self::Start { now, .. }
            | Self::Service { now, .. }
            | Self::Packet { at: now, .. }
            | Self::HandOver { now, .. }
            | Self::Carrier { now, .. }
            | Self::SwapRoles { now, .. }
            | Self::Stop { now }
            | Self::Pause { now }
            | Self::Answer { now }
            | Self::Heartbeat { now, .. }
            | Self::Timeout { now }
            | Self::Admit { now, .. } => Some(*now),
            Self::Keep
            | Self::ReplicaOutput { .. }
            | Self::Polled { .. }
            | Self::Idle { .. }
            | Self::Behind { .. } => None,
        }
    }

    /// Writes the entry, with its length before it. Returns the number of bytes written.
    ///
    /// # Errors
    /// The writer's error.
    pub fn write_to(&self, writer: &mut impl Write) -> io::Result<usize> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        writer.write_all(&length.to_le_bytes())?;
        writer.write_all(&bytes)?;
        Ok(size_of_val(&length) + bytes.len())
    }

    /// Reads the next entry. `None` at the end, also if the last entry is cut off: the recorder may have been killed.
    ///
    /// # Errors
    /// The reader's error, or that the bytes are not an entry.
    pub fn read_from(reader: &mut impl Read) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let is_whole = |outcome: io::Result<()>| match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        };
        if !is_whole(reader.read_exact(&mut length))? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length);
        if length > ENTRY_MAX {
            return Err(invalid(format!("an entry of {length} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        if !is_whole(reader.read_exact(&mut bytes))? {
            return Ok(None);
        }
        postcard::from_bytes(&bytes)
            .map(Some)
            .map_err(|error| invalid(format!("no entry: {error}")))
    }
}

/// The packets of the entries since the last `Keep`. A place has a packet's index in its upper 32 bits and an offset in this packet in its
/// lower 32 bits.
#[derive(Default)]
struct RecordedShelf(Vec<Vec<u8>>);

impl Shelf for RecordedShelf {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let index = |part: u64| usize::try_from(part).expect("index and offset fit usize");
        &self.0[index(place >> 32)][index(place & 0xffff_ffff)..][..len]
    }
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Number of entries that were replayed.
    pub entries: u64,
    /// Number of actions that the new node returned exactly as they were recorded.
    pub actions: u64,
    /// The first entry at which the new node did something else.
    pub difference: Option<Difference>,
}

/// The first difference between a replay and its recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The entry, counted from 0.
    pub entry: u64,
    /// The last time recorded up to and including this entry, in nanoseconds of the recording node's monotonic clock.
    pub at_ns: u64,
    /// The recorded action.
    pub recorded: String,
    /// The new node's action.
    pub replayed: String,
}

/// Puts the entries of a recording into a new node and compares the actions. Ends at the first difference. `shows` gets each action that
/// did not differ, with the time of the last input.
///
/// # Errors
/// If the recording cannot be read, or `shows` fails.
pub fn replay(
    reader: &mut impl Read,
    mut shows: impl FnMut(Instant, &str) -> io::Result<()>,
) -> io::Result<Replayed> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut format = vec![0; FORMAT.len()];
    reader.read_exact(&mut format)?;
    if format != FORMAT {
        return Err(invalid("not a recording, or one of another version"));
    }
    let Some(Entry::Start { now, config }) = Entry::read_from(reader)? else {
        return Err(invalid("the recording does not begin with the node's start"));
    };
    let mut replay = ReplayRun {
        node: Node::new(parse(&config)?, now),
        shelf: RecordedShelf::default(),
        polled: None,
        at: now,
    };
    let mut replayed = Replayed {
        entries: 1,
        ..Replayed::default()
    };
    while let Some(entry) = Entry::read_from(reader)? {
        if let Some((recorded, replayed_as)) = replay.take(&entry)? {
            replayed.difference = Some(Difference {
                entry: replayed.entries,
                at_ns: replay.at.as_nanos(),
                recorded,
                replayed: replayed_as,
            });
            break;
        }
        if let Entry::Polled { action: Some(action) } = &entry {
            replayed.actions += 1;
            shows(replay.at, action)?;
        }
        replayed.entries += 1;
    }
    Ok(replayed)
}

fn parse<T: DeserializeOwned>(text: &str) -> io::Result<T> {
    serde_json::from_str(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A replay under way.
struct ReplayRun {
    node: Node,
    shelf: RecordedShelf,
    polled: Option<Action>,
    /// The time of the last input.
    at: Instant,
}

impl ReplayRun {
    /// Takes an entry. Returns what was recorded and what the node did, if they differ.
    fn take(&mut self, entry: &Entry) -> io::Result<Option<(String, String)>> {
        self.at = entry.now().unwrap_or(self.at);
        match entry {
            Entry::Polled { action } => {
                self.polled = self.node.poll_action();
                let polled = self.polled.as_ref().map(|action| format!("{action:?}"));
                let shown = |action: &Option<String>| action.clone().unwrap_or_else(|| "nothing".to_owned());
                Ok((polled != *action).then(|| (shown(action), shown(&polled))))
            }
            Entry::Admit { now, is_admitted } => {
                let action = self.polled.take();
                let admitted = action.and_then(|action| self.node.admit(*now, action)).is_some();
                let shown = |admitted| if admitted { "admitted" } else { "put off" }.to_owned();
                Ok((admitted != *is_admitted).then(|| (shown(*is_admitted), shown(admitted))))
            }
            Entry::Idle { has_planned } => {
                let planned = self.node.handle_idle();
                let shown = |planned| {
                    if planned {
                        "more is planned"
                    } else {
                        "nothing is planned"
                    }
                    .to_owned()
                };
                Ok((planned != *has_planned).then(|| (shown(*has_planned), shown(planned))))
            }
            input => self.give(input).map(|()| None),
        }
    }

    /// Puts an input into the node.
    fn give(&mut self, entry: &Entry) -> io::Result<()> {
        let node = &mut self.node;
        match entry {
            Entry::Start { .. } => return Err(io::Error::new(io::ErrorKind::InvalidData, "a second start")),
            Entry::Service { now, service, input } => node.handle(*now, *service, parse(input)?),
            Entry::Packet {
                at,
                service,
                direction,
                packet,
                checksum,
                is_on_shelf,
            } => {
                let place = (self.shelf.0.len() as u64) << 32;
                self.shelf.0.push(packet.clone());
                let shelf: &dyn Shelf = &self.shelf;
                let source = is_on_shelf.then_some(OnShelf { shelf, place });
                node.handle_packet(*at, *service, *direction, packet, *checksum, source);
            }
            Entry::Keep => {
                node.keep(&self.shelf);
                self.shelf.0.clear();
            }
            Entry::HandOver {
                now,
                service,
                connection,
                endpoint,
            } => drop(node.hand_over(*now, *service, *connection, &parse(endpoint)?)),
            Entry::ReplicaOutput {
                service,
                connection,
                bytes,
            } => {
                node.handle_replica_output(*service, *connection, bytes.as_deref());
            }
            Entry::Carrier {
                now,
                service,
                has_carrier,
            } => {
                node.handle_carrier(*now, *service, *has_carrier);
            }
            Entry::SwapRoles { now, service } => {
                let _ = node.handle_handover(*now, *service); // a refusal changes nothing
            }
            Entry::Stop { now } => node.handle_stop(*now),
            Entry::Pause { now } => node.handle_pause(*now),
            Entry::Answer { now } => node.handle_answer(*now),
            Entry::Behind { is_behind } => node.set_behind(*is_behind),
            Entry::Heartbeat { now, heartbeat } => node.handle_heartbeat(*now, parse(heartbeat)?),
            Entry::Timeout { now } => node.handle_timeout(*now),
            Entry::Polled { .. } | Entry::Admit { .. } | Entry::Idle { .. } => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use proto::connection::AtLimit;
    use proto::detector::DetectorConfig;
    use proto::follower::RestartPolicy;
    use proto::restart::http::Rules;
    use proto::service::ServiceConfig;
    use proto::spill::Spills;
    use proto::standing::Arbiter;
    use proto::table::TableConfig;

    use super::*;
    use crate::Core;

    #[derive(Clone, Default)]
    struct Tape(Rc<RefCell<Vec<Entry>>>);

    impl EntryRecorder for Tape {
        fn write(&mut self, entry: &Entry) {
            self.0.borrow_mut().push(entry.clone());
        }
    }

    fn config() -> NodeConfig {
        let AtLimit::Spill(spills) = serde_json::from_str(r#"{"Spill":{"bytes_max":7}}"#).unwrap() else {
            panic!("it spills");
        };
        assert_eq!(Spills::bytes_max(&spills), 7);
        let table = TableConfig {
            vip: ([10, 0, 0, 100], 80).into(),
            policy: RestartPolicy::Http,
            rules: Rules::default(),
            opaque: None,
            connection_bytes_max: 1 << 20,
            bytes_max: 1 << 30,
            at_limit: AtLimit::Spill(spills),
            sends_directly: false,
            is_immediate: false,
            keep_input: false,
            hash_seed: 1,
        };
        NodeConfig {
            name: "a".to_owned(),
            incarnation: 1,
            without_peer: true,
            detector: DetectorConfig {
                interval: Duration::from_millis(20),
                missed: 4,
                agent_timeout: Duration::from_millis(500),
            },
            lease: Duration::from_millis(300),
            arbiter: Arbiter::FailStop,
            fence_delay: Duration::ZERO,
            services: vec![ServiceConfig {
                table,
                is_primary: true,
                mac: [2; 6],
                found: None,
                state_sync: None,
            }],
        }
    }

    /// The recording of a node that began to serve alone and logged a packet.
    fn recorded() -> Vec<Entry> {
        let tape = Tape::default();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut core = Core::new(config(), at(0), Some(Box::new(tape.clone())));
        for millis in (0..1_000).step_by(10) {
            core.handle_timeout(at(millis));
            core.set_behind(millis > 800);
            while let Some(action) = core.next_action() {
                core.admit(at(millis), action);
            }
            if millis == 500 {
                let (service, direction) = (0, Direction::In);
                crate::LogReader::packet(
                    &mut core,
                    at(500),
                    service,
                    direction,
                    b"?",
                    Checksum::Trusted,
                    None,
                );
                core.handle(at(500), 0, ServiceInput::Reached);
            }
        }
        tape.0.take()
    }

    fn bytes_of(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = FORMAT.to_vec();
        for entry in entries {
            entry.write_to(&mut bytes).unwrap();
        }
        bytes
    }

    fn replayed(bytes: &[u8]) -> Replayed {
        replay(&mut &bytes[..], |_, _| Ok(())).expect("it is a recording")
    }

    #[test]
    fn a_new_node_does_the_same() {
        let entries = recorded();
        let bytes = bytes_of(&entries);
        let whole = replayed(&bytes);
        assert_eq!(whole.difference, None);
        assert_eq!(whole.entries, entries.len() as u64);
        assert!(whole.actions > 50, "{whole:?}");
        let is_behind = |entry: &&Entry| matches!(entry, Entry::Behind { is_behind: true });
        assert_eq!(
            entries.iter().filter(is_behind).count(),
            1,
            "it is recorded when it changes"
        );
        let cut = replayed(&bytes[..bytes.len() - 1]);
        assert_eq!(cut.entries, whole.entries - 1, "the last entry is cut off");
    }

    #[test]
    fn a_change_shows() {
        let mut entries = recorded();
        let is_timeout = |entry: &Entry| matches!(entry, Entry::Timeout { .. });
        let at = entries.iter().position(is_timeout).expect("time has passed");
        entries.remove(at);
        let difference = replayed(&bytes_of(&entries)).difference.expect("it differs");
        assert!(difference.entry >= at as u64, "{difference:?}");
        assert_ne!(difference.recorded, difference.replayed);
    }

    /// The replay differs if the new node plans nothing where the recorded node planned more.
    #[test]
    fn other_plans_show() {
        let mut entries = recorded();
        let idle = entries
            .iter_mut()
            .find_map(|entry| match entry {
                Entry::Idle { has_planned } => Some(has_planned),
                _ => None,
            })
            .expect("the node was idle");
        *idle = true;
        let difference = replayed(&bytes_of(&entries)).difference.expect("it differs");
        assert_eq!(
            (&*difference.recorded, &*difference.replayed),
            ("more is planned", "nothing is planned")
        );
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        let mut entries = recorded();
        let refused = |bytes: &[u8]| replay(&mut &bytes[..], |_, _| Ok(())).unwrap_err().to_string();
        assert!(refused(b"seed = 1\narbiter = \"fence\"\n").contains("not a recording"));
        assert!(refused(&[FORMAT, &[0xff; 4]].concat()).contains("an entry of 4294967295 bytes"));
        entries.remove(0);
        assert!(refused(&bytes_of(&entries)).contains("does not begin with the node's start"));
    }
}
