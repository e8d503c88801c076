//! Tests that exchange segments with an endpoint. Each test lists the segments in and out in their order in time.

use std::time::Duration;

use proto::packet::{Checksum, Flags, Segment, TcpOptions, Timestamps};
use proto::{Instant, Seq};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Sequence numbers of the endpoint's SYN and of the peer's SYN. The streams start one number later. The peer's numbers soon wrap.
const OURS: Seq = Seq(1_000_000);
const THEIRS: Seq = Seq(u32::MAX - 5);

/// A segment that an endpoint sent, with numbers relative to the SYNs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    seq: u32,
    len: usize,
    ack: u32,
    flags: Flags,
    window: u16,
    options: TcpOptions,
}

impl Sent {
    /// Sequence number and length, which is what most tests ask for.
    fn at(&self) -> (u32, usize) {
        (self.seq, self.len)
    }
}

/// An endpoint, and the test that plays its peer.
struct EndpointTest {
    endpoint: TcpEndpoint,
    now: Instant,
}

impl EndpointTest {
    fn new(endpoint: TcpEndpoint) -> Self {
        Self {
            endpoint,
            now: Instant::ZERO,
        }
    }

    /// An endpoint that has connected to a peer with a window of 20 segments of 1000 bytes.
    fn established(config: TcpConfig) -> Self {
        let mut talk = Self::new(connecting(config));
        talk.sent();
        talk.say(syn_ack());
        assert_eq!(talk.endpoint.state(), EndpointState::Established);
        talk.sent();
        talk
    }

    /// The peer sends a segment, with numbers relative to the SYNs.
    fn say(&mut self, segment: Segment<'_>) {
        let segment = Segment {
            seq: THEIRS + segment.seq.0,
            ack: OURS + segment.ack.0,
            ..segment
        };
        self.endpoint.handle_packet(self.now, &segment.emit()).unwrap();
    }

    /// All segments that the endpoint sends now.
    fn sent(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(packet) = self.endpoint.poll_transmit(self.now) {
            let segment = Segment::parse(&packet, Checksum::Unverified).unwrap();
            sent.push(Sent {
                seq: segment.seq.0.wrapping_sub(OURS.0),
                len: segment.payload.len(),
                ack: segment.ack.0.wrapping_sub(THEIRS.0),
                flags: segment.flags,
                window: segment.window,
                options: segment.options,
            });
        }
        sent
    }

    fn sent_at(&mut self) -> Vec<(u32, usize)> {
        self.sent().iter().map(Sent::at).collect()
    }

    /// Lets time pass and handles the timers that expire.
    fn wait(&mut self, duration: Duration) {
        let until = self.now + duration;
        while let Some(at) = self.endpoint.poll_timeout().filter(|at| *at <= until) {
            self.now = at;
            self.endpoint.handle_timeout(at);
            if self.endpoint.poll_transmit(at).is_some() {
                panic!("something was sent at {at:?}, before the time was over");
            }
        }
        self.now = until;
    }

    /// Lets time pass until the endpoint wants to be called. Returns how long that took.
    fn wait_for_timeout(&mut self) -> Duration {
        let at = self.endpoint.poll_timeout().expect("a timer");
        let waited = at.since(self.now);
        self.now = at;
        self.endpoint.handle_timeout(at);
        waited
    }

    fn fail_by(&mut self, segment: Segment<'_>) -> Option<TcpFailure> {
        self.say(segment);
        self.endpoint.failure()
    }
}

fn config() -> TcpConfig {
    TcpConfig {
        mss: 1000,
        window_scale: None,
        sack: false,
        timestamps: false,
        receive_buffer: 10_000,
        ..TcpConfig::default()
    }
}

fn connecting(config: TcpConfig) -> TcpEndpoint {
    let initial = Initial {
        seq: OURS,
        timestamp: 500,
    };
    let (local, remote) = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    TcpEndpoint::connect(config, local, remote, initial)
}

