//! The daemon of an edge: `steadfast edge` (`docs/edge.md`). `proto::edge::switch` decides, the eBPF data path forwards, and this loop is
//! between them.

mod beats;
mod check;
mod kernel;
mod status;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context;
use proto::Instant;
use proto::edge::switch::{EdgeConfig, EdgeStringConfig, EdgeSwitch};
use proto::edge::{DUPLICATES, RecoveryConfig, cache};

pub use check::{check, missing};
pub use kernel::{is_edge, leave_nothing};

use crate::config::EdgeSettings;
use crate::control::{self, Call, EdgeStatus};
use crate::metrics;
use crate::wakeup::Wakeup;
use beats::Beats;
use kernel::EdgeKernel;

/// Nap while packets are copied. Copies of a failing string wait for this time at most.
const NAP: Duration = Duration::from_millis(1);
/// Maximum number of copies that one turn reads.
const COPIES_MAX: usize = 4096;

/// The running edge.
struct EdgeAgent<'a> {
    settings: &'a EdgeSettings,
    edge: EdgeSwitch,
    kernel: EdgeKernel,
    beats: Beats,
    calls: Receiver<Call>,
    wakeup: Wakeup,
    /// Whether copies were found at the last look.
    is_busy: bool,
}

/// Runs the edge, whose settings are in `file`, until SIGTERM or SIGINT, then takes the data path away: packets follow ordinary routes. SIGUSR2 ends this
/// function, too, if `can_succeed` finds that a successor could go on. Then the data path stays, and the caller executes the
/// successor in the same process.
///
/// # Errors
/// The step of the start or of the cleanup that failed.
pub fn run(
    file: &Path,
    settings: &EdgeSettings,
    can_succeed: impl Fn() -> Result<(), String>,
) -> anyhow::Result<EdgeEnd> {
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let signals = |signals: &[i32]| wakeup.on_signals(signals).context("catching signals");
    let stop = signals(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let upgrade = signals(&[signal_hook::consts::SIGUSR2])?;
    crate::daemon::unblock_signal()?;
    if let Err(error) = linux::process::take_precedence() {
        tracing::warn!(%error, "the edge runs at ordinary priority: false alarms are more likely");
    }
    // The data path comes after the steps that are likely to fail, so a failed start rarely leaves pins.
    let beats = Beats::open(settings, file)?;
    let (server, asker, calls) = control::ControlServer::open(&settings.state_dir, wakeup.waker())?;
    if let Some(metrics) = &settings.metrics {
        metrics::serve(metrics.listen, move || {
            Ok(metrics::edge_exposition(&asker.edge()?))
        })?;
    }
    let kernel = EdgeKernel::open(settings, Box::new(wakeup.waker()))?;
    let now = linux::clock::now();
    let edge = EdgeSwitch::new(config(settings), &kernel.adopted(), kernel::flow_slot, now)?;
    let mut agent = EdgeAgent {
        settings,
        edge,
        kernel,
        beats,
        calls,
        wakeup,
        is_busy: false,
    };
    agent.turn();
    agent.kernel.attach()?;
    tracing::info!(edge = settings.name, peer = settings.peer, "ready");
    while !stop.load(Ordering::Relaxed) {
        if upgrade.swap(false, Ordering::Relaxed) {
            match can_succeed() {
                Ok(()) => {
                    tracing::info!("a successor takes over; the data path goes on");
                    return Ok(EdgeEnd::Succeeded);
                }
                Err(error) => tracing::error!(error, "the upgrade is refused; everything goes on as before"),
            }
        }
        agent.turn();
        agent.rest();
    }
    drop(server);
    agent.kernel.tear_down(&settings.state_dir)?;
    tracing::info!("stopped; packets follow ordinary routes");
    Ok(EdgeEnd::Stopped)
}

/// Why the daemon has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// The daemon was told to stop.
    Stopped,
    /// A successor takes over: the caller executes the program file that is now at this program's path.
    Succeeded,
}

