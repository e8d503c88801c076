//! The record of one service on this node, which its threads share.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::Instant;
use proto::action::ServiceIndex;
use proto::order::frames::{ALONE, DATAGRAMS, END, RECEIPT};
use proto::order::{
    LinkRefusal, OnDivergence, OrderArrivals, OrderTransfer, RecordId, RecordPosition, SERVER_STREAM,
    StreamCause, StreamMerger, StreamReceipts,
};
use proto::role::Role;

use super::super::sealed::SealedWriter;
use super::datagrams::{DatagramPath, KernelArrivals};
use super::frames;
use super::kinds::{ENDED, FOLLOWED, PART};
use crate::config::SecretKey;
use crate::control::OrderActivity;

/// The counters of a service, with their names.
pub(super) type OrderCounters = [(&'static str, u64); 10];

/// What the service's record does on this node, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderStanding {
    pub activity: OrderActivity,
    /// Why the record is off, or what it waits for.
    pub reason: String,
    pub since: Instant,
}

/// What the library in this node's server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LibraryPart {
    /// No library has a role. The server runs without one, or no server runs.
    None,
    /// It records.
    Records,
    /// It plays a record back, or waits for one.
    Plays,
    /// Its record has ended, and the server goes on without one.
    Finished,
}

/// How long a node must have a role before a server gets its role.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a library may take to confirm that it records no more.
const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// The reason while no server has asked for a role.
const NO_SERVER: &str = "no server has asked for recorded order";

/// A service with recorded order.
pub(super) struct OrderedService {
    pub index: ServiceIndex,
    pub vip: SocketAddr,
    /// The address at which the application listens.
    pub application: SocketAddr,
    /// The peer's address and port for the link.
    pub peer: SocketAddr,
    pub on_divergence: OnDivergence,
    pub key: Option<SecretKey>,
    state: Mutex<OrderState>,
    changed: Condvar,
}

/// The record of one service, its links, and this node's role.
pub(super) struct OrderState {
    pub role: Role,
    /// When the node took this role.
    role_since: Instant,
    pub part: LibraryPart,
    /// The process of the server whose library has a role, or had one. It keeps the role until it ends.
    pub server: Option<i32>,
    /// Number of libraries that have had a role. It distinguishes a server from the one before.
    pub libraries: u64,
    /// The library of the primary's server.
    pub recorder: Option<UnixStream>,
    /// The libraries of its children, by their streams.
    children: BTreeMap<u32, UnixStream>,
    merger: StreamMerger,
    receipts: StreamReceipts,
    pub transfer: OrderTransfer,
    link: Option<SealedWriter>,
    /// Counts the links, so that a thread of an earlier link does not end a later one.
    links: u64,
    /// The primary's half of the datagrams of the present link.
    datagrams: Option<DatagramPath>,
    /// The backup's half.
    pub arrivals: OrderArrivals,
    /// The pieces that the kernel has taken for it. `None`: it takes nothing.
    pub kernel: Option<KernelArrivals>,
    /// Whether the kernel's program was loaded, or could not be.
    pub has_tried_datagrams: bool,
    /// The link from the primary.
    pub inbound: Option<TcpStream>,
    /// The record of this node's server has ended, or must end, for this reason.
    pub ended: Option<String>,
    /// When the library was told to record no more.
    stopped: Option<Instant>,
    /// Why the record is off, or what it waits for.
    pub reason: String,
    pub played: u64,
    pub divergences: u64,
    /// The server has left its record because it diverged from it.
    pub has_diverged: bool,
    times_alone: u64,
    /// Number of servers that were found to run without the library.
    pub without_library: u64,
    /// Number of programs that got no role.
    pub refused: u64,
}

