mod cache_bounds;
mod successor;

use proptest::prelude::*;

use super::*;
use crate::Seq;
use crate::edge::cache::{CacheConfig, CachePolicy, SecondPacket};
use crate::packet::{Flags, Segment, TcpOptions};

const BEAT: Duration = Duration::from_millis(10);

fn config() -> EdgeConfig {
    let string = |name: &str, weight| EdgeStringConfig {
        name: name.to_owned(),
        weight,
        bytes_per_s: 12.5e6,
    };
    EdgeConfig {
        strings: vec![string("a", 1.0), string("b", 1.0)],
        recovery: RecoveryConfig {
            heartbeat: BEAT,
            missed: 3,
            caching_after: 2,
            traffic_timeout: Duration::from_secs(1),
            ack_copies: 3,
            cache: CacheConfig {
                policy: CachePolicy::Lowest,
                second: SecondPacket::Newest,
                max_bytes: 1 << 20,
                max_packets: 1000,
                max_connection_bytes: usize::MAX,
            },
        },
        suspect_after: 2,
        caches: true,
        delay: Duration::ZERO,
        has_command: false,
        cap: Some(CapConfig {
            utilization: 0.95,
            weight: 1.0,
            round_trip: Some(Duration::from_millis(100)),
            min_window: 3000,
        }),
    }
}

fn slot(key: &FlowKey) -> usize {
    usize::from(key.near.port() ^ key.far.port())
}

/// An edge, and the state that its actions have set in its data path.
struct TestEdge {
    edge: EdgeSwitch,
    steering: Vec<StringSteering>,
    slots: Box<[u8; SLOTS]>,
    caching: Vec<bool>,
    copies: Vec<(usize, CopiedPackets)>,
    caps: Vec<Option<u32>>,
    kept: Vec<KeptString>,
    moves: Vec<usize>,
    sweeps: Vec<usize>,
    commands: Vec<usize>,
    announced: Vec<usize>,
    sent: Vec<(Option<usize>, u32)>,
    /// The bytes of the packets of `sent`.
    packets: Vec<Vec<u8>>,
}

impl TestEdge {
    fn new(config: &EdgeConfig) -> Self {
        let edge = EdgeSwitch::new(config.clone(), &[], slot, Instant::ZERO).unwrap();
        let count = config.strings.len();
        Self {
            edge,
            steering: vec![StringSteering::Up; count],
            slots: Box::new([0; SLOTS]),
            caching: vec![false; count],
            copies: Vec::new(),
            caps: vec![None; count],
            kept: vec![KeptString::default(); count],
            moves: Vec::new(),
            sweeps: Vec::new(),
            commands: Vec::new(),
            announced: Vec::new(),
            sent: Vec::new(),
            packets: Vec::new(),
        }
    }

    fn carry_out(&mut self, now: Instant, active: u64) {
        while let Some(action) = self.edge.poll_action() {
            match action {
                EdgeAction::SetSlots(slots) => self.slots = slots,
                EdgeAction::SetSteering(string, steering) => self.steering[string] = steering,
                EdgeAction::Move(string) => self.moves.push(string),
                EdgeAction::SetCopies(string, copies) => {
                    self.caching[string] = copies != CopiedPackets::None;
                    self.copies.push((string, copies));
                }
                EdgeAction::SetCap(string, cap) => self.caps[string] = cap,
                EdgeAction::RunCommand(string) => self.commands.push(string),
                EdgeAction::Measure => {
                    let sample = TrafficSample {
                        active,
                        ..TrafficSample::default()
                    };
                    let samples = vec![sample; self.steering.len()];
                    self.edge.handle_traffic(now, &samples);
                }
                EdgeAction::SendEntering(string, packet) => {
                    self.sent.push((Some(string), 1));
                    self.packets.push(packet);
                }
                EdgeAction::SendLeaving(packet, copies) => {
                    self.sent.push((None, copies));
                    self.packets.push(packet);
                }
                EdgeAction::Sweep(string) => self.sweeps.push(string),
                EdgeAction::Announce(string) => self.announced.push(string),
                EdgeAction::Keep(string, kept) => self.kept[string] = kept,
                EdgeAction::Tell(..) => {}
            }
        }
    }