/// A segment from the peer.
fn segment(seq: u32, payload: &[u8], ack: u32) -> Segment<'_> {
    Segment {
        source: "10.0.0.2:80".parse().unwrap(),
        destination: "10.0.0.1:1000".parse().unwrap(),
        seq: Seq(seq),
        ack: Seq(ack),
        flags: Flags::ACK,
        window: 20_000,
        options: TcpOptions::default(),
        payload,
    }
}

fn syn_ack() -> Segment<'static> {
    Segment {
        flags: Flags::SYN_ACK,
        options: TcpOptions {
            mss: Some(1000),
            ..TcpOptions::default()
        },
        ..segment(0, b"", 1)
    }
}

fn fin(seq: u32, ack: u32) -> Segment<'static> {
    Segment {
        flags: Flags::FIN_ACK,
        ..segment(seq, b"", ack)
    }
}

fn rst(seq: u32) -> Segment<'static> {
    Segment {
        flags: Flags::RST,
        ..segment(seq, b"", 0)
    }
}

fn stamped(segment: Segment<'_>, value: u32, echo: u32) -> Segment<'_> {
    let options = TcpOptions {
        timestamps: Some(Timestamps { value, echo }),
        ..segment.options
    };
    Segment { options, ..segment }
}

#[test]
fn the_handshake_agrees_on_what_both_offer() {
    let mut talk = EndpointTest::new(connecting(TcpConfig {
        window_scale: Some(3),
        sack: true,
        timestamps: true,
        receive_buffer: 1_000_000,
        ..config()
    }));
    let syn = talk.sent();
    assert_eq!(
        (syn[0].at(), syn[0].flags, syn[0].window),
        ((0, 0), Flags::SYN, 65_535)
    );
    let offered = TcpOptions {
        mss: Some(1000),
        window_scale: Some(3),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 500, echo: 0 }),
        ..TcpOptions::default()
    };
    assert_eq!(syn[0].options, offered);
    talk.now += 7 * MS;
    talk.say(stamped(
        Segment {
            options: TcpOptions {
                mss: Some(600),
                window_scale: Some(2),
                ..TcpOptions::default()
            },
            ..syn_ack()
        },
        77,
        500,
    ));
    let ack = talk.sent();
    assert_eq!((ack[0].at(), ack[0].ack, ack[0].flags), ((1, 0), 1, Flags::ACK));
    assert_eq!(
        ack[0].options.timestamps,
        Some(Timestamps { value: 507, echo: 77 })
    );
    assert_eq!(ack[0].window, 65_535); // in units of 8 bytes now
    assert_eq!(talk.endpoint.round_trip(), Some(7 * MS));
    // SACK was refused, so a gap is not reported. Segments leave room for the timestamp.
    talk.say(stamped(segment(100, b"early", 1), 78, 507));
    assert_eq!(talk.sent()[0].options.sack, [None; 4]);
    talk.endpoint.write(&[0; 1000]);
    assert_eq!(talk.sent_at(), [(1, 588), (589, 412)]);
}

#[test]
fn what_the_peer_does_not_offer_is_off() {
    let mut talk = EndpointTest::established(TcpConfig {
        window_scale: Some(7),
        sack: true,
        timestamps: true,
        ..config()
    });
    talk.say(segment(1, b"hello", 1));
    talk.say(segment(6, b"hello", 1));
    let ack = talk.sent();
    assert_eq!((ack[0].options, ack[0].window), (TcpOptions::default(), 9_990));
}

