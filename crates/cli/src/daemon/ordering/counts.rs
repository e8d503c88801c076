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

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, SocketAddr};

    use proto::order::{SERVER_STREAM, StreamCause, StreamMerger};

    use super::super::frames::send;
    use super::*;

    /// A service whose backup has got a record, after its library has reported one divergence.
    fn after_a_divergence(policy: OnDivergence, record: &[u8], is_server: bool) -> OrderedService {
        let any = SocketAddr::from(([127, 0, 0, 1], 1));
        let service = OrderedService::new(0, (any, any, any), policy, None);
        service.state().add_arrivals(record);
        let (library, agent) = UnixStream::pair().unwrap();
        let counts = [&7_u64.to_le_bytes()[..], &1_u64.to_le_bytes(), b"a read"].concat();
        send(&library, COUNTS, &counts).unwrap();
        library.shutdown(Shutdown::Write).unwrap();
        hear_counts(&service, &agent, is_server, || {});
        assert_eq!(service.state().divergences, 1);
        service
    }

    #[test]
    fn a_server_that_diverges_leaves_its_record_unless_children_have_streams() {
        let mut merger = StreamMerger::default();
        let of_server = merger.add(SERVER_STREAM, b"fork");
        assert!(merger.open(
            5,
            StreamCause {
                parent: SERVER_STREAM,
                len: 4
            }
        ));
        let of_child = [of_server.clone(), merger.add(5, b"child")].concat();
        let leaves = |policy, record: &[u8], is_server| {
            after_a_divergence(policy, record, is_server).state().has_diverged
        };
        assert!(leaves(OnDivergence::Unprotect, &of_server, true));
        assert!(
            !leaves(OnDivergence::Unprotect, &of_child, true),
            "children go on"
        );
        assert!(
            !leaves(OnDivergence::Unprotect, &of_server, false),
            "a child alone"
        );
        assert!(!leaves(OnDivergence::TrustLog, &of_server, true));
    }
}