/// The state machine's configuration.
fn config(settings: &EdgeSettings) -> EdgeConfig {
    let beat = &settings.heartbeat;
    let cached = settings.recovery.unwrap_or(crate::config::CacheSettings {
        policy: cache::CachePolicy::Syn,
        second: cache::SecondPacket::Newest,
        is_always: false,
        max_bytes: 0,
        max_packets: 0,
        max_connection_bytes: 0,
    });
    EdgeConfig {
        strings: settings
            .strings
            .iter()
            .map(|string| EdgeStringConfig {
                name: string.name.clone(),
                weight: string.weight,
                bytes_per_s: string.mbit * 1e6 / 8.0,
            })
            .collect(),
        recovery: RecoveryConfig {
            heartbeat: beat.interval,
            missed: beat.failed_after,
            caching_after: if cached.is_always { 0 } else { beat.suspect_after },
            traffic_timeout: settings.agent_timeout,
            ack_copies: DUPLICATES,
            cache: cache::CacheConfig {
                policy: cached.policy,
                second: cached.second,
                max_bytes: cached.max_bytes,
                max_packets: cached.max_packets,
                max_connection_bytes: cached.max_connection_bytes,
            },
        },
        suspect_after: beat.suspect_after,
        caches: settings.recovery.is_some(),
        delay: settings.failover_delay,
        has_command: !settings.failover_command.is_empty(),
        cap: settings.rate,
    }
}

impl EdgeAgent<'_> {
    fn turn(&mut self) {
        let now = linux::clock::now();
        self.kernel.check_in(now);
        self.is_busy = self.read_copies(now) > 0;
        while let Some((string, beat)) = self.beats.receive() {
            self.edge.handle_beat(now, string, &beat);
            self.carry_out(now);
        }
        for (string, succeeded) in self.kernel.ended_commands() {
            self.edge.handle_command(now, string, succeeded);
        }
        for string in 0..self.settings.strings.len() {
            // The first look may see packets that left before this agent's start. The switch ignores them: leaving packets count only while
            // a heartbeat is late, and none is late yet.
            if self.kernel.has_left(string) {
                self.edge.handle_leaving(now, string);
            }
            let has_carrier = self.kernel.has_carrier(string);
            self.edge.handle_carrier(now, string, has_carrier);
        }
        self.edge.handle_timeout(now);
        self.carry_out(now);
        let told = (0..self.settings.strings.len()).map(|string| self.edge.beat(now, string));
        self.beats.say(told);
        while let Ok(call) = self.calls.try_recv() {
            if let Call::Edge(reply) = call {
                reply.send(self.status(now));
            } // other calls are dropped, which tells the asker that there is no answer
        }
    }

    /// Reads the packets that the data path has copied. Copies of dropped packets must be read before the failover is completed.
    fn read_copies(&mut self, now: Instant) -> usize {
        let edge = &mut self.edge;
        self.kernel.read_copies(COPIES_MAX, |string, way, packet| {
            edge.handle_copy(now, string, way, packet);
        })
    }

    fn carry_out(&mut self, now: Instant) {
        while let Some(action) = self.edge.poll_action() {
            if let Some(samples) = self.kernel.carry_out(action) {
                self.edge.handle_traffic(now, &samples);
            }
        }
    }

    fn status(&self, now: Instant) -> EdgeStatus {
        status::status(
            now,
            self.settings,
            &self.edge.view(now),
            self.edge.round_trip(),
            &self.kernel,
            &self.beats,
        )
    }

    /// Sleeps until something happens. While packets are copied, the loop naps instead: a wake-up for each copy would cost more.
    fn rest(&mut self) {
        let now = linux::clock::now();
        let due = self.edge.poll_timeout(now).since(now);
        let mut fds = self.beats.fds();
        if self.is_busy {
            self.wakeup.wait(&fds, NAP.min(due));
        } else {
            self.kernel.set_asleep(true);
            fds.push(self.kernel.copies_fd());
            if self.kernel.copies_fill() == 0 {
                self.wakeup.wait(&fds, due);
            }
            self.kernel.set_asleep(false);
        }
        self.wakeup.clear();
    }
}
