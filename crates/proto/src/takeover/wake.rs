//! The packets that wake a client.

use crate::connection::{Connection, Endpoint};
use crate::packet::{Flags, Segment, TcpOptions, Timestamps};
use crate::{Instant, Seq};

/// Initial window, in segments (RFC 6928).
const FIRST: usize = 10;
/// Bytes that the timestamps option takes in each segment, with its padding (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;

/// The packets that wake a client.
///
/// The first packet is a duplicate acknowledgement with seq = SND.NXT. It wakes a client whose retransmission timer has backed off; a
/// window probe would not (docs/KERNEL.md). The packet offers the old primary's window, or the `offered` bytes of the restored socket if
/// that is more. If the window was closed, no other packet would open it.
///
/// The next packets carry the beginning of the output that the client has not acknowledged. Packets that were on their way when the primary
/// died may be lost, and the restored socket has no estimate of the path yet, so the socket would resend them only after its first timeout.
/// A client that has these bytes drops them.
pub fn wake(connection: &Connection, offered: u32, now: Instant) -> Vec<Vec<u8>> {
    let endpoint = connection.endpoint();
    let output = connection.unacknowledged_output(&endpoint).flatten();
    let output: Vec<u8> = output.copied().take(output_max(&endpoint)).collect();
    let acknowledged = endpoint.send_unacknowledged;
    wake_from((&endpoint, &output), acknowledged, offered, now)
}

/// Maximum number of bytes of output in the packets that wake a client.
fn output_max(endpoint: &Endpoint) -> usize {
    FIRST * size_of_payload(endpoint)
}

fn size_of_payload(endpoint: &Endpoint) -> usize {
    let options = endpoint.timestamps.map_or(0, |_| TIMESTAMPS);
    usize::from(endpoint.mss).saturating_sub(options).max(1)
}

/// As [`wake`], for a socket that was made from `endpoint` with this unacknowledged `output`. The client has acknowledged all output before
/// `acknowledged` since.
///
/// The socket must learn such an acknowledgement: until then, it counts this output as under way, and may send nothing else. So the packets
/// begin with the last byte that the client has acknowledged. Linux always answers a segment with old data at once, but it leaves window probes
/// unanswered that come within half a second.
pub fn wake_from(
    (endpoint, output): (&Endpoint, &[u8]),
    acknowledged: Seq,
    offered: u32,
    now: Instant,
) -> Vec<Vec<u8>> {
    let acknowledgement = acknowledgement(endpoint, offered, now);
    let more = u32::try_from(acknowledged.distance_from(endpoint.send_unacknowledged)).unwrap_or(0);
    let known = more.saturating_sub(1);
    let output = output.get(known as usize..).unwrap_or_default();
    let output = &output[..output.len().min(output_max(endpoint))];
    let mut seq = endpoint.send_unacknowledged + known;
    let segments = output.chunks(size_of_payload(endpoint)).map(|payload| {
        let segment = Segment {
            seq,
            payload,
            ..acknowledgement
        };
        seq = seq + u32::try_from(payload.len()).unwrap_or(0);
        segment.emit()
    });
    std::iter::once(acknowledgement.emit()).chain(segments).collect()
}

fn acknowledgement(endpoint: &Endpoint, offered: u32, now: Instant) -> Segment<'static> {
    let shift = endpoint.window_scale.map_or(0, |(_, ours)| ours);
    let sent = endpoint.unacknowledged.end.since(endpoint.unacknowledged.start);
    let edge = endpoint.receive_window_from + endpoint.receive_window;
    let left = u32::try_from(edge.distance_from(endpoint.receive_next)).unwrap_or(0);
    let window = left.div_ceil(1 << shift).max(offered >> shift);
    Segment {
        source: endpoint.vip,
        destination: endpoint.client,
        seq: endpoint.send_unacknowledged + u32::try_from(sent).unwrap_or(0),
        ack: endpoint.receive_next,
        flags: Flags::ACK,
        window: u16::try_from(window).unwrap_or(u16::MAX),
        options: TcpOptions {
            timestamps: endpoint.timestamps.map(|clock| Timestamps {
                value: clock.value_at(now),
                echo: clock.echo,
            }),
            ..TcpOptions::default()
        },
        payload: &[],
    }
}
