//! Schedules of failures that belong together. The time of each failure depends on the previous failure: most failures come milliseconds
//! after the previous failure, or during the pair's reaction to it. Chance alone brings about such a sequence once in tens of thousands of
//! runs, so some runs consist of such a sequence.

use super::fault::{FAULTS_MIN, FaultKind, FaultTarget, PlannedFault, fault};
use super::phase::PairPhase;
use crate::pair::draw::Draw;

/// Share of the runs that are made of a story.
const SHARE: f64 = 0.2;

/// A sequence of faults, and what it needs of the run.
pub(super) struct Story {
    pub faults: Vec<PlannedFault>,
    /// Largest body of a request or a reply, in bytes. If set, the paths are slow, so that transfers take a while.
    pub bytes_max: Option<u64>,
    /// Outside hosts answer.
    pub has_outside: bool,
}

impl Story {
    const fn of(faults: Vec<PlannedFault>) -> Self {
        Self {
            faults,
            bytes_max: None,
            has_outside: false,
        }
    }
}

/// The story of the run with this seed, if the run has one. Stories are drawn from a seed of their own, so that they do not change the
/// run's other draws.
pub(super) fn of(seed: u64) -> Option<Story> {
    let mut draw = Draw::new(seed ^ 0x5704_1e50_f7b0_5eed);
    draw.chance(SHARE).then(|| {
        let stories = [
            orphans_untold,
            away,
            gone_alone,
            leaves,
            late_handshake,
            both_agents_away,
            path_alone,
            stopped_while_deciding,
            halted,
            migrates,
            migrates_back,
        ];
        let mut story = draw.pick(&stories)(&mut draw);
        while (story.faults.len() as u64) < FAULTS_MIN {
            let during = draw.pick(&PairPhase::ALL);
            story.faults.push(fault(&mut draw, Some(during)));
        }
        story
    })
}

const MS: u64 = 1_000;

/// The primary does not hear the wire. Then a process of the primary's application dies. Then the primary's agent, which has to report this
/// death to the wire, dies, too.
fn orphans_untold(draw: &mut Draw) -> Story {
    let silenced = draw.pick(&[FaultKind::Cut, FaultKind::Freeze, FaultKind::Between]);
    Story::of(vec![
        begin(draw, silenced, FaultTarget::Other, 150..500),
        next(draw, DEATHS, FaultTarget::Speaker, 100, 100..500),
        next(draw, &[FaultKind::Agent], FaultTarget::Speaker, 50, 20..450),
    ])
}

/// One node's agent is killed or paused until the other node declares that node dead. Then the node that speaks alone loses its power.
fn away(draw: &mut Draw) -> Story {
    let kind = draw.pick(&[FaultKind::Agent, FaultKind::Pause]);
    let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Speaker, FaultTarget::Other]);
    let first = begin(draw, kind, target, 600..1000);
    let mut second = next(draw, &[FaultKind::Crash], FaultTarget::Speaker, 300, 200..500);
    second.during = Some(PairPhase::Simplex);
    Story::of(vec![first, second])
}

/// The wire takes connections over. The wire's agent dies or is stopped, either immediately or while the wire speaks for these connections.
/// The primary continues alone.
fn gone_alone(draw: &mut Draw) -> Story {
    let death = draw.pick(DEATHS);
    let within = draw.pick(&[2, 10, 250]);
    let faults = vec![
        begin(draw, death, FaultTarget::Speaker, 300..900),
        next(
            draw,
            &[FaultKind::Agent, FaultKind::Pause],
            FaultTarget::Other,
            within,
            600..1000,
        ),
    ];
    Story {
        bytes_max: draw.pick(&[None, Some(60_000), Some(100_000)]),
        ..Story::of(faults)
    }
}

/// The primary's agent is killed or paused, and the wire takes over. Then the wire's agent is killed or paused while the primary's agent
/// comes back.
fn both_agents_away(draw: &mut Draw) -> Story {
    let kind = draw.pick(&[FaultKind::Agent, FaultKind::Pause]);
    let first = begin(draw, kind, FaultTarget::Speaker, 550..750);
    let mut second = next(
        draw,
        &[FaultKind::Agent, FaultKind::Pause],
        FaultTarget::Speaker,
        30,
        900..1000,
    );
    second.during = Some(PairPhase::Takeover);
    Story::of(vec![first, second])
}

