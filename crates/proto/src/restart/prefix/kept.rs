//! The survivor's half: the input of a relayed connection, and a hash of its output.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{EarlierOutput, PREFIX_WINDOW, PrefixAnswer, PrefixAsk, PrefixPart};
use crate::restart::digest::Digest;
use crate::spill::{Spills, gather};
use crate::stream::StreamLog;
use crate::{Offset, Seq};

/// How much input may be kept, in bytes. The limits are those of the service's log (docs/limits.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepLimits {
    /// Of one connection, in memory.
    pub connection_bytes_max: u64,
    /// Of all connections of the service, in memory.
    pub bytes_max: u64,
}

/// The kept input of one service's relayed connections.
#[derive(Debug)]
pub struct KeptInputs {
    limits: KeepLimits,
    spills: Option<Arc<Spills>>,
    memory: AtomicU64,
    live: AtomicU64,
    given_up: AtomicU64,
}

impl KeptInputs {
    /// Nothing is kept yet. Input beyond the limits in memory goes to `spills`.
    pub fn new(limits: KeepLimits, spills: Option<Arc<Spills>>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            spills,
            memory: AtomicU64::new(0),
            live: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        })
    }

    /// Number of live connections whose whole input is kept.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Number of connections whose input was given up at a limit.
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}

/// One relayed connection's input from its first byte on, and the hash of its output.
#[derive(Debug)]
pub struct KeptInput {
    all: Arc<KeptInputs>,
    begins_at: (Seq, Seq),
    /// `None`: given up.
    log: Option<StreamLog>,
    /// The part of the sum in `all` that this log accounts for.
    counted: u64,
    said: Digest,
}

impl KeptInput {
    /// Nothing is kept yet of a connection whose first input and output bytes have these sequence numbers.
    pub fn new(all: Arc<KeptInputs>, begins_at: (Seq, Seq)) -> Self {
        all.live.fetch_add(1, Ordering::Relaxed);
        Self {
            all,
            begins_at,
            log: Some(StreamLog::new(begins_at.0)),
            counted: 0,
            said: Digest::new(),
        }
    }

    /// The application gets these bytes next.
    pub fn on_input(&mut self, bytes: &[u8]) {
        let Some(log) = &mut self.log else {
            return;
        };
        log.insert(log.frontier(), bytes, None);
        self.count();
        let limits = self.all.limits;
        let is_over =
            |kept: &Self| kept.counted > limits.connection_bytes_max || kept.all.memory() > limits.bytes_max;
        if is_over(self) {
            self.spill();
        }
        if is_over(self) {
            self.give_up();
        }
    }

    /// The application has sent these bytes, repeated ones included.
    pub fn on_output(&mut self, bytes: &[u8]) {
        if self.log.is_some() {
            self.said.write(bytes);
        }
    }

    fn spill(&mut self) {
        if let (Some(log), Some(spills)) = (&mut self.log, &self.all.spills) {
            // If the file cannot be written or is full, the connection stays over its limit.
            let _ = log.spill(spills, log.frontier(), 0);
        }
        self.count();
    }

    fn count(&mut self) {
        let memory = self.log.as_ref().map_or(0, |log| log.memory() as u64);
        self.all.memory.fetch_add(memory, Ordering::Relaxed);
        self.all.memory.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = memory;
    }

    fn give_up(&mut self) {
        self.forget();
        self.all.given_up.fetch_add(1, Ordering::Relaxed);
    }

    fn forget(&mut self) {
        if self.log.take().is_some() {
            self.all.live.fetch_sub(1, Ordering::Relaxed);
        }
        self.count();
    }

    /// Whether the input is kept.
    pub const fn is_whole(&self) -> bool {
        self.log.is_some()
    }

    /// The answer to the wire's question. `is_new`: all output of the application that comes next is new to the client.
    pub fn answer(&self, ask: &PrefixAsk, is_new: bool) -> PrefixAnswer {
        let content = self.part(ask, is_new);
        PrefixAnswer {
            client: ask.client,
            input: ask.input,
            content,
        }
    }

    fn part(&self, ask: &PrefixAsk, is_new: bool) -> Result<PrefixPart, String> {
        let log = self
            .log
            .as_ref()
            .ok_or("its input reached the limit of kept input")?;
        let size = log.offset_of(ask.input).ok_or("it is another connection")?;
        // Input that the relay has not read yet comes with a later question.
        let until = size
            .min(log.frontier())
            .min(Offset(ask.from) + PREFIX_WINDOW as u64);
        let from = Offset(ask.from).min(until);
        let bytes: io::Result<_> = gather(log.parts(from..until));
        Ok(PrefixPart {
            begins_at: self.begins_at,
            size: size.0,
            at: from.0,
            until: until.0,
            bytes: bytes.map_err(|error| format!("its input cannot be read: {error}"))?,
            output: is_new.then(|| EarlierOutput {
                bytes: self.said.bytes(),
                hash: self.said.of_all(),
            }),
        })
    }
}

impl Drop for KeptInput {
    fn drop(&mut self) {
        self.forget();
    }
}
