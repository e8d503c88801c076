//! The counts that a process which plays a record back reports.

use std::os::unix::net::UnixStream;

use proto::order::OnDivergence;
use proto::order::frames::COUNTS;

use super::frames::await_frame;
use super::state::OrderedService;

/// Takes the counts of a process that plays its stream back, until it ends. Then calls `at_end`. `is_server`: the process is the server, not
/// a child of it.
pub(super) fn hear_counts(
    service: &OrderedService,
    stream: &UnixStream,
    is_server: bool,
    at_end: impl FnOnce(),
) {
    let mut last = (0, 0);
    while let Ok((kind, payload)) = await_frame(stream) {
        let number = |at: usize| {
            let bytes = payload.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if kind == COUNTS
            && let (Some(played), Some(divergences)) = (number(0), number(8))
        {
            let mut state = service.state();
            state.played += played.saturating_sub(last.0);
            state.divergences += divergences.saturating_sub(last.1);
            let leaves = is_server && divergences > 0 && service.on_divergence == OnDivergence::Unprotect;
            // Children go on with their streams, and each one's connection is judged by its output.
            if leaves && !state.arrivals.streams().has_children() {
                state.leave_record();
            }
            drop(state);
            service.notify();
            last = (played, divergences);
            if divergences > 0 {
                let first = String::from_utf8_lossy(&payload[16..]);
                tracing::warn!(vip = %service.vip, divergences, %first, "the replica's server diverges from the record");
            }
        }
    }
    at_end();
}
