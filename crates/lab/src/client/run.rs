//! A client process: carries out a plan on real sockets, in the network namespace in which it was started.

use std::cell::RefCell;
use std::future::pending;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connection::{ClientConnection, SharedClientState};
use super::plan::{ClientEvent, ClientOrder, ClientPlan};
use super::progress::{ConnectionProgress, Gap};
use super::report::{ClientFailure, ClientReport, ConnectionReport, Failed, Sha256Pair, Stall};
use super::workload::{self, DueContent, Task};
use crate::clock::monotonic as now;

/// Time between two [`ClientEvent::Progress`].
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The `main` of a client process. Reads a [`ClientPlan`] and then [`ClientOrder`]s from standard input. Writes [`ClientEvent`]s to
/// standard output; the last event is the report.
///
/// # Errors
/// The plan cannot be read or carried out. A failed connection is no error; the report lists it.
pub fn main() -> anyhow::Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).context("reading the plan")?;
    let plan: ClientPlan = serde_json::from_str(&line).context("the first line is not a plan")?;
    plan.check().context("this plan cannot be carried out")?;
    let (orders, orders_due) = mpsc::unbounded_channel();
    std::thread::spawn(move || forward_orders(&orders));
    let say = |event: &ClientEvent| {
        let line = serde_json::to_string(event).expect("events have string keys only");
        writeln!(io::stdout().lock(), "{line}").context("writing to standard output")
    };
    let report = run(plan, orders_due, say)?;
    say(&ClientEvent::Report(report))
}

/// Carries out `plan`. Calls `say` with each event except the report.
///
/// # Errors
/// The plan is wrong, or `say` failed.
pub fn run(
    plan: ClientPlan,
    orders: mpsc::UnboundedReceiver<ClientOrder>,
    say: impl FnMut(&ClientEvent) -> anyhow::Result<()>,
) -> anyhow::Result<ClientReport> {
    plan.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the event loop")?;
    LocalSet::new().block_on(&runtime, ClientRun::new(plan).carry_out(orders, say))
}

/// Forwards orders from standard input. When standard input ends, the parent is gone. Then the process exits, because no client may
/// outlive its parent.
fn forward_orders(orders: &mpsc::UnboundedSender<ClientOrder>) {
    for line in io::stdin().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(order) => {
                if orders.send(order).is_err() {
                    return;
                }
            }
            Err(error) => tracing::error!(%error, line, "ignoring a line that is not an order"),
        }
    }
    tracing::error!("standard input ended before the report");
    std::process::exit(1);
}

/// State that the connections of a run share.
struct ClientRun {
    plan: ClientPlan,
    shared: Rc<SharedClientState>,
    latency: RefCell<hdrhistogram::Histogram<u64>>,
    handshakes: Semaphore,
    stop: watch::Sender<bool>,
    reconnect: watch::Sender<u64>,
    wake: watch::Sender<bool>,
    deadline: Instant,
}

/// A fault that the report must cover.
struct AnnouncedFault {
    at_ns: u64,
    window_ns: u64,
    clips: bool,
    /// The longest wait of each connection around the fault, as known when the order came. These waits are recorded at the order, because a
    /// connection remembers only its longest waits, and longer waits may follow.
    seen: Vec<Option<Gap>>,
}

/// A connection that has ended and is not yet evaluated.
struct FinishedConnection {
    connection: Rc<ClientConnection>,
    failure: Option<Failed>,
    due: DueContent,
    asked_again: u64,
    at: proto::Instant,
}

impl ClientRun {
    fn new(plan: ClientPlan) -> Rc<Self> {
        Rc::new(Self {
            shared: Rc::new(SharedClientState::new()),
            latency: RefCell::new(workload::latency_account()),
            handshakes: Semaphore::new(plan.connects_at_once),
            stop: watch::Sender::new(false),
            reconnect: watch::Sender::new(0),
            wake: watch::Sender::new(false),
            deadline: Instant::now() + Duration::from_millis(plan.deadline_ms),
            plan,
        })
    }

    async fn carry_out(
        self: Rc<Self>,
        mut orders: mpsc::UnboundedReceiver<ClientOrder>,
        mut say: impl FnMut(&ClientEvent) -> anyhow::Result<()>,
    ) -> anyhow::Result<ClientReport> {
        let started = now();
        let connections: Vec<_> = (0..self.plan.connections)
            .map(|index| {
                let (shared, points) = (self.shared.clone(), self.plan.timeline_points);
                Rc::new(ClientConnection::new(shared, points, index < self.plan.hashed))
            })
            .collect();
        let mut tasks: Vec<JoinHandle<FinishedConnection>> = connections
            .iter()
            .enumerate()
            .map(|(index, connection)| {
                tokio::task::spawn_local(self.clone().converse(index, connection.clone()))
            })
            .collect();
        let (mut faults, mut ready) = (Vec::new(), false);
        let mut next_progress = Instant::now() + PROGRESS_EVERY;
        let mut ended = Vec::new();
        while ended.len() < self.plan.connections {
            tokio::select! {
                one = &mut tasks[ended.len()] => ended.push(one.context("a connection's task")?),
                order = next_order(&mut orders) => match order {
                    order @ ClientOrder::Fault { .. } => faults.extend(AnnouncedFault::new(order, &connections)),
                    ClientOrder::Reconnect => self.reconnect.send_modify(|times| *times += 1),
                    ClientOrder::Stop => drop(self.stop.send(true)),
                    ClientOrder::Wake => drop(self.wake.send(true)),
                },
                () = self.shared.flow_changed.notified() => {}
                () = sleep_until(next_progress) => {
                    next_progress += PROGRESS_EVERY;
                    say(&progress(&connections))?;
                }
            }
            let flowing = self.shared.flowing.get();
            if !ready && flowing + self.shared.never_flowed.get() == self.plan.connections {
                ready = true;
                say(&ClientEvent::Ready { flowing })?;
            }
        }
        // An order about a fault still counts if it came while the last connection ended.
        while let Ok(order) = orders.try_recv() {
            faults.extend(AnnouncedFault::new(order, &connections));
        }
        say(&progress(&connections))?;
        Ok(ClientReport {
            connections: ended
                .into_iter()
                .enumerate()
                .map(|(index, one)| one.report(index, &faults))
                .collect(),
            latency: workload::latency(&self.latency.borrow()),
            started_ns: started.as_nanos(),
            ended_ns: now().as_nanos(),
        })
    }

