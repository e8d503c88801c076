//! The workloads. Each is a conversation on one connection.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::ClientConnection;
use super::plan::{ClientPlan, Protocol, Until, Workload};
use super::replies::PatternRange;
use super::report::{ClientFailure, ConnectionPhase, Latency};
use super::requests::{self, PreparedRequest, StoreMethod};
use crate::clock::monotonic as now;

/// The task of one connection.
pub struct Task<'a> {
    /// The plan of all connections.
    pub plan: &'a ClientPlan,
    /// The connection's number.
    pub index: usize,
    /// Becomes true at `ClientOrder::Stop`.
    pub stop: watch::Receiver<bool>,
    /// Number of `ClientOrder::Reconnect` received so far.
    pub reconnect: watch::Receiver<u64>,
    /// Becomes true at `ClientOrder::Wake`.
    pub wake: watch::Receiver<bool>,
    /// Round trips, in nanoseconds.
    pub latency: &'a RefCell<Histogram<u64>>,
    /// Number of exchanges begun (workloads `request` and `idle`).
    pub exchanges: Cell<u64>,
    /// Whether the server has refused a request and closes (workload `post`).
    pub was_refused: Cell<bool>,
    /// Number of random requests that were refused. The client has connected anew and asked again.
    pub asked_again: Cell<u64>,
}

/// The content that a connection must receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueContent {
    /// The seed from which the content is generated.
    pub seed: u64,
    /// Number of bytes after which the content repeats.
    pub period: u64,
    /// Total number of bytes.
    pub len: u64,
}

/// Maximum number of content bytes in one pipelined command.
const PIECE: u64 = 16 << 10;
/// Maximum number of pipelined commands without a reply. Together they carry half a megabyte. That keeps the path full, and 1,000
/// connections still fit into memory.
const PIPELINED: usize = 32;
/// Size in bytes of a value that is read repeatedly.
const DOWNLOAD_VALUE: u64 = 1 << 20;
/// Content bytes of the first request that stores content.
const FIRST_STORED: u64 = 1024;
/// Number of the first key that is used for a note. A note is written on one connection and read back on a later one.
const NOTES: u64 = 1 << 32;
/// Time between a refusal and the next connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Size in bytes of an uploaded value. Redis refuses values above 512 MiB, and copies a value to grow it.
const UPLOAD_VALUE: u64 = 64 << 20;

/// An empty histogram of round trips, with three significant digits and values up to an hour.
pub fn latency_account() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are in order")
}

/// The histogram's summary in microseconds. `None` if it is empty.
pub fn latency(account: &Histogram<u64>) -> Option<Latency> {
    let us = |ns: u64| ns as f64 / 1e3;
    (!account.is_empty()).then(|| Latency {
        count: account.len(),
        mean_us: account.mean() / 1e3,
        median_us: us(account.value_at_quantile(0.5)),
        p99_us: us(account.value_at_quantile(0.99)),
        max_us: us(account.max()),
    })
}

