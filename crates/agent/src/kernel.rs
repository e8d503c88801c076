//! The single operations that the agent needs from its node's kernel.

use std::net::SocketAddr;

use proto::Instant;
use proto::action::StateSyncPhase;
use proto::action::{Gate, Heartbeat, OperatorReport, ServiceIndex};
use proto::annex::{AnnexId, ServingNode};
use proto::census::PageQuery;
use proto::connection::{Cap, Connection, Endpoint};
use proto::export::{ExportOutcome, PartReceipt, SnapshotPart};
use proto::node::Node;
use proto::packet::Checksum;
use proto::restart::prefix::PrefixAsk;
use proto::spill::LogPart;
use proto::stream::{OnShelf, Shelf};
use proto::table::{ConnectionId, Direction};
use proto::takeover::HandedOver;

/// Receives the records of a log.
pub trait LogReader {
    /// Receives a packet that was logged at `at`. `packet` begins with the IP header. `source` is the packet's place, if its bytes stay on
    /// a [`Shelf`] (the caller's memory).
    fn packet(
        &mut self,
        at: Instant,
        service: ServiceIndex,
        direction: Direction,
        packet: &[u8],
        checksum: Checksum,
        source: Option<OnShelf<'_>>,
    );

    /// Copies the bytes that the log still needs out of `shelf`, which has all packets since the last call. The caller then clears the
    /// shelf.
    fn keep(&mut self, shelf: &dyn Shelf);
}

/// A message for the peer's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageToPeer {
    /// Announces this node's roles and state.
    Heartbeat(Heartbeat),
    /// Asks what the peer's kernel knows of these clients' connections.
    Ask {
        /// The service.
        service: ServiceIndex,
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// Asks for a page of the peer's connections.
    AskAll {
        /// The service.
        service: ServiceIndex,
        /// The page.
        query: PageQuery,
    },
    /// Carries a part of a snapshot.
    Part {
        /// The service.
        service: ServiceIndex,
        /// The part.
        part: SnapshotPart,
    },
    /// Answers a part of a snapshot.
    Receipt {
        /// The service.
        service: ServiceIndex,
        /// The answer.
        receipt: PartReceipt,
    },
    /// Asks for the first input of a connection that the peer relays.
    AskPrefix {
        /// The service.
        service: ServiceIndex,
        /// The question.
        ask: PrefixAsk,
    },
}

/// A run of the operator's hook that copies a server's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRun {
    /// The service.
    pub service: ServiceIndex,
    /// The hook's task.
    pub phase: StateSyncPhase,
    /// The run's number. A later run has a higher number.
    pub number: u64,
    /// Deadline; `None`: only the operator's timeout applies.
    pub until: Option<Instant>,
}

/// The part of its input that a replica took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Number of bytes.
    pub bytes: u64,
    /// The replica took all bytes and also the end of input.
    pub is_ended: bool,
}

/// A node's kernel, with its links to the peer, its arbiter and its application. The error of a method is a sentence
/// for the operator. The documentation of [`ServiceAction`](proto::action::ServiceAction) says what each action is for.
#[expect(missing_docs, reason = "a method is the action of the same name")]
pub trait Kernel {
    /// A socket that does not send yet, and receives only after `make_ready`.
    type Restored;
    /// A socket that speaks to its client.
    type Live;

    /// The current time.
    fn now(&self) -> Instant;

    /// Sets up the network for `gate`. The gate itself is set later. Until then, a node whose gate was off is mute, and a node that speaks
    /// continues to speak.
    fn assume(&mut self, service: ServiceIndex, gate: Gate, peer_mac: [u8; 6]) -> Result<(), String>;
    fn set_gate(&mut self, service: ServiceIndex, gate: Gate, epoch: u64, until: Option<Instant>);
    fn set_until(&mut self, service: ServiceIndex, until: Option<Instant>);
    fn set_direct(&mut self, service: ServiceIndex, until: Option<Instant>);
    fn pass_unlogged(&mut self, service: ServiceIndex, may: bool);
    fn confirm(&mut self, service: ServiceIndex, epoch: u64);
    /// Holds these clients, whose connections are being decided. Returns the clients that were held before and are released now, because
    /// their connections have ended.
    fn hold(&mut self, service: ServiceIndex, clients: Vec<SocketAddr>) -> Vec<SocketAddr>;
    /// On failure, none of the clients is reserved.
    fn reserve(&mut self, service: ServiceIndex, clients: &[SocketAddr]) -> Result<(), String>;
    /// The socket, if one was made, is gone already.
    fn give_back(&mut self, service: ServiceIndex, client: SocketAddr);
    fn release(&mut self, service: ServiceIndex, clients: &[SocketAddr]);
    fn freeze(&mut self, service: ServiceIndex, clients: &[SocketAddr], ended: &[SocketAddr]);
    /// Returns those of the clients on whose connections the other node has spoken.
    fn thaw(&mut self, service: ServiceIndex, clients: &[SocketAddr]) -> Vec<SocketAddr>;
    /// Whether the socket of a connection that has moved here is here. If not, forgets the connection.
    fn look_for(&mut self, service: ServiceIndex, client: SocketAddr) -> bool;
    fn reverse(&mut self, service: ServiceIndex, clients: &[SocketAddr]);
    fn settle(&mut self, service: ServiceIndex);
    fn cap_window(&mut self, service: ServiceIndex, client: SocketAddr, cap: Option<Cap>);
    fn destroy(&mut self, service: ServiceIndex, clients: &[SocketAddr]);
    fn show_ends(&mut self, service: ServiceIndex, clients: &[SocketAddr]);
    fn take_address(&mut self, service: ServiceIndex) -> Result<(), String>;
    /// Returns the MAC address that the service's interface has now.
    fn mend(&mut self, service: ServiceIndex) -> Result<[u8; 6], String>;
    fn announce(&mut self, service: ServiceIndex);
    /// Returns false if there is no host to ask.
    fn ask_outside(&mut self, service: ServiceIndex, since: Option<Instant>) -> bool;
    /// Before this call, the executor has dropped the sockets of unfinished connections.
    fn stand_down(&mut self, service: ServiceIndex, is_deposed: bool);
    fn allow_speech(&mut self, service: ServiceIndex);
    /// Sends an IP packet through a raw socket.
    fn transmit(&mut self, packet: &[u8]);
    fn run_sync(&mut self, run: SyncRun);
    fn hold_input(&mut self, service: ServiceIndex, until: Option<Instant>);
    /// Tells the application the outcome of its calls of `export_state`.
    fn exported(&mut self, service: ServiceIndex, calls: &[u64], outcome: &ExportOutcome);
    /// Shows the report to the operator, and stores the part that the next agent must know.
    fn report(&mut self, node: &Node, service: ServiceIndex, report: &OperatorReport);

