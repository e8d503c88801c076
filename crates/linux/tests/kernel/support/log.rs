//! Reads the wire's log as the agent does, and keeps the bytes of both streams of each connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use proto::connection::{AtLimit, Connection, Protection, UnprotectedCause};
use proto::follower::RestartPolicy;
use proto::packet::{Malformed, Segment};
use proto::restart::http::Rules;
use proto::table::{ConnectionId, Direction, Table, TableChange, TableConfig};
use proto::{Instant, takeover};
use steadfast_linux::clock;
use steadfast_linux::wire::{Record, Rings, Wire, checksum_of};

use super::lan::Family;

/// Both streams of a connection, from their beginnings.
#[derive(Default)]
pub struct Transcript {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
}

/// The log up to now.
pub struct LogContents {
    rings: Rings,
    tables: [Table; 2],
    transcripts: HashMap<SocketAddr, Transcript>,
    /// Number of records in the ring of connections, and in the ring of SYNs and strangers.
    pub records: [u64; 2],
    /// Bytes of packets in these records.
    pub bytes: u64,
    /// Length of the longest packet.
    pub longest: usize,
    /// Largest number of handshakes that a table remembered at a time.
    pub handshakes_most: usize,
    /// Errors of packets that are no valid segments.
    pub malformed: Vec<Malformed>,
    /// Clients of segments that belong to no connection.
    pub unknown: Vec<SocketAddr>,
    /// Packets to be sent to clients whose connections have ended.
    pub answers: Vec<Vec<u8>>,
    /// Faults of the log itself.
    pub faults: Vec<String>,
}