    /// Replaces the edge's agent by a new one, which adopts the state of the data path.
    fn restart(&mut self, config: &EdgeConfig, now: Instant) {
        let adopted = |index: usize| AdoptedString {
            kept: self.kept[index],
            steering: self.steering[index],
            cap: self.caps[index],
        };
        let adopted: Vec<_> = (0..self.steering.len()).map(adopted).collect();
        self.edge = EdgeSwitch::new(config.clone(), &adopted, slot, now).unwrap();
    }

    fn phases(&self, now: Instant) -> Vec<StringPhase> {
        self.edge.view(now).iter().map(|view| view.phase).collect()
    }
}

/// Two edges. `passes[string][direction]`: whether heartbeats pass; direction 0 is from the first edge to the second.
struct TwoEdges {
    sides: [TestEdge; 2],
    passes: Vec<[bool; 2]>,
    runs: [bool; 2],
    now: Instant,
}

impl TwoEdges {
    fn new(config: &EdgeConfig) -> Self {
        Self {
            sides: [TestEdge::new(config), TestEdge::new(config)],
            passes: vec![[true; 2]; config.strings.len()],
            runs: [true; 2],
            now: Instant::ZERO,
        }
    }

    /// Lets time pass, in milliseconds. Heartbeats leave every 10 ms.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let beats = (self.now.as_nanos() / 1_000_000).is_multiple_of(10);
            for from in 0..2 {
                for string in 0..self.passes.len() {
                    if beats && self.passes[string][from] && self.runs[0] && self.runs[1] {
                        let beat = self.sides[from].edge.beat(self.now, string);
                        self.sides[1 - from].edge.handle_beat(self.now, string, &beat);
                    }
                }
            }
            for (side, runs) in self.sides.iter_mut().zip(self.runs) {
                if runs {
                    side.edge.handle_timeout(self.now);
                    side.carry_out(self.now, 10);
                }
            }
        }
    }

    fn phases(&self) -> [Vec<StringPhase>; 2] {
        [0, 1].map(|side| self.sides[side].phases(self.now))
    }
}

fn packet(client: u16, seq: u32, flags: Flags, payload: &[u8]) -> Vec<u8> {
    Segment {
        source: format!("10.1.0.1:{client}").parse().unwrap(),
        destination: "10.2.0.1:80".parse().unwrap(),
        seq: Seq(seq),
        ack: Seq(1),
        flags,
        window: 1000,
        options: TcpOptions::default(),
        payload,
    }
    .emit()
}

fn data(client: u16, seq: u32) -> Vec<u8> {
    let flags = Flags {
        ack: true,
        ..Flags::default()
    };
    packet(client, seq, flags, b"data")
}

/// The server's acknowledgement of all bytes before `number`.
fn answer(client: u16, number: u32) -> Vec<u8> {
    Segment {
        source: "10.2.0.1:80".parse().unwrap(),
        destination: format!("10.1.0.1:{client}").parse().unwrap(),
        seq: Seq(1),
        ack: Seq(number),
        flags: Flags {
            ack: true,
            ..Flags::default()
        },
        window: 1000,
        options: TcpOptions::default(),
        payload: &[],
    }
    .emit()
}

use StringPhase::{Blind, Down, Failing, Suspect, Up};

