//! `steadfast annex`, and what `steadfast status` shows of it.

use std::path::Path;

use super::cli::SessionOptions;
use super::connect::alone;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, fold};
use crate::annex;
use crate::config::AnnexFile;
use crate::control::{AnnexDaemonStatus, HostedServiceStatus};

/// Checks everything, and runs the annex of the file.
pub(super) fn run(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let file = AnnexFile::load(&options.config)?;
    alone(("annex", &file.name), &file.state_dir, || annex::run(&file))
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(path: &Path) -> Result<(), CommandError> {
    let file = AnnexFile::load(path)?;
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
    text + &table.fitted()
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
            ..service.clone()
        };
        let status = AnnexDaemonStatus {
            annex: "gamma".to_owned(),
            listen: "10.0.0.4:7402".parse().unwrap(),
            services: vec![service, linked, carried],
        };
        assert_eq!(
            status_text(&status),
            "annex gamma, listens at 10.0.0.4:7402\n\n\
             SERVICE  ADDRESS        POLICY    PACKETS PASS                 CONNECTIONS\n\
             web      10.0.0.100:80  snapshot  NO WIRE has called                     7\n\
             web      10.0.0.100:80  snapshot  wire 10.0.0.3                          7\n\
             web      10.0.0.100:80  snapshot  primary 10.0.0.3, LINK LOST            7\n"
        );
    }
}
