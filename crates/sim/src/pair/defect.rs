//! Ways to break a node on purpose, to see whether the judge or a client notices.

use serde::{Deserialize, Serialize};

/// A defect of a node. The [`Judge`](super::Judge) or a client must notice each defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Defect {
    /// The log is not read again once a socket is ready.
    SkipSecondDrain,
    /// Input that came after the socket was made is not fed to the socket.
    ForgetLateInput,
    /// A restored socket's SND.UNA is one too large.
    SendUnacknowledgedAhead,
    /// A restored socket's SND.UNA is one too small.
    SendUnacknowledgedBehind,
    /// A restored socket lacks the last quarter of the sent bytes that it should repeat.
    ForgetSentTail,
    /// The gate is closed only when all connections are decided.
    GateLast,
    /// A socket is made ready only after it was activated.
    ReadyLast,
    /// A restored socket's timestamp clock is set back.
    TimestampBehind,
    /// A restored socket's window starts at the socket's own size, not at the old socket's window.
    ForgetWindow,
    /// The log is not read when the gate is closed, nor later.
    SkipDrains,
    /// A packet that cannot be logged is released.
    ReleaseUnlogged,
    /// A SYN is released without being logged.
    ForgetSyn,
    /// The primary's packets may pass beside the wire.
    BypassWire,
    /// The peer's later epoch is taken for an earlier one.
    IgnoreEpoch,
    /// A node speaks although it was refused the right to speak.
    IgnoreVerdict,
    /// A node that took over continues to speak when its lease is over.
    SpeakOn,
    /// The lease counts from when the primary's answer arrived, not from when the answered heartbeat was sent.
    LeaseFromHearing,
    /// A returning node does not wait for the other node's consent.
    WithoutConsent,
    /// A dying process' FIN and RST leave the node.
    DeathSpeaks,
    /// A new agent does not report the connections whose process died before the agent started.
    ForgetOrphans,
    /// A new agent trusts the gate that it finds, even if no agent was there for a long time.
    TrustGate,
    /// A wire's new agent speaks for connections that an earlier agent took over, before the primary has answered the new agent.
    TrustLease,
    /// A wire that leaves continues to speak until its lease is over.
    LeaveLate,
    /// A repeated old SYN, which the server had long before, is taken for the beginning of a connection.
    TrustSyn,
    /// A takeover continues though the right to speak has ended.
    DecideMute,
    /// Under `fail-stop`, a node treats the other node as dead when only that node's agent is silent. The other node's kernel still
    /// answers.
    ClaimInDoubt,
    /// A wire's right to speak for connections of a dead worker never ends.
    AdoptForever,
    /// An agent does not notice that its clock stood still.
    IgnorePause,
    /// A node always assumes that both nodes hear each other through the service's network.
    IgnoreMeet,
    /// A node always assumes that an outside host has answered. So a node that clients do not reach asks the arbiter.
    TrustOutside,
    /// The wire is not told which clients' connections are being decided, so the SYNs of all clients wait.
    NeverTold,
    /// Input is not held while the primary's state is copied.
    ReleaseInput,
    /// A primary that sends past the wire goes on when its lease has ended.
    SendDirectlyOn,
    /// A wire does not stop a connection that is to move, so both ends go on speaking meanwhile.
    MoveUnreserved,
    /// An annex says that it has dropped a connection, and does not.
    KeepDropped,
    /// A primary that loses its wire keeps the sockets of connections that were to move back, although no application has them. Their kernel
    /// acknowledges what clients send.
    KeepUnstarted,
    /// An annex does not drop what its wire does not name.
    KeepUnknown,
    /// A wire goes on naming to an annex what it has taken back from the annex.
    NameTakenBack,
    /// A wire speaks for what it takes back from a silent annex before the primary has repeated the number.
    SpeakUnheard,
    /// A connection leaves an annex before the annex has said that it has dropped it.
    LeaveUndropped,
    /// An annex gives a primary connections although it does not know the take-back of which the primary has heard.
    ForgetTakeBack,
    /// An annex obeys a new wire that does not know of all connections that the primary carries.
    ObeyUnknowing,
    /// An annex tells a new wire terms of handshakes without window scaling and timestamps.
    ForgetTerms,
    /// The application of an annex counts its input from one byte too late when it exports its state.
    ExportMisplaced,
    /// An annex does not tell its wire that the process of a connection has died.
    HideDeaths,
    /// A wire takes a connection of a dead process although the connection is on its way to an annex.
    AdoptMoving,
    /// A wire believes that the primary has started each connection that it was asked to start.
    TrustStarts,
    /// A wire takes over what the primary was asked to start over a link that was lost, although the primary has started it.
    DenyStarts,
    /// A primary answers all calls of its wire before it acts on the first one.
    AnswerAtOnce,
}

impl Defect {
    /// Defects of a takeover's steps.
    pub const TAKEOVER: [Self; 9] = [
        Self::SkipSecondDrain,
        Self::ForgetLateInput,
        Self::SendUnacknowledgedAhead,
        Self::SendUnacknowledgedBehind,
        Self::ForgetSentTail,
        Self::GateLast,
        Self::ReadyLast,
        Self::TimestampBehind,
        Self::ForgetWindow,
    ];

    /// Defects that only the swarm has found. Each has its own scenario in `tests/all/swarm_found`.
    pub const FOUND: [Self; 11] = [
        Self::ForgetOrphans,
        Self::TrustGate,
        Self::TrustLease,
        Self::LeaveLate,
        Self::TrustSyn,
        Self::DecideMute,
        Self::ClaimInDoubt,
        Self::AdoptForever,
        Self::IgnorePause,
        Self::IgnoreMeet,
        Self::TrustOutside,
    ];

    /// Defects of moves to annexes and back.
    pub const ANNEX: [Self; 16] = [
        Self::MoveUnreserved,
        Self::KeepDropped,
        Self::KeepUnknown,
        Self::NameTakenBack,
        Self::KeepUnstarted,
        Self::SpeakUnheard,
        Self::LeaveUndropped,
        Self::ForgetTakeBack,
        Self::ObeyUnknowing,
        Self::ForgetTerms,
        Self::ExportMisplaced,
        Self::HideDeaths,
        Self::AdoptMoving,
        Self::TrustStarts,
        Self::DenyStarts,
        Self::AnswerAtOnce,
    ];

    /// All other defects of a node.
    pub const NODE: [Self; 13] = [
        Self::SkipDrains,
        Self::ReleaseUnlogged,
        Self::ForgetSyn,
        Self::BypassWire,
        Self::IgnoreEpoch,
        Self::IgnoreVerdict,
        Self::SpeakOn,
        Self::LeaseFromHearing,
        Self::WithoutConsent,
        Self::DeathSpeaks,
        Self::NeverTold,
        Self::ReleaseInput,
        Self::SendDirectlyOn,
    ];
}