impl LogContents {
    fn open(wire: &Wire) -> Self {
        let table = |family: Family| {
            Table::new(TableConfig {
                vip: family.vip(),
                policy: RestartPolicy::Replica,
                rules: Rules::default(),
                opaque: None,
                connection_bytes_max: 1 << 30,
                bytes_max: 1 << 32,
                at_limit: AtLimit::Unprotect,
                sends_directly: false,
                is_immediate: false,
                keep_input: false,
                hash_seed: 1,
            })
        };
        Self {
            rings: wire.rings().expect("rings"),
            tables: Family::BOTH.map(table),
            transcripts: HashMap::new(),
            records: [0; 2],
            bytes: 0,
            longest: 0,
            handshakes_most: 0,
            malformed: Vec::new(),
            unknown: Vec::new(),
            answers: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Handles all that was logged up to now: SYNs and strangers first, as the agent does.
    pub fn catch_up(&mut self) {
        let Rings {
            connections, opening, ..
        } = &mut self.rings;
        let mut batch: Vec<(usize, Record, Vec<u8>)> = Vec::new();
        let ends = connections.ends();
        for (number, log, ends) in [(1, &*opening, opening.ends()), (0, &*connections, ends)] {
            log.drain(&ends, usize::MAX, true, &mut |record: &Record, packet: &[u8]| {
                batch.push((number, *record, packet.to_vec()));
            });
        }
        for (ring, record, packet) in batch {
            self.handle(ring, &record, &packet);
        }
    }

    fn handle(&mut self, ring: usize, record: &Record, packet: &[u8]) {
        self.records[ring] += 1;
        self.bytes += packet.len() as u64;
        self.longest = self.longest.max(packet.len());
        let segment = match Segment::parse(packet, checksum_of(record)) {
            Ok(segment) => segment,
            Err(malformed) => return self.malformed.push(malformed),
        };
        let (direction, client, vip) = match record.direction {
            0 => (Direction::In, segment.source, segment.destination),
            _ => (Direction::Out, segment.destination, segment.source),
        };
        let table = &mut self.tables[usize::from(record.service)];
        if vip != table.config().vip {
            self.faults
                .push(format!("service {} has {segment:?}", record.service));
        }
        if segment.flags.syn && ring != 1 {
            self.faults.push(format!("in the wrong ring: {segment:?}"));
        }
        let frontiers =
            |connection: &Connection| (connection.input().frontier(), connection.output().frontier());
        let before = table
            .find(client)
            .and_then(|id| table.get(id))
            .map(frontiers)
            .unwrap_or_default();
        let change = table.on_packet(Instant::from_nanos(record.time_ns), direction, &segment, None);
        self.handshakes_most = self.handshakes_most.max(table.handshakes());
        let id = match change {
            TableChange::Connection(id) | TableChange::Opened(id) => id,
            TableChange::Old if direction == Direction::In => {
                let answer = table.answer_to_old(clock::now(), &segment);
                return self.answers.extend(answer.map(|answer| answer.emit()));
            }
            TableChange::Unknown => return self.unknown.push(client),
            TableChange::Handshake | TableChange::Ended(_) | TableChange::Old => return,
        };
        let connection = table.get(id).expect("it changed");
        let is_for_now = |cause: &UnprotectedCause| matches!(cause, UnprotectedCause::Policy(_));
        if matches!(connection.protection(), Protection::Unprotected(cause) if !is_for_now(&cause)) {
            return; // no transcript is kept
        }
        let transcript = self.transcripts.entry(client).or_default();
        let (input, output) = frontiers(connection);
        connection
            .input()
            .slices(before.0..input)
            .for_each(|bytes| transcript.input.extend(bytes));
        let said: Vec<u8> = connection
            .output()
            .slices(before.1..output)
            .flatten()
            .copied()
            .collect();
        transcript.output.extend(&said);
        let (acknowledged, ended) = (connection.input_acknowledged(), connection.input().is_complete());
        table.change(id, |connection| {
            if let Some(replica) = connection.follower_mut().replica_mut() {
                replica.on_output(&said);
                replica.on_fed(acknowledged, ended);
            }
            connection.release();
        });
    }

    /// The open connection of `client`.
    #[track_caller]
    pub fn connection(&self, client: SocketAddr) -> (ConnectionId, &Connection) {
        let mut tables = self.tables.iter();
        let found = tables.find_map(|table| table.find(client).map(|id| (id, table.get(id).expect("found"))));
        found.unwrap_or_else(|| panic!("{client} is not in the table"))
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Opens the handshakes under way, as a takeover does. Returns their number.
    pub fn open_pending(&mut self, family: Family) -> usize {
        self.open_pending_with_answers(family).len()
    }

    /// As [`open_pending`](Self::open_pending), but returns each client and the SYN-ACK that it may not have received.
    pub fn open_pending_with_answers(&mut self, family: Family) -> Vec<(SocketAddr, Vec<u8>)> {
        let pending = self.tables[usize::from(family.service())].open_pending();
        let with_answer = pending.into_iter().map(|(_, client, syn, syn_ack)| {
            self.transcripts.entry(client).or_default();
            (
                client,
                takeover::repeat(family.vip(), client, &syn, &syn_ack).emit(),
            )
        });
        with_answer.collect()
    }

    /// Number of remembered handshakes.
    pub fn handshakes(&self, family: Family) -> usize {
        self.tables[usize::from(family.service())].handshakes()
    }

    /// Both streams of `client`'s connection.
    #[track_caller]
    pub fn transcript(&self, client: SocketAddr) -> &Transcript {
        self.transcripts
            .get(&client)
            .unwrap_or_else(|| panic!("nothing of {client} was logged"))
    }

    /// Panics if the log contradicts itself or `client`'s connection could not be continued.
    #[track_caller]
    pub fn assert_protected(&self, client: SocketAddr) {
        assert_eq!(self.faults, [] as [String; 0]);
        assert_eq!(self.connection(client).1.protection(), Protection::Protected);
    }
}

/// A thread that reads the log, as long as this value lives.
pub struct LogThread {
    log: Arc<Mutex<LogContents>>,
    paused: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Begins to read the log of `wire`.
    pub fn of(wire: &Wire) -> Self {
        Self::into(LogContents::open(wire))
    }

    /// Continues to fill `log` from `wire`, the successor of the wire that `log` was read from.
    pub fn resume_with(mut log: LogContents, wire: &Wire) -> Self {
        log.rings = wire.rings().expect("rings");
        Self::into(log)
    }

    /// Stops reading and returns the log.
    pub fn stop(self) -> LogContents {
        let log = Arc::clone(&self.log);
        drop(self);
        let log = Arc::into_inner(log).expect("the thread has ended");
        log.into_inner().expect("no reader panicked")
    }

    fn into(log: LogContents) -> Self {
        let log = Arc::new(Mutex::new(log));
        let [paused, stopped] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let thread = {
            let (log, paused, stopped) = (Arc::clone(&log), Arc::clone(&paused), Arc::clone(&stopped));
            std::thread::spawn(move || {
                while !stopped.load(Ordering::SeqCst) {
                    if !paused.load(Ordering::SeqCst)
                        && let Ok(mut log) = log.lock()
                    {
                        log.catch_up();
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            })
        };
        Self {
            log,
            paused,
            stopped,
            thread: Some(thread),
        }
    }

    /// The log, with all that is in the rings now.
    pub fn now(&self) -> MutexGuard<'_, LogContents> {
        let mut log = self.log.lock().expect("no reader panicked");
        log.catch_up();
        log
    }

    /// Unread bytes in the rings.
    pub fn unread(&self) -> u64 {
        self.log.lock().expect("no reader panicked").rings.fill()
    }

    /// Stops reading until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        drop(self.log.lock().expect("no reader panicked")); // waits until a read under way has ended
    }

    pub fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if the thread panicked, the log is poisoned
        }
    }
}
