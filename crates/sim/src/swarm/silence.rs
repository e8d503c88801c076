//! The times at which the agents of two living nodes could not hear each other, because of injected faults. Only at these times may both
//! nodes of a pair with `assume = "fail-stop"` speak (a split).

use std::time::Duration;

use proto::Instant;

use super::fault::{FaultKind, PlannedFault};

/// Time after the end of a fault during which a node may still act on the silence that the fault caused. This time is at least the sum of
/// detection (500 ms and 80 ms), the lease with its margin (319 ms), and the answers of outside hosts to a claim (80 ms).
const AFTERWARDS: Duration = Duration::from_millis(1_000);
/// Number of a node's cables: to the clients, to the peer's stack, to the peer's agent.
const CABLES: u64 = 3;

/// The networks on which the agents cannot hear each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// All networks: a machine stands still, or all cables between the nodes are cut.
    Everywhere,
    /// The service's network.
    Service,
    /// The network of the heartbeats.
    Heartbeats,
}

/// A period in which the agents cannot hear each other on some network.
#[derive(Clone, Copy, Debug)]
struct Silence {
    place: Where,
    from: Instant,
    to: Instant,
}

/// All silences of a run.
#[derive(Clone, Debug)]
pub(super) struct Silences {
    /// Whether the agents also send heartbeats through the service's network.
    service_link: bool,
    all: Vec<Silence>,
}

impl Silences {
    pub const fn new(service_link: bool) -> Self {
        let all = Vec::new();
        Self { service_link, all }
    }

    /// Adds the silence that `fault`, injected at `from`, causes.
    pub fn add(&mut self, fault: &PlannedFault, from: Instant) {
        let to = from + fault.length() + AFTERWARDS;
        self.all
            .extend(silenced_by(fault).map(|place| Silence { place, from, to }));
    }

    /// Whether the agents could not hear each other on any network at `at`, or shortly before.
    pub fn covers(&self, at: Instant) -> bool {
        let mut now = self.all.iter().filter(|one| one.from <= at && at <= one.to);
        let has = |place| {
            self.all
                .iter()
                .any(|one| one.place == place && one.from <= at && at <= one.to)
        };
        now.any(|one| match one.place {
            Where::Everywhere => true,
            Where::Heartbeats => !self.service_link || has(Where::Service),
            Where::Service => false,
        })
    }
}

/// Returns the networks on which `fault` keeps the agents from hearing each other. A killed or stopped agent does not count, because the
/// other node can distinguish a dead agent from a dead machine. The loss of the router does not count either.
const fn silenced_by(fault: &PlannedFault) -> Option<Where> {
    match fault.kind {
        FaultKind::Freeze | FaultKind::Halt | FaultKind::Cut | FaultKind::Between => Some(Where::Everywhere),
        FaultKind::Path | FaultKind::PathOneWay => Some(Where::Service),
        FaultKind::OneWay | FaultKind::Loss => match fault.detail / 2 % CABLES {
            1 => Some(Where::Service),
            2 => Some(Where::Heartbeats),
            _ => None,
        },
        FaultKind::Crash
        | FaultKind::Agent
        | FaultKind::Pause
        | FaultKind::Late
        | FaultKind::Drift
        | FaultKind::Router
        | FaultKind::Reorder
        | FaultKind::Duplicate
        | FaultKind::Worker
        | FaultKind::Server
        | FaultKind::Arbiter
        | FaultKind::Handover
        | FaultKind::Migrate
        | FaultKind::Drain
        | FaultKind::Network
        | FaultKind::AnnexMove
        | FaultKind::AnnexCrash
        | FaultKind::AnnexAgent
        | FaultKind::AnnexPause
        | FaultKind::AnnexCut
        | FaultKind::AnnexWorker
        | FaultKind::AnnexLink => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::FaultTarget;

    const SECOND: Duration = Duration::from_secs(1);

    fn fault(kind: FaultKind, cable: u64) -> PlannedFault {
        PlannedFault {
            during: None,
            after_us: 0,
            kind,
            target: FaultTarget::Speaker,
            length_us: 100_000,
            detail: cable * 2,
        }
    }

    #[test]
    fn only_what_keeps_agents_from_hearing_each_other_is_one_and_only_for_its_time() {
        let begin = Instant::ZERO + SECOND;
        let during = |service_link, faults: &[PlannedFault], at| {
            let mut silences = Silences::new(service_link);
            faults.iter().for_each(|fault| silences.add(fault, begin));
            silences.covers(at)
        };
        let between = [fault(FaultKind::Between, 0)];
        assert!(during(true, &between, begin));
        assert!(during(true, &between, begin + SECOND));
        assert!(!during(true, &between, begin + SECOND * 2));
        assert!(!during(true, &between, begin - SECOND));
        let cables = [0, 1, 2].map(|cable| fault(FaultKind::OneWay, cable));
        let [clients, service, heartbeats] = [0, 1, 2].map(|cable| &cables[cable..=cable]);
        assert!(!during(false, clients, begin));
        assert!(!during(false, service, begin));
        assert!(during(false, heartbeats, begin));
        assert!(!during(true, heartbeats, begin), "there is another link");
        assert!(during(true, &cables[1..], begin));
        assert!(!during(true, &[fault(FaultKind::Agent, 2)], begin));
    }
}