    /// Sends a message to the peer's agent.
    fn say(&mut self, message: MessageToPeer);
    /// Probes whether the peer's kernel answers, independently of the peer's agent.
    fn probe(&mut self);

    /// Returns how many packets of a service passed without being logged since the last call.
    fn take_unlogged(&mut self, service: ServiceIndex) -> u64;
    /// Reads the log to its end, including records that are being written.
    fn read_all(&mut self, reader: &mut dyn LogReader);

    /// Makes a socket with the TCP state in `endpoint`, and with the output that the client has not acknowledged.
    fn restore<'a>(
        &mut self,
        service: ServiceIndex,
        endpoint: &Endpoint,
        output: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self::Restored, String>;
    fn make_ready(&mut self, socket: &Self::Restored) -> Result<(), String>;
    /// Adds the input that was logged since the socket was made, without the bytes that the socket itself has received since `make_ready`.
    fn feed<'a>(
        &mut self,
        socket: &Self::Restored,
        endpoint: &Endpoint,
        input: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String>;
    /// Lets the socket speak. Unless `is_quiet`, it sends a window probe at once.
    fn activate(
        &mut self,
        service: ServiceIndex,
        endpoint: &Endpoint,
        socket: Self::Restored,
        is_quiet: bool,
    ) -> Result<Self::Live, String>;
    /// The window that the socket offers its client, in bytes.
    fn offered_window(&self, socket: &Self::Live) -> u32;
    /// Closes a socket. Its client gets no segment.
    fn drop_restored(&mut self, service: ServiceIndex, endpoint: &Endpoint, socket: Self::Restored);
    /// Closes a socket. Its client gets no segment, because the gate is closed.
    fn drop_live(&mut self, service: ServiceIndex, endpoint: &Endpoint, socket: Self::Live);
    /// Closes a socket whose connection is not continued, and closes its replica. The client gets a RST. If the connection `has_ended`,
    /// nothing is left to be reset, so the socket may also be closed in the ordinary way.
    fn close_live(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        endpoint: &Endpoint,
        socket: Self::Live,
        has_ended: bool,
    );
    /// Gives a connection to the relay, with its socket and its replica.
    fn relay(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        endpoint: Endpoint,
        socket: Self::Live,
        taken: HandedOver,
    );

    /// Asks another node to make a socket, as [`restore`](Self::restore) does here.
    fn restore_at<'a>(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        endpoint: &Endpoint,
        output: impl Iterator<Item = &'a [u8]>,
    );
    fn guide(&mut self, service: ServiceIndex, client: SocketAddr, node: ServingNode);
    /// Sends another node what it needs to go on with a connection whose socket it has made from `endpoint`: the input that was logged since
    /// (`late`), and what its relay needs.
    fn start_at<'a>(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        endpoint: &Endpoint,
        connection: &Connection,
        late: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String>;
    fn drop_at(&mut self, service: ServiceIndex, node: ServingNode, client: SocketAddr);
    /// Asks an annex's kernel for the terms of connections.
    fn ask_annex(&mut self, service: ServiceIndex, annex: AnnexId, clients: Vec<SocketAddr>);
    /// Answers an annex's part of a snapshot.
    fn answer_part(&mut self, service: ServiceIndex, annex: AnnexId, receipt: PartReceipt);

    fn open_replica(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        client: SocketAddr,
    ) -> Result<(), String>;
    /// Writes input to a replica, then the end of input if `ends`. Returns what the replica took. `None`: there is no such replica, or the
    /// replica takes nothing now. [`feed_replica`](crate::feed_replica) is called again when the replica takes input.
    fn write_replica<'a>(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        input: impl Iterator<Item = LogPart<'a>>,
        ends: bool,
    ) -> Option<Result<Written, String>>;
    fn close_replica(&mut self, service: ServiceIndex, connection: ConnectionId);
}
