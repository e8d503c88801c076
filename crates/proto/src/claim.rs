//! A primary whose wire is gone claims the VIP (CoRAL: address takeover by gratuitous ARP, verified by ping).
//!
//! ```text
//!   wire silent ─▶ its lease runs out ─▶ announce, ask outside hosts ─▶ one answers ─▶ they go on answering: speak
//!                                              ▲        │ no answer                    the peer is still silent
//!                                              └─ wait ─┘
//! ```
//!
//! The node asks by pings whose source is the VIP. So an answer shows that the neighbours send the VIP's packets to this node. A node that
//! is cut off gets no answer and stays mute.
//!
//! A node that was cut off does not know whether its peer is dead: the peer may have gone on alone during the cut. When the cut ends, the
//! first answer of an outside host can arrive before the peer's first heartbeat. So a node without an arbiter's permission listens for the
//! peer for some more time (`patience`). The outside hosts must answer during all of this time.
//!
//! A wire that leaves still passes all packets on until this node speaks alone, and no other node can speak. So this node first announces
//! the VIP to its neighbours and then takes the address. No packet is lost between these two steps.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Instant;
use crate::action::ServiceAction;

/// Wait after the first announcement. It doubles each time, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(20);
/// The longest wait between announcements. A neighbour may come back at any time.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Shortest silence of outside hosts that counts as a break. Longer than the pauses of routers that limit their answers to five a second.
const BREAK_MIN: Duration = Duration::from_millis(300);
/// Number of further announcements after the VIP is reached. Other neighbours may have missed the earlier ones.
const AFTERWARDS: u32 = 5;

/// A claim, under way or complete.
#[derive(Debug)]
pub(crate) struct Claim {
    due: Instant,
    wait: Duration,
    is_begun: bool,
    /// When this node may speak, if a working wire gives the VIP up. The neighbours have heard an announcement by then.
    given_at: Option<Instant>,
    /// Whether the peer has promised to take nothing over. Then this node need not listen for the peer.
    is_promised: bool,
    /// Number of announcements left. `None` until the claim is complete.
    left: Option<u32>,
    answers: Option<ClaimAnswers>,
}

/// Times of the first and the last answer in a series of answers without a break.
#[derive(Clone, Copy, Debug)]
struct ClaimAnswers {
    first: Instant,
    last: Instant,
}

impl Claim {
    /// A claim that may begin at `at`.
    pub(crate) fn new(at: Instant) -> Self {
        Self {
            due: at,
            wait: WAIT,
            is_begun: false,
            given_at: None,
            is_promised: false,
            left: None,
            answers: None,
        }
    }

    /// A claim of a VIP that a working wire gives up.
    pub(crate) fn of_given(now: Instant) -> Self {
        Self {
            is_begun: true,
            given_at: Some(now + WAIT),
            ..Self::new(now)
        }
    }

    /// A claim of a VIP that a cut-off wire gives up. Such a wire passes no packets on, and has promised to take nothing over.
    pub(crate) fn of_lost(now: Instant) -> Self {
        Self {
            is_promised: true,
            ..Self::new(now)
        }
    }

    /// A claim that is complete from the beginning, because this node has the VIP already. Only announces the VIP a few times.
    pub(crate) fn announcing(now: Instant) -> Self {
        Self {
            is_begun: true,
            left: Some(AFTERWARDS),
            ..Self::new(now)
        }
    }

