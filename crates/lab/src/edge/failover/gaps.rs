//! Restart gaps, as captures at both ends show them.

use std::time::Duration;

use serde::Serialize;

use crate::edge::trace::{EdgeTrace, TO_CLIENT, TO_SERVER, TracedFlow};

/// Time by which a packet may be late without having been dropped: the emulator and a busy machine delay packets.
const MARGIN: Duration = Duration::from_millis(20);

/// The failover, in nanoseconds of the captures' clock.
#[derive(Clone, Copy, Debug)]
pub struct FailoverSpan {
    /// When the failure began.
    pub fault_ns: u64,
    /// When the first edge had moved the flows.
    pub completed_ns: u64,
    /// When both edges had moved the flows.
    pub ended_ns: u64,
    /// One-way delay between the two ends.
    pub one_way: Duration,
}

/// The kind of packet that a flow lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowLoss {
    /// The flow's SYN or SYN-ACK.
    Syn,
    /// Only packets after the SYN and the SYN-ACK.
    Data,
}

/// A flow that lost something.
#[derive(Clone, Copy, Debug)]
pub struct HitFlow {
    /// Its index in the trace.
    pub index: usize,
    /// The kind of packet that it lost.
    pub lost: FlowLoss,
    /// Time from the end of the failover at both edges until the next new byte at a receiver, in nanoseconds. 0 if a new byte came after
    /// the first edge had moved the flows but before both had. `None`: no new byte came afterwards.
    pub gap_ns: Option<u64>,
    /// Largest delay that the lab's own emulated cable added to a round trip within the gap, in nanoseconds.
    pub cable_late_ns: u64,
}

/// The flows that lost something in the failover. `cable_late_ns` says how late the lab's own cable was within a gap of this many
/// nanoseconds.
pub fn hit_flows(trace: &EdgeTrace, span: FailoverSpan, cable_late_ns: impl Fn(u64) -> u64) -> Vec<HitFlow> {
    let flows = trace.flows.iter().enumerate();
    let hit = flows.filter_map(|(index, flow)| {
        let lost = span.loss(flow)?;
        let next = flow.next_news(span.completed_ns);
        let gap_ns = next.map(|next| next.saturating_sub(span.ended_ns));
        Some(HitFlow {
            index,
            lost,
            gap_ns,
            cable_late_ns: gap_ns.map_or(0, &cable_late_ns),
        })
    });
    hit.collect()
}

impl FailoverSpan {
    /// Whether a packet that was sent at `sent_ns` was dropped on the way. Its bytes arrived at `came_ns`, in this packet or in a
    /// retransmission. A retransmission arrives only after `completed_ns`, so a packet whose bytes arrived earlier was at most late.
    fn is_dropped(self, sent_ns: u64, came_ns: Option<u64>) -> bool {
        let latest = sent_ns + (self.one_way + MARGIN).as_nanos() as u64;
        came_ns.is_none_or(|came_ns| came_ns > latest.max(self.completed_ns))
    }

    /// The loss of `flow`, if it lost a packet that it still needed.
    fn loss(self, flow: &TracedFlow) -> Option<FlowLoss> {
        let early = self
            .fault_ns
            .saturating_sub((self.one_way + MARGIN).as_nanos() as u64);
        let mut lost = None;
        for direction in [TO_SERVER, TO_CLIENT] {
            let way = &flow.directions[direction];
            for range in &way.sent {
                let may_be_hit = (early..self.completed_ns).contains(&range.at_ns);
                if may_be_hit && self.is_dropped(range.at_ns, way.arrival(range.start)) {
                    if range.start == 0 {
                        return Some(FlowLoss::Syn);
                    }
                    lost = Some(FlowLoss::Data);
                }
            }
        }
        lost.or_else(|| self.is_stalled(flow).then_some(FlowLoss::Data))
    }

    /// Whether no new byte came shortly before the end of the failover, although the flow had begun earlier and continued after the
    /// failover. Such a flow has lost acknowledgements.
    fn is_stalled(self, flow: &TracedFlow) -> bool {
        let still = (self.one_way * 2 + MARGIN).as_nanos() as u64;
        let from = self.completed_ns.saturating_sub(still);
        if flow.opened_ns > from || from < self.fault_ns + still {
            return false;
        }
        flow.next_news(from).is_some_and(|next| next > self.completed_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_only_late_was_not_dropped() {
        let span = FailoverSpan {
            fault_ns: 0,
            completed_ns: 3_000_000_000,
            ended_ns: 3_004_000_000,
            one_way: Duration::from_millis(49),
        };
        assert!(!span.is_dropped(1_000_000, Some(80_000_000)));
        assert!(span.is_dropped(1_000_000, Some(3_001_000_000)));
        assert!(span.is_dropped(1_000_000, None));
        assert!(
            !span.is_dropped(2_990_000_000, Some(3_050_000_000)),
            "it arrived over another string"
        );
    }
}