#[test]
fn a_listener_answers_a_syn_until_it_is_acknowledged() {
    let syn = Segment {
        seq: THEIRS,
        ack: Seq(0),
        flags: Flags::SYN,
        ..segment(0, b"", 0)
    };
    let initial = Initial {
        seq: OURS,
        timestamp: 0,
    };
    let accept = |segment| TcpEndpoint::accept(config(), initial, &segment, Instant::ZERO);
    assert!(accept(segment(0, b"", 0)).is_none() && accept(rst(0)).is_none() && accept(syn_ack()).is_none());
    let mut talk = EndpointTest::new(accept(syn).unwrap());
    let answer = talk.sent();
    assert_eq!(
        (answer[0].at(), answer[0].ack, answer[0].flags),
        ((0, 0), 1, Flags::SYN_ACK)
    );
    assert_eq!(talk.wait_for_timeout(), 1000 * MS);
    assert_eq!(talk.sent()[0].flags, Flags::SYN_ACK);
    talk.say(Segment {
        flags: Flags::SYN,
        ..segment(0, b"", 0)
    });
    assert_eq!(talk.sent()[0].flags, Flags::SYN_ACK);
    talk.say(segment(1, b"", 2)); // acknowledges something that was never sent
    let reset = talk.sent();
    assert_eq!((reset[0].seq, reset[0].flags), (2, Flags::RST));
    talk.say(segment(1, b"request", 1));
    assert_eq!(
        (talk.endpoint.state(), talk.endpoint.readable()),
        (EndpointState::Established, 7)
    );
}

#[test]
fn two_syns_that_cross_make_one_connection() {
    let mut talk = EndpointTest::new(connecting(config()));
    talk.sent();
    talk.say(Segment {
        flags: Flags::SYN,
        ..segment(0, b"", 0)
    });
    assert_eq!(talk.endpoint.state(), EndpointState::SynReceived);
    assert_eq!(talk.sent()[0].flags, Flags::SYN_ACK);
    talk.say(syn_ack());
    assert_eq!(talk.endpoint.state(), EndpointState::Established);
}

#[test]
fn an_unanswered_syn_is_repeated_and_given_up() {
    let mut talk = EndpointTest::new(connecting(config()));
    talk.sent();
    for seconds in [1, 2, 4, 8, 16, 32] {
        assert_eq!(talk.wait_for_timeout(), Duration::from_secs(seconds));
        assert_eq!(talk.sent()[0].flags, Flags::SYN);
    }
    talk.wait_for_timeout();
    assert_eq!(talk.endpoint.failure(), Some(TcpFailure::TimedOut));
    assert_eq!((talk.sent(), talk.endpoint.poll_timeout()), (vec![], None));
}

#[test]
fn a_syn_is_answered_by_the_right_number_only() {
    let mut talk = EndpointTest::new(connecting(config()));
    talk.sent();
    talk.say(segment(0, b"", 77)); // from an older connection
    let reset = talk.sent();
    assert_eq!((reset[0].seq, reset[0].flags), (77, Flags::RST));
    let refusal = |ack| Segment {
        flags: Flags {
            ack: true,
            ..Flags::RST
        },
        ..segment(0, b"", ack)
    };
    assert_eq!(talk.fail_by(refusal(77)), None);
    assert_eq!(talk.fail_by(refusal(1)), Some(TcpFailure::Refused));
}

#[test]
fn acknowledgements_wait_for_a_second_segment_or_40_ms() {
    let mut talk = EndpointTest::established(config());
    talk.say(segment(1, b"one", 1));
    assert_eq!(talk.sent(), []);
    assert_eq!(talk.wait_for_timeout(), 40 * MS);
    assert_eq!(talk.sent()[0].ack, 4);
    talk.say(segment(4, b"two", 1));
    assert_eq!(talk.sent(), []);
    talk.say(segment(7, b"three", 1));
    assert_eq!(talk.sent()[0].ack, 12);
    assert_eq!(talk.endpoint.poll_timeout(), None);
    talk.say(segment(12, b"four", 1));
    talk.endpoint.write(b"answer"); // the acknowledgement travels with data
    let answer = talk.sent();
    assert_eq!((answer.len(), answer[0].at(), answer[0].ack), (1, (1, 6), 16));
}

