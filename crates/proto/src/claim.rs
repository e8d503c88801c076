//! A primary whose wire is gone claims the VIP (CoRAL: address takeover by gratuitous ARP, verified by ping).
//!
//! ```text
//!             due: take the address                 answer                 complete             due, the last time
//!   Waiting ───────────────────────▶ Asking ────────────────▶ Listening ──────────▶ Reached ─────────────────────▶ Over
//!   the wire may still have a lease   │   ▲ due: announce      │   ▲ due: announce   ▲  │   ▲ due: announce
//!                                     └───┘                    └───┘                 │  └───┘
//!                                                                        complete    │
//!                                      Given ────────────────────────────────────────┘
//!                                      │   ▲ due: announce
//!                                      └───┘
//! ```
//!
//! A claim is complete when outside hosts have answered for a while without a break, and the peer is still silent. The claim of a VIP
//! that a working wire gives up is complete with the first answer, or at [`Claim::given_at`].
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

/// Wait after the first announcement. The wait doubles with each announcement, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(20);
/// The longest wait between announcements. A neighbour may come back at any time.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Shortest silence of outside hosts that counts as a break. Longer than the pauses of routers that limit their answers to five a second.
const BREAK_MIN: Duration = Duration::from_millis(300);
/// Number of further announcements after the VIP is reached. Some neighbours may have missed the earlier announcements.
const AFTERWARDS: u32 = 5;

/// The progress of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimPhase {
    /// The claim has not begun.
    Waiting,
    /// A working wire gives the VIP up. The neighbours are told that the VIP is on this node. This node takes the address when the claim is
    /// complete.
    Given {
        /// When this node may speak. The neighbours have heard an announcement by then.
        at: Instant,
    },
    /// The neighbours are told that the VIP is on this node. No outside host has answered yet.
    Asking,
    /// Outside hosts answer, so packets to the VIP come to this node. The node listens for the peer.
    Listening {
        /// The first answer since the last break.
        first: Instant,
        /// The last answer.
        last: Instant,
    },
    /// The claim is complete: this node has the VIP.
    Reached {
        /// Number of announcements left, at least one.
        left: u32,
    },
    /// The claim is complete, and nothing is left to announce.
    Over,
}

/// Events that change the phase of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimEvent {
    /// It is time for the next announcement.
    Due,
    /// An outside host has answered.
    Answered {
        /// When.
        now: Instant,
        /// Longest silence before this answer that does not count as a break.
        silence_max: Duration,
    },
    /// This node speaks for the VIP from now on.
    Complete,
}

impl ClaimPhase {
    /// The phase after `event`.
    fn after(self, event: ClaimEvent) -> Self {
        use ClaimEvent::{Answered, Complete, Due};
        let reached = Self::Reached { left: AFTERWARDS };
        match (self, event) {
            (Self::Waiting, Due) => Self::Asking,
            (Self::Waiting, Answered { .. }) => Self::Waiting,
            (Self::Waiting, Complete) => reached,
            (Self::Given { at }, Due | Answered { .. }) => Self::Given { at },
            (Self::Given { .. }, Complete) => reached,
            (Self::Asking, Due) => Self::Asking,
            (Self::Asking, Answered { now, .. }) => Self::Listening {
                first: now,
                last: now,
            },
            (Self::Asking, Complete) => reached,
            (Self::Listening { first, last }, Due) => Self::Listening { first, last },
            (Self::Listening { first, last }, Answered { now, silence_max }) => {
                let first = if now.since(last) <= silence_max {
                    first
                } else {
                    now
                };
                Self::Listening { first, last: now }
            }
            (Self::Listening { .. }, Complete) => reached,
            (Self::Reached { left: 0 | 1 }, Due) => Self::Over,
            (Self::Reached { left }, Due) => Self::Reached { left: left - 1 },
            (Self::Reached { left }, Answered { .. }) => Self::Reached { left },
            (Self::Reached { .. }, Complete) => reached,
            (Self::Over, Due | Answered { .. }) => Self::Over,
            (Self::Over, Complete) => reached,
        }
    }
}

