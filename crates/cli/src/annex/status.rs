//! What an annex tells the operator.

use std::collections::BTreeMap;

use super::AnnexDaemon;
use crate::control::{AnnexDaemonStatus, HostedServiceStatus};
use crate::registry::registrar::Registration;

impl AnnexDaemon<'_> {
    pub(super) fn status(&self) -> AnnexDaemonStatus {
        let services = (0..).zip(&self.services).map(|(index, service)| {
            let counters: BTreeMap<_, _> = self.waiting.counters(index).collect();
            HostedServiceStatus {
                name: service.settings.name.clone(),
                address: service.settings.vip,
                policy: service.settings.policy,
                wire: service.network.as_ref().map(|(wire, _)| *wire),
                is_linked: service.hosted.host.is_linked(),
                is_carried: service.hosted.host.is_carried(),
                epoch: service.hosted.host.epoch(),
                connections: service.hosted.host.started() as u64,
                is_hung: self.health.is_hung(index),
                counters,
            }
        });
        AnnexDaemonStatus {
            annex: self.file.name.clone(),
            listen: self.file.listen,
            registration: self.registration.as_ref().map(Registration::status),
            services: services.collect(),
        }
    }
}