#[test]
fn a_failed_string_loses_its_flows_at_both_edges_and_gets_new_ones_when_it_is_back() {
    let mut world = TwoEdges::new(&config());
    assert_eq!(world.phases(), [[Blind, Blind], [Blind, Blind]]);
    world.run(500);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    assert!(world.sides[0].slots.contains(&0) && world.sides[0].slots.contains(&1));
    assert_eq!(world.sides[0].slots, world.sides[1].slots);
    world.passes[0] = [false; 2];
    world.run(25);
    assert_eq!(world.phases(), [[Suspect, Up], [Suspect, Up]]);
    assert!(world.sides[0].caching[0] && !world.sides[0].caching[1]);
    let now = world.now;
    world.sides[0]
        .edge
        .handle_copy(now, 0, EdgeDirection::Entering, &data(7, 1));
    world.run(10);
    for side in &world.sides {
        assert_eq!(side.phases(world.now), [Down, Up]);
        assert_eq!(side.steering, [StringSteering::Down, StringSteering::Up]);
        assert_eq!((&side.moves[..], &side.sweeps[..]), (&[0][..], &[][..]));
        assert!(side.slots.iter().all(|string| *string == 1));
        assert!(side.caps[1].is_some(), "the other string is shared");
        assert!(!side.caching[0]);
    }
    assert_eq!(world.sides[0].sent, [(Some(1), 1)]);
    world.passes[0] = [true; 2];
    world.run(900);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]], "not trusted yet");
    for side in &world.sides {
        assert_eq!(side.sweeps, [0], "idle flows are moved before the string is back");
    }
    world.run(200);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    for side in &world.sides {
        assert_eq!(side.moves, [0], "flows stay where they are");
        assert_eq!(side.caps, [None, None]);
        assert!(side.slots.contains(&0));
    }
}

#[test]
fn one_lost_direction_is_a_failure_at_both_edges() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[1] = [true, false];
    world.run(45);
    assert_eq!(world.phases(), [[Up, Down], [Up, Down]]);
    world.run(3000);
    assert_eq!(
        world.phases(),
        [[Up, Down], [Up, Down]],
        "it does not come back by itself"
    );
    world.passes[1] = [true, true];
    world.run(1100);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
}

#[test]
fn an_edge_whose_peer_is_away_moves_nothing() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.runs[1] = false;
    world.run(1000);
    let side = &world.sides[0];
    assert_eq!(side.phases(world.now), [Blind, Blind]);
    assert_eq!(side.steering, [StringSteering::Up, StringSteering::Up]);
    assert!(side.moves.is_empty() && side.caching == [true, true]);
    // On the first string, the entering packet is acknowledged, so both directions work. On the second string, only one direction is known
    // to work.
    let now = world.now;
    for (string, number) in [(0, 5), (1, 1)] {
        for (way, packet) in [
            (EdgeDirection::Entering, data(7, 1)),
            (EdgeDirection::Leaving, answer(7, number)),
        ] {
            world.sides[0].edge.handle_copy(now, string, way, &packet);
        }
    }
    world.runs[1] = true;
    world.run(100);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    assert_eq!(world.sides[0].sent, [(Some(1), 1)]);
}

#[test]
fn an_edge_that_dies_is_no_failure_of_the_string_that_falls_silent_first() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(10);
    world.runs[1] = false;
    world.run(5);
    // The last heartbeat of the second string is late.
    let now = world.now;
    let beat = world.sides[1].edge.beat(now, 1);
    world.sides[0].edge.handle_beat(now, 1, &beat);
    world.run(1000);
    let side = &world.sides[0];
    assert_eq!(side.phases(world.now), [Blind, Blind]);
    assert_eq!(side.steering, [StringSteering::Up; 2]);
    assert!(side.moves.is_empty());
}

#[test]
fn unknown_options_survive_the_cache() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(25);
    // An option for experiments (RFC 4727) between the header and the data.
    let mut packet = data(7, 1);
    packet.splice(40..40, [253, 4, 0xab, 0xcd]);
    let length = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[11] -= 4; // the checksum of the IP header
    packet[32] += 1 << 4;
    let now = world.now;
    let edge = &mut world.sides[0].edge;
    edge.handle_copy(now, 0, EdgeDirection::Entering, &packet);
    world.run(100);
    assert_eq!(world.sides[0].packets, [packet]);
}

#[test]
fn packets_that_pass_since_a_string_is_back_do_not_save_those_before() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes = vec![[false; 2]; 2];
    world.run(500);
    let now = world.now;
    let edge = &mut world.sides[0].edge;
    for client in [7, 8] {
        edge.handle_copy(now, 1, EdgeDirection::Entering, &data(client, 1));
    }
    // The second string works again, and an answer arrives before the heartbeats.
    edge.handle_copy(now, 1, EdgeDirection::Leaving, &answer(8, 5));
    world.passes[1] = [true; 2];
    world.run(25);
    assert_eq!(world.sides[0].phases(world.now), [Blind, Up]);
    assert_eq!(
        world.sides[0].sent,
        [(Some(1), 1)],
        "only the unanswered packet is resent"
    );
}

