//! Words in mapped memory, by which the agent and the eBPF programs communicate without a system call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;
use proto::Instant;
use proto::edge::CopiedPackets;
use proto::edge::switch::{KeptString, StringSteering};

use super::abi::{
    BUCKET_SHIFT, BUCKETS, EdgeState, PortState, SLOTS, STRINGS_MAX, StringMemory, link_word, next_hops,
    policy_number, second_number, side_number, steering_number, steering_of, strings_number,
};
use super::plan::EdgeWirePlan;

/// The mapped memory of the map `state`, which has one element.
pub(super) struct StateWords {
    memory: MmapRaw,
}

impl StateWords {
    /// Length of the mapping in bytes.
    pub(super) const BYTES: usize = size_of::<EdgeState>();

    /// `memory` is a mapping of the map `state`.
    pub(super) fn new(memory: MmapRaw) -> Self {
        assert!(memory.len() >= Self::BYTES);
        Self { memory }
    }

    fn state(&self) -> *mut EdgeState {
        self.memory.as_mut_ptr().cast()
    }

    fn string(&self, index: usize) -> *mut StringMemory {
        assert!(index < STRINGS_MAX, "string {index}");
        // SAFETY: the index is within the array, which is within the mapping.
        unsafe {
            (&raw mut (*self.state()).string)
                .cast::<StringMemory>()
                .add(index)
        }
    }

    /// A word of the state.
    fn word32(&self, field: impl FnOnce(*mut EdgeState) -> *mut u32) -> &AtomicU32 {
        // SAFETY: `field` names a field of the mapped state, aligned as in `EdgeState`; the programs use it as one word, too.
        unsafe { AtomicU32::from_ptr(field(self.state())) }
    }

    fn word64(&self, field: impl FnOnce(*mut EdgeState) -> *mut u64) -> &AtomicU64 {
        // SAFETY: as for `word32`.
        unsafe { AtomicU64::from_ptr(field(self.state())) }
    }

    fn string_word(&self, index: usize, field: impl FnOnce(*mut StringMemory) -> *mut u32) -> &AtomicU32 {
        // SAFETY: as for `word32`, for a field of the string's state.
        unsafe { AtomicU32::from_ptr(field(self.string(index))) }
    }

    fn string_word64(&self, index: usize, field: impl FnOnce(*mut StringMemory) -> *mut u64) -> &AtomicU64 {
        // SAFETY: as for `string_word`.
        unsafe { AtomicU64::from_ptr(field(self.string(index))) }
    }