    /// Takes the address and announces the VIP, if this is due.
    pub(crate) fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<ServiceAction>) {
        if now < self.due || self.left == Some(0) {
            return;
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            actions.push_back(ServiceAction::TakeAddress);
        }
        actions.push_back(ServiceAction::Announce);
        self.due = now + self.wait;
        self.wait = (self.wait * 2).min(WAIT_MAX);
        self.left = self.left.map(|left| left - 1);
    }

    /// An outside host has answered. Returns whether the claim is complete. It is complete when outside hosts have answered for `patience`
    /// without a break: a peer that speaks would have been heard in that time. If the wire gives the VIP up, the first answer completes the
    /// claim.
    pub(crate) fn on_answer(&mut self, now: Instant, patience: Duration) -> bool {
        if self.given_at.is_some() {
            return true;
        }
        let unbroken = self
            .answers
            .filter(|answers| now.since(answers.last) <= BREAK_MIN.max(patience + WAIT));
        let first = unbroken.map_or(now, |answers| answers.first);
        self.answers = Some(ClaimAnswers { first, last: now });
        if self.due > now + WAIT {
            (self.due, self.wait) = (now + WAIT, WAIT);
        }
        self.is_promised || now.since(first) >= patience
    }

    /// The claim is complete: this node has the VIP.
    pub(crate) fn on_reached(&mut self, now: Instant) {
        self.left = Some(AFTERWARDS);
        self.wait = WAIT;
        self.due = now + WAIT;
    }

    /// Whether the claim has begun: the neighbours are told that the VIP is on this node.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether an outside host has answered. If so, packets to the VIP come to this node.
    pub(crate) fn is_answered(&self) -> bool {
        self.answers.is_some()
    }

    /// When the claim of a VIP that the wire gives up is complete without an answer. `None` for other claims.
    pub(crate) fn given_at(&self) -> Option<Instant> {
        self.given_at
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (self.left != Some(0)).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// The milliseconds among `millis` in which `claim` announces the VIP.
    fn announces(claim: &mut Claim, millis: std::ops::Range<u64>) -> Vec<u64> {
        millis
            .filter(|&now| {
                let mut actions = VecDeque::new();
                claim.on_timeout(at(now), &mut actions);
                actions.contains(&ServiceAction::Announce)
            })
            .collect()
    }

    #[test]
    fn it_waits_out_the_lease_then_asks_again_and_again() {
        let mut claim = Claim::new(at(300));
        assert_eq!(announces(&mut claim, 0..1000), [300, 320, 360, 440, 600, 920]);
        assert_eq!(announces(&mut claim, 5000..8500).len(), 4, "once a second");
    }

    #[test]
    fn the_address_comes_first_and_once() {
        let mut claim = Claim::new(at(0));
        let mut actions = VecDeque::new();
        claim.on_timeout(at(0), &mut actions);
        claim.on_timeout(at(20), &mut actions);
        let (take, announce) = (ServiceAction::TakeAddress, ServiceAction::Announce);
        assert_eq!(actions, [take, announce.clone(), announce]);
    }

    #[test]
    fn what_is_given_is_announced_before_the_address_comes() {
        let mut claim = Claim::of_given(at(0));
        let mut actions = VecDeque::new();
        claim.on_timeout(at(0), &mut actions);
        assert_eq!(actions, [ServiceAction::Announce]);
        assert_eq!(claim.given_at(), Some(at(20)));
    }

    const PATIENCE: Duration = Duration::from_millis(80);

    /// The millisecond in which `claim` is complete, if outside hosts answer only in the milliseconds for which `answers` is true.
    fn made_at(mut claim: Claim, answers: impl Fn(u64) -> bool) -> Option<u64> {
        (0..20_000).find(|&now| {
            let asks = !announces(&mut claim, now..now + 1).is_empty();
            asks && answers(now) && claim.on_answer(at(now), PATIENCE)
        })
    }

    #[test]
    fn the_peer_can_be_heard_for_a_while_before_a_claim_is_made() {
        assert_eq!(made_at(Claim::new(at(300)), |_| true), Some(380));
        assert_eq!(made_at(Claim::new(at(0)), |_| false), None);
        for end in (0..5_000).step_by(7) {
            let made = made_at(Claim::new(at(0)), |now| now >= end).expect("it is made");
            assert!(made >= end + 80, "{made} for {end}");
        }
    }

    #[test]
    fn a_moment_between_two_cuts_does_not_count() {
        for end in (500..2_000).step_by(7) {
            let answers = |now| (100..150).contains(&now) || now >= end;
            let made = made_at(Claim::new(at(0)), answers).expect("it is made");
            assert!(made >= end + 80, "{made} for {end}");
        }
    }

    #[test]
    fn an_answer_that_is_lost_does_not_make_it_wait_for_ever() {
        let made = made_at(Claim::new(at(0)), |now| now != 20 && now % 3 > 0);
        assert!(made.is_some_and(|made| made < 300), "{made:?}");
    }

    #[test]
    fn a_wire_that_leaves_need_not_be_listened_to() {
        assert!(Claim::of_given(at(0)).on_answer(at(0), PATIENCE));
    }

    #[test]
    fn once_reached_it_is_announced_a_few_times_more() {
        let mut claim = Claim::new(at(0));
        assert_eq!(announces(&mut claim, 0..10), [0]);
        claim.on_reached(at(10));
        assert_eq!(announces(&mut claim, 10..100_000), [30, 50, 90, 170, 330]);
        assert_eq!(claim.poll_timeout(), None);
    }
}
