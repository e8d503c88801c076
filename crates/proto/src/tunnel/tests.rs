//! Two ends and the streams between them.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const WINDOW: u32 = 40_000;

/// Two ends of a tunnel. Messages of one stream arrive in order, messages of different streams in any order.
struct TunnelPair {
    ends: [Tunnel; 2],
    on_the_way: [HashMap<u16, VecDeque<Bytes>>; 2],
    events: [Vec<TunnelEvent>; 2],
}

impl TunnelPair {
    fn new(streams: u16) -> Self {
        Self {
            ends: [
                Tunnel::new(TunnelRole::Opening, WINDOW, streams),
                Tunnel::new(TunnelRole::Serving, WINDOW, streams),
            ],
            on_the_way: Default::default(),
            events: Default::default(),
        }
    }

    fn send(&mut self) {
        for end in 0..2 {
            while let Some((stream, message)) = self.ends[end].poll_message() {
                let queue = self.on_the_way[1 - end].entry(stream).or_default();
                queue.push_back(message.emit().into());
            }
        }
    }

    fn settle(&mut self) {
        loop {
            self.send();
            let mut is_any = false;
            for end in 0..2 {
                let streams: Vec<u16> = self.on_the_way[end].keys().copied().collect();
                for stream in streams {
                    while let Some(bytes) = self.on_the_way[end]
                        .get_mut(&stream)
                        .and_then(VecDeque::pop_front)
                    {
                        is_any = true;
                        self.ends[end]
                            .handle_message(stream, &bytes)
                            .expect("a correct peer");
                    }
                }
                self.events[end].extend(std::iter::from_fn(|| self.ends[end].poll_event()));
            }
            if !is_any {
                return;
            }
        }
    }

    /// A connection that both ends have.
    fn connection(&mut self) -> [TunnelConnectionId; 2] {
        let near = self.ends[0].open("web".to_owned()).expect("a free stream");
        self.settle();
        let Some(TunnelEvent::Opened(far, service)) = self.events[1].first().cloned() else {
            panic!("{:?}", self.events[1]);
        };
        assert_eq!(service, "web");
        self.ends[1].accept(far);
        self.settle();
        self.events = Default::default();
        [near, far]
    }
}

#[test]
fn data_flows_both_ways_and_each_direction_ends_alone() {
    let mut pair = TunnelPair::new(2);
    let [near, far] = pair.connection();
    pair.ends[0].write(near, Bytes::from_static(b"request"));
    pair.ends[0].end(near);
    pair.settle();
    assert_eq!(
        pair.events[1],
        [
            TunnelEvent::Data(far, Bytes::from_static(b"request")),
            TunnelEvent::Ended(far)
        ]
    );
    pair.ends[1].write(far, Bytes::from_static(b"reply"));
    pair.ends[1].end(far);
    pair.settle();
    assert_eq!(
        pair.events[0],
        [
            TunnelEvent::Data(near, Bytes::from_static(b"reply")),
            TunnelEvent::Ended(near)
        ]
    );
    assert!(pair.ends.iter().all(Tunnel::is_empty));
}

#[test]
fn credit_bounds_what_is_not_read() {
    let mut pair = TunnelPair::new(2);
    let [near, far] = pair.connection();
    assert_eq!(pair.ends[0].allowance(near), WINDOW as usize);
    pair.ends[0].write(near, vec![7; WINDOW as usize].into());
    pair.settle();
    assert_eq!(pair.ends[0].allowance(near), 0);
    pair.ends[1].consumed(far, 9_000);
    pair.settle();
    assert_eq!(
        pair.ends[0].allowance(near),
        0,
        "less than a quarter of the window"
    );
    pair.ends[1].consumed(far, 1_000);
    pair.settle();
    assert_eq!(pair.ends[0].allowance(near), 10_000);
}

#[test]
fn an_abort_reaches_the_other_program_and_frees_the_number() {
    let mut pair = TunnelPair::new(1);
    let [near, far] = pair.connection();
    assert_eq!(
        pair.ends[0].open("web".to_owned()),
        None,
        "the only number is in use"
    );
    pair.ends[1].abort(far);
    pair.settle();
    assert_eq!(pair.events[0], [TunnelEvent::Reset(near)]);
    assert!(pair.ends.iter().all(Tunnel::is_empty));
    assert!(pair.ends[0].open("web".to_owned()).is_some());
}

#[test]
fn an_abort_after_the_end_reaches_the_program_that_still_sends() {
    let mut pair = TunnelPair::new(1);
    let [near, far] = pair.connection();
    pair.ends[0].end(near);
    pair.settle();
    pair.ends[1].write(far, Bytes::from_static(b"a reply that nobody reads"));
    pair.ends[0].abort(near);
    pair.settle();
    assert_eq!(pair.events[1], [TunnelEvent::Ended(far), TunnelEvent::Reset(far)]);
    assert_eq!(pair.events[0], [], "its program is gone");
    assert!(pair.ends.iter().all(Tunnel::is_empty));
}

