//! Failures that belong together: each follows from the one before, within milliseconds or while that is being dealt with. Chance alone
//! brings such a sequence about once in tens of thousands of runs, so some runs are made of one.

use super::fault::{Fault, Kind, Target};
use super::phase::Phase;
use super::scenario::{FAULTS_MIN, fault};
use crate::pair::draw::Draw;

/// The share of the runs that are made of one.
const SHARE: f64 = 0.2;

/// The faults of the run of this seed, if they are to be a story. Its chances are its own: other runs are what they would be without.
pub(super) fn of(seed: u64) -> Option<Vec<Fault>> {
    let mut draw = Draw::new(seed ^ 0x5704_1e50_f7b0_5eed);
    draw.chance(SHARE).then(|| {
        let stories = [orphans_untold, away, gone_alone, leaves, late_handshake];
        let mut faults = draw.pick(&stories)(&mut draw);
        while (faults.len() as u64) < FAULTS_MIN {
            let during = draw.pick(&Phase::ALL);
            faults.push(fault(&mut draw, Some(during)));
        }
        faults
    })
}

const MS: u64 = 1_000;

/// The wire is not heard, a process of the application dies, and then the agent that was to tell of it.
fn orphans_untold(draw: &mut Draw) -> Vec<Fault> {
    let silenced = draw.pick(&[Kind::Cut, Kind::Freeze, Kind::Between]);
    vec![
        begin(draw, silenced, Target::Other, 150..500),
        next(draw, DEATHS, Target::Speaker, 100, 100..500),
        next(draw, &[Kind::Agent], Target::Speaker, 50, 20..450),
    ]
}

/// An agent is away for so long that it counts as dead; the node that goes on without it fails, too.
fn away(draw: &mut Draw) -> Vec<Fault> {
    let kind = draw.pick(&[Kind::Agent, Kind::Pause]);
    let target = draw.pick(&[Target::Speaker, Target::Speaker, Target::Other]);
    let first = begin(draw, kind, target, 600..1000);
    let mut second = next(draw, &[Kind::Crash], Target::Speaker, 300, 200..500);
    second.during = Some(Phase::Simplex);
    vec![first, second]
}

/// The wire takes connections over, its agent dies, and the primary goes on alone.
fn gone_alone(draw: &mut Draw) -> Vec<Fault> {
    let death = draw.pick(DEATHS);
    vec![
        begin(draw, death, Target::Speaker, 300..900),
        next(draw, &[Kind::Agent], Target::Other, 10, 600..1000),
    ]
}

/// The wire takes connections over and is drained, and does not hear that the primary goes on alone.
fn leaves(draw: &mut Draw) -> Vec<Fault> {
    let death = draw.pick(DEATHS);
    vec![
        begin(draw, death, Target::Speaker, 300..900),
        next(draw, &[Kind::Drain], Target::Other, 10, 100..500),
        next(draw, &[Kind::Cut, Kind::Between], Target::Speaker, 20, 300..900),
    ]
}

/// A survivor has a wire again, SYN-ACKs are lost, both change their parts while SYNs are repeated, a second later, and once more when
/// the SYN-ACKs are.
fn late_handshake(draw: &mut Draw) -> Vec<Fault> {
    let mut lossy = next(draw, &[Kind::Loss], Target::Speaker, 150, 300..500);
    lossy.during = Some(Phase::DuplexAgain);
    let mut handover = next(draw, &[Kind::Handover], Target::Other, 500, 20..100);
    handover.after_us += 800 * MS;
    let mut again = next(
        draw,
        &[Kind::Handover, Kind::Crash],
        Target::Speaker,
        1500,
        100..400,
    );
    again.after_us += 1000 * MS;
    let first = begin(draw, Kind::Crash, Target::Speaker, 150..400);
    vec![first, lossy, handover, again]
}

/// Ways in which connections lose their process.
const DEATHS: &[Kind] = &[Kind::Worker, Kind::Server];

/// What begins a story: some time after the pair is complete. It lasts for so many milliseconds.
fn begin(draw: &mut Draw, kind: Kind, target: Target, length: std::ops::Range<u64>) -> Fault {
    Fault {
        during: Some(Phase::Duplex),
        ..next(draw, &[kind], target, 600, length)
    }
}

/// What follows within so many milliseconds.
fn next(draw: &mut Draw, kinds: &[Kind], target: Target, within: u64, length: std::ops::Range<u64>) -> Fault {
    Fault {
        during: None,
        after_us: draw.below(within * MS),
        kind: draw.pick(kinds),
        target,
        length_us: (length.start + draw.below(length.end - length.start)) * MS,
        detail: draw.below(1 << 32),
    }
}
