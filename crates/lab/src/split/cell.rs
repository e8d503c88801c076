//! One cell of the split experiment: one fault with one arbiter.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::fault::SplitFault;
use super::silence::{hold, silence_max};
use crate::client::{ClientFailure, ClientReport, Spread};
use crate::clock::{ClockOffset, monotonic, ms};
use crate::net::NODE_NAMES;
use crate::node::Assume;
use crate::pair::PairOptions;
use crate::pair::clients::{begin, finish, measure};
use crate::pair::expect::of_service;
use crate::pair::work::Work;
use crate::run::{LabRun, value_name};
use judge::Survey;

/// Time for which the clients send requests before the fault begins.
const BEFORE: Duration = Duration::from_millis(500);
/// Time for which the clients send requests after the fault has ended.
const AFTER: Duration = Duration::from_millis(2000);
/// Time limit for a connection. A connection that hangs for this long does not recover.
const DEADLINE: Duration = Duration::from_secs(20);

/// State shown for a daemon that does not answer.
const DOES_NOT_ANSWER: &str = "does not answer";

/// Result of one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub assume: Assume,
    pub fault: SplitFault,
    /// Whether all requirements held.
    pub ok: bool,
    /// Total time in which both nodes spoke.
    pub two_speakers_ms: f64,
    /// The longest time in which no node spoke. Only a silence that ends after the fault's beginning counts.
    pub silence_ms: f64,
    /// Longest silence that the configuration allows. `None` if both nodes can serve the clients.
    silence_max_ms: Option<f64>,
    /// The fence commands that were started.
    fenced: Vec<Fenced>,
    /// The times in which each node spoke, also before the fault.
    pub speeches: Vec<SpeechSpan>,
    /// Duration of the fault.
    pub healed_ms: f64,
    pub connections: usize,
    pub survived: usize,
    pub reset: usize,
    /// Connections that got a wrong byte.
    wrong: usize,
    /// Connections that failed in another way, or hung.
    other: usize,
    stall_ms: Option<Spread>,
    /// State that each node's daemon reported after the fault.
    states: [String; 2],
    /// Reason why a new client was not served after the fault. `None` if it was served.
    newcomer: Option<String>,
    /// Reasons why the captures do not prove the result.
    unproven: Vec<String>,
}

/// A fence command.
#[derive(Clone, Debug, Serialize)]
struct Fenced {
    /// The node whose power the command turns off.
    node: &'static str,
    /// Its start, in milliseconds since the fault.
    at_ms: f64,
}

/// A time in which a node spoke, in milliseconds since the fault.
#[derive(Clone, Debug, Serialize)]
pub struct SpeechSpan {
    pub node: &'static str,
    pub from_ms: f64,
    pub until_ms: f64,
}