#[test]
fn a_gap_is_told_of_at_once_with_sack_blocks() {
    let mut talk = EndpointTest::new(connecting(TcpConfig {
        sack: true,
        ..config()
    }));
    talk.sent();
    let mut agreed = syn_ack();
    agreed.options.sack_permitted = true;
    talk.say(agreed);
    talk.sent();
    let block = |left, right| Some((THEIRS + left, THEIRS + right));
    talk.say(segment(11, b"0123456789", 1));
    assert_eq!(talk.sent()[0].options.sack[0], block(11, 21));
    talk.say(segment(31, b"0123456789", 1));
    let ack = talk.sent();
    assert_eq!(ack[0].options.sack, [block(31, 41), block(11, 21), None, None]);
    assert_eq!(ack[0].ack, 1);
    talk.say(segment(1, b"0123456789", 1));
    let ack = talk.sent();
    assert_eq!(
        (ack[0].ack, ack[0].options.sack),
        (21, [block(31, 41), None, None, None])
    );
}

#[test]
fn a_segment_from_the_past_is_not_taken_for_a_new_one() {
    let mut talk = EndpointTest::new(connecting(TcpConfig {
        timestamps: true,
        ..config()
    }));
    talk.sent();
    talk.say(stamped(syn_ack(), 1000, 500));
    talk.sent();
    talk.say(stamped(segment(1, b"new", 1), 1005, 500));
    talk.say(stamped(segment(4, b"old", 1), 999, 500));
    let ack = talk.sent();
    assert_eq!((ack[0].ack, talk.endpoint.readable()), (4, 3));
    talk.say(segment(4, b"bare", 1)); // no timestamp; Linux accepts such a segment, too
    assert_eq!(talk.endpoint.readable(), 7);
    // The endpoint echoes the timestamp of a segment only if the segment starts at or before the last acknowledgement. So the peer's
    // round trip includes the delay of the acknowledgement.
    talk.say(stamped(segment(8, b"a", 1), 2000, 500));
    talk.wait_for_timeout();
    assert_eq!(talk.sent()[0].options.timestamps.unwrap().echo, 1005);
}

#[test]
fn only_the_exact_number_resets() {
    let mut talk = EndpointTest::established(config());
    assert_eq!(talk.fail_by(rst(10_002)), None); // beyond the window: no answer
    assert_eq!(talk.sent(), []);
    assert_eq!(talk.fail_by(rst(2)), None);
    assert_eq!(talk.sent()[0].at(), (1, 0)); // within the window: a challenge
    assert_eq!(talk.fail_by(rst(2)), None);
    assert_eq!(talk.sent(), []); // a second challenge would come too soon
    talk.now += 500 * MS;
    talk.say(Segment {
        flags: Flags::SYN,
        ..segment(1, b"", 0)
    });
    assert_eq!(talk.sent().len(), 1);
    assert_eq!(talk.endpoint.state(), EndpointState::Established);
    assert_eq!(talk.fail_by(rst(1)), Some(TcpFailure::Reset));
    assert_eq!(
        (talk.endpoint.state(), talk.sent()),
        (EndpointState::Closed, vec![])
    );
}

#[test]
fn acknowledgements_of_what_was_never_sent_or_long_ago_are_ignored() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(&[0; 3000]);
    talk.sent();
    talk.say(segment(1, b"x", 3002));
    assert_eq!((talk.sent(), talk.endpoint.readable()), (vec![], 0));
    talk.say(segment(1, b"x", 3001));
    assert_eq!(talk.endpoint.readable(), 1);
    talk.say(segment(2, b"y", 0)); // from before the stream
    assert_eq!((talk.sent().len(), talk.endpoint.readable()), (1, 1)); // a challenge
    let mut acked = 3001;
    while acked < 30_001 {
        talk.endpoint.write(&[0; 3000]);
        talk.sent();
        acked += 3000;
        talk.say(segment(2, b"", acked));
    }
    talk.say(segment(2, b"y", 10_000)); // older than the largest window
    assert_eq!(talk.endpoint.readable(), 1);
    talk.say(segment(2, b"y", 10_001));
    assert_eq!(talk.endpoint.readable(), 2);
}