    fn epoch_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the field is a field of the string's state.
        self.string_word64(index, |state| unsafe { &raw mut (*state).epoch })
    }

    fn lost_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the field is a field of the string's state.
        self.string_word64(index, |state| unsafe { &raw mut (*state).lost_ns })
    }

    fn hold_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the field is a field of the string's state.
        self.string_word64(index, |state| unsafe { &raw mut (*state).hold_ns })
    }

    /// Stores the ports and settings of a plan. The strings' steering, generations and caps stay, and so does what `keep` stored.
    pub(super) fn set_plan(&self, plan: &EdgeWirePlan, agent_timeout: Duration) {
        // SAFETY: within the mapping. A program that reads between the stores sends its packet to the stack or to a former port.
        unsafe {
            (&raw mut (*self.state()).outside).write_volatile(PortState::new(plan.outside));
            for (index, string) in plan.strings.iter().enumerate() {
                let state = self.string(index);
                let (v4, v6) = next_hops(string);
                (&raw mut (*state).ifindex).write_volatile(string.ifindex);
                (&raw mut (*state).next_hop_v4).write_volatile(v4);
                (&raw mut (*state).next_hop_v6).write_volatile(v6);
                (&raw mut (*state).link_v4).write_volatile(0); // the next hop may have changed
                (&raw mut (*state).link_v6).write_volatile(0);
            }
        }
        // SAFETY: `field` is a field of the state.
        self.word32(|state| unsafe { &raw mut (*state).default_side })
            .store(side_number(plan.default_side), Ordering::SeqCst);
        // SAFETY: as above.
        self.word32(|state| unsafe { &raw mut (*state).policy })
            .store(policy_number(plan.policy), Ordering::SeqCst);
        // SAFETY: the field is a field of the state.
        self.word32(|state| unsafe { &raw mut (*state).second })
            .store(second_number(plan.second), Ordering::SeqCst);
        // SAFETY: as above.
        self.word64(|state| unsafe { &raw mut (*state).agent_timeout_ns })
            .store(
                u64::try_from(agent_timeout.as_nanos()).unwrap_or(u64::MAX),
                Ordering::SeqCst,
            );
        self.strings_word().store(strings_number(plan), Ordering::SeqCst);
    }

    fn strings_word(&self) -> &AtomicU32 {
        // SAFETY: the field is a field of the state.
        self.word32(|state| unsafe { &raw mut (*state).strings })
    }

    pub(super) fn strings(&self) -> u32 {
        self.strings_word().load(Ordering::SeqCst)
    }

    /// The word for the cookie of the edge's network namespace.
    pub(super) fn netns_cookie(&self) -> &AtomicU64 {
        // SAFETY: the field is a field of the state.
        self.word64(|state| unsafe { &raw mut (*state).netns_cookie })
    }

    pub(super) fn agent_seen(&self) -> &AtomicU64 {
        // SAFETY: the field is a field of the state.
        self.word64(|state| unsafe { &raw mut (*state).agent_seen_ns })
    }

    pub(super) fn agent_asleep(&self) -> &AtomicU32 {
        // SAFETY: the field is a field of the state.
        self.word32(|state| unsafe { &raw mut (*state).agent_asleep })
    }

    pub(super) fn steering(&self, string: usize) -> StringSteering {
        // SAFETY: the field is a field of the string's state.
        let word = self.string_word(string, |state| unsafe { &raw mut (*state).steering });
        steering_of(word.load(Ordering::SeqCst))
    }

    pub(super) fn set_steering(&self, string: usize, steering: StringSteering) {
        // SAFETY: the field is a field of the string's state.
        self.string_word(string, |state| unsafe { &raw mut (*state).steering })
            .store(steering_number(steering), Ordering::SeqCst);
    }

    pub(super) fn bump_generation(&self, string: usize) {
        // SAFETY: the field is a field of the string's state.
        self.string_word(string, |state| unsafe { &raw mut (*state).generation })
            .fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a new epoch of caching, goes on with the current epoch, or ends it: see `EdgeAction::SetCopies`. No two strings ever
    /// have the same epoch, except epoch 0 (no copies). The programs know in which epoch each flow was cached. After a flow has moved to
    /// another string, this epoch differs from the string's epoch. Then the string's cache holds nothing of the flow.
    pub(super) fn set_copies(&self, string: usize, copies: CopiedPackets) {
        // SAFETY: the field is a field of the state.
        let last = self.word32(|state| unsafe { &raw mut (*state).last_caching_epoch });
        // SAFETY: the field is a field of the string's state.
        let current = self.string_word(string, |state| unsafe { &raw mut (*state).caching_epoch });
        // SAFETY: the field is a field of the string's state.
        let entering = self.string_word(string, |state| unsafe { &raw mut (*state).copies_entering });
        let before = current.load(Ordering::SeqCst);
        let mut epoch = if copies == CopiedPackets::Entering {
            before
        } else {
            0
        };
        while copies != CopiedPackets::None && epoch == 0 {
            epoch = last.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        }
        entering.store((copies == CopiedPackets::Entering).into(), Ordering::SeqCst);
        current.store(epoch, Ordering::SeqCst);
    }

    /// `None`: no cap. A cap of 0 bytes counts as one byte.
    pub(super) fn set_cap(&self, string: usize, window: Option<u32>) {
        // SAFETY: the field is a field of the string's state.
        self.string_word(string, |state| unsafe { &raw mut (*state).cap })
            .store(window.map_or(0, |window| window.max(1)), Ordering::SeqCst);
    }

    pub(super) fn cap(&self, string: usize) -> Option<u32> {
        // SAFETY: the field is a field of the string's state.
        let word = self.string_word(string, |state| unsafe { &raw mut (*state).cap });
        Some(word.load(Ordering::SeqCst)).filter(|cap| *cap > 0)
    }

    fn was_up_word(&self, string: usize) -> &AtomicU32 {
        // SAFETY: the field is a field of the string's state.
        self.string_word(string, |state| unsafe { &raw mut (*state).was_up })
    }

    pub(super) fn keep(&self, string: usize, kept: KeptString) {
        self.epoch_word(string).store(kept.epoch, Ordering::SeqCst);
        self.was_up_word(string)
            .store(kept.was_up.into(), Ordering::SeqCst);
        let (lost, hold) = kept.last_loss.map_or((0, 0), |(at, hold)| {
            (at.as_nanos(), u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX))
        });
        self.hold_word(string).store(hold, Ordering::SeqCst);
        self.lost_word(string).store(lost, Ordering::SeqCst);
    }

    pub(super) fn kept(&self, string: usize) -> KeptString {
        let lost = self.lost_word(string).load(Ordering::SeqCst);
        let hold = Duration::from_nanos(self.hold_word(string).load(Ordering::SeqCst));
        KeptString {
            epoch: self.epoch_word(string).load(Ordering::SeqCst),
            was_up: self.was_up_word(string).load(Ordering::SeqCst) != 0,
            last_loss: (lost > 0).then(|| (Instant::from_nanos(lost), hold)),
        }
    }

    /// Stores the link-layer addresses of a string's next hop (`next_hop`) and of the string's port (`own`).
    pub(super) fn set_link(&self, string: usize, is_v6: bool, own: [u8; 6], next_hop: [u8; 6]) {
        let state = self.string(string);
        // SAFETY: the fields are fields of the string's state, within the mapping and aligned; the programs use each as one word, too.
        let (own_word, word) = unsafe {
            let link = if is_v6 {
                &raw mut (*state).link_v6
            } else {
                &raw mut (*state).link_v4
            };
            (
                AtomicU64::from_ptr(&raw mut (*state).own_link),
                AtomicU64::from_ptr(link),
            )
        };
        own_word.store(link_word(own), Ordering::SeqCst); // stored first: the programs use both words as soon as `word` is set
        word.store(link_word(next_hop), Ordering::SeqCst);
    }

    pub(super) fn set_slots(&self, slots: &[u8; SLOTS]) {
        // SAFETY: within the mapping. Each slot is one byte, so a program that reads meanwhile finds the old or the new string.
        let first = unsafe { (&raw mut (*self.state()).slots).cast::<u8>() };
        for (at, &string) in slots.iter().enumerate() {
            assert!(usize::from(string) < STRINGS_MAX, "string {string}");
            // SAFETY: `at` is below `SLOTS`.
            unsafe { first.add(at).write_volatile(string) };
        }
    }

    /// Number of flows of a string that had an entering packet in the last second. `now_ns`: the monotonic clock.
    pub(super) fn active(&self, string: usize, now_ns: u64) -> u64 {
        let now = now_ns >> BUCKET_SHIFT;
        let oldest = now.saturating_sub(BUCKETS as u64 - 1);
        // SAFETY: within the mapping, aligned.
        let buckets = unsafe { (&raw mut (*self.string(string)).buckets).cast::<u64>() };
        (0..BUCKETS)
            .map(|bucket| {
                // SAFETY: `bucket` is below `BUCKETS`.
                unsafe { AtomicU64::from_ptr(buckets.add(bucket)) }.load(Ordering::Relaxed)
            })
            .filter(|word| (oldest..=now).contains(&(word >> 32)))
            .map(|word| word & u64::from(u32::MAX))
            .sum()
    }
}