/// The copies that an edge has asked for on the first string since the last call.
fn copies_of_first(side: &mut TestEdge) -> Vec<CopiedPackets> {
    let all = std::mem::take(&mut side.copies).into_iter();
    all.filter_map(|(string, copies)| (string == 0).then_some(copies))
        .collect()
}

#[test]
fn every_entering_packet_is_copied_only_while_it_may_be_lost() {
    use CopiedPackets::{Entering, Needed, None};
    let mut config = config();
    config.recovery.caching_after = 0;
    config.delay = Duration::from_millis(60);
    let mut world = TwoEdges::new(&config);
    world.run(500);
    // The second action is for an empty cache: the first heartbeat has ended the initial Blind state.
    assert_eq!(copies_of_first(&mut world.sides[0]), [Needed, Needed]);
    world.runs[1] = false;
    world.run(100);
    assert_eq!(copies_of_first(&mut world.sides[0]), [Entering]);
    let now = world.now;
    for (way, packet) in [
        (EdgeDirection::Entering, data(7, 1)),
        (EdgeDirection::Leaving, answer(7, 5)),
    ] {
        world.sides[0].edge.handle_copy(now, 0, way, &packet);
    }
    world.run(10);
    assert_eq!(copies_of_first(&mut world.sides[0]), [Needed], "packets pass");
    world.runs[1] = true;
    world.run(50);
    assert_eq!(copies_of_first(&mut world.sides[0]), [Needed], "an empty cache");
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(copies_of_first(&mut world.sides[0]), [Entering, None]);
}

#[test]
fn a_string_that_returns_before_its_flows_have_moved_begins_with_an_empty_cache() {
    let mut config = config();
    config.recovery.caching_after = 0;
    config.recovery.cache.second = SecondPacket::Acknowledgement;
    config.delay = Duration::from_secs(10);
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.phases(), [[Failing, Up], [Failing, Up]]);
    world.sides[0].copies.clear();
    world.passes[0] = [true; 2];
    world.run(1500);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    assert_eq!(copies_of_first(&mut world.sides[0]), [CopiedPackets::Needed]);
}

#[test]
fn all_strings_down_and_back_resume_with_the_first() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes = vec![[false; 2]; 2];
    world.run(500);
    assert_eq!(world.phases(), [[Blind, Blind], [Blind, Blind]]);
    let now = world.now;
    world.sides[0]
        .edge
        .handle_copy(now, 0, EdgeDirection::Entering, &data(7, 1));
    world.sides[0]
        .edge
        .handle_copy(now, 1, EdgeDirection::Entering, &data(8, 1));
    world.passes[1] = [true; 2];
    world.run(20);
    assert_eq!(world.phases(), [[Blind, Up], [Blind, Up]]);
    assert_eq!(world.sides[0].sent, [(Some(1), 1)], "its own flows");
    world.run(40);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
    assert_eq!(world.sides[0].sent, [(Some(1), 1); 2], "and flows of the other");
}

#[test]
fn a_full_queue_that_loses_heartbeats_is_no_failure_while_packets_come() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    for millis in 0..1000 {
        world.run(1);
        let now = world.now;
        for side in &mut world.sides {
            side.edge.handle_leaving(now, 0);
        }
        let phases = world.phases();
        assert!(
            phases.iter().all(|one| one[0].is_usable()),
            "{millis}: {phases:?}"
        );
    }
    for _ in 0..60 {
        world.run(1);
        let now = world.now;
        for side in &mut world.sides {
            side.edge.handle_leaving(now, 0);
        }
    }
    assert_eq!(
        world.phases(),
        [[Down, Up], [Down, Up]],
        "leaving packets replace heartbeats for 1 s at most"
    );
}

#[test]
fn packets_just_before_a_failure_do_not_delay_its_declaration() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    for millis in 0..30 {
        world.run(1);
        let now = world.now;
        for side in world.sides.iter_mut().filter(|_| millis < 8) {
            side.edge.handle_leaving(now, 0);
        }
    }
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
}