impl OrderedService {
    pub fn new(
        index: ServiceIndex,
        (vip, application, peer): (SocketAddr, SocketAddr, SocketAddr),
        on_divergence: OnDivergence,
        key: Option<SecretKey>,
    ) -> Self {
        let state = OrderState {
            role: Role::Joining,
            role_since: Instant::ZERO,
            part: LibraryPart::None,
            server: None,
            libraries: 0,
            recorder: None,
            children: BTreeMap::new(),
            merger: StreamMerger::default(),
            receipts: StreamReceipts::default(),
            transfer: OrderTransfer::default(),
            link: None,
            links: 0,
            datagrams: None,
            arrivals: OrderArrivals::default(),
            kernel: None,
            has_tried_datagrams: false,
            inbound: None,
            ended: None,
            stopped: None,
            reason: NO_SERVER.to_owned(),
            played: 0,
            divergences: 0,
            has_diverged: false,
            times_alone: 0,
            without_library: 0,
            refused: 0,
        };
        Self {
            index,
            vip,
            application,
            peer,
            on_divergence,
            key,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait for a change.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `is_met`, at most for `limit`.
    pub fn wait(
        &self,
        limit: Duration,
        mut is_met: impl FnMut(&mut OrderState) -> bool,
    ) -> MutexGuard<'_, OrderState> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| !is_met(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells the service's threads this node's role, and brings the counters and the standing up to date. Called in each turn of the agent's
    /// loop, which must not wait here. If a thread is busy with the record, the next turn tells.
    ///
    /// Returns whether the replica's server has diverged from its record. `None`: a thread is busy.
    pub fn tell(
        &self,
        role: Role,
        counters: &mut OrderCounters,
        standing: &mut OrderStanding,
    ) -> Option<bool> {
        let mut state = self.state.try_lock().ok()?;
        if state.role != role {
            (state.role, state.role_since) = (role, linux::clock::now());
            if role.may_speak() {
                state.close_inbound();
            }
            self.notify();
        }
        *counters = state.counters();
        let (activity, reason) = (state.activity(), state.reason());
        if (standing.activity, standing.reason.as_str()) != (activity, reason) {
            *standing = OrderStanding {
                activity,
                reason: reason.to_owned(),
                since: linux::clock::now(),
            };
        }
        Some(state.has_diverged && plays(role))
    }
}

/// Whether the library of a node with this role plays a record back.
pub(super) fn plays(role: Role) -> bool {
    matches!(role, Role::Backup | Role::Returning)
}

impl OrderState {
    pub fn counters(&self) -> OrderCounters {
        let of_kernel = |count: fn(&KernelArrivals) -> u64| self.kernel.as_ref().map_or(0, count);
        [
            ("order_recorded_bytes", self.transfer.len()),
            ("order_unconfirmed_bytes", self.transfer.unconfirmed()),
            ("order_times_alone", self.times_alone),
            ("order_arrived_bytes", self.arrivals.arrived()),
            ("order_kernel_bytes", of_kernel(KernelArrivals::taken)),
            ("order_refused_datagrams", of_kernel(KernelArrivals::refused)),
            ("order_played", self.played),
            ("order_divergences", self.divergences),
            ("order_without_library", self.without_library),
            ("order_refused_programs", self.refused),
        ]
    }

    pub fn activity(&self) -> OrderActivity {
        match self.part {
            LibraryPart::Records if self.link.is_some() => OrderActivity::Records,
            LibraryPart::Plays if self.inbound.is_some() && !self.has_ended() => OrderActivity::Plays,
            LibraryPart::Records | LibraryPart::Plays => OrderActivity::Waits,
            LibraryPart::None | LibraryPart::Finished => OrderActivity::Off,
        }
    }

    fn reason(&self) -> &str {
        match self.activity() {
            OrderActivity::Records | OrderActivity::Plays => "",
            OrderActivity::Waits | OrderActivity::Off => &self.reason,
        }
    }

    /// The role for a library that asks now. `None`: the node has no part in the service, or has taken its role just now. For example, an
    /// agent that adopts the role of an earlier agent may learn from the peer that the role is not its own any more.
    pub fn part_now(&self, now: Instant) -> Option<LibraryPart> {
        let part = match self.role {
            role if role.may_speak() => LibraryPart::Records,
            role if plays(role) => LibraryPart::Plays,
            _ => return None,
        };
        (now.since(self.role_since) >= SETTLED).then_some(part)
    }

    /// A library gets its role. The record that its server records or plays back begins.
    pub fn begin(&mut self, server: i32, part: LibraryPart) {
        self.libraries += 1;
        (self.server, self.part) = (Some(server), part);
        (self.ended, self.stopped) = (None, None);
        self.close_inbound();
        if let Some(kernel) = &mut self.kernel {
            kernel.begin();
        }
        self.arrivals = OrderArrivals::default();
        (self.played, self.divergences, self.has_diverged) = (0, 0, false);
        self.children.clear();
        (self.merger, self.receipts) = (StreamMerger::default(), StreamReceipts::default());
        if part == LibraryPart::Records {
            self.end_link(linux::clock::now());
            let number = linux::process::random_seed() as u64;
            let record = RecordId(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX));
            self.transfer = OrderTransfer::of(record);
            "the backup's server does not follow the record yet".clone_into(&mut self.reason);
        } else {
            "the primary has not answered yet".clone_into(&mut self.reason);
        }
    }

    /// The record is complete, because its server is not recorded any more.
    pub fn end_record(&mut self, now: Instant, reason: String) {
        self.tell_children(END, &[]);
        self.recorder = None;
        self.children.clear();
        self.transfer.end();
        self.part = LibraryPart::Finished;
        self.reason = reason;
        self.send_parts(now);
    }

    /// The server goes on without its record, because it has diverged from it.
    pub fn leave_record(&mut self) {
        self.has_diverged = true;
        self.ended = Some("the server has diverged from the record".to_owned());
    }

    /// The server of a library has ended.
    pub fn forget_server(&mut self) {
        (self.server, self.part) = (None, LibraryPart::None);
        NO_SERVER.clone_into(&mut self.reason);
        self.close_inbound();
    }

    /// Ends the link from the primary. What has no receipt does not count. The kernel gives no receipts any more.
    pub fn close_inbound(&mut self) {
        if let Some(kernel) = &self.kernel {
            kernel.close_link();
        }
        if let Some(inbound) = self.inbound.take() {
            let _ = inbound.shutdown(Shutdown::Both);
        }
    }

    /// Moves what the kernel has taken to the arrivals. Returns whether it was news.
    pub fn take_from_kernel(&mut self) -> bool {
        let kernel = self.kernel.as_mut();
        kernel.is_some_and(|kernel| kernel.drain(&mut self.arrivals))
    }

    /// A piece of the sequence has arrived. Returns how much has arrived in all. `None`: this node's server does not take the record.
    pub fn add_arrivals(&mut self, bytes: &[u8]) -> Option<u64> {
        let arrived = self.arrivals.add(bytes);
        if let Some(kernel) = &self.kernel {
            kernel.note(&mut self.arrivals);
        }
        arrived
    }

    /// Whether this node takes the record from the primary.
    pub fn follows(&self) -> bool {
        self.part == LibraryPart::Plays && plays(self.role) && !self.has_ended()
    }

    /// Whether this node's server goes on without a record, as far as the record has not arrived.
    pub fn has_ended(&self) -> bool {
        self.role.may_speak() || self.ended.is_some() || self.arrivals.is_given_up()
    }

    /// A backup at this position takes the record. Returns the link's number.
    pub fn link_up(
        &mut self,
        now: Instant,
        position: RecordPosition,
        mut link: SealedWriter,
    ) -> Result<u64, (LinkRefusal, SealedWriter)> {
        let record = match self.transfer.link_up(now, position) {
            Ok(record) => record,
            Err(refusal) => {
                if refusal == LinkRefusal::NoBeginning {
                    self.reason = format!(
                        "the backup cannot follow: {refusal}; begins when this node's server is started again"
                    );
                }
                return Err((refusal, link));
            }
        };
        if let Err(error) = link.send(FOLLOWED, &record.0.get().to_le_bytes()) {
            tracing::debug!(%error, "the link for recorded order is broken");
        }
        self.end_datagrams();
        if let Some(old) = self.link.replace(link) {
            old.close();
        }
        self.links += 1;
        self.confirm();
        self.tell_all_receipts();
        self.send_parts(now);
        Ok(self.links)
    }

    pub fn link_down(&mut self, now: Instant, number: u64) {
        if self.links == number {
            if self.part == LibraryPart::Records {
                "the link to the backup is broken".clone_into(&mut self.reason);
            }
            self.end_link(now);
        }
    }

    fn end_link(&mut self, now: Instant) {
        self.end_datagrams();
        self.transfer.link_down(now);
        if let Some(link) = self.link.take() {
            link.close();
        }
    }

    /// The backup's kernel takes datagrams of the link with this number.
    pub fn begin_datagrams(&mut self, number: u64, path: DatagramPath) {
        if self.links == number && self.link.is_some() {
            self.datagrams = Some(path);
            self.offer_datagrams();
        }
    }

    /// Lets the library send datagrams, if there is a library and a link.
    pub fn offer_datagrams(&self) {
        let (Some(library), Some(path)) = (&self.recorder, &self.datagrams) else {
            return;
        };
        if let Err(error) = frames::send_with(library, DATAGRAMS, &path.payload(), path.socket.as_fd()) {
            tracing::debug!(%error, "the server sends no datagrams");
        }
    }

    fn end_datagrams(&mut self) {
        if self.datagrams.take().is_some() {
            self.tell(SERVER_STREAM, DATAGRAMS, &[]);
        }
    }

    /// Sends over the link what has not been sent.
    pub fn send_parts(&mut self, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        while let Some(part) = self.transfer.poll_part() {
            if let Err(error) = link.send(PART, &part) {
                tracing::debug!(%error, "the link for recorded order is broken");
                return self.end_link(now);
            }
        }
        if self.transfer.has_ended()
            && let Err(error) = link.send(ENDED, self.reason.as_bytes())
        {
            tracing::debug!(%error, "the link for recorded order is broken");
        }
    }

    pub fn on_receipt(&mut self, now: Instant, arrived: u64) {
        if self.transfer.on_receipt(now, arrived) {
            for (stream, arrived) in self.confirm() {
                self.tell(stream, RECEIPT, &arrived.to_le_bytes());
            }
        }
    }

    /// The streams of which the backup has more, with the length that it has.
    fn confirm(&mut self) -> BTreeMap<u32, u64> {
        self.receipts.confirm(&self.transfer.poll_confirmed())
    }

    /// Tells each library how much of its stream the backup has. So its writes wait again.
    fn tell_all_receipts(&self) {
        let streams = self.children.keys().copied().chain([SERVER_STREAM]);
        for stream in streams {
            self.tell(stream, RECEIPT, &self.receipts.arrived(stream).to_le_bytes());
        }
    }

    fn tell(&self, stream: u32, kind: u8, payload: &[u8]) {
        let library = match stream {
            SERVER_STREAM => self.recorder.as_ref(),
            child => self.children.get(&child),
        };
        if let Some(library) = library
            && let Err(error) = frames::send(library, kind, payload)
        {
            tracing::debug!(%error, stream, "a recorded process does not take receipts");
        }
    }

    fn tell_children(&self, kind: u8, payload: &[u8]) {
        self.children
            .keys()
            .for_each(|&stream| self.tell(stream, kind, payload));
    }

    fn tell_everyone(&self, kind: u8, payload: &[u8]) {
        self.tell(SERVER_STREAM, kind, payload);
        self.tell_children(kind, payload);
    }

    /// The library of a child that is about to be forked records this stream. Returns false if the child gets no record.
    pub fn begin_child(&mut self, stream: u32, cause: StreamCause, library: UnixStream) -> bool {
        let begins = self.recorder.is_some() && self.merger.open(stream, cause);
        if begins {
            self.children.insert(stream, library);
            if !self.transfer.waits() {
                self.tell(stream, ALONE, &[]);
            }
        }
        begins
    }

    /// A process has recorded more of its stream.
    pub fn add_part(&mut self, now: Instant, stream: u32, bytes: &[u8]) {
        let sequence = self.merger.add(stream, bytes);
        self.append(now, &sequence);
    }

    /// A child has ended, or is not recorded any more.
    pub fn end_child(&mut self, now: Instant, stream: u32) {
        self.children.remove(&stream);
        let sequence = self.merger.end(stream);
        self.append(now, &sequence);
    }

    fn append(&mut self, now: Instant, sequence: &[u8]) {
        if !sequence.is_empty() {
            self.transfer.add(now, sequence);
            self.send_parts(now);
        }
    }

    /// Bytes that a process has recorded.
    pub fn stream_len(&self, stream: u32) -> u64 {
        self.merger.len(stream)
    }

    /// Ends the wait for receipts if there is no backup, or if the backup does not answer.
    pub fn watch(&mut self, now: Instant) {
        let has_backup = !self.role.may_speak() || self.role == Role::Primary;
        if self.recorder.is_some() && self.transfer.goes_alone(now, has_backup) {
            if has_backup {
                tracing::warn!("no receipt for the recorded order; clients do not wait for the backup now");
            }
            self.end_link(now);
            self.times_alone += 1;
            self.tell_everyone(ALONE, &[]);
        }
        if self.recorder.is_some() && self.ended.is_none() && plays(self.role) {
            self.stop_recording(now, "this node has become the backup".to_owned());
        }
        let is_late = self.stopped.is_some_and(|at| now.since(at) >= CONFIRM_MAX);
        if self.recorder.is_some() && is_late {
            let reason = self.ended.clone().unwrap_or_default();
            tracing::warn!(
                reason,
                "the server's order is not recorded any more, and its library has not confirmed this"
            );
            self.end_record(now, reason);
        }
    }

    /// Tells the library to record no more. The library confirms it at the server's next call. A server may never call it again, so the record
    /// ends after [`CONFIRM_MAX`] in any case.
    pub fn stop_recording(&mut self, now: Instant, reason: String) {
        (self.ended, self.stopped) = (Some(reason), Some(now));
        self.tell_everyone(END, &[]);
    }
}
