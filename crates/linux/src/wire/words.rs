//! Words in mapped memory, by which the agent and the eBPF programs communicate without a system call.

use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use proto::action::Gate;

use super::abi::{NodeState, SERVICES_MAX, ServiceState, crash_codes, gate_number, gate_of, mapped};
use super::{OwnClient, Wire};

/// The word `doubted` of `abi.h`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest bits tell epochs apart"
)]
const fn doubt_word(is_primary: bool, epoch: u64) -> u32 {
    (epoch as u32) << 1 | is_primary as u32
}

impl Wire {
    pub(super) fn state_pointer(&self, index: u16) -> *mut ServiceState {
        assert!(usize::from(index) < SERVICES_MAX, "service index {index}");
        // SAFETY: the mapping holds SERVICES_MAX elements.
        unsafe { self.states.as_mut_ptr().cast::<ServiceState>().add(index.into()) }
    }

    pub(super) fn state(&self, index: u16) -> ServiceState {
        // SAFETY: within the mapping, aligned, plain numbers.
        unsafe { self.state_pointer(index).read_volatile() }
    }

    pub(super) fn netns_cookie(&self) -> u64 {
        // SAFETY: within the mapping, aligned.
        unsafe { (&raw const (*self.node.as_ptr().cast::<NodeState>()).netns_cookie).read_volatile() }
    }