#[test]
fn a_cable_without_a_signal_is_a_failure_at_once() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    let now = world.now;
    world.sides[0].edge.handle_carrier(now, 0, false);
    assert_eq!(world.sides[0].phases(now), [Down, Up]);
    world.passes[0] = [false; 2];
    world.run(10);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]], "the other edge is told");
    let now = world.now;
    world.sides[0].edge.handle_carrier(now, 0, true);
    world.passes[0] = [true; 2];
    world.run(1100);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    // Without any cable, no string is known to be better than another.
    let now = world.now;
    for string in 0..2 {
        world.sides[0].edge.handle_carrier(now, string, false);
    }
    assert_eq!(world.sides[0].phases(now), [Down, Blind]);
}

/// Two edges. The first edge loses the cable of the first string, then that of the second string. A packet of the first string waits for
/// the second string.
fn with_a_packet_that_waits() -> TwoEdges {
    let mut config = config();
    config.delay = Duration::from_millis(200);
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes = vec![[false; 2]; 2];
    let now = world.now;
    let edge = &mut world.sides[0].edge;
    edge.handle_carrier(now, 0, false);
    edge.handle_copy(now, 0, EdgeDirection::Entering, &data(7, 1));
    edge.handle_carrier(now, 1, false);
    assert_eq!(world.sides[0].phases(now), [Failing, Blind]);
    world.run(300);
    assert_eq!(world.sides[0].phases(world.now), [Down, Blind]);
    assert!(world.sides[0].sent.is_empty());
    world
}

#[test]
fn a_packet_waits_until_both_edges_hear_the_string() {
    let mut world = with_a_packet_that_waits();
    plug_in(&mut world, 1);
    // The string's node passes heartbeats in one direction only: first to the first edge, then to the second edge.
    for heard in [0, 1] {
        world.passes[1] = [heard == 1, heard == 0];
        world.run(100);
        assert_eq!(world.sides[0].phases(world.now), [Down, Blind]);
        assert!(world.sides[0].sent.is_empty());
        let mut copies = world.sides[0].copies.iter().rev();
        let last = copies.find(|(string, _)| *string == 1);
        assert_eq!(last, Some(&(1, CopiedPackets::Entering)));
    }
    world.passes[1] = [true; 2];
    world.run(25);
    assert_eq!(world.sides[0].phases(world.now), [Down, Up]);
    assert_eq!(world.sides[0].sent, [(Some(1), 1)]);
}

fn plug_in(world: &mut TwoEdges, string: usize) {
    world.passes[string] = [true; 2];
    let now = world.now;
    world.sides[0].edge.handle_carrier(now, string, true);
}

#[test]
fn a_packet_for_a_silent_string_waits_until_it_is_heard() {
    let mut world = with_a_packet_that_waits();
    assert!(world.sides[0].announced.is_empty());
    plug_in(&mut world, 1);
    world.run(15);
    assert_eq!(world.sides[0].announced, [1]);
    assert_eq!(world.sides[0].phases(world.now), [Down, Up]);
    assert_eq!(world.sides[0].sent, [(Some(1), 1)]);
}

#[test]
fn a_packet_for_a_string_that_fails_is_left_to_its_sender() {
    let mut world = with_a_packet_that_waits();
    plug_in(&mut world, 0);
    world.run(1500);
    assert_eq!(world.sides[0].phases(world.now), [Up, Down]);
    assert!(world.sides[0].sent.is_empty());
    assert_eq!(world.sides[0].edge.view(world.now)[1].left_to_senders, 1);
}

#[test]
fn the_delay_counts_from_the_silence() {
    let mut config = config();
    config.delay = Duration::from_millis(200);
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes = vec![[false; 2]; 2];
    world.run(500);
    assert_eq!(world.phases(), [[Blind, Blind], [Blind, Blind]]);
    world.passes[1] = [true; 2];
    world.run(60);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
}

