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
pub enum ConnectionPhase {
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
pub enum ConnectionEvent {
    /// The local program ends its direction.
    EndSent,
    /// The local program is gone.
    Abort,
    /// END came.
    EndReceived,
    /// RESET came.
    ResetReceived,
}

impl ConnectionPhase {
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
    pub const fn after(self, event: ConnectionEvent) -> Option<Self> {
        match (self, event) {
            (Self::Live, ConnectionEvent::EndSent) => Some(Self::SentEnd),
            (Self::Live, ConnectionEvent::Abort) => Some(Self::Resetting),
            (Self::Live, ConnectionEvent::EndReceived) => Some(Self::GotEnd),
            (Self::SentEnd, ConnectionEvent::Abort) => Some(Self::Discarding),
            (Self::GotEnd, ConnectionEvent::EndSent | ConnectionEvent::Abort)
            | (Self::Live, ConnectionEvent::ResetReceived)
            | (
                Self::SentEnd | Self::Resetting | Self::Discarding,
                ConnectionEvent::EndReceived | ConnectionEvent::ResetReceived,
            ) => Some(Self::Over),
            (Self::SentEnd, ConnectionEvent::EndSent)
            | (Self::GotEnd, ConnectionEvent::EndReceived | ConnectionEvent::ResetReceived)
            | (Self::Resetting | Self::Discarding, ConnectionEvent::EndSent | ConnectionEvent::Abort)
            | (
                Self::Over,
                ConnectionEvent::EndSent
                | ConnectionEvent::Abort
                | ConnectionEvent::EndReceived
                | ConnectionEvent::ResetReceived,
            ) => None,
        }
    }

    /// Whether this end may still send data.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Live | Self::GotEnd)
    }
}

impl ConnectionEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::EndSent, Self::Abort, Self::EndReceived, Self::ResetReceived];
}
