//! The states of a connection at one end of a tunnel. Per connection, each end sends an END, or a RESET, or an END and later a RESET.
//!
//! ```text
//!            EndSent               EndReceived, ResetReceived
//!    Live ───────────▶ SentEnd ────────────────────────▶ Over ──┐ ResetReceived: it crossed this end's END
//!     │ │                │ Abort                          ▲ ▲ ▲ ◀─┘
//!     │ │                └─────▶ Resetting ───────────────┘ │ │
//!     │ │ EndReceived             EndSent, Abort,           │ │
//!     │ └──────────▶ GotEnd ────────────────────────────────┘ │
//!     │                           ResetReceived (a RESET answers)
//!     ├─ Abort ─▶ Resetting ── EndReceived, ResetReceived ────┤     Resetting: data that still comes is dropped
//!     └─ ResetReceived (a RESET answers) ─────────────────────┘
//! ```

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelPhase {
    /// Both directions are open.
    Live,
    /// This end has sent END.
    SentEnd,
    /// The peer has sent END.
    GotEnd,
    /// This end has sent RESET, perhaps after an END.
    Resetting,
    /// Both directions have ended. The connection's number (its stream) is free again when the peer's CLOSED comes.
    Over,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelPhaseEvent {
    /// The local program ends its direction.
    EndSent,
    /// The local program is gone.
    Abort,
    /// END came.
    EndReceived,
    /// RESET came.
    ResetReceived,
}

impl TunnelPhase {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Live,
        Self::SentEnd,
        Self::GotEnd,
        Self::Resetting,
        Self::Over,
    ];

    /// The state after an event. `None` if no correct peer or program causes the event in this state.
    pub const fn after(self, event: TunnelPhaseEvent) -> Option<Self> {
        match (self, event) {
            (Self::Live, TunnelPhaseEvent::EndSent) => Some(Self::SentEnd),
            (Self::Live | Self::SentEnd, TunnelPhaseEvent::Abort) => Some(Self::Resetting),
            (Self::Live, TunnelPhaseEvent::EndReceived) => Some(Self::GotEnd),
            (
                Self::GotEnd,
                TunnelPhaseEvent::EndSent | TunnelPhaseEvent::Abort | TunnelPhaseEvent::ResetReceived,
            )
            | (Self::Live, TunnelPhaseEvent::ResetReceived)
            | (
                Self::SentEnd | Self::Resetting,
                TunnelPhaseEvent::EndReceived | TunnelPhaseEvent::ResetReceived,
            )
            | (Self::Over, TunnelPhaseEvent::ResetReceived) => Some(Self::Over),
            (Self::SentEnd, TunnelPhaseEvent::EndSent)
            | (Self::GotEnd, TunnelPhaseEvent::EndReceived)
            | (Self::Resetting, TunnelPhaseEvent::EndSent | TunnelPhaseEvent::Abort)
            | (
                Self::Over,
                TunnelPhaseEvent::EndSent | TunnelPhaseEvent::Abort | TunnelPhaseEvent::EndReceived,
            ) => None,
        }
    }

    /// Whether this end may still send data.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Live | Self::GotEnd)
    }
}

impl TunnelPhaseEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::EndSent, Self::Abort, Self::EndReceived, Self::ResetReceived];
}
