//! Converts a [`StageStatus`] into a page of metrics. docs/operating.md says what each metric means.

use super::page::{MetricsPage, number};
use crate::stage::StageStatus;

/// The page of metrics of a stage.
pub fn stage_exposition(status: &StageStatus) -> String {
    let page = MetricsPage::new();
    let application = status.application.to_string();
    page.gauge(
        "steadfast_stage_info",
        "The stage's application, and the version that the stage runs.",
        &["application", "version"],
        [(vec![application.as_str(), env!("CARGO_PKG_VERSION")], 1.0)],
    );
    page.gauge(
        "steadfast_stage_connections",
        "Connections of clients that are open.",
        &[],
        [(vec![], number(status.connections))],
    );
    page.counter(
        "steadfast_stage_connections_total",
        "Connections of clients: accepted ones, and those of them that went on from a point that the other node had exported.",
        &["event"],
        [("accepted", status.accepted), ("restored", status.restored)]
            .map(|(event, count)| (vec![event], number(count))),
    );
    page.counter(
        "steadfast_stage_exports_total",
        "Points of connections, such as whole replies: kept by the backup, without a backup, and attempts that failed.",
        &["outcome"],
        [
            ("kept", status.kept),
            ("without_backup", status.without_backup),
            ("failed", status.not_exported),
        ]
        .map(|(outcome, count)| (vec![outcome], number(count))),
    );
    page.counter(
        "steadfast_stage_unanswered_total",
        "Requests that the application did not answer.",
        &[],
        [(vec![], number(status.unanswered))],
    );
    page.text()
}