#[test]
fn what_was_sent_twice_measures_no_round_trip() {
    let mut talk = EndpointTest::new(connecting(config()));
    talk.sent();
    talk.wait_for_timeout();
    talk.sent();
    talk.say(syn_ack());
    talk.sent();
    assert_eq!(talk.endpoint.round_trip(), None);
    talk.endpoint.write(&[0; 1000]);
    talk.sent();
    assert_eq!(talk.wait_for_timeout(), Duration::from_secs(3)); // no round trip has been measured
    talk.sent();
    talk.now += 7 * MS;
    talk.say(segment(1, b"", 1001));
    assert_eq!(talk.endpoint.round_trip(), None);
    talk.endpoint.write(&[0; 1000]);
    talk.sent();
    talk.now += 8 * MS;
    talk.say(segment(1, b"", 2001));
    assert_eq!(talk.endpoint.round_trip(), Some(8 * MS));
    talk.endpoint.write(&[0; 2000]);
    talk.sent();
    for _ in 0..3 {
        talk.say(segment(1, b"", 2001));
    }
    assert_eq!(talk.sent_at(), [(2001, 1000)]);
    talk.now += 80 * MS;
    talk.say(segment(1, b"", 4001));
    assert_eq!(talk.endpoint.round_trip(), Some(8 * MS));
}

#[test]
fn a_closed_window_is_probed_with_growing_patience_and_opens() {
    let mut talk = EndpointTest::established(TcpConfig {
        retries: 2, // a peer that answers is never given up
        ..config()
    });
    talk.endpoint.write(&[0; 3000]);
    let closed = |ack| Segment {
        window: 0,
        ..segment(1, b"", ack)
    };
    talk.sent();
    talk.say(closed(3001));
    talk.endpoint.write(&[0; 5000]);
    assert_eq!(talk.sent(), []);
    for millis in [200, 400, 800, 1600, 3200] {
        assert_eq!(talk.wait_for_timeout(), Duration::from_millis(millis));
        assert_eq!(talk.sent_at(), [(3000, 0)]); // below what the peer expects, so that the peer answers
        talk.say(closed(3001));
    }
    talk.say(Segment {
        window: 1500,
        ..segment(1, b"", 3001)
    });
    assert_eq!(talk.sent_at(), [(3001, 1000)]);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut talk = EndpointTest::established(TcpConfig {
        retries: 4,
        ..config()
    });
    talk.endpoint.write(&[0; 10]);
    talk.sent();
    talk.say(Segment {
        window: 0,
        ..segment(1, b"", 11)
    });
    talk.endpoint.write(&[0; 10]);
    assert_eq!(talk.sent(), []);
    for _ in 0..4 {
        talk.wait_for_timeout();
        assert_eq!(talk.sent_at(), [(10, 0)]);
    }
    talk.wait_for_timeout();
    assert_eq!(talk.endpoint.failure(), Some(TcpFailure::TimedOut));
}

#[test]
fn a_full_buffer_closes_the_window_and_reading_opens_it() {
    let mut talk = EndpointTest::established(config());
    for index in 0..10 {
        talk.say(segment(1 + index * 1000, &[7; 1000], 1));
    }
    assert_eq!(talk.sent().last().unwrap().window, 0);
    talk.say(segment(10_001, &[7; 1], 1)); // a probe with a byte
    let ack = talk.sent();
    assert_eq!(
        (ack[0].ack, ack[0].window, talk.endpoint.readable()),
        (10_001, 0, 10_000)
    );
    let mut bytes = Vec::new();
    assert_eq!(talk.endpoint.read(&mut bytes, 1000), 1000);
    assert_eq!(talk.sent(), []); // not worth an update
    talk.endpoint.read(&mut bytes, 1000);
    assert_eq!(talk.sent()[0].window, 2000);
}