/// A path breaks for a long time, and nothing else fails meanwhile.
fn path_alone(draw: &mut Draw) -> Story {
    let kind = draw.pick(&FaultKind::PATHS);
    let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
    let first = begin(draw, kind, target, 2_500..3_500);
    let during = draw.pick(&PairPhase::ALL);
    let mut second = fault(draw, Some(during));
    second.after_us += first.length_us;
    Story {
        has_outside: true,
        ..Story::of(vec![first, second])
    }
}

/// The arbiter does not answer the survivor. While the survivor decides connections, its agent is stopped or slow for longer than the
/// survivor's lease. The old primary lives, does not hear the survivor, and also asks the arbiter for an epoch.
fn stopped_while_deciding(draw: &mut Draw) -> Story {
    let mut unanswered = begin(draw, FaultKind::Arbiter, FaultTarget::Speaker, 1_200..1_600);
    unanswered.detail = ONLY_FIRST_IS_ANSWERED;
    let silenced = next(draw, &[FaultKind::Between], FaultTarget::Speaker, 5, 700..1_000);
    let mut stopped = next(
        draw,
        &[FaultKind::Pause, FaultKind::Late],
        FaultTarget::Speaker,
        5,
        300..900,
    );
    stopped.during = Some(PairPhase::Takeover);
    Story {
        bytes_max: Some(draw.pick(&[8_000, 60_000])),
        ..Story::of(vec![unanswered, silenced, stopped])
    }
}

/// A wire's machine is halted for longer than its lease, and afterwards the wire does not hear the primary.
fn halted(draw: &mut Draw) -> Story {
    let mut halt = begin(draw, FaultKind::Halt, FaultTarget::Other, 350..700);
    halt.after_us += 900 * MS; // an agent knows the rate of its CPU's time-stamp counter after a second
    halt.detail |= 1; // the time-stamp counter goes on
    let between = next(
        draw,
        &[FaultKind::Between, FaultKind::OneWay],
        FaultTarget::Speaker,
        340,
        800..1000,
    );
    Story::of(vec![halt, between])
}

/// The wire takes connections over. Then the wire is drained, and does not hear that the primary continues alone.
fn leaves(draw: &mut Draw) -> Story {
    let death = draw.pick(DEATHS);
    Story::of(vec![
        begin(draw, death, FaultTarget::Speaker, 300..900),
        next(draw, &[FaultKind::Drain], FaultTarget::Other, 10, 100..500),
        next(
            draw,
            &[FaultKind::Cut, FaultKind::Between],
            FaultTarget::Speaker,
            20,
            300..900,
        ),
    ])
}

/// A survivor has a wire again, and SYN-ACKs are lost. About a second later, while SYNs are repeated, the nodes change
/// roles. When the SYN-ACKs are repeated, the nodes change roles once more, or the primary crashes.
fn late_handshake(draw: &mut Draw) -> Story {
    let mut lossy = next(draw, &[FaultKind::Loss], FaultTarget::Speaker, 150, 300..500);
    lossy.during = Some(PairPhase::DuplexAgain);
    let mut handover = next(draw, &[FaultKind::Handover], FaultTarget::Other, 500, 20..100);
    handover.after_us += 800 * MS;
    let mut again = next(
        draw,
        &[FaultKind::Handover, FaultKind::Crash],
        FaultTarget::Speaker,
        1500,
        100..400,
    );
    again.after_us += 1000 * MS;
    let first = begin(draw, FaultKind::Crash, FaultTarget::Speaker, 150..400);
    Story::of(vec![first, lossy, handover, again])
}

/// Faults that are injected while connections move.
const WHILE_MOVING: &[FaultKind] = &[
    FaultKind::Crash,
    FaultKind::Agent,
    FaultKind::Pause,
    FaultKind::Freeze,
    FaultKind::Cut,
    FaultKind::Between,
    FaultKind::Loss,
    FaultKind::Worker,
    FaultKind::Handover,
];

/// Connections are to move from the primary to its backup, and meanwhile a node, an agent, a cable or a process fails.
fn migrates(draw: &mut Draw) -> Story {
    let order = begin(draw, FaultKind::Migrate, FaultTarget::Speaker, 1..2);
    let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
    let within = draw.pick(&[1, 5, 30]);
    let failure = next(draw, WHILE_MOVING, target, within, 100..800);
    Story {
        bytes_max: draw.pick(&[None, Some(60_000), Some(100_000)]),
        ..Story::of(vec![order, failure])
    }
}

