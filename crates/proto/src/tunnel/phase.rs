//! The states of a connection at one end of a tunnel. Each end sends exactly one END or RESET per connection.
//!
//! ```text
//!            EndSent               EndReceived, ResetReceived
//!    Live ───────────▶ SentEnd ────────────────────────▶ Over
//!     │ │                │ Abort                          ▲ ▲ ▲
//!     │ │                └─────▶ Discarding ──────────────┘ │ │   data that still comes is dropped
//!     │ │ EndReceived             EndSent, Abort            │ │
//!     │ └──────────▶ GotEnd ────────────────────────────────┘ │
//!     │                └── ResetReceived is a violation       │
//!     ├─ Abort ─▶ Resetting ── EndReceived, ResetReceived ────┤
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
    /// This end has sent RESET.
    Resetting,
    /// This end has sent END, and its application is gone.
    Discarding,
    /// Both directions have ended. The number is free when the peer's CLOSED comes.
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
    pub const ALL: [Self; 6] = [
        Self::Live,
        Self::SentEnd,
        Self::GotEnd,
        Self::Resetting,
        Self::Discarding,
        Self::Over,
    ];

    /// The state after an event. `None` if a correct peer or program does not cause it then.
    pub const fn after(self, event: TunnelPhaseEvent) -> Option<Self> {
        match (self, event) {
            (Self::Live, TunnelPhaseEvent::EndSent) => Some(Self::SentEnd),
            (Self::Live, TunnelPhaseEvent::Abort) => Some(Self::Resetting),
            (Self::Live, TunnelPhaseEvent::EndReceived) => Some(Self::GotEnd),
            (Self::SentEnd, TunnelPhaseEvent::Abort) => Some(Self::Discarding),
            (Self::GotEnd, TunnelPhaseEvent::EndSent | TunnelPhaseEvent::Abort)
            | (Self::Live, TunnelPhaseEvent::ResetReceived)
            | (
                Self::SentEnd | Self::Resetting | Self::Discarding,
                TunnelPhaseEvent::EndReceived | TunnelPhaseEvent::ResetReceived,
            ) => Some(Self::Over),
            (Self::SentEnd, TunnelPhaseEvent::EndSent)
            | (Self::GotEnd, TunnelPhaseEvent::EndReceived | TunnelPhaseEvent::ResetReceived)
            | (Self::Resetting | Self::Discarding, TunnelPhaseEvent::EndSent | TunnelPhaseEvent::Abort)
            | (
                Self::Over,
                TunnelPhaseEvent::EndSent
                | TunnelPhaseEvent::Abort
                | TunnelPhaseEvent::EndReceived
                | TunnelPhaseEvent::ResetReceived,
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
