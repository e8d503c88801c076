//! The state tables of the failover policies, as text and as graphs.

use std::fmt::{Debug, Write};

use super::event::{FailoverEvent, FailoverMove};
use super::proposed::ProposedPhase;
use super::quick::{Reach, ReachEvent};
use super::temporary::{DormantAction, TemporaryPhase};
use crate::diagram::{assert_shown, graphviz};

/// One line for each state: every event that changes the state or moves the data, and what it does.
fn matrix<S: Copy + Debug + PartialEq>(
    states: &[S],
    after: impl Fn(S, FailoverEvent) -> (S, FailoverMove),
) -> String {
    let mut table = String::new();
    for state in states {
        write!(table, "{state:?}:").expect("text");
        for event in FailoverEvent::ALL {
            let (next, step) = after(*state, event);
            if (next, step) != (*state, FailoverMove::Stay) {
                write!(table, " {event:?}→{next:?} {step:?};").expect("text");
            }
        }
        writeln!(table).expect("text");
    }
    table
}

fn temporary(
    dormant: DormantAction,
) -> impl Fn(TemporaryPhase, FailoverEvent) -> (TemporaryPhase, FailoverMove) {
    move |phase, event| phase.after(event, dormant)
}

/// Paper, Figures 1, 7 and 9.
#[test]
fn temporary_failovers_with_dormant_hop() {
    insta::assert_snapshot!(matrix(&TemporaryPhase::ALL, temporary(DormantAction::Hop)), @r#"
        I: UsedFailed→II Next; LastFailed→III Hop;
        II: UsedFailed→II Next; LastFailed→III Hop; PrimaryAnswers→I Primary; ChangeOver→I Promote;
        III: UsedTimeout→III Hop; PrimaryAnswers→I Primary; AlternateAnswers→II Answerer; ChangeOver→III Promote;
    "#);
}

/// Paper, section III.6: the other dormant behaviours differ from Hop only in Phase III and on the way into it.
#[test]
fn the_other_dormant_behaviours_differ_when_all_have_failed() {
    let hop = matrix(&TemporaryPhase::ALL, temporary(DormantAction::Hop));
    let mut rows = String::new();
    for dormant in [
        DormantAction::LastDest,
        DormantAction::Primary,
        DormantAction::HopOnce,
    ] {
        let other = matrix(&TemporaryPhase::ALL, temporary(dormant));
        for (row, _) in other.lines().zip(hop.lines()).filter(|(row, hop)| row != hop) {
            writeln!(rows, "{dormant:?} {row}").expect("text");
        }
    }
    insta::assert_snapshot!(rows, @r#"
        LastDest I: UsedFailed→II Next; LastFailed→III Stay;
        LastDest II: UsedFailed→II Next; LastFailed→III Stay; PrimaryAnswers→I Primary; ChangeOver→I Promote;
        LastDest III: PrimaryAnswers→I Primary; AlternateAnswers→II Answerer; ChangeOver→III Promote;
        Primary I: UsedFailed→II Next; LastFailed→III Primary;
        Primary II: UsedFailed→II Next; LastFailed→III Primary; PrimaryAnswers→I Primary; ChangeOver→I Promote;
        Primary III: PrimaryAnswers→I Primary; AlternateAnswers→II Answerer; ChangeOver→III Promote;
        HopOnce III: PrimaryAnswers→I Primary; ChangeOver→III Promote;
    "#);
}

/// Paper, Figure 13.
#[test]
fn the_proposed_mechanism() {
    insta::assert_snapshot!(matrix(&ProposedPhase::ALL, ProposedPhase::after), @r#"
        I: UsedTimeout→II Next; UsedFailed→III Next; LastFailed→III Hop;
        II: UsedTimeout→II Next; UsedFailed→II Next; ProbeFailed→III Stay; LastFailed→III Hop; PrimaryAnswers→I Primary;
        III: UsedTimeout→III Next; UsedFailed→III Next; LastFailed→III Hop; PrimaryAnswers→I Primary;
    "#);
}

/// RFC 7829 §3.
#[test]
fn a_destinations_states() {
    let mut table = String::new();
    for state in Reach::ALL {
        write!(table, "{state:?}:").expect("text");
        for event in ReachEvent::ALL {
            write!(table, " {event:?}→{:?}", state.after(event)).expect("text");
        }
        writeln!(table).expect("text");
    }
    insta::assert_snapshot!(table, @r#"
        Active: Timeout→Active Doubtful→PotentiallyFailed Exceeded→Failed Answered→Active
        PotentiallyFailed: Timeout→PotentiallyFailed Doubtful→PotentiallyFailed Exceeded→Failed Answered→Active
        Failed: Timeout→Failed Doubtful→Failed Exceeded→Failed Answered→Active
    "#);
}

/// Asserts that the picture `name` in the documents shows this table.
fn assert_picture<S: Copy + Debug + PartialEq>(
    name: &str,
    states: &[S],
    after: impl Fn(S, FailoverEvent) -> (S, FailoverMove),
) {
    let leads = |state: S, event: FailoverEvent| {
        let (next, step) = after(state, event);
        ((next, step) != (state, FailoverMove::Stay)).then(|| (next, format!("{event:?}: {step:?}")))
    };
    let graph = graphviz("phases", (states, &[]), &FailoverEvent::ALL, leads);
    assert_shown(name, &graph);
}

#[test]
fn the_documents_show_these_tables() {
    let hop = temporary(DormantAction::Hop);
    assert_picture("sctp-temporary", &TemporaryPhase::ALL, hop);
    assert_picture("sctp-proposed", &ProposedPhase::ALL, ProposedPhase::after);
}