#[test]
fn three_duplicates_bring_the_lost_segment_again_and_partial_ones_the_next() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(&[0; 20_000]);
    assert_eq!(talk.sent().len(), 10); // the initial window
    talk.say(segment(1, b"", 1));
    assert_eq!(talk.sent_at(), [(10_001, 1000)]); // limited transmit
    talk.say(segment(1, b"", 1));
    assert_eq!(talk.sent_at(), [(11_001, 1000)]);
    talk.say(segment(1, b"", 1));
    assert_eq!(talk.sent_at(), [(1, 1000)]);
    talk.say(segment(1, b"", 3001)); // partial
    assert_eq!(talk.sent_at(), [(3001, 1000)]);
    talk.say(segment(1, b"", 12_001)); // everything: two segments may be in flight (RFC 6582 §3.2 step 3, option 1)
    assert_eq!(talk.sent_at(), [(12_001, 1000), (13_001, 1000)]);
    assert_eq!(talk.endpoint.failure(), None);
}

#[test]
fn a_window_update_is_no_duplicate() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(&[0; 5_000]);
    talk.sent();
    for window in [21_000, 22_000, 23_000, 24_000] {
        talk.say(Segment {
            window,
            ..segment(1, b"", 1)
        });
        assert_eq!(talk.sent(), []);
    }
}

#[test]
fn after_a_timeout_everything_is_sent_again_slowly() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(&[0; 4_000]);
    assert_eq!(talk.sent().len(), 4);
    assert_eq!(talk.wait_for_timeout(), 200 * MS);
    assert_eq!(talk.sent_at(), [(1, 1000)]);
    assert_eq!(talk.wait_for_timeout(), 400 * MS);
    assert_eq!(talk.sent_at(), [(1, 1000)]);
    talk.say(segment(1, b"", 1001));
    assert_eq!(talk.sent_at(), [(1001, 1000), (2001, 1000)]);
    talk.say(segment(1, b"", 4001)); // the peer had the rest
    assert_eq!((talk.sent(), talk.endpoint.poll_timeout()), (vec![], None));
}

#[test]
fn a_pure_acknowledgement_is_numbered_after_all_that_was_ever_sent() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(&[0; 3_000]);
    talk.sent();
    talk.wait_for_timeout();
    talk.sent();
    talk.say(segment(11, b"early", 1));
    assert_eq!(talk.sent_at(), [(3001, 0)]);
}

#[test]
fn small_pieces_do_not_follow_each_other() {
    let mut talk = EndpointTest::established(config());
    talk.say(Segment {
        window: 1300,
        ..segment(1, b"a", 1)
    });
    talk.endpoint.write(&[0; 2_000]);
    assert_eq!(talk.sent_at(), [(1, 1000)]); // the window has room for 300 more bytes, but no short segment is sent
    talk.say(Segment {
        window: 1300,
        ..segment(2, b"", 1001)
    });
    assert_eq!(talk.sent_at(), [(1001, 1000)]);
}

#[test]
fn the_end_of_a_stream_travels_with_its_last_bytes() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(b"bye");
    talk.endpoint.shutdown();
    assert_eq!(talk.endpoint.write(b"more"), 0);
    let last = talk.sent();
    assert_eq!((last.len(), last[0].at(), last[0].flags.fin), (1, (1, 3), true));
    talk.wait_for_timeout();
    assert!(talk.sent()[0].flags.fin);
    talk.say(segment(1, b"", 5));
    assert_eq!(talk.endpoint.state(), EndpointState::FinWait2);
    talk.say(segment(1, b"still here", 5));
    assert_eq!(talk.endpoint.readable(), 10);
}

#[test]
fn an_end_asked_for_during_the_handshake_follows_it() {
    let mut talk = EndpointTest::new(connecting(config()));
    talk.endpoint.write(b"all");
    talk.endpoint.shutdown();
    assert_eq!(talk.sent()[0].flags, Flags::SYN);
    talk.say(syn_ack());
    assert_eq!(talk.endpoint.state(), EndpointState::FinWait1);
    let sent = talk.sent();
    assert_eq!((sent[0].at(), sent[0].flags.fin), ((1, 3), true));
}

