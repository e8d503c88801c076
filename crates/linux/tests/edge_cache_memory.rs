//! The memory that an `EdgeSwitch` allocates while it holds the SYNs of a failing string. The test has a process of its own, because the
//! allocator below counts all allocations of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proto::edge::cache::{CacheConfig, CachePolicy, SecondPacket};
use proto::edge::switch::{EdgeAction, EdgeConfig, EdgeStringConfig, EdgeSwitch, StringView};
use proto::edge::{CopiedPackets, EdgeDirection, RecoveryConfig};
use proto::packet::{Flags, Segment, TcpOptions, Timestamps};
use proto::{Instant, Seq};

/// Bytes that are allocated now.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Maximum of [`ALLOCATED`] since `cost` last restarted the measurement.
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn add(bytes: usize) {
    let now = ALLOCATED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BEAT: Duration = Duration::from_millis(10);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// An edge whose first string has missed its heartbeats, so that the string's packets are copied.
fn suspecting(policy: CachePolicy) -> EdgeSwitch {
    let string = |name: &str| EdgeStringConfig {
        name: name.to_owned(),
        weight: 1.0,
        bytes_per_s: 12.5e6,
    };
    let config = EdgeConfig {
        strings: vec![string("a"), string("b")],
        recovery: RecoveryConfig {
            heartbeat: BEAT,
            missed: 3,
            caching_after: 2,
            traffic_timeout: Duration::ZERO,
            ack_copies: 3,
            cache: CacheConfig {
                policy,
                second: SecondPacket::Newest,
                max_bytes: 64 << 20,
                max_packets: 200_000,
                max_connection_bytes: 64 << 20,
            },
        },
        suspect_after: 2,
        caches: true,
        delay: Duration::from_secs(3),
        has_command: false,
        cap: None,
    };
    let mut edge = EdgeSwitch::new(config, &[], |_| 0, at(0)).expect("a valid configuration");
    let mut peer = edge.beat(at(0), 0);
    for told in &mut peer.strings {
        (told.is_heard, told.is_steady, told.is_usable) = (true, true, true);
    }
    let mut copies = CopiedPackets::None;
    for millis in 1..2000 {
        for string in 0..2 {
            if millis % 10 == 0 && (string == 1 || millis < 1900) {
                edge.handle_beat(at(millis), string, &peer);
            }
        }
        edge.handle_timeout(at(millis));
        while let Some(action) = edge.poll_action() {
            if let EdgeAction::SetCopies(0, now) = action {
                copies = now;
            }
        }
    }
    assert_ne!(copies, CopiedPackets::None, "the string fails");
    edge
}

/// A SYN of client `number`, as the data path copies it: from the IP header on.
fn syn(number: u16, options: TcpOptions, is_v6: bool) -> Vec<u8> {
    let [high, low] = number.wrapping_mul(40_503).to_be_bytes();
    let (near, far): (SocketAddr, SocketAddr) = if is_v6 {
        let near = format!("[fd00::{high:x}:{low:x}]:{}", 40_000 + number % 1000);
        (
            near.parse().expect("an address"),
            "[fd00:1::1]:443".parse().expect("an address"),
        )
    } else {
        (
            ([10, 1, high, low], 40_000 + number % 1000).into(),
            ([10, 2, 0, 1], 443).into(),
        )
    };
    Segment {
        source: near,
        destination: far,
        seq: Seq(u32::from(number).wrapping_mul(1_000_003)),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 64_240,
        options,
        payload: &[],
    }
    .emit()
}

/// The memory that 1000 connections take.
struct Cost {
    packets: usize,
    /// `held`: bytes allocated when all SYNs are held. `peak`: the maximum until then.
    held: usize,
    peak: usize,
    /// Maximum of allocated bytes while the SYNs are sent again.
    peak_sent: usize,
    view: StringView,
}

fn cost(policy: CachePolicy, syns: &[Vec<u8>]) -> Cost {
    let mut edge = suspecting(policy);
    let before = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let since = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) - before;
    for syn in syns {
        edge.handle_copy(at(2000), 0, EdgeDirection::Entering, syn);
    }
    let (held, peak) = (since(&ALLOCATED), since(&PEAK));
    let view = edge.view(at(2000)).swap_remove(0);
    PEAK.store(before, Ordering::Relaxed);
    let peer = edge.beat(at(2000), 1);
    let (mut sent, mut millis) = (0, 2000);
    while sent < syns.len() && millis < 10_000 {
        millis += 1;
        if millis % 10 == 0 {
            edge.handle_beat(at(millis), 1, &peer);
        }
        edge.handle_timeout(at(millis));
        while let Some(action) = edge.poll_action() {
            sent += usize::from(matches!(action, EdgeAction::SendEntering(1, _)));
        }
    }
    assert_eq!(sent, syns.len(), "each is sent again");
    Cost {
        packets: syns.iter().map(Vec::len).sum(),
        held,
        peak,
        peak_sent: since(&PEAK),
        view,
    }
}

/// The only test of this file, because the allocator counts all threads.
#[test]
fn held_syns_cost_little_more_than_their_bytes() {
    a_flood_takes_no_more_than_the_limit();
    let mss = TcpOptions {
        mss: Some(1460),
        ..TcpOptions::default()
    };
    let linux = TcpOptions {
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
        ..mss
    };
    let kinds = [
        ("no options", TcpOptions::default(), false),
        ("MSS", mss, false),
        ("Linux", linux, false),
        ("Linux, IPv6", linux, true),
    ];
    for (name, options, is_v6) in kinds {
        let syns: Vec<_> = (0..1000).map(|number| syn(number, options, is_v6)).collect();
        for policy in [CachePolicy::Syn, CachePolicy::Lowest, CachePolicy::All] {
            let cost = cost(policy, &syns);
            let part = |bytes: usize| bytes as f64 / cost.packets as f64;
            println!(
                "{policy:?}, {name}: {} bytes each; allocated: {:.3} times the packets' bytes, at the peak {:.3} times, at the peak while \
                 they are sent again {:.3} times",
                syns[0].len(),
                part(cost.held),
                part(cost.peak),
                part(cost.peak_sent)
            );
            assert_eq!(
                (cost.view.cached_packets, cost.view.cached_bytes),
                (1000, cost.packets)
            );
            for peak in [cost.peak, cost.peak_sent] {
                assert!(part(peak) <= 1.25, "{policy:?}, {name}: {}", part(peak));
            }
            let reported = cost.view.cache_memory;
            assert_eq!(reported, cost.held, "what the status says is what is allocated");
            assert!(cost.view.cache_memory_max >= reported && cost.view.cache_memory_max <= cost.peak);
        }
    }
}

fn a_flood_takes_no_more_than_the_limit() {
    // The limit is `max_packets` in `suspecting`: 200,000 packets.
    let mut edge = suspecting(CachePolicy::Syn);
    let before = ALLOCATED.load(Ordering::Relaxed);
    let options = TcpOptions::default();
    for number in 0..u16::MAX {
        for port in 0..4 {
            let mut packet = syn(number, options, false);
            packet[20] = port; // the high byte of the client's port
            edge.handle_copy(at(2000), 0, EdgeDirection::Entering, &packet);
        }
    }
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    let view = edge.view(at(2000)).swap_remove(0);
    assert_eq!(view.cached_packets, 200_000);
    assert_eq!(view.cache_lost, u64::from(u16::MAX) * 4 - 200_000);
    assert!(allocated <= view.cached_bytes / 4 * 5, "{allocated}");
}