#[test]
fn a_command_that_ran_for_an_earlier_failure_runs_again() {
    let mut config = config();
    config.has_command = true;
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(100);
    world.passes[0] = [true; 2];
    world.run(1200);
    assert_eq!(world.phases(), [[Up, Up], [Up, Up]]);
    world.passes[0] = [false; 2];
    world.run(100);
    let now = world.now;
    world.sides[0].edge.handle_command(now, 0, true);
    world.run(1);
    assert_eq!(world.sides[0].phases(world.now)[0], Failing);
    assert_eq!(world.sides[0].commands, [0, 0]);
    let now = world.now;
    world.sides[0].edge.handle_command(now, 0, true);
    assert_eq!(world.sides[0].phases(now)[0], Down);
}

#[test]
fn packets_are_forwarded_blindly_when_each_string_has_failed_for_somebody() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
    // The other edge reports that the second string has failed, too. Then the other edge's process dies.
    let now = world.now;
    let mut beat = world.sides[1].edge.beat(now, 1);
    beat.strings[1].epoch += 1;
    beat.strings[1].is_heard = false;
    world.sides[0].edge.handle_beat(now, 1, &beat);
    assert_eq!(world.sides[0].phases(now), [Down, Failing]);
    world.runs[1] = false;
    world.run(60);
    assert_eq!(world.sides[0].phases(world.now), [Blind, Blind]);
    assert_eq!(world.sides[0].steering, [StringSteering::Up, StringSteering::Up]);
}

#[test]
fn flows_wait_for_the_delay_and_for_the_command() {
    let mut config = config();
    config.delay = Duration::from_millis(200);
    config.has_command = true;
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.phases(), [[Failing, Up], [Failing, Up]]);
    assert_eq!(world.sides[0].steering[0], StringSteering::Held);
    assert_eq!(world.sides[0].commands, [0]);
    let now = world.now;
    world.sides[0].edge.handle_command(now, 0, false);
    world.run(1);
    assert_eq!(world.sides[0].commands, [0, 0], "again");
    let now = world.now;
    world.sides[0].edge.handle_command(now, 0, true);
    assert_eq!(world.sides[0].phases(now)[0], Failing, "the delay");
    world.run(150);
    assert_eq!(world.sides[0].phases(world.now)[0], Down);
    assert_eq!(
        world.sides[1].phases(world.now)[0],
        Failing,
        "its command has not ended"
    );
}

#[test]
fn a_string_that_was_never_heard_gets_nothing() {
    let mut world = TwoEdges::new(&config());
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
    assert_eq!(
        world.sides[0].caps,
        [None, None],
        "no string that was up is missing"
    );
}

#[test]
fn a_copy_that_comes_late_follows_the_flow() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(50);
    let now = world.now;
    world.sides[0]
        .edge
        .handle_copy(now, 0, EdgeDirection::Entering, &data(9, 1));
    world.run(1);
    assert_eq!(world.sides[0].sent, [(Some(1), 1)]);
}

#[test]
fn packets_are_sent_again_at_the_rate_of_their_string() {
    let mut config = config();
    config.strings[1].bytes_per_s = 44_000.0; // one of the test's packets per millisecond
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(25);
    let now = world.now;
    for client in 1..=20 {
        assert_eq!(data(client, 1).len(), 44);
        world.sides[0]
            .edge
            .handle_copy(now, 0, EdgeDirection::Entering, &data(client, 1));
    }
    let mut sent = Vec::new();
    while sent.last() != Some(&20) {
        world.run(1);
        sent.push(world.sides[0].sent.len());
    }
    let paced = sent.iter().filter(|count| (1..=20).contains(*count)).count();
    assert_eq!(paced, 20, "{sent:?}");
}

#[test]
fn a_flow_gets_at_most_a_capped_window_at_once() {
    let mut config = config();
    config.recovery.cache.policy = CachePolicy::All;
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(25);
    let now = world.now;
    let flags = Flags {
        ack: true,
        ..Flags::default()
    };
    for number in 0..100 {
        let packet = packet(7, 1 + number * 1000, flags, &[0; 1000]);
        world.sides[0]
            .edge
            .handle_copy(now, 0, EdgeDirection::Entering, &packet);
    }
    world.run(50);
    let cap = 0.95 * 12.5e6 * 0.1 / 20.0; // 10 flows of each string were active
    let most = (cap / 1040.0) as u64;
    let view = &world.sides[0].edge.view(world.now)[0];
    assert_eq!((view.resent_entering, view.left_to_senders), (most, 100 - most));
}