    pub(super) fn set_netns_cookie(&self, cookie: u64) {
        // SAFETY: within the mapping, aligned.
        unsafe {
            (&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).netns_cookie).write_volatile(cookie)
        };
    }

    /// Sets the gate with one store. Does nothing if the gate is this one already.
    pub fn set_gate(&self, index: u16, gate: Gate) {
        if self.gate(index).0 == gate {
            return;
        }
        self.begin_holds(index, gate);
        // SAFETY: within the mapping, aligned; the programs read it as one word.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).gate) };
        word.store(gate_number(gate), Ordering::SeqCst);
        self.undecided.forget(index); // only after the store: otherwise a SYN of an undecided client would pass at the old gate
    }

    /// The gate, and the epoch in which it holds.
    pub fn gate(&self, index: u16) -> (Gate, u64) {
        let state = self.state_pointer(index);
        // SAFETY: within the mapping, aligned.
        let (number, epoch) = unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*state).gate).load(Ordering::SeqCst),
                AtomicU64::from_ptr(&raw mut (*state).epoch).load(Ordering::SeqCst),
            )
        };
        (gate_of(number).unwrap_or(Gate::Off), epoch)
    }

    /// Tells the wire the peer's MAC address on the service interface. Call this only while the gate is [`Gate::Off`].
    pub fn set_peer_mac(&self, index: u16, mac: [u8; 6]) {
        // SAFETY: within the mapping; while the gate is off, no program reads the address.
        unsafe { (&raw mut (*self.state_pointer(index)).peer_mac).write_volatile(mac) };
    }

    /// The address and MSS with which this node's own programs appear as clients of a service. `None`: their connections are refused.
    pub fn own_client(&self, index: u16) -> Option<OwnClient> {
        let state = self.state(index);
        let address = Ipv6Addr::from(state.own_address);
        (!address.is_unspecified()).then(|| OwnClient {
            address: address.to_canonical(),
            mss: state.own_mss,
        })
    }

    /// Sets [`own_client`](Self::own_client) for the eBPF programs.
    pub fn set_own_client(&self, index: u16, own: Option<OwnClient>) {
        let state = self.state_pointer(index);
        let (address, mss) = own.map_or(([0; 16], 0), |own| (mapped(own.address), own.mss));
        // SAFETY: within the mapping. An eBPF program that reads meanwhile may take a client on this node for another client, once.
        unsafe {
            (&raw mut (*state).own_address).write_volatile(address);
            (&raw mut (*state).own_mss).write_volatile(mss);
        }
    }

    /// Sets the interface that the service's packets leave by, and their source MAC address. A packet that is sent meanwhile may get lost.
    pub(super) fn set_interface(&self, index: u16, ifindex: u32, own_mac: [u8; 6]) {
        let state = self.state_pointer(index);
        // SAFETY: within the mapping. A program that reads between the stores sends its packet nowhere, or to an interface that drops it.
        unsafe {
            (&raw mut (*state).own_mac).write_volatile(own_mac);
            (&raw mut (*state).ifindex).write_volatile(ifindex);
        }
    }

    /// Time at which the other node last sent a packet of the service to this node, in nanoseconds of the monotonic clock. 0: never.
    pub fn peer_seen_ns(&self, index: u16) -> u64 {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).peer_seen_ns) }
            .load(Ordering::Relaxed)
    }

    /// Number of listeners of the service that died since their deaths were last forgotten.
    pub fn server_deaths(&self, index: u16) -> u32 {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).server_dead) }
            .load(Ordering::SeqCst)
    }

    /// Forgets `deaths` listener deaths, because a listener was seen after them. Does nothing if one more listener has died since, because
    /// that may be the listener that was seen.
    pub fn forget_server_deaths(&self, index: u16, deaths: u32) {
        // SAFETY: within the mapping, aligned.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).server_dead) };
        let _ = word.compare_exchange(deaths, 0, Ordering::SeqCst, Ordering::SeqCst); // if the word has changed, the caller looks again
    }

    /// Stores the epoch for a successor of the agent.
    pub fn set_epoch(&self, index: u16, epoch: u64) {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).epoch) }
            .store(epoch, Ordering::SeqCst);
    }

    /// Whether the primary has accepted this wire as its backup.
    pub fn is_consented(&self, index: u16) -> bool {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).consented) }.load(Ordering::SeqCst)
            != 0
    }

    /// Stores [`is_consented`](Self::is_consented) for a successor of the agent.
    pub fn set_consented(&self, index: u16, consented: bool) {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).consented) }
            .store(consented.into(), Ordering::SeqCst);
    }

    /// Whether this node's agent was in doubt in this epoch: the peer may have gone on alone, and has not denied it yet. `Some(true)`: in
    /// doubt as the primary. `Some(false)`: in doubt as another role.
    pub fn doubted(&self, index: u16, epoch: u64) -> Option<bool> {
        // SAFETY: as for `set_until`.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).doubted) }
            .load(Ordering::SeqCst);
        [true, false]
            .into_iter()
            .find(|&is_primary| word == doubt_word(is_primary, epoch))
    }

    /// Stores [`doubted`](Self::doubted) for a successor of the agent. `doubt`: whether this node is the primary, and the epoch.
    pub fn set_doubted(&self, index: u16, doubt: Option<(bool, u64)>) {
        let word = doubt.map_or(0, |(is_primary, epoch)| doubt_word(is_primary, epoch));
        // SAFETY: as for `set_until`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).doubted) }
            .store(word, Ordering::SeqCst);
    }

    /// Time at which the right to speak alone ends, in nanoseconds of the monotonic clock. 0: the right does not end.
    pub fn until(&self, index: u16) -> u64 {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).until_ns) }.load(Ordering::SeqCst)
    }

    /// Sets [`until`](Self::until).
    pub fn set_until(&self, index: u16, until_ns: u64) {
        // SAFETY: within the mapping, aligned; the programs read it as one word.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).until_ns) }
            .store(until_ns, Ordering::SeqCst);
    }

    /// Lets the primary send segments straight to their clients until `until_ns`, in nanoseconds of the monotonic clock. 0: it does not.
    pub fn set_direct_until(&self, index: u16, until_ns: u64) {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).direct_until_ns) }
            .store(until_ns, Ordering::SeqCst);
    }

    /// Whether packets pass unlogged while the rings are full (commit mode `immediate`).
    pub fn is_immediate(&self, index: u16) -> bool {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU16::from_ptr(&raw mut (*self.state_pointer(index)).immediate) }.load(Ordering::SeqCst)
            != 0
    }

    /// Sets [`is_immediate`](Self::is_immediate).
    pub fn set_immediate(&self, index: u16, immediate: bool) {
        // SAFETY: as for `set_until`.
        unsafe { AtomicU16::from_ptr(&raw mut (*self.state_pointer(index)).immediate) }
            .store(immediate.into(), Ordering::SeqCst);
    }

    /// Holds clients' payload and FINs back from the primary until `until_ns`, in nanoseconds of the monotonic clock. 0 ends the hold.
    pub fn hold_input(&self, index: u16, until_ns: u64) {
        // SAFETY: within the mapping, aligned; the programs read it as one word.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).hold_until_ns) }
            .store(until_ns, Ordering::SeqCst);
    }

    /// Number of packets that have passed unlogged since the last call. After the agent has closed a gate, this includes every packet that
    /// passed the gate unlogged. The memory barrier in this function is the counterpart of `count_before_looking` in `bpf/log.h`
    /// (docs/wire.md, The gate and the ring's end).
    pub fn take_unlogged(&self, index: u16) -> u64 {
        // SAFETY: within the mapping, aligned.
        let word = unsafe { AtomicU64::from_ptr(&raw mut (*self.state_pointer(index)).unlogged) };
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        word.swap(0, Ordering::SeqCst)
    }

    /// The time that [`set_agent_seen`](Self::set_agent_seen) last stored, in nanoseconds of the monotonic clock.
    pub fn agent_seen(&self) -> u64 {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).agent_seen_ns) }
            .load(Ordering::Relaxed)
    }

    /// Notes that the agent runs at `now_ns` and has dealt with all its earlier absences, so a successor need not deal with them. If the
    /// agent is then away for longer than its timeout, packets pass even if the log is full.
    pub fn set_agent_seen(&self, now_ns: u64) {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).agent_seen_ns) }
            .store(now_ns, Ordering::Relaxed);
    }

    pub(super) fn set_agent_timeout(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: within the mapping, aligned.
        unsafe {
            AtomicU64::from_ptr(&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).agent_timeout_ns)
        }
        .store(nanos, Ordering::Relaxed);
    }

    /// Tells the programs whether the agent waits for a wake-up (true) or polls.
    pub fn set_asleep(&self, asleep: bool) {
        // SAFETY: within the mapping, aligned.
        let word = unsafe {
            AtomicU32::from_ptr(&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).agent_asleep)
        };
        word.store(u32::from(asleep), Ordering::SeqCst);
    }

    pub(super) fn set_crash_codes(&self, index: u16, codes: &[u8]) {
        let state = self.state_pointer(index);
        // SAFETY: within the mapping, aligned.
        unsafe { (&raw mut (*state).crash_codes).write_volatile(crash_codes(codes)) };
    }
}