#[test]
fn a_peer_that_repeats_its_end_is_answered_until_two_msl_are_over() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.shutdown();
    talk.sent();
    talk.say(fin(1, 2));
    assert_eq!(
        (talk.endpoint.state(), talk.sent()[0].ack),
        (EndpointState::TimeWait, 2)
    );
    talk.wait(Duration::from_secs(50));
    talk.say(fin(1, 2));
    assert_eq!(talk.sent()[0].ack, 2);
    talk.wait(Duration::from_secs(59));
    assert_eq!(talk.endpoint.state(), EndpointState::TimeWait);
    talk.wait(Duration::from_secs(1));
    assert_eq!(
        (talk.endpoint.state(), talk.endpoint.failure()),
        (EndpointState::Closed, None)
    );
}

#[test]
fn an_end_before_its_time_waits_for_the_gap() {
    let mut talk = EndpointTest::established(config());
    talk.say(fin(4, 1));
    assert_eq!(
        (talk.endpoint.state(), talk.sent()[0].ack),
        (EndpointState::Established, 1)
    );
    assert!(!talk.endpoint.is_read_finished());
    talk.say(segment(1, b"end", 1));
    assert_eq!(
        (talk.endpoint.state(), talk.sent()[0].ack),
        (EndpointState::CloseWait, 5)
    );
    talk.endpoint.read(&mut Vec::new(), 9);
    assert!(talk.endpoint.is_read_finished());
}

#[test]
fn an_abort_says_so_with_the_number_that_the_peer_expects() {
    let mut talk = EndpointTest::established(config());
    talk.endpoint.write(b"lost");
    talk.sent();
    talk.endpoint.abort();
    let reset = talk.sent();
    assert_eq!((reset[0].seq, reset[0].flags.rst), (5, true));
    assert_eq!(talk.endpoint.failure(), Some(TcpFailure::Aborted));
    let mut opening = EndpointTest::new(connecting(config()));
    opening.sent();
    opening.endpoint.abort();
    assert_eq!(opening.sent(), []); // the peer does not know the connection
}

#[test]
fn segments_of_others_and_broken_ones_change_nothing() {
    let mut talk = EndpointTest::established(config());
    let before = format!("{:?}", talk.endpoint);
    let stranger = Segment {
        source: "10.0.0.3:80".parse().unwrap(),
        ..segment(1, b"hello", 1)
    };
    talk.say(stranger);
    let mut broken = segment(1, b"hello", 1).emit();
    *broken.last_mut().unwrap() ^= 1;
    assert!(talk.endpoint.handle_packet(talk.now, &broken).is_err());
    assert_eq!(format!("{:?}", talk.endpoint), before);
}

mod restored {
    use super::*;

    fn restore() -> Restore {
        Restore {
            local: "10.0.0.1:1000".parse().unwrap(),
            remote: "10.0.0.2:80".parse().unwrap(),
            snd_una: OURS + 1,
            sent: vec![1; 3000],
            unsent: vec![2; 20_000],
            rcv_nxt: THEIRS + 11,
            received: vec![3; 4],
            mss: 1000,
            window_scale: Some(WindowScale { send: 2, receive: 3 }),
            sack: false,
            timestamp: None,
            window: RestoreWindow {
                snd_wl1: THEIRS + 11,
                snd_wnd: 50_000,
                max_window: 60_000,
                rcv_wnd: 8_000,
                rcv_wup: THEIRS + 9,
            },
            window_probe: true,
        }
    }

    fn talk(restore: &Restore) -> EndpointTest {
        EndpointTest::new(TcpEndpoint::restore(config(), restore, Instant::ZERO).unwrap())
    }