#[test]
fn the_cap_follows_what_the_string_carries() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(60);
    // 10 flows of each string are active.
    let share = 0.95 * 12.5e6 * 0.1 / 20.0;
    assert_eq!(world.sides[0].caps[1], Some(share as u32));
    world.run(400);
    assert!(
        world.sides[0].caps[1] > Some(share as u32),
        "nothing is sent, so each may send more"
    );
}

#[test]
fn the_cap_makes_room_for_the_flows_that_move() {
    let mut config = config();
    config.delay = Duration::from_millis(1900); // the delay ends within an interval of the rate control
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(1500);
    let share = 0.95 * 12.5e6 * 0.1 / 20.0;
    let cap = world.sides[0].caps[1];
    assert!(cap > Some(2 * share as u32), "nothing is sent: {cap:?}");
    while world.sides[0].moves.is_empty() {
        world.run(1);
    }
    assert_eq!(world.sides[0].caps[1], Some(share as u32));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Strings and edges fail and return at random. Then everything works, and both edges agree again.
    #[test]
    fn whatever_failed_the_edges_agree_in_the_end(
        steps in prop::collection::vec((0_usize..8, 0_u64..120, any::<bool>()), 1..40),
    ) {
        let mut config = config();
        config.strings.push(EdgeStringConfig { name: "c".into(), weight: 0.0, bytes_per_s: 1e6 });
        let mut world = TwoEdges::new(&config);
        for (what, millis, passes) in steps {
            match what {
                6 | 7 => world.runs[what - 6] = passes,
                _ => world.passes[what / 2][what % 2] = passes,
            }
            world.run(millis);
            for side in &world.sides {
                for (view, steering) in side.edge.view(world.now).iter().zip(&side.steering) {
                    let expected = match view.phase {
                        Up | Suspect | Blind => StringSteering::Up,
                        Failing => StringSteering::Held,
                        Down => StringSteering::Down,
                    };
                    prop_assert_eq!(*steering, expected);
                }
            }
            // An edge that does not hear the other edge does not drop the packets of all strings.
            if !world.runs[0] || !world.runs[1] {
                world.run(60);
                for (side, _) in world.sides.iter().zip(world.runs).filter(|(_, runs)| *runs) {
                    prop_assert!(side.steering.contains(&StringSteering::Up));
                }
            }
        }
        world.passes = vec![[true; 2]; 3];
        world.runs = [true; 2];
        world.run(33_000);
        prop_assert_eq!(world.phases(), [[Up; 3], [Up; 3]]);
        prop_assert_eq!(&world.sides[0].slots, &world.sides[1].slots);
        prop_assert!(!world.sides[0].slots.contains(&2), "standby");
        prop_assert_eq!(&world.sides[0].caps, &vec![None; 3]);
        prop_assert_eq!(&world.sides[0].caching, &vec![false; 3]);
    }
}

#[test]
fn heartbeats_that_do_not_come_are_counted() {
    let mut edge = TestEdge::new(&config()).edge;
    let beat = edge.beat(Instant::ZERO, 0);
    let at = |beats: u32| Instant::ZERO + BEAT * beats;
    let counts = |edge: &EdgeSwitch, now: Instant| {
        let view = edge.view(now);
        (view[0].beats_heard, view[0].beats_missed)
    };
    assert_eq!(counts(&edge, at(50)), (0, 0), "none is awaited before the first");
    edge.handle_beat(at(50), 0, &beat);
    edge.handle_beat(at(51), 0, &beat);
    // A heartbeat that is half an interval late is not missing.
    edge.handle_beat(at(52) + BEAT / 2, 0, &beat);
    assert_eq!(counts(&edge, at(53)), (3, 0));
    // Missing heartbeats are counted while the string is silent, and not again when it is heard.
    assert_eq!(counts(&edge, at(62) + BEAT / 2), (3, 9));
    edge.handle_beat(at(62) + BEAT / 2, 0, &beat);
    assert_eq!(counts(&edge, at(63)), (4, 9));
    assert_eq!(edge.view(at(63))[1].beats_missed, 0, "the other string has none");
}
