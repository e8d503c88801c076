//! `steadfast annex`, and what `steadfast status` shows of it.

use std::path::Path;

use super::cli::SessionOptions;
use super::connect::alone;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, fold};
use crate::annex;
use crate::arbiter::witness;
use crate::config::AnnexFile;
use crate::control::{AnnexDaemonStatus, HostedServiceStatus, RegistrationStatus};

/// Checks everything, and runs the annex of the file.
pub(super) fn run(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let file = AnnexFile::load(&options.config)?;
    alone(("annex", &file.name), &file.state_dir, || annex::run(&file))
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(path: &Path) -> Result<(), CommandError> {
    let file = AnnexFile::load(path)?;
    if let Some(registry) = &file.registry {
        // The annex may start anyway: it registers when etcd answers.
        for fault in witness::unreachable(&registry.etcd).map_err(CommandError::Failed)? {
            tell(format_args!(
                "{}: warning: registry.endpoints: {fault}",
                path.display()
            ));
        }
    }
    tell(format_args!(
        "{}: annex {}, {} services: all right",
        path.display(),
        file.name,
        file.services.len()
    ));
    Ok(())
}

/// The status of an annex as text.
pub(super) fn status_text(status: &AnnexDaemonStatus) -> String {
    let mut text = fold(
        &format!("annex {}, listens at {}", status.annex, status.listen),
        4,
    );
    if let Some(registration) = &status.registration {
        text += &fold(&registration_text(registration), 4);
    }
    text.push('\n');
    let mut table = TextTable::new(&[
        ("SERVICE", Align::Left),
        ("ADDRESS", Align::Left),
        ("POLICY", Align::Left),
        ("PACKETS PASS", Align::Left),
        ("CONNECTIONS", Align::Right),
    ]);
    for service in &status.services {
        table.row([
            service.name.clone(),
            service.address.to_string(),
            service.policy.to_string(),
            way(service),
            service.connections.to_string(),
        ]);
    }
    text += &table.fitted();
    for service in status.services.iter().filter(|service| service.is_hung) {
        let name = &service.name;
        text += &fold(
            &format!("{name}: the APPLICATION DOES NOT ANSWER, so no connection can move here"),
            4,
        );
    }
    text
}

/// How the registration in etcd stands.
fn registration_text(registration: &RegistrationStatus) -> String {
    let RegistrationStatus { key, address, .. } = registration;
    if registration.is_registered {
        return format!("registered at {address}: {key}");
    }
    let since = registration.kept_age_ns.map_or_else(
        || "never was".to_owned(),
        |age| format!("last was {} s ago", age / 1_000_000_000),
    );
    let why = registration.error.as_deref().unwrap_or("no answer yet");
    format!("NOT REGISTERED, {since}: {key}: {why}")
}

/// Through which node the packets of a service's connections pass.
fn way(service: &HostedServiceStatus) -> String {
    let Some(wire) = service.wire else {
        return "NO WIRE has called".to_owned();
    };
    let kind = if service.is_carried { "primary" } else { "wire" };
    let link = if service.is_linked { "" } else { ", LINK LOST" };
    format!("{kind} {wire}{link}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::follower::RestartPolicy;

    use super::*;

    #[test]
    fn the_status_says_where_packets_pass() {
        let service = HostedServiceStatus {
            name: "web".to_owned(),
            address: "10.0.0.100:80".parse().unwrap(),
            policy: RestartPolicy::Snapshot,
            wire: None,
            is_linked: false,
            is_carried: false,
            epoch: 3,
            connections: 7,
            is_hung: false,
            counters: BTreeMap::new(),
        };
        let wire = Some("10.0.0.3".parse().unwrap());
        let linked = HostedServiceStatus {
            wire,
            is_linked: true,
            ..service.clone()
        };
        let carried = HostedServiceStatus {
            wire,
            is_carried: true,
            is_hung: true,
            ..service.clone()
        };
        let status = AnnexDaemonStatus {
            annex: "gamma".to_owned(),
            listen: "10.0.0.4:7402".parse().unwrap(),
            registration: None,
            services: vec![service, linked, carried],
        };
        assert_eq!(
            status_text(&status),
            "annex gamma, listens at 10.0.0.4:7402\n\n\
             SERVICE  ADDRESS        POLICY    PACKETS PASS                 CONNECTIONS\n\
             web      10.0.0.100:80  snapshot  NO WIRE has called                     7\n\
             web      10.0.0.100:80  snapshot  wire 10.0.0.3                          7\n\
             web      10.0.0.100:80  snapshot  primary 10.0.0.3, LINK LOST            7\n\
             web: the APPLICATION DOES NOT ANSWER, so no connection can move here\n"
        );
    }

    #[test]
    fn the_status_says_whether_the_annex_is_registered() {
        let registration = RegistrationStatus {
            key: "/steadfast/annexes/gamma".to_owned(),
            address: "10.0.0.4:7402".parse().unwrap(),
            is_registered: true,
            kept_age_ns: Some(2_000_000_000),
            error: None,
        };
        assert_eq!(
            registration_text(&registration),
            "registered at 10.0.0.4:7402: /steadfast/annexes/gamma"
        );
        let failing = RegistrationStatus {
            is_registered: false,
            error: Some("no answer within 1s".to_owned()),
            ..registration
        };
        assert_eq!(
            registration_text(&failing),
            "NOT REGISTERED, last was 2 s ago: /steadfast/annexes/gamma: no answer within 1s"
        );
        let never = RegistrationStatus {
            kept_age_ns: None,
            error: None,
            ..failing
        };
        let status = AnnexDaemonStatus {
            annex: "gamma".to_owned(),
            listen: "10.0.0.4:7402".parse().unwrap(),
            registration: Some(never),
            services: Vec::new(),
        };
        let text = status_text(&status);
        let expected = "annex gamma, listens at 10.0.0.4:7402\n\
             NOT REGISTERED, never was: /steadfast/annexes/gamma: no answer yet\n\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
