//! The states of a session at the client's proxy.
//!
//! ```text
//!           MoveOrdered              OwnerReleased
//!  Served ───────────────▶ Moving ───────────────────▶ Released ─┐
//!   ▲ ▲  ◀── TargetFailed ───┘ └──── OwnerLost ────────▶ Seeking ─┤
//!   │ └───────────────── Committed ────────────────────────────────┘
//! ```

/// State of a session at the client's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhase {
    /// The owner serves the client.
    Served,
    /// The owner serves the client, and another server prepares itself.
    Moving,
    /// The owner has let the session go. A server must be found.
    Released,
    /// The link to the owner is lost. The owner's application may run until its lease ends.
    Seeking,
    /// The session has ended.
    Over,
}

/// Event of a session at the client's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhaseEvent {
    /// A policy or the operator wants the session to move.
    MoveOrdered,
    /// The owner's application does not run any more.
    OwnerReleased,
    /// The link to the owner is lost, or the owner is silent.
    OwnerLost,
    /// The server that was asked does not answer, or refuses.
    TargetFailed,
    /// The proxy has decided that the server that was asked owns the session.
    Committed,
    /// Both directions have ended, or one side has aborted the session.
    Ended,
}

impl ClientPhase {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Served,
        Self::Moving,
        Self::Released,
        Self::Seeking,
        Self::Over,
    ];

    /// The state after an event.
    pub const fn after(self, event: ClientPhaseEvent) -> Self {
        use ClientPhaseEvent::{Committed, Ended, MoveOrdered, OwnerLost, OwnerReleased, TargetFailed};
        match (self, event) {
            (Self::Served, MoveOrdered) => Self::Moving,
            (Self::Served, TargetFailed | Committed) => Self::Served,
            (Self::Moving, TargetFailed | Committed) => Self::Served,
            (Self::Moving, MoveOrdered) => Self::Moving,
            (Self::Served | Self::Moving, OwnerReleased) => Self::Released,
            (Self::Served | Self::Moving, OwnerLost) => Self::Seeking,
            // An owner that has let go stays without the session, whatever happens to its link.
            (Self::Released, MoveOrdered | OwnerReleased | OwnerLost | TargetFailed) => Self::Released,
            (Self::Seeking, MoveOrdered | OwnerReleased | OwnerLost | TargetFailed) => Self::Seeking,
            (Self::Released | Self::Seeking, Committed) => Self::Served,
            (Self::Served | Self::Moving | Self::Released | Self::Seeking, Ended) => Self::Over,
            (Self::Over, MoveOrdered | OwnerReleased | OwnerLost | TargetFailed | Committed | Ended) => {
                Self::Over
            }
        }
    }

    /// Whether a server must be found, because none serves the client.
    pub const fn lacks_server(self) -> bool {
        match self {
            Self::Released | Self::Seeking => true,
            Self::Served | Self::Moving | Self::Over => false,
        }
    }
}

impl ClientPhaseEvent {
    /// All events.
    pub const ALL: [Self; 6] = [
        Self::MoveOrdered,
        Self::OwnerReleased,
        Self::OwnerLost,
        Self::TargetFailed,
        Self::Committed,
        Self::Ended,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::{arrow, assert_shown, graphviz, matrix};

    #[test]
    fn the_table_of_a_proxy() {
        insta::assert_snapshot!(matrix(&ClientPhase::ALL, &ClientPhaseEvent::ALL, ClientPhase::after), @r"
        Served: MoveOrdered Moving, OwnerReleased Released, OwnerLost Seeking, TargetFailed Served, Committed Served, Ended Over
        Moving: MoveOrdered Moving, OwnerReleased Released, OwnerLost Seeking, TargetFailed Served, Committed Served, Ended Over
        Released: MoveOrdered Released, OwnerReleased Released, OwnerLost Released, TargetFailed Released, Committed Served, Ended Over
        Seeking: MoveOrdered Seeking, OwnerReleased Seeking, OwnerLost Seeking, TargetFailed Seeking, Committed Served, Ended Over
        Over: MoveOrdered Over, OwnerReleased Over, OwnerLost Over, TargetFailed Over, Committed Over, Ended Over
        ");
    }

    #[test]
    fn the_documents_show_the_table_of_a_proxy() {
        let bold = [ClientPhase::Served];
        let graph = graphviz(
            "connect_client",
            (&ClientPhase::ALL, &bold),
            &ClientPhaseEvent::ALL,
            arrow(ClientPhase::after),
        );
        assert_shown("connect-client", &graph);
    }
}