impl Task<'_> {
    /// Carries out the task on a connection whose handshake is complete, up to and including the FINs.
    ///
    /// # Errors
    /// The reason why the task ended early.
    pub async fn run(&self, connection: &ClientConnection) -> Result<(), ClientFailure> {
        connection.enter(ConnectionPhase::Prepare);
        match (self.plan.protocol, self.workload()) {
            (Protocol::Http, Workload::Download { bytes }) => {
                connection.enter(ConnectionPhase::Flow);
                connection.exchange(self.http_get(bytes, 0)).await?;
            }
            (Protocol::Redis, Workload::Download { bytes }) => self.redis_download(connection, bytes).await?,
            (_, Workload::Upload { bytes }) => self.redis_upload(connection, bytes).await?,
            (_, Workload::Post { bytes, piece }) => self.http_post(connection, bytes, piece).await?,
            (_, Workload::Request { size, until }) => self.requests(connection, size, until).await?,
            (_, Workload::Idle { size }) => self.idle(connection, size).await?,
        }
        connection.close().await
    }

    /// The content that the connection must have received if nothing failed.
    pub fn due(&self) -> DueContent {
        let http = self.plan.protocol == Protocol::Http;
        let is_own = matches!(self.workload(), Workload::Post { .. }) || !http;
        let seed = if is_own { self.seed() } else { self.plan.seed };
        let (period, len) = match self.workload() {
            Workload::Download { bytes } if http => (bytes, bytes),
            Workload::Download { bytes } => (DOWNLOAD_VALUE.min(bytes), bytes),
            Workload::Upload { bytes } => (bytes, bytes),
            Workload::Post { bytes, .. } => (bytes, if self.was_refused.get() { 0 } else { bytes }),
            Workload::Request { size, until } => {
                let count = match until {
                    Until::Count(count) => count,
                    Until::Told => self.exchanges.get() - self.asked_again.get(),
                };
                (if http { size } else { u64::MAX }, count * size)
            }
            Workload::Idle { size } => (if http { size } else { u64::MAX }, 2 * size),
        };
        DueContent { seed, period, len }
    }

    fn workload(&self) -> Workload {
        self.plan.workload_of(self.index)
    }

    async fn redis_download(&self, connection: &ClientConnection, bytes: u64) -> Result<(), ClientFailure> {
        let key = self.key(0);
        let value = DOWNLOAD_VALUE.min(bytes);
        let mut puts = self
            .pieces(0, value, value, PIECE)
            .map(|(position, content)| requests::redis_put(&key, position, content));
        connection.pipeline(PIPELINED, async || puts.next()).await?;
        connection.enter(ConnectionPhase::Flow);
        let mut pace = RateLimiter::new(self.plan.bytes_per_second);
        let mut pieces = self.pieces(0, bytes, value, pace.piece());
        let next = async || {
            let (_, content) = pieces.next()?;
            pace.wait_for(content.len).await;
            let stretch = PatternRange {
                offset: content.offset % value,
                ..content
            };
            Some(requests::redis_get(&key, stretch.offset, stretch))
        };
        connection.pipeline(PIPELINED, next).await?;
        connection.exchange(requests::redis_delete(&[&key])).await
    }

    async fn redis_upload(&self, connection: &ClientConnection, bytes: u64) -> Result<(), ClientFailure> {
        connection.enter(ConnectionPhase::Flow);
        let key = |content: &PatternRange| self.key(content.offset / UPLOAD_VALUE);
        let mut pace = RateLimiter::new(self.plan.bytes_per_second);
        let mut pieces = self.pieces(0, bytes, UPLOAD_VALUE, pace.piece());
        let next = async || {
            let (position, content) = pieces.next()?;
            pace.wait_for(content.len).await;
            Some(requests::redis_put(&key(&content), position, content))
        };
        connection.pipeline(PIPELINED, next).await?;
        let keys: Vec<_> = (0..bytes.div_ceil(UPLOAD_VALUE)).collect();
        for &number in &keys {
            let len = UPLOAD_VALUE.min(bytes - number * UPLOAD_VALUE);
            connection
                .exchange(requests::redis_length(&self.key(number), len))
                .await?;
        }
        let mut gets = self
            .pieces(0, bytes, UPLOAD_VALUE, PIECE)
            .map(|(position, content)| requests::redis_get(&key(&content), position, content));
        connection.pipeline(PIPELINED, async || gets.next()).await?;
        let names: Vec<_> = keys.into_iter().map(|number| self.key(number)).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        connection.exchange(requests::redis_delete(&names)).await
    }

    async fn http_post(
        &self,
        connection: &ClientConnection,
        bytes: u64,
        piece: u64,
    ) -> Result<(), ClientFailure> {
        connection.enter(ConnectionPhase::Flow);
        let host = self.plan.server.to_string();
        let name = |offset: u64| format!("{:x}-{}-{offset}", self.plan.seed, self.index);
        let mut pace = RateLimiter::new(self.plan.bytes_per_second);
        let first = FIRST_STORED.min(bytes);
        let pieces = || {
            let others = self.pieces(first, bytes, bytes, piece);
            self.pieces(0, first, bytes, piece).chain(others)
        };
        for (_, content) in pieces() {
            pace.wait_for(content.len).await;
            let store = match (self.index % 4, content.offset.div_ceil(piece) % 3) {
                (3, _) => StoreMethod::Post,
                (_, 0) => StoreMethod::Put,
                (_, 1) => StoreMethod::KeyedPost,
                (_, _) => StoreMethod::PutChunks,
            };
            let request =
                requests::http_store(&host, store, &name(content.offset), content, self.plan.refusable);
            connection.exchange(request).await?;
            if connection.replies.borrow().was_refused() {
                self.was_refused.set(true);
                return Ok(());
            }
        }
        for (_, content) in pieces() {
            let stored = requests::http_stored(&host, &name(content.offset), content);
            connection.exchange(stored).await?;
        }
        Ok(())
    }

    async fn requests(
        &self,
        connection: &ClientConnection,
        size: u64,
        until: Until,
    ) -> Result<(), ClientFailure> {
        connection.enter(ConnectionPhase::Flow);
        let mut pace = RateLimiter::new(self.plan.bytes_per_second).spread(size, self.seed());
        let mut times = 0;
        self.note(connection, times).await?;
        let goes_on = || match until {
            Until::Count(count) => self.exchanges.get() < count,
            Until::Told => !*self.stop.borrow(),
        };
        while goes_on() {
            tokio::select! {
                biased;
                () = pace.wait_for(size) => self.small_exchange(connection, size, 0).await?,
                failure = connection.fails() => return Err(failure),
            }
            if connection.replies.borrow().was_refused() {
                self.asked_again.set(self.asked_again.get() + 1);
                connection.replies.borrow_mut().forgive();
                self.connect_anew(connection).await?;
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            if *self.reconnect.borrow() > times {
                self.read_note(connection, times).await?;
                self.connect_anew(connection).await?;
                times += 1;
                self.note(connection, times).await?;
            }
        }
        self.read_note(connection, times).await
    }

    async fn connect_anew(&self, connection: &ClientConnection) -> Result<(), ClientFailure> {
        connection.close().await?;
        connection.enter(ConnectionPhase::Connect);
        connection.connect(self.plan.server).await?;
        connection.enter(ConnectionPhase::Flow);
        Ok(())
    }

    /// Writes a note to the server if the server keeps state (Redis). The task's next connection reads the note.
    async fn note(&self, connection: &ClientConnection, times: u64) -> Result<(), ClientFailure> {
        if self.plan.protocol == Protocol::Http {
            return Ok(());
        }
        let (key, text) = self.note_of(times);
        connection.exchange(requests::redis_note(&key, &text)).await
    }

    /// Reads back the note that the previous connection of this task wrote.
    async fn read_note(&self, connection: &ClientConnection, times: u64) -> Result<(), ClientFailure> {
        if self.plan.protocol == Protocol::Http || times == 0 {
            return Ok(());
        }
        let (key, text) = self.note_of(times - 1);
        connection.exchange(requests::redis_noted(&key, &text)).await
    }

    fn note_of(&self, times: u64) -> (String, String) {
        let key = self.key(NOTES + times);
        let text = format!("{key} of {:x}", self.seed());
        (key, text)
    }

    async fn idle(&self, connection: &ClientConnection, size: u64) -> Result<(), ClientFailure> {
        self.small_exchange(connection, size, size).await?;
        connection.enter(ConnectionPhase::Flow);
        connection.set_flowing();
        let mut wake = self.wake.clone();
        tokio::select! {
            _ = wake.wait_for(|&wake| wake) => self.small_exchange(connection, size, size).await,
            failure = connection.fails() => Err(failure),
        }
    }

    async fn small_exchange(
        &self,
        connection: &ClientConnection,
        size: u64,
        padding: u64,
    ) -> Result<(), ClientFailure> {
        let number = self.exchanges.replace(self.exchanges.get() + 1);
        let request = match self.plan.protocol {
            Protocol::Http => self.http_get(size, padding as usize),
            Protocol::Redis => {
                let content = PatternRange {
                    seed: self.seed(),
                    offset: number * size,
                    len: size,
                };
                requests::redis_exchange(&self.key(0), content)
            }
        };
        let asked = now();
        connection.exchange(request).await?;
        let round_trip = now().since(asked).as_nanos() as u64;
        self.latency.borrow_mut().saturating_record(round_trip);
        Ok(())
    }

    fn http_get(&self, len: u64, padding: usize) -> PreparedRequest {
        let rate = match self.workload() {
            Workload::Download { .. } => self.plan.bytes_per_second,
            _ => None,
        };
        let host = self.plan.server.to_string();
        if self.plan.random {
            return requests::http_random(&host, len);
        }
        requests::http_get(&host, self.plan.seed, len, padding, rate)
    }

    /// Cuts the stream `from..to` into pieces of at most `piece` bytes. The stream consists of values of `value` bytes, and no piece
    /// is part of two values. Returns each piece with its position in its value.
    fn pieces(
        &self,
        from: u64,
        to: u64,
        value: u64,
        piece: u64,
    ) -> impl Iterator<Item = (u64, PatternRange)> + use<> {
        let seed = self.seed();
        let mut offset = from;
        std::iter::from_fn(move || {
            let position = offset % value;
            let len = piece.min(value - position).min(to - offset);
            let content = PatternRange { seed, offset, len };
            offset += len;
            (len > 0).then_some((position, content))
        })
    }

    fn seed(&self) -> u64 {
        self.plan.seed.wrapping_add(self.index as u64)
    }

    /// Key number `number` of this connection. No other connection or run uses the key.
    fn key(&self, number: u64) -> String {
        format!("lab:{:x}:{}:{number}", self.plan.seed, self.index)
    }
}