    #[test]
    fn the_first_words_are_a_probe_and_what_the_congestion_window_allows() {
        let mut talk = talk(&restore());
        let sent = talk.sent();
        assert_eq!((sent[0].at(), sent[0].ack), ((0, 0), 11)); // below what the peer expects, so that the peer answers
        // 3 of 10 segments are in flight already. Data that was loaded as sent is not sent again.
        let rest: Vec<_> = sent[1..].iter().map(Sent::at).collect();
        assert_eq!(
            rest,
            (3..10).map(|index| (1 + index * 1000, 1000)).collect::<Vec<_>>()
        );
        assert_eq!(talk.wait_for_timeout(), Duration::from_secs(3));
        assert_eq!(talk.sent_at(), [(1, 1000)]);
    }

    #[test]
    fn it_answers_and_reads_where_the_old_one_stopped() {
        let mut talk = talk(&Restore {
            window_probe: false,
            ..restore()
        });
        assert_eq!(talk.endpoint.readable(), 4);
        talk.sent();
        talk.say(segment(11, b"more", 3001));
        talk.say(segment(15, b"more", 3001));
        let ack = talk.sent();
        assert_eq!(ack[0].ack, 19);
        let mut bytes = Vec::new();
        talk.endpoint.read(&mut bytes, 99);
        assert_eq!(bytes, b"\x03\x03\x03\x03moremore");
        // The window that was advertised before the restore reached up to 8009. The endpoint does not shrink this window.
        assert!(u64::from(ack[0].window) * 8 >= 8009 - 19);
    }

    #[test]
    fn an_acknowledgement_beyond_what_was_loaded_is_never_heard() {
        let mut talk = talk(&Restore {
            unsent: vec![],
            ..restore()
        });
        talk.sent();
        for _ in 0..5 {
            talk.say(segment(11, b"", 3002));
            assert_eq!(talk.sent(), []);
        }
        talk.say(segment(11, b"", 3001));
        assert_eq!(talk.endpoint.poll_timeout(), None);
    }

    #[test]
    fn export_and_restore_go_round_except_for_what_cannot_be_carried() {
        let old = talk(&restore());
        let exported = old.endpoint.export(old.now).unwrap();
        let expected = Restore {
            window: RestoreWindow {
                snd_wl1: THEIRS + 10, // one less, so that the probe's answer updates the window
                ..restore().window
            },
            ..restore()
        };
        assert_eq!(exported, expected);
        let stamped = Restore {
            timestamp: Some(123_456),
            ..restore()
        };
        let old = talk(&stamped).endpoint;
        let later = Instant::ZERO + 10 * MS;
        assert_eq!(old.export(later).unwrap().timestamp, Some(123_466));
    }

    #[test]
    fn only_an_established_connection_can_be_exported() {
        let mut talk = talk(&restore());
        talk.endpoint.shutdown();
        let refused = talk.endpoint.export(talk.now).unwrap_err();
        assert_eq!(refused.to_string(), "the connection is FinWait1, not Established");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: fn(&mut Restore)| {
            let mut restore = restore();
            change(&mut restore);
            TcpEndpoint::restore(config(), &restore, Instant::ZERO).unwrap_err()
        };
        assert_eq!(refused(|restore| restore.mss = 12), InvalidRestore::Mss(12));
        assert_eq!(
            refused(|restore| restore.window_scale = Some(WindowScale { send: 15, receive: 0 })),
            InvalidRestore::WindowScale(15)
        );
        assert_eq!(
            refused(|restore| restore.window.rcv_wup = THEIRS + 12),
            InvalidRestore::AcknowledgedAhead(1)
        );
        assert_eq!(
            refused(|restore| restore.window.snd_wl1 = THEIRS + 9_000),
            InvalidRestore::WindowFromTheFuture
        );
        assert_eq!(
            refused(|restore| restore.window.max_window = 49_999).to_string(),
            "max_window 49999 is below snd_wnd 50000"
        );
    }
}