#[test]
fn an_abort_that_crosses_the_last_end_is_told_as_well() {
    let mut pair = TunnelPair::new(1);
    let [near, far] = pair.connection();
    pair.ends[0].end(near);
    pair.settle();
    pair.ends[0].abort(near);
    pair.ends[1].write(far, Bytes::from_static(b"the rest"));
    pair.ends[1].end(far);
    pair.settle();
    assert_eq!(pair.events[1], [TunnelEvent::Ended(far), TunnelEvent::Reset(far)]);
    assert!(pair.ends.iter().all(Tunnel::is_empty));
    assert!(pair.ends[0].open("web".to_owned()).is_some());
}

#[test]
fn what_breaks_the_rules_is_refused() {
    let mut tunnel = Tunnel::new(TunnelRole::Serving, WINDOW, 3);
    let mut take = |stream, message: TunnelMessage| tunnel.handle_message(stream, &message.emit().into());
    let open = || TunnelMessage::Open("web".to_owned());
    assert_eq!(take(1, TunnelMessage::End), Err(TunnelViolation::Misplaced(1)));
    assert_eq!(take(0, open()), Err(TunnelViolation::Misplaced(0)));
    assert_eq!(take(4, open()), Err(TunnelViolation::Misplaced(4)));
    assert_eq!(take(3, open()), Ok(()));
    assert_eq!(take(3, open()), Err(TunnelViolation::Misplaced(3)));
    let data = TunnelMessage::Data(Bytes::from_static(b"early"));
    assert_eq!(take(3, data), Err(TunnelViolation::Credit(3)));
    assert_eq!(
        take(3, TunnelMessage::Credit(u32::MAX)),
        Err(TunnelViolation::Credit(3))
    );
    assert_eq!(take(3, TunnelMessage::End), Ok(()));
    assert_eq!(take(3, TunnelMessage::End), Err(TunnelViolation::Misplaced(3)));
    for bytes in [
        &b""[..],
        b"\x01",
        b"\x02",
        b"\x03x",
        b"\x05abc",
        b"\x09",
        b"\x01\xff",
    ] {
        assert!(
            TunnelMessage::parse(&Bytes::from_static(bytes)).is_err(),
            "{bytes:?}"
        );
    }
}

/// The table of docs/tunnel.md.
#[test]
fn the_table_of_phases() {
    let mut table = String::new();
    for phase in TunnelPhase::ALL {
        for event in TunnelPhaseEvent::ALL {
            table += &format!("{phase:?} {event:?} {:?}\n", phase.after(event));
        }
    }
    insta::assert_snapshot!(table);
}

proptest! {
    /// Whatever the programs do, and in whatever order the streams deliver: no message is a violation, and all streams are free at the end.
    #[test]
    fn any_order_is_correct(steps in prop::collection::vec((0..6_u8, 0..2_usize, 0..8_usize), 0..300)) {
        let mut pair = TunnelPair::new(3);
        let mut live: [Vec<TunnelConnectionId>; 2] = Default::default();
        for (action, end, which) in steps {
            let chosen = live[end].get(which).copied();
            match (action, chosen) {
                (0, _) => live[0].extend(pair.ends[0].open("web".to_owned())),
                (1, Some(id)) => {
                    let room = pair.ends[end].allowance(id).min(20_000);
                    if room > 0 {
                        pair.ends[end].write(id, vec![0; room].into());
                    }
                }
                (2, Some(id)) => pair.ends[end].end(id),
                (3, Some(id)) => pair.ends[end].abort(id),
                (4, Some(id)) => pair.ends[end].consumed(id, 1000),
                _ => {
                    // One stream's next message arrives.
                    pair.send();
                    let streams: Vec<u16> = pair.on_the_way[end].keys().copied().collect();
                    if let Some(stream) = streams.get(which % streams.len().max(1))
                        && let Some(bytes) = pair.on_the_way[end].get_mut(stream).and_then(VecDeque::pop_front)
                    {
                        prop_assert_eq!(pair.ends[end].handle_message(*stream, &bytes), Ok(()));
                    }
                    while let Some(event) = pair.ends[end].poll_event() {
                        if let TunnelEvent::Opened(id, _) = event {
                            pair.ends[end].accept(id);
                            live[end].push(id);
                        }
                    }
                }
            }
        }
        pair.settle();
        for (events, live) in pair.events.iter_mut().zip(&mut live) {
            live.extend(events.drain(..).filter_map(|event| match event {
                TunnelEvent::Opened(id, _) => Some(id),
                _ => None,
            }));
        }
        for (end, live) in pair.ends.iter_mut().zip(&live) {
            live.iter().for_each(|id| end.abort(*id));
        }
        pair.settle();
        prop_assert!(pair.ends.iter().all(Tunnel::is_empty), "{:?}", pair.ends);
    }
}