/// Limits a task to a rate. The schedule is absolute: a delay of one piece does not delay the following pieces.
struct RateLimiter {
    bytes_per_second: Option<u64>,
    /// Time at which byte 0 was due.
    start: Instant,
    /// Added to the time at which each other byte is due.
    phase: Duration,
    bytes: u64,
}

impl RateLimiter {
    fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            start: Instant::now(),
            phase: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Lets pieces of `size` bytes, but for the first one, be due at another phase for each seed. Otherwise all tasks would ask at the same
    /// moments.
    fn spread(mut self, size: u64, seed: u64) -> Self {
        if let Some(rate) = self.bytes_per_second {
            let phase: f64 = Xoshiro256PlusPlus::seed_from_u64(seed).random();
            self.phase = Duration::from_secs_f64(phase * size as f64 / rate as f64);
        }
        self
    }

    /// Returns the size of a piece in bytes. With this size, a piece is due about every 5 ms, so that bytes flow steadily.
    fn piece(&self) -> u64 {
        self.bytes_per_second
            .map_or(PIECE, |rate| (rate / 200).clamp(1024, PIECE))
    }

    /// Waits until `count` more bytes may be sent or requested.
    async fn wait_for(&mut self, count: u64) {
        if let Some(due) = self.due() {
            tokio::time::sleep_until(self.start + due).await;
        }
        self.bytes += count;
    }

    /// When the next byte is due, from the start on. `None`: there is no rate.
    fn due(&self) -> Option<Duration> {
        let steady = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second? as f64);
        Some(if self.bytes == 0 {
            steady
        } else {
            steady + self.phase
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece is due each second. Each task's pieces have a phase of their own, less than a second.
    #[test]
    fn tasks_ask_at_moments_of_their_own() {
        let mut moments = Vec::new();
        for seed in 0..20 {
            let mut pace = RateLimiter::new(Some(1000)).spread(1000, seed);
            assert_eq!(pace.due(), Some(Duration::ZERO), "the first piece is due at once");
            pace.bytes += 1000;
            moments.extend(pace.due());
        }
        let range = Duration::from_secs(1)..Duration::from_secs(2);
        assert!(moments.iter().all(|moment| range.contains(moment)), "{moments:?}");
        moments.sort_unstable();
        moments.dedup();
        assert_eq!(moments.len(), 20);
    }
}
