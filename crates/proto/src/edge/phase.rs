//! The states of a string at one edge (`docs/edge.md`).
//!
//! ```text
//!         Late            Silent             OthersHeard, Declared        TakeoverDone
//!  Up ───────────▶ Suspect ─────▶ Blind ─────────────────────────▶ Failing ──────────▶ Down
//!   ▲ ◀── Heard ──────┘             │                                  │                 │
//!   ├◀───────── Heard ──────────────┘                                  │                 │
//!   └◀───────────────────────────── Returned ──────────────────────────┴─────────────────┘
//! ```
//!
//! `Declared` also leads from Up and from Suspect to Failing, and `Silent` from Up to Blind. If no string is usable and none is heard, all
//! strings become Blind again (NoneLeft).

/// State of a string at one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringPhase {
    /// The string's flows use it.
    Up,
    /// Heartbeats are missing. The string's flows use it, and their packets are cached.
    Suspect,
    /// The string is silent, and no other string is known to be better. So its flows still use it.
    Blind,
    /// The string has failed. Packets of its flows are cached and dropped until the takeover is done.
    Failing,
    /// The string's flows have been moved to other strings.
    Down,
}

/// Events that change the state of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseEvent {
    /// A heartbeat arrived over the string. On a Blind string, a heartbeat counts only if it says that the other edge hears the string,
    /// too.
    Heard,
    /// Enough heartbeats are missing for a suspicion.
    Late,
    /// Enough heartbeats are missing for a failure.
    Silent,
    /// Another string has been heard for long enough.
    OthersHeard,
    /// The other edge has declared the failure.
    Declared,
    /// The string's flows get other strings now.
    TakeoverDone,
    /// Both edges have heard the string for long enough.
    Returned,
    /// No string is usable, and none is heard.
    NoneLeft,
}

impl StringPhase {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Up, Self::Suspect, Self::Blind, Self::Failing, Self::Down];

    /// The state after an event.
    pub(super) const fn after(self, event: PhaseEvent) -> Self {
        use PhaseEvent::{Declared, Heard, Late, NoneLeft, OthersHeard, Returned, Silent, TakeoverDone};
        match (self, event) {
            (Self::Up, Heard | OthersHeard | TakeoverDone | Returned | NoneLeft) => Self::Up,
            (Self::Up, Late) => Self::Suspect,
            (Self::Suspect, Heard | Returned) => Self::Up,
            (Self::Suspect, Late | OthersHeard | TakeoverDone | NoneLeft) => Self::Suspect,
            (Self::Up | Self::Suspect, Silent) => Self::Blind,
            (Self::Blind, Heard | Returned) => Self::Up,
            (Self::Blind, Late | Silent | TakeoverDone | NoneLeft) => Self::Blind,
            (Self::Blind, OthersHeard) => Self::Failing,
            (Self::Up | Self::Suspect | Self::Blind, Declared) => Self::Failing,
            // A heartbeat does not stop a failover that has begun.
            (Self::Failing, Heard | Late | Silent | OthersHeard | Declared) => Self::Failing,
            (Self::Failing, TakeoverDone) => Self::Down,
            (Self::Down, Heard | Late | Silent | OthersHeard | Declared | TakeoverDone) => Self::Down,
            (Self::Failing | Self::Down, Returned) => Self::Up,
            (Self::Failing | Self::Down, NoneLeft) => Self::Blind,
        }
    }

    /// Whether flows may use a string in this state.
    pub const fn is_usable(self) -> bool {
        match self {
            Self::Up | Self::Suspect | Self::Blind => true,
            Self::Failing | Self::Down => false,
        }
    }

    /// The state's name, for people and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Blind => "blind",
            Self::Failing => "failing",
            Self::Down => "down",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::diagram::{assert_shown, graphviz};

    const EVENTS: [PhaseEvent; 8] = [
        PhaseEvent::Heard,
        PhaseEvent::Late,
        PhaseEvent::Silent,
        PhaseEvent::OthersHeard,
        PhaseEvent::Declared,
        PhaseEvent::TakeoverDone,
        PhaseEvent::Returned,
        PhaseEvent::NoneLeft,
    ];

    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for state in StringPhase::ALL {
            write!(table, "{:8}", state.name()).expect("text");
            for event in EVENTS {
                write!(table, " {event:?}→{}", state.after(event).name()).expect("text");
            }
            writeln!(table).expect("text");
        }
        insta::assert_snapshot!(table, @r"
        up       Heard→up Late→suspect Silent→blind OthersHeard→up Declared→failing TakeoverDone→up Returned→up NoneLeft→up
        suspect  Heard→up Late→suspect Silent→blind OthersHeard→suspect Declared→failing TakeoverDone→suspect Returned→up NoneLeft→suspect
        blind    Heard→up Late→blind Silent→blind OthersHeard→failing Declared→failing TakeoverDone→blind Returned→up NoneLeft→blind
        failing  Heard→failing Late→failing Silent→failing OthersHeard→failing Declared→failing TakeoverDone→down Returned→up NoneLeft→blind
        down     Heard→down Late→down Silent→down OthersHeard→down Declared→down TakeoverDone→down Returned→up NoneLeft→blind
        ");
    }

    #[test]
    fn the_documents_show_this_table() {
        let leads = |phase: StringPhase, event: PhaseEvent| {
            let next = phase.after(event);
            (next != phase).then(|| (next, format!("{event:?}")))
        };
        let usable: Vec<_> = StringPhase::ALL
            .into_iter()
            .filter(|phase| phase.is_usable())
            .collect();
        let graph = graphviz("strings", (&StringPhase::ALL, &usable), &EVENTS, leads);
        assert_shown("edge-strings", &graph);
    }
}
