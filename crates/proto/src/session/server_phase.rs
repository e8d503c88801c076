//! The states of a session at one server.
//!
//! ```text
//!  Empty ── Stocked ──▶ Prepared ── Committed ──▶ Live ── Released, LeaseEnded ──▶ Parked
//!                                                  ▲                                │
//!                                                  └────────── Committed ───────────┘
//! ```

/// State of a session at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPhase {
    /// The server has nothing of the session yet.
    Empty,
    /// The server has all that it needs to go on, and waits for the proxy's decision.
    Prepared,
    /// The server owns the session, and its application runs.
    Live,
    /// The server has owned the session, and its application does not run any more. The state is kept.
    Parked,
    /// The session has ended, or another server owns it for good.
    Over,
}

/// Event of a session at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// The state has come: from the owner, from a push, or from the proxy.
    Stocked,
    /// The proxy has decided that this server owns the session.
    Committed,
    /// The proxy or the next owner wants this server to let go.
    Released,
    /// The proxy was not heard for the time of the lease.
    LeaseEnded,
    /// The proxy says that the session is over here, or the application has aborted it.
    Ended,
}

impl ServerPhase {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Empty, Self::Prepared, Self::Live, Self::Parked, Self::Over];

    /// The state after an event.
    pub const fn after(self, event: ServerEvent) -> Self {
        use ServerEvent::{Committed, Ended, LeaseEnded, Released, Stocked};
        match (self, event) {
            // Without a state, this server cannot go on.
            (Self::Empty, Stocked) => Self::Prepared,
            (Self::Empty, Committed | Released | LeaseEnded) => Self::Empty,
            (Self::Prepared, Committed) => Self::Live,
            // A later fetch replaces what an earlier one has brought.
            (Self::Prepared, Stocked | Released | LeaseEnded) => Self::Prepared,
            // A proxy that has lost its link to the owner commits to the same owner: the application goes on.
            (Self::Live, Committed) => Self::Live,
            (Self::Live, Released | LeaseEnded) => Self::Parked,
            // While the application runs, no other state counts.
            (Self::Live, Stocked) => Self::Live,
            (Self::Parked, Committed) => Self::Live,
            (Self::Parked, Stocked) => Self::Prepared,
            (Self::Parked, Released | LeaseEnded) => Self::Parked,
            (Self::Empty | Self::Prepared | Self::Live | Self::Parked, Ended) => Self::Over,
            (Self::Over, Stocked | Committed | Released | LeaseEnded | Ended) => Self::Over,
        }
    }

    /// Whether the session's application runs here.
    pub const fn runs(self) -> bool {
        match self {
            Self::Live => true,
            Self::Empty | Self::Prepared | Self::Parked | Self::Over => false,
        }
    }
}

impl ServerEvent {
    /// All events.
    pub const ALL: [Self; 5] = [
        Self::Stocked,
        Self::Committed,
        Self::Released,
        Self::LeaseEnded,
        Self::Ended,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::{arrow, assert_shown, graphviz, matrix};

    #[test]
    fn the_table_of_a_server() {
        insta::assert_snapshot!(matrix(&ServerPhase::ALL, &ServerEvent::ALL, ServerPhase::after), @r"
        Empty: Stocked Prepared, Committed Empty, Released Empty, LeaseEnded Empty, Ended Over
        Prepared: Stocked Prepared, Committed Live, Released Prepared, LeaseEnded Prepared, Ended Over
        Live: Stocked Live, Committed Live, Released Parked, LeaseEnded Parked, Ended Over
        Parked: Stocked Prepared, Committed Live, Released Parked, LeaseEnded Parked, Ended Over
        Over: Stocked Over, Committed Over, Released Over, LeaseEnded Over, Ended Over
        ");
    }

    #[test]
    fn the_documents_show_the_table_of_a_server() {
        let bold = [ServerPhase::Live];
        let graph = graphviz(
            "connect_server",
            (&ServerPhase::ALL, &bold),
            &ServerEvent::ALL,
            arrow(ServerPhase::after),
        );
        assert_shown("connect-server", &graph);
    }
}