/// Connections move to the backup and back, and meanwhile, or later, a node, an agent, a cable or a process fails.
fn migrates_back(draw: &mut Draw) -> Story {
    let order = begin(draw, FaultKind::Migrate, FaultTarget::Speaker, 1..2);
    let back_within = draw.pick(&[5, 100, 400]);
    let back = next(draw, &[FaultKind::Migrate], FaultTarget::Other, back_within, 1..2);
    let kinds = [WHILE_MOVING, &[FaultKind::Migrate]].concat();
    let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
    let within = draw.pick(&[1, 5, 30, 300]);
    let failure = next(draw, &kinds, target, within, 100..800);
    let faults = if draw.chance(0.3) {
        vec![order, failure] // it fails while the connections live on the backup
    } else {
        vec![order, back, failure]
    };
    Story {
        bytes_max: draw.pick(&[None, Some(60_000), Some(100_000)]),
        ..Story::of(faults)
    }
}

/// Failures of annexes, of nodes and of what connects them.
const BESIDE_ANNEXES: &[FaultKind] = &[
    FaultKind::AnnexMove,
    FaultKind::AnnexMove,
    FaultKind::AnnexCrash,
    FaultKind::AnnexAgent,
    FaultKind::AnnexPause,
    FaultKind::AnnexCut,
    FaultKind::AnnexCut,
    FaultKind::Crash,
    FaultKind::Crash,
    FaultKind::Agent,
    FaultKind::Pause,
    FaultKind::Freeze,
    FaultKind::Halt,
    FaultKind::Cut,
    FaultKind::Between,
    FaultKind::OneWay,
    FaultKind::Loss,
    FaultKind::Reorder,
    FaultKind::Duplicate,
    FaultKind::Worker,
    FaultKind::Handover,
    FaultKind::Drain,
    FaultKind::Migrate,
];

/// Connections move to an annex, and in most runs back or on. Failures come at the steps of the moves, or while connections live there.
pub(super) fn of_annexes(draw: &mut Draw) -> Vec<PlannedFault> {
    let mut faults = vec![begin(draw, FaultKind::AnnexMove, FaultTarget::Speaker, 1..2)];
    let failures = 1 + draw.below(3);
    let returns_after = draw.below(failures + 2);
    for number in 0..=failures {
        if number == returns_after {
            let within = draw.pick(&[5, 100, 400]);
            faults.push(next(
                draw,
                &[FaultKind::AnnexMove],
                FaultTarget::Other,
                within,
                1..2,
            ));
        }
        if number < failures {
            let within = draw.pick(&[1, 5, 30, 300, 700]);
            let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
            let length = draw.pick(&[20..100, 100..800, 600..1_500]);
            faults.push(next(draw, BESIDE_ANNEXES, target, within, length));
        }
    }
    faults
}

/// A further failure of such a run.
pub(super) fn one_more_beside_annexes(draw: &mut Draw) -> PlannedFault {
    let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
    next(draw, BESIDE_ANNEXES, target, 700, 100..800)
}

/// Detail of an arbiter's outage: the arbiter neither answers the configured backup nor acts on its questions.
const ONLY_FIRST_IS_ANSWERED: u64 = 5;

/// Faults that kill the server process of some or all connections.
const DEATHS: &[FaultKind] = &[FaultKind::Worker, FaultKind::Server];

/// Returns the first fault of a story: it is injected within 600 ms after the pair is duplex. `length` is in milliseconds.
fn begin(
    draw: &mut Draw,
    kind: FaultKind,
    target: FaultTarget,
    length: std::ops::Range<u64>,
) -> PlannedFault {
    PlannedFault {
        during: Some(PairPhase::Duplex),
        ..next(draw, &[kind], target, 600, length)
    }
}

/// Returns the next fault of a story: it is injected within `within` milliseconds after the previous fault. `length` is in milliseconds,
/// too.
fn next(
    draw: &mut Draw,
    kinds: &[FaultKind],
    target: FaultTarget,
    within: u64,
    length: std::ops::Range<u64>,
) -> PlannedFault {
    PlannedFault {
        during: None,
        after_us: draw.below(within * MS),
        kind: draw.pick(kinds),
        target,
        length_us: (length.start + draw.below(length.end - length.start)) * MS,
        detail: draw.below(1 << 32),
    }
}
