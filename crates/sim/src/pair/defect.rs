//! Ways to break a node on purpose, to see whether the judge or a client notices.

use serde::{Deserialize, Serialize};

/// A defect of a node. The [`Judge`](super::Judge) or a client must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Defect {
    /// The log is not read again once a socket is ready.
    SkipSecondDrain,
    /// Input that came since the socket was made is not fed to it.
    ForgetLateInput,
    /// SND.UNA is one too large.
    SendUnacknowledgedAhead,
    /// SND.UNA is one too small.
    SendUnacknowledgedBehind,
    /// The last bytes that were sent are forgotten.
    ForgetSentTail,
    /// The gate is closed only when all connections are decided.
    GateLast,
    /// A socket is made ready only after it was activated.
    ReadyLast,
    /// The timestamp clock is set back.
    TimestampBehind,
    /// The window starts at the socket's own size.
    ForgetWindow,
    /// The log is not read when the gate is closed, nor later.
    SkipDrains,
    /// A packet that cannot be logged is released all the same.
    ReleaseUnlogged,
    /// A SYN is released without being logged.
    ForgetSyn,
    /// The primary's packets may pass beside the wire.
    BypassWire,
    /// The peer's later epoch is taken for an earlier one.
    IgnoreEpoch,
    /// A node that is refused the right to speak speaks all the same.
    IgnoreVerdict,
    /// A node that took over continues to speak when its lease is over.
    SpeakOn,
    /// The lease runs from when the primary's answer was heard, not from when the answer was asked for.
    LeaseFromHearing,
    /// A node that comes back does not wait for the other one to become its primary.
    WithoutConsent,
    /// A dying process' FIN and RST go out.
    DeathSpeaks,
    /// A new agent does not report the connections whose process died before.
    ForgetOrphans,
    /// A new agent trusts the gate that it finds, however long no agent was there.
    TrustGate,
    /// A wire's new agent speaks for connections that it took over before the primary has answered it.
    TrustLease,
    /// A wire that leaves continues to speak until its lease is over.
    LeaveLate,
    /// A SYN that the server had long before is taken for the beginning of a connection.
    TrustSyn,
    /// A takeover continues though the right to speak has ended.
    DecideMute,
    /// An agent that was stopped trusts its gate, however long it was away.
    TrustAbsence,
    /// Under `fail-stop` a wire speaks for connections of a dead worker without end.
    AdoptForever,
    /// A node in doubt takes the silence of the other node's agent for death, though that node's kernel answers.
    ClaimInDoubt,
    /// An agent does not notice that its clock stood still.
    IgnorePause,
    /// The two nodes are taken to hear each other through the service's network.
    IgnoreMeet,
    /// An outside host is taken to have answered, so a node that clients do not reach asks the arbiter.
    TrustOutside,
    /// The gate is not told whose connections are being decided, so the SYNs of all clients wait.
    NeverTold,
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

    /// Defects that only the swarm has found, in scenarios of their own (`tests/swarm_found`).
    pub const FOUND: [Self; 12] = [
        Self::ForgetOrphans,
        Self::TrustGate,
        Self::TrustLease,
        Self::LeaveLate,
        Self::TrustSyn,
        Self::DecideMute,
        Self::TrustAbsence,
        Self::AdoptForever,
        Self::ClaimInDoubt,
        Self::IgnorePause,
        Self::IgnoreMeet,
        Self::TrustOutside,
    ];

    /// All other defects of a node.
    pub const NODE: [Self; 11] = [
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
    ];
}