/// Plays `fault` with the arbiter of `options`. Adds to `problems` the requirements that did not hold.
///
/// # Errors
/// If the cell could not be played to its end.
pub fn play(
    options: &PairOptions,
    fault: SplitFault,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<Cell> {
    let clock = ClockOffset::measure();
    let mut work = Work::new(options, run.seed);
    work.plan.deadline_ms = DEADLINE.as_millis() as u64;
    let (testbed, mut client) = begin(options, &work, run)?;
    std::thread::sleep(BEFORE);
    run.step("fault");
    let fault_at = monotonic();
    let detection = testbed.pair.detection();
    fault.play(&testbed, hold(fault, options, detection))?;
    let healed_at = monotonic();
    std::thread::sleep(AFTER);
    measure(&mut client, fault_at, healed_at.since(fault_at))?;
    let newcomer = testbed.greet()?;
    if testbed.fenced()?.is_empty() {
        for index in (0..2).filter(|index| testbed.status(*index).is_ok()) {
            testbed.wait_for_channel(index, problems)?;
        }
    }
    let states = [0, 1].map(|index| match testbed.status(index) {
        Ok(status) => status.services.iter().map(|one| one.state.clone()).collect(),
        Err(_) => DOES_NOT_ANSWER.to_owned(),
    });
    run.step("finish");
    let client = finish(client, &work)?;
    let fenced = testbed.fenced()?.into_iter().map(|(node, at)| Fenced {
        node: NODE_NAMES[node],
        at_ms: ms(fault_at.as_nanos(), at.as_nanos()),
    });
    let fenced = fenced.collect();
    let captures = testbed.captures.stop()?;
    let survey = Survey::of(&captures, &of_service(options, Vec::new()))?;
    let missed = captures.iter().filter(|capture| capture.dropped > 0);
    let fault_ns = clock.realtime_ns(fault_at);
    let mut cell = Cell {
        assume: options.assume,
        fault,
        ok: false,
        two_speakers_ms: survey.two_speakers_ns() as f64 / 1e6,
        silence_ms: silence_ms(&survey, fault_ns),
        silence_max_ms: silence_max(fault, options, detection).map(|max| max.as_secs_f64() * 1e3),
        fenced,
        speeches: speeches(&survey, fault_ns),
        healed_ms: healed_at.since(fault_at).as_secs_f64() * 1e3,
        connections: client.connections.len(),
        survived: client.survivors(),
        reset: count(&client, |failure| {
            matches!(failure, ClientFailure::Reset | ClientFailure::Refused)
        }),
        wrong: count(&client, |failure| matches!(failure, ClientFailure::Wrong(_))),
        other: 0,
        stall_ms: client.stall_ms(0),
        states,
        newcomer,
        unproven: missed
            .map(|capture| format!("the capture at {} missed packets", capture.point.name()))
            .collect(),
    };
    cell.other = cell.connections - cell.survived - cell.reset - cell.wrong;
    let broken = cell.broken(options.lan.links);
    cell.ok = broken.is_empty();
    problems.extend(broken);
    Ok(cell)
}

impl Cell {
    /// `ASSUME/FAULT`.
    pub fn key(&self) -> String {
        format!("{}/{}", value_name(&self.assume), value_name(&self.fault))
    }

    /// What no arbiter and no fault permits: two speakers (except under `fail-stop`), and wrong bytes.
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.assume != Assume::FailStop && self.two_speakers_ms > 0.0 {
            found.push(format!(
                "{}: both nodes spoke for {} ms",
                self.key(),
                self.two_speakers_ms
            ));
        }
        if self.wrong > 0 {
            found.push(format!(
                "{}: {} connections got a wrong byte",
                self.key(),
                self.wrong
            ));
        }
        found
    }

    /// Number of connections that survived, as text.
    pub fn outcome(&self) -> String {
        format!("{} of {}", self.survived, self.connections)
    }

    /// One line of text for a person.
    pub fn line(&self) -> String {
        let max = self
            .silence_max_ms
            .map_or_else(String::new, |max| format!(" of at most {max:.0}"));
        let mut fenced = String::new();
        for Fenced { node, at_ms } in &self.fenced {
            fenced += &format!("{node} fenced at {at_ms:.0} ms, ");
        }
        format!(
            "{:<31} both spoke {:8.1} ms, nobody {:7.1}{max} ms; of {} connections {} survived, {} reset, {} wrong, {} other; \
             {fenced}then a {}, b {}",
            self.key(),
            self.two_speakers_ms,
            self.silence_ms,
            self.connections,
            self.survived,
            self.reset,
            self.wrong,
            self.other,
            self.states[0],
            self.states[1],
        )
    }

    /// The requirements that did not hold. `links` is the number of links between the nodes.
    fn broken(&self, links: u8) -> Vec<String> {
        let mut broken = Vec::new();
        let mut require = |holds: bool, what: &str| {
            if !holds {
                broken.push(format!("{}: {what}", self.key()));
            }
        };
        if self.assume != Assume::FailStop || !self.fault.breaks_fail_stop(links) {
            let survivor = self.fault.survivor();
            let lives = survivor.is_none_or(|index| self.states[index] != DOES_NOT_ANSWER);
            let may_be_fenced = |node| match survivor {
                _ if self.fault.nodes_hear_each_other(links) => false,
                Some(survivor) => node != NODE_NAMES[survivor],
                None => true,
            };
            let is_served = self.silence_max_ms.is_none_or(|max| self.silence_ms <= max);
            require(self.two_speakers_ms == 0.0, "both nodes spoke");
            require(self.survived == self.connections, "connections were lost");
            require(lives, "the node that can serve the clients does not answer");
            require(is_served, "the silence was longer than the configuration allows");
            let is_fenced_rightly = self.fenced.iter().all(|fenced| may_be_fenced(fenced.node));
            require(is_fenced_rightly, "a node was fenced that must not be fenced");
        }
        require(self.wrong == 0, "clients got wrong bytes");
        require(
            self.speeches.iter().any(|speech| speech.until_ms > 0.0),
            "no node spoke after the fault",
        );
        for problem in self.newcomer.iter().chain(&self.unproven) {
            require(false, problem);
        }
        broken
    }
}

fn count(client: &ClientReport, is_so: impl Fn(&ClientFailure) -> bool) -> usize {
    let failures = client.connections.iter().filter_map(|one| one.failure.as_ref());
    failures.filter(|failed| is_so(&failed.failure)).count()
}

fn speeches(survey: &Survey, fault_ns: u64) -> Vec<SpeechSpan> {
    let speeches = survey.speeches().into_iter();
    speeches
        .map(|speech| SpeechSpan {
            node: NODE_NAMES[speech.node],
            from_ms: ms(fault_ns, speech.from_ns),
            until_ms: ms(fault_ns, speech.until_ns),
        })
        .collect()
}

/// The longest gap in milliseconds between two passages of the service's segments (`Survey::passages`). Only gaps that end after
/// `fault_ns`, the fault's beginning, count. The clients' last packet counts as a last passage, so that a silence until the end is a gap,
/// too.
fn silence_ms(survey: &Survey, fault_ns: u64) -> f64 {
    let passages = survey.passages.iter();
    let unanswered = survey
        .entrances
        .iter()
        .map(|entrance| (entrance.until_ns, entrance.until_ns))
        .max();
    let spans: Vec<(u64, u64)> = passages
        .map(|passage| (passage.from_ns, passage.until_ns))
        .chain(unanswered)
        .collect();
    let pairs = spans
        .windows(2)
        .filter(|pair| pair[1].0 > pair[0].1.max(fault_ns));
    pairs.map(|pair| ms(pair[0].1, pair[1].0)).fold(0.0, f64::max)
}
