//! A service as its own table describes it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proto::follower::RestartPolicy;
use proto::restart::http::Reexecute;

use super::{
    AfterTakeover, AnnexSettings, AtLimitSetting, Commit, CutReplies, HealthSettings, NodeRole,
    OpaqueSetting, RecordedOrderSettings, ServiceSettings, StateSyncSettings,
};

/// A service as its own table describes it. [`super::relations`] adds what depends on other tables.
pub(super) struct Draft {
    pub(super) name: Option<String>,
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) interface: Option<String>,
    pub(super) policy: Option<RestartPolicy>,
    pub(super) primary: Option<String>,
    pub(super) peer: Option<String>,
    pub(super) peer_address: Option<IpAddr>,
    pub(super) application: Option<SocketAddr>,
    pub(super) staged_application: Option<SocketAddr>,
    pub(super) volatile_headers: Option<Vec<String>>,
    pub(super) reexecute: Option<Reexecute>,
    pub(super) cut_replies: Option<CutReplies>,
    pub(super) after_takeover: Option<AfterTakeover>,
    pub(super) opaque: Option<OpaqueSetting>,
    pub(super) crash_exit_codes: Vec<u8>,
    pub(super) commit: Commit,
    pub(super) at_limit: Option<AtLimitSetting>,
    pub(super) keep_input: Option<bool>,
    pub(super) claim_ping: Vec<IpAddr>,
    pub(super) on_deposed: Vec<String>,
    pub(super) state_sync: Option<StateSyncSettings>,
    pub(super) recorded_order: Option<RecordedOrderSettings>,
    pub(super) health: Option<HealthSettings>,
    pub(super) annexes: Vec<Option<AnnexSettings>>,
    pub(super) registered_annexes: Option<bool>,
}

impl Draft {
    /// Address at which the application listens if the file gives none.
    pub(super) fn default_application(address: IpAddr, port: u16) -> SocketAddr {
        match address {
            IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, port).into(),
            IpAddr::V6(_) => (Ipv6Addr::LOCALHOST, port).into(),
        }
    }

    /// The service, completed with `role`, `peer_address` and `at_limit`. `None` if a field could not be read.
    pub(super) fn finish(
        self,
        role: Option<NodeRole>,
        peer_address: Option<IpAddr>,
        at_limit: AtLimitSetting,
    ) -> Option<ServiceSettings> {
        let (address, port, policy) = (self.address?, self.port?, self.policy?);
        let date = || {
            if policy == RestartPolicy::Http {
                vec!["date".to_owned()]
            } else {
                Vec::new()
            }
        };
        Some(ServiceSettings {
            name: self.name?,
            address,
            port,
            interface: self.interface?,
            policy,
            role: role?,
            peer_address: self.peer_address.or(peer_address)?,
            application: self
                .application
                .unwrap_or_else(|| Self::default_application(address, port)),
            staged_application: self.staged_application,
            volatile_headers: self.volatile_headers.unwrap_or_else(date),
            reexecute: self.reexecute.unwrap_or_default(),
            cut_replies: self.cut_replies.unwrap_or_default(),
            after_takeover: self.after_takeover.unwrap_or_default(),
            opaque: self.opaque.unwrap_or_default(),
            crash_exit_codes: self.crash_exit_codes,
            commit: self.commit,
            at_limit: self.at_limit.unwrap_or(at_limit),
            keep_input: self.keep_input.unwrap_or_default(),
            claim_ping: self.claim_ping,
            on_deposed: self.on_deposed,
            state_sync: self.state_sync,
            recorded_order: self.recorded_order,
            health: self.health,
            annexes: self.annexes.into_iter().collect::<Option<_>>()?,
            registered_annexes: self.registered_annexes.unwrap_or_default(),
        })
    }
}
