//! Runs the operator's hook that copies state to a replica's server (`state_sync`). Each service's hook has a separate thread, which
//! executes one run at a time. `proto::state_sync` decides when the hook runs, and what follows when the run ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use agent::SyncRun;
use anyhow::Context;
use proto::Instant;
use proto::action::ServiceIndex;
use proto::action::StateSyncPhase;

use crate::bounded::{self, CommandOutcome, LatePolicy};
use crate::config::{self, Config, StateSyncSettings};

/// The end of a run: its service, its number, and its result with the reason of a failure.
pub type HookEnd = (ServiceIndex, u64, Result<(), String>);

/// The hooks of all services.
pub struct StateSyncs {
    hooks: Vec<Option<Hook>>,
    ended: Receiver<HookEnd>,
}

/// The channel to the thread that runs a service's hook.
struct Hook {
    runs: Sender<SyncRun>,
    /// The number of the last run; earlier runs are killed.
    last: Arc<AtomicU64>,
}

impl StateSyncs {
    /// Starts a thread for each service that has a hook. `wake` is called when a run has ended.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(config: &Config, wake: impl Fn() + Clone + Send + 'static) -> anyhow::Result<Self> {
        let (sender, ended) = channel();
        let mut hooks = Vec::new();
        for service in &config.services {
            let Some(hook) = service.state_sync.clone() else {
                hooks.push(None);
                continue;
            };
            let name = service.name.clone();
            let (runs, ordered) = channel();
            let last = Arc::new(AtomicU64::new(0));
            let runner = Runner {
                hook,
                environment: environment(config, service),
                last: Arc::clone(&last),
            };
            let (sender, wake) = (sender.clone(), wake.clone());
            let serve = move || {
                for run in ordered {
                    let outcome = runner.run(run);
                    if let (StateSyncPhase::Abandon, Err(why)) = (run.phase, &outcome) {
                        tracing::error!(
                            service = name,
                            why,
                            "the hook's abandon phase failed; the replica's server may still replicate the peer's server"
                        );
                    }
                    let _ = sender.send((run.service, run.number, outcome)); // fails only if the agent has ended
                    wake();
                }
            };
            let thread = std::thread::Builder::new().name("state-sync".into());
            thread.spawn(serve).context("starting a thread")?;
            hooks.push(Some(Hook { runs, last }));
        }
        Ok(Self { hooks, ended })
    }

    /// Kills the hook's previous run, if it still runs, and then starts this one.
    pub fn run(&self, run: SyncRun) {
        let hook = self.hooks[usize::from(run.service)].as_ref();
        let hook = hook.expect("only a service with a hook wants a run");
        hook.last.store(run.number, Ordering::Relaxed);
        hook.runs.send(run).expect("the thread lives as long as this");
    }

    /// The next run that has ended.
    pub fn poll(&self) -> Option<HookEnd> {
        self.ended.try_recv().ok()
    }
}

/// Environment variables that are the same for every run.
fn environment(config: &Config, service: &config::ServiceSettings) -> Vec<(&'static str, String)> {
    vec![
        ("STEADFAST_SERVICE", service.name.clone()),
        ("STEADFAST_VIP", service.address.to_string()),
        ("STEADFAST_PORT", service.port.to_string()),
        ("STEADFAST_PEER", config.peer.name.clone()),
        ("STEADFAST_PEER_ADDRESS", service.peer_address.to_string()),
        (
            "STEADFAST_APPLICATION_ADDRESS",
            service.application.ip().to_string(),
        ),
        (
            "STEADFAST_APPLICATION_PORT",
            service.application.port().to_string(),
        ),
    ]
}

struct Runner {
    hook: StateSyncSettings,
    environment: Vec<(&'static str, String)>,
    last: Arc<AtomicU64>,
}

impl Runner {
    fn run(&self, run: SyncRun) -> Result<(), String> {
        let phase = match run.phase {
            StateSyncPhase::Prepare => "prepare",
            StateSyncPhase::Finish => "finish",
            StateSyncPhase::Abandon => "abandon",
        };
        let limit = self.limit(run, linux::clock::now());
        let limit_ms = limit.as_millis().to_string();
        let mut environment: Vec<_> = self
            .environment
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        environment.extend([("STEADFAST_PHASE", phase), ("STEADFAST_LIMIT_MS", &limit_ms)]);
        let is_void = || self.last.load(Ordering::Relaxed) != run.number;
        let outcome = bounded::run_unless(is_void, &self.hook.command, &environment, limit, LatePolicy::Kill);
        match outcome {
            Ok(CommandOutcome::Ended { status, .. }) if status.success() => Ok(()),
            Ok(CommandOutcome::Ended { status, stderr }) => {
                Err(format!("{phase} failed: {status}: {stderr}"))
            }
            Ok(CommandOutcome::Late) => Err(format!("{phase} was killed after {limit:?}")),
            Err(error) => Err(format!("{phase} cannot be run: {error}")),
        }
    }

    fn limit(&self, run: SyncRun, now: Instant) -> Duration {
        run.until.map_or(self.hook.timeout, |until| until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(script: &str) -> Runner {
        Runner {
            hook: StateSyncSettings {
                command: ["sh", "-c", script].map(str::to_owned).to_vec(),
                timeout: Duration::from_secs(60),
                hold: Duration::from_secs(60),
            },
            environment: vec![("STEADFAST_SERVICE", "cache".to_owned())],
            last: Arc::new(AtomicU64::new(1)),
        }
    }

    fn run(phase: StateSyncPhase) -> SyncRun {
        SyncRun {
            service: 0,
            phase,
            number: 1,
            until: None,
        }
    }

    #[test]
    fn the_hook_is_told_what_to_do_and_says_why_it_did_not() {
        let hook = runner(
            "test $STEADFAST_PHASE = prepare && test $STEADFAST_LIMIT_MS = 60000 || { echo $STEADFAST_SERVICE: no >&2; exit 3; }",
        );
        assert_eq!(hook.run(run(StateSyncPhase::Prepare)), Ok(()));
        let why = hook.run(run(StateSyncPhase::Finish)).unwrap_err();
        assert_eq!(why, "finish failed: exit status: 3: cache: no");
    }

    #[test]
    fn a_hook_whose_hold_is_over_is_killed() {
        let late = SyncRun {
            until: Some(linux::clock::now() + Duration::from_millis(50)),
            ..run(StateSyncPhase::Finish)
        };
        let why = runner("sleep 1000").run(late).unwrap_err();
        assert!(why.starts_with("finish was killed after "), "{why}");
    }

    #[test]
    fn a_run_that_is_void_is_ended() {
        let hook = runner("sleep 1000");
        hook.last.store(2, Ordering::Relaxed);
        let why = hook.run(run(StateSyncPhase::Prepare)).unwrap_err();
        assert!(why.starts_with("prepare was killed"), "{why}");
    }
}