/// A claim, under way or complete.
#[derive(Debug)]
pub(crate) struct Claim {
    phase: ClaimPhase,
    due: Instant,
    wait: Duration,
    /// Whether the peer has promised to take nothing over. Then this node need not listen for the peer.
    is_promised: bool,
}

impl Claim {
    /// A claim that may begin at `at`.
    pub(crate) fn new(at: Instant) -> Self {
        Self {
            phase: ClaimPhase::Waiting,
            due: at,
            wait: WAIT,
            is_promised: false,
        }
    }

    /// A claim of a VIP that a working wire gives up.
    pub(crate) fn of_given(now: Instant) -> Self {
        Self {
            phase: ClaimPhase::Given { at: now + WAIT },
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
            phase: ClaimPhase::Reached { left: AFTERWARDS },
            ..Self::new(now)
        }
    }

    /// Takes the address and announces the VIP, if this is due.
    pub(crate) fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<ServiceAction>) {
        if now < self.due || self.phase == ClaimPhase::Over {
            return;
        }
        if self.phase == ClaimPhase::Waiting {
            actions.push_back(ServiceAction::TakeAddress);
        }
        actions.push_back(ServiceAction::Announce);
        self.due = now + self.wait;
        self.wait = (self.wait * 2).min(WAIT_MAX);
        self.phase = self.phase.after(ClaimEvent::Due);
    }

    /// An outside host has answered. Returns whether the claim is complete. It is complete when outside hosts have answered for `patience`
    /// without a break: a peer that speaks would have been heard in that time. If the wire gives the VIP up, the first answer completes the
    /// claim.
    pub(crate) fn on_answer(&mut self, now: Instant, patience: Duration) -> bool {
        let silence_max = BREAK_MIN.max(patience + WAIT);
        self.phase = self.phase.after(ClaimEvent::Answered { now, silence_max });
        match self.phase {
            ClaimPhase::Given { .. } => true,
            ClaimPhase::Listening { first, .. } => {
                if self.due > now + WAIT {
                    (self.due, self.wait) = (now + WAIT, WAIT);
                }
                self.is_promised || now.since(first) >= patience
            }
            ClaimPhase::Waiting | ClaimPhase::Asking | ClaimPhase::Reached { .. } | ClaimPhase::Over => false,
        }
    }

    /// The claim is complete: this node has the VIP.
    pub(crate) fn on_reached(&mut self, now: Instant) {
        self.phase = self.phase.after(ClaimEvent::Complete);
        self.wait = WAIT;
        self.due = now + WAIT;
    }

    /// Whether the claim has begun: the neighbours are told that the VIP is on this node.
    pub(crate) fn is_begun(&self) -> bool {
        self.phase != ClaimPhase::Waiting
    }

    /// Whether an outside host has answered, and the claim is not complete. If so, packets to the VIP come to this node.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.phase, ClaimPhase::Listening { .. })
    }

    /// When a claim of a VIP that the wire gives up completes even without an answer. `None` for other claims, and
    /// after the completion.
    pub(crate) fn given_at(&self) -> Option<Instant> {
        match self.phase {
            ClaimPhase::Given { at } => Some(at),
            ClaimPhase::Waiting
            | ClaimPhase::Asking
            | ClaimPhase::Listening { .. }
            | ClaimPhase::Reached { .. }
            | ClaimPhase::Over => None,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (self.phase != ClaimPhase::Over).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::diagram::{assert_shown, graphviz};

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

    /// An answer comes after 350 ms. A silence of more than 300 ms is a break.
    #[test]
    fn the_whole_table() {
        use ClaimPhase::{Asking, Given, Listening, Over, Reached, Waiting};
        let heard = |last| Listening {
            first: at(10),
            last: at(last),
        };
        let phases = [
            Waiting,
            Given { at: at(20) },
            Asking,
            heard(40),
            heard(50),
            Reached { left: 2 },
            Reached { left: 1 },
            Over,
        ];
        let answered = ClaimEvent::Answered {
            now: at(350),
            silence_max: BREAK_MIN,
        };
        let events = [
            ("due", ClaimEvent::Due),
            ("answered", answered),
            ("complete", ClaimEvent::Complete),
        ];
        let mut table = String::new();
        for phase in phases {
            for (name, event) in events {
                writeln!(table, "{phase:?}, {name}: {:?}", phase.after(event)).expect("text");
            }
        }
        let table = table.replace("Instant(", "").replace("000000)", " ms");
        insta::assert_snapshot!(table, @r"
        Waiting, due: Asking
        Waiting, answered: Waiting
        Waiting, complete: Reached { left: 5 }
        Given { at: 20 ms }, due: Given { at: 20 ms }
        Given { at: 20 ms }, answered: Given { at: 20 ms }
        Given { at: 20 ms }, complete: Reached { left: 5 }
        Asking, due: Asking
        Asking, answered: Listening { first: 350 ms, last: 350 ms }
        Asking, complete: Reached { left: 5 }
        Listening { first: 10 ms, last: 40 ms }, due: Listening { first: 10 ms, last: 40 ms }
        Listening { first: 10 ms, last: 40 ms }, answered: Listening { first: 350 ms, last: 350 ms }
        Listening { first: 10 ms, last: 40 ms }, complete: Reached { left: 5 }
        Listening { first: 10 ms, last: 50 ms }, due: Listening { first: 10 ms, last: 50 ms }
        Listening { first: 10 ms, last: 50 ms }, answered: Listening { first: 10 ms, last: 350 ms }
        Listening { first: 10 ms, last: 50 ms }, complete: Reached { left: 5 }
        Reached { left: 2 }, due: Reached { left: 1 }
        Reached { left: 2 }, answered: Reached { left: 2 }
        Reached { left: 2 }, complete: Reached { left: 5 }
        Reached { left: 1 }, due: Over
        Reached { left: 1 }, answered: Reached { left: 1 }
        Reached { left: 1 }, complete: Reached { left: 5 }
        Over, due: Over
        Over, answered: Over
        Over, complete: Reached { left: 5 }
        ");
    }

    /// A phase without its values.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum PhaseName {
        Waiting,
        Given,
        Asking,
        Listening,
        Reached,
        Over,
    }

    impl PhaseName {
        const ALL: [Self; 6] = [
            Self::Waiting,
            Self::Given,
            Self::Asking,
            Self::Listening,
            Self::Reached,
            Self::Over,
        ];

        fn of(phase: ClaimPhase) -> Self {
            match phase {
                ClaimPhase::Waiting => Self::Waiting,
                ClaimPhase::Given { .. } => Self::Given,
                ClaimPhase::Asking => Self::Asking,
                ClaimPhase::Listening { .. } => Self::Listening,
                ClaimPhase::Reached { .. } => Self::Reached,
                ClaimPhase::Over => Self::Over,
            }
        }

        /// A phase with this name. In phase `Reached`, one announcement is left.
        fn sample(self) -> ClaimPhase {
            match self {
                Self::Waiting => ClaimPhase::Waiting,
                Self::Given => ClaimPhase::Given { at: at(20) },
                Self::Asking => ClaimPhase::Asking,
                Self::Listening => ClaimPhase::Listening {
                    first: at(10),
                    last: at(20),
                },
                Self::Reached => ClaimPhase::Reached { left: 1 },
                Self::Over => ClaimPhase::Over,
            }
        }
    }

    #[test]
    fn the_documents_show_this_table() {
        let events = ["Due", "Answered", "Complete"];
        let leads = |name: PhaseName, event: &str| {
            let event_of = match event {
                "Due" => ClaimEvent::Due,
                "Answered" => ClaimEvent::Answered {
                    now: at(30),
                    silence_max: BREAK_MIN,
                },
                _ => ClaimEvent::Complete,
            };
            let next = PhaseName::of(name.sample().after(event_of));
            (next != name).then(|| (next, event.to_owned()))
        };
        let complete = [PhaseName::Reached, PhaseName::Over];
        let graph = graphviz("claim", (&PhaseName::ALL, &complete), &events, leads);
        assert_shown("claim", &graph);
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