    async fn converse(self: Rc<Self>, index: usize, connection: Rc<ClientConnection>) -> FinishedConnection {
        let task = Task {
            plan: &self.plan,
            index,
            stop: self.stop.subscribe(),
            reconnect: self.reconnect.subscribe(),
            wake: self.wake.subscribe(),
            latency: &self.latency,
            exchanges: 0.into(),
            was_refused: false.into(),
            asked_again: 0.into(),
        };
        let conversation = async {
            let handshake = self.handshakes.acquire().await.expect("never closed");
            connection.connect(self.plan.server).await?;
            drop(handshake);
            task.run(&connection).await
        };
        let result = timeout_at(self.deadline, conversation).await;
        let due = connection.replies.borrow().due();
        let failure = result.unwrap_or(Err(ClientFailure::Timeout { due })).err();
        let at = now();
        connection.end(at);
        FinishedConnection {
            failure: failure.map(|failure| Failed {
                phase: connection.phase(),
                failure,
            }),
            due: task.due(),
            asked_again: task.asked_again.get(),
            connection,
            at,
        }
    }
}

impl AnnouncedFault {
    /// The fault in `order`; `None` if the order is not about a fault.
    fn new(order: ClientOrder, connections: &[Rc<ClientConnection>]) -> Option<Self> {
        let ClientOrder::Fault {
            at_ns,
            window_ms,
            clips,
        } = order
        else {
            return None;
        };
        let mut told = Self {
            at_ns,
            window_ns: window_ms.saturating_mul(1_000_000),
            clips,
            seen: Vec::new(),
        };
        let seen = connections.iter().map(|one| told.look(&one.progress.borrow()));
        told.seen = seen.collect();
        Some(told)
    }

    fn look(&self, progress: &ConnectionProgress) -> Option<Gap> {
        if self.clips {
            progress.longest_gap_after(self.at_ns, self.window_ns)
        } else {
            progress.longest_gap_around(self.at_ns, self.window_ns)
        }
    }

    /// The longest wait of connection number `index`.
    fn stall(&self, index: usize, progress: &ConnectionProgress) -> Stall {
        Stall {
            fault_ns: self.at_ns,
            gap: self.seen[index].max(self.look(progress)),
        }
    }
}

impl FinishedConnection {
    /// The report of the connection. The expected content is hashed here, because all connections have ended and none of them waits for
    /// this thread.
    fn report(self, index: usize, faults: &[AnnouncedFault]) -> ConnectionReport {
        let replies = self.connection.replies.borrow();
        let progress = self.connection.progress.borrow();
        let DueContent { seed, period, len } = self.due;
        ConnectionReport {
            local: self.connection.local.get(),
            earlier: self.connection.earlier.take(),
            connected_ns: self.connection.connected.get().map(proto::Instant::as_nanos),
            ended_ns: self.at.as_nanos(),
            bytes_expected: len,
            bytes_received: replies.bytes_received(),
            bytes_sent: replies.bytes_confirmed(),
            was_refused: replies.was_refused(),
            random: replies.random().to_vec(),
            asked_again: self.asked_again,
            sha256: replies.sha256().map(|received| Sha256Pair {
                expected: pattern::sha256(seed, period, len),
                received,
            }),
            failure: self.failure,
            longest_gap: progress.longest_gap(),
            stalls: faults.iter().map(|told| told.stall(index, &progress)).collect(),
            timeline: progress.timeline(),
        }
    }
}

/// The next order. Waits forever if the source of orders has ended.
async fn next_order(orders: &mut mpsc::UnboundedReceiver<ClientOrder>) -> ClientOrder {
    match orders.recv().await {
        Some(order) => order,
        None => pending().await,
    }
}

fn progress(connections: &[Rc<ClientConnection>]) -> ClientEvent {
    let (bytes_received, bytes_sent) = connections.iter().fold((0, 0), |(received, sent), one| {
        let replies = one.replies.borrow();
        (
            received + replies.bytes_received(),
            sent + replies.bytes_confirmed(),
        )
    });
    ClientEvent::Progress {
        bytes_received,
        bytes_sent,
    }
}
