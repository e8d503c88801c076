//! The backup's half: which event answers the server's next call, and whether the server does what the record says.
//!
//! | the call | the next event | step |
//! |---|---|---|
//! | any | none yet | `Wait` |
//! | any | none, and the record has ended | `Live`, from then on for all calls |
//! | any | fits | `Event` |
//! | a clock | does not fit | `Repeat` the clock's last value |
//! | not a clock | a clock | skip the event, look again |
//! | not a clock | does not fit | a divergence |
//!
//! Clocks are excepted because a server also reads them for work that no client asked for, such as a request of its administrator on one
//! node. Such work must not shift the order of the calls that matter. `Ready` is the point at which a server that diverged meets its record
//! again: the events up to the next `Ready` are skipped.

use super::encoding::{BadRecord, OrderDecoder};
use super::event::{CLOCKS, COARSE_CLOCKS, OrderCall, OrderEvent};

/// What happens when the server does something else than the record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDivergence {
    /// The server goes on with the record. The comparison of its output decides which connections remain protected.
    TrustLog,
    /// The server goes on without the record.
    #[default]
    Unprotect,
}

/// How the server's call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// Wait for more of the record.
    Wait,
    /// As recorded.
    Event(OrderEvent),
    /// A clock that the primary's server did not read here: its last value in nanoseconds.
    Repeat(u64),
    /// As without a record, because the call is not in the record.
    Diverged,
    /// As without a record, because the record has ended.
    Live,
}

/// Counts of a playback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Events that answered a call.
    pub played: u64,
    /// Calls that the record does not have in this place.
    pub divergences: u64,
    /// Events that were skipped after a divergence.
    pub skipped: u64,
    /// Clock events that no call asked for.
    pub clocks_skipped: u64,
    /// Clock calls that had no event.
    pub clocks_repeated: u64,
}

/// The playback of a record.
#[derive(Debug, Default)]
pub struct OrderPlayback {
    decoder: OrderDecoder,
    received: Vec<u8>,
    /// Bytes of `received` that were decoded.
    decoded: usize,
    next: Option<OrderEvent>,
    has_ended: bool,
    clocks: [Option<u64>; CLOCKS],
    on_divergence: OnDivergence,
    /// The server has diverged, and has not met its record again.
    is_apart: bool,
    counts: OrderCounts,
    /// The first divergence: the call, and the event in its place.
    first: Option<(OrderCall, OrderEvent)>,
}

impl OrderPlayback {
    /// A playback of a record that has not arrived yet.
    #[must_use]
    pub fn new(on_divergence: OnDivergence) -> Self {
        Self {
            on_divergence,
            ..Self::default()
        }
    }

    /// The next bytes of the record. After the record's end, or after the server went on without it, they are ignored.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.has_ended {
            return;
        }
        self.received.drain(..self.decoded);
        self.decoded = 0;
        self.received.extend(bytes);
    }

    /// No more of the record follows, because the primary is dead or the pair has no record. An incomplete event at the end is dropped: no
    /// write depended on it.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// How the server's next call is answered.
    pub fn step(&mut self, call: OrderCall) -> Result<OrderStep, BadRecord> {
        loop {
            let Some(event) = self.fill()? else {
                return Ok(if self.has_ended {
                    OrderStep::Live
                } else {
                    OrderStep::Wait
                });
            };
            if call.fits(event) {
                return Ok(self.play());
            }
            let is_clock = matches!(event, OrderEvent::Clock { .. });
            match call {
                OrderCall::Clock { clock } => {
                    self.counts.clocks_repeated += 1;
                    return Ok(self.last(clock).map_or(OrderStep::Diverged, OrderStep::Repeat));
                }
                _ if is_clock => self.skip_clock(),
                _ => {
                    self.diverge(call);
                    if self.on_divergence == OnDivergence::Unprotect {
                        return Ok(OrderStep::Live);
                    }
                    if call != OrderCall::Ready {
                        return Ok(OrderStep::Diverged);
                    }
                    self.counts.skipped += 1;
                    self.next = None;
                }
            }
        }
    }

    /// The server cannot do what the record says, for example because a connection of the record is not there. Returns whether the server
    /// goes on with the record.
    #[must_use]
    pub fn cannot_follow(&mut self) -> bool {
        self.counts.divergences += 1;
        if self.on_divergence == OnDivergence::Unprotect {
            self.give_up();
        }
        self.on_divergence == OnDivergence::TrustLog
    }

    /// Whether all events that have arrived were played. A child takes the next one only then, because a program that it starts may need it.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.next.is_none() && self.decoded == self.received.len()
    }

    /// The last value of a clock in the part of the record that was played.
    #[must_use]
    pub fn last(&self, clock: u8) -> Option<u64> {
        self.clocks.get(usize::from(clock)).copied().flatten()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        self.counts
    }

    /// The first call that did not fit, and the event in its place.
    #[must_use]
    pub fn first_divergence(&self) -> Option<(OrderCall, &OrderEvent)> {
        self.first.as_ref().map(|(call, event)| (*call, event))
    }

    fn fill(&mut self) -> Result<Option<&OrderEvent>, BadRecord> {
        if self.next.is_none() {
            let mut rest = &self.received[self.decoded..];
            self.next = self.decoder.decode(&mut rest)?;
            self.decoded = self.received.len() - rest.len();
        }
        Ok(self.next.as_ref())
    }

    fn play(&mut self) -> OrderStep {
        let event = self.next.take().expect("the caller has looked");
        self.counts.played += 1;
        self.is_apart &= !matches!(event, OrderEvent::Ready(_));
        self.remember_clock(&event);
        OrderStep::Event(event)
    }

    fn skip_clock(&mut self) {
        let event = self.next.take().expect("the caller has looked");
        let is_coarse = matches!(event, OrderEvent::Clock { clock, .. } if COARSE_CLOCKS.contains(&clock));
        self.counts.clocks_skipped += u64::from(!is_coarse);
        self.remember_clock(&event);
    }

    fn remember_clock(&mut self, event: &OrderEvent) {
        if let OrderEvent::Clock { clock, nanos } = event {
            self.clocks[usize::from(*clock)] = Some(*nanos);
        }
    }

    fn diverge(&mut self, call: OrderCall) {
        // A server that meets its record again has diverged once, not once for each event that it skips.
        let is_new = call != OrderCall::Ready || !self.is_apart;
        self.counts.divergences += u64::from(is_new);
        self.is_apart = true;
        if self.first.is_none() {
            self.first = self.next.clone().map(|event| (call, event));
        }
        if self.on_divergence == OnDivergence::Unprotect {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.next = None;
        self.received.clear();
        self.decoded = 0;
        self.has_ended = true;
    }
}
