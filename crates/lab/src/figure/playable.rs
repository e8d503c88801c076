//! The scenarios that this machine's kernel can play.

use sim::flow::FlowConfig;
use sim::scenario::cluster::ClusterScenario;
use sim::scenario::edge::Sharing;
use sim::scenario::rate::RateScenario;

use crate::edge::rate::StringRatio;

/// The condition that a scenario with `kernel = true` must meet, as text for errors.
pub const LIMITS: &str = "the kernel plays Linux's TCP and the edge's own rate control (the values of scenarios/kernel-*.toml), without \
                          random losses, with default arrivals, and over strings of which one has 1, 1/2 or 1/4 of the failed one's rate";

/// Whether the kernel can play this scenario.
pub fn can_play_cluster(cluster: &ClusterScenario) -> bool {
    cluster.tcp == FlowConfig::linux()
        && cluster.loss == 0.0
        && cluster.first_arrival.is_zero()
        && cluster.last_arrival.is_none()
        && cluster.gap.as_millis() > 0
}

/// Whether the kernel can play this scenario.
pub fn can_play_strings(rate: &RateScenario) -> bool {
    let is_alone = rate.repaired_at.is_none() && rate.recovery.is_none() && rate.jitter.is_zero();
    let is_ours = rate.sharing.is_none_or(|sharing| sharing == Sharing::today());
    rate.tcp == FlowConfig::linux() && is_alone && is_ours && ratio(rate).is_some()
}

/// The ratio of the two strings' rates. `None` if the kernel cannot play this ratio.
pub fn ratio(rate: &RateScenario) -> Option<StringRatio> {
    let [left, failed] = rate.rate_bits_per_s;
    match failed.checked_div(left)? {
        1 => Some(StringRatio::Equal),
        2 => Some(StringRatio::Half),
        4 => Some(StringRatio::Quarter),
        _ => None,
    }
}
