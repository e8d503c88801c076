//! Random choices from a seed: links, endpoints, and what clients say.

use std::time::Duration;

use proto::Seq;
use proto::detector::DetectorConfig;
use proto::follower::RestartPolicy;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::application::ReadPace;
use super::http::{self, Framing, HttpMethod, HttpRequest, RequestBody};
use super::{Costs, SimClient, SimPairConfig, echo};
use crate::exchange::SeededStream;
use crate::link::LinkConfig;
use crate::tcp::{Initial, TcpConfig};

const MS: Duration = Duration::from_millis(1);

/// Source of random choices.
pub struct Draw(Xoshiro256PlusPlus);

impl Draw {
    /// All choices come from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.random_bool(probability)
    }

    /// One of `choices`.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())].clone()
    }

    /// A time below `limit`.
    pub fn time(&mut self, limit: Duration) -> Duration {
        limit.mul_f64(self.0.random::<f64>())
    }

    /// 0 in half of the calls, otherwise a number between 0 and `largest`.
    fn now_and_then(&mut self, largest: f64) -> f64 {
        if self.chance(0.5) {
            largest * self.0.random::<f64>()
        } else {
            0.0
        }
    }

    /// A link that may lose, reorder and duplicate packets.
    pub fn link(&mut self, rate: Option<u64>, delay: Duration) -> LinkConfig {
        LinkConfig {
            rate_bits_per_s: rate,
            delay,
            queue_packets: self.chance(0.3).then_some(40),
            queue_bytes: None,
            loss: self.now_and_then(0.03),
            reorder: self.now_and_then(0.1),
            reorder_delay: (delay * 2).max(MS),
            duplicate: self.now_and_then(0.05),
        }
    }

    /// Configuration of an endpoint.
    pub fn tcp(&mut self) -> TcpConfig {
        TcpConfig {
            mss: self.pick(&[1460, 1400, 536]),
            window_scale: self.pick(&[None, Some(0), Some(4), Some(7)]),
            sack: self.chance(0.7),
            timestamps: self.chance(0.7),
            send_buffer: self.pick(&[4_000, 65_536, 500_000]),
            receive_buffer: self.pick(&[3_000, 65_535, 300_000]),
            ..TcpConfig::default()
        }
    }

    /// Configuration of a pair.
    pub fn config(&mut self, seed: u64, policy: RestartPolicy) -> SimPairConfig {
        let path_rate = self.pick(&[None, Some(10_000_000), Some(100_000_000)]);
        let path_delay = self.pick(&[MS / 10, MS, 10 * MS]);
        let path = self.link(path_rate, path_delay);
        let lan = self.link(Some(1_000_000_000), MS / 20);
        let initial = Initial {
            seq: Seq(u32::MAX - 20_000),
            timestamp: u32::MAX - 200,
        };
        SimPairConfig {
            path,
            lan,
            client_tcp: self.tcp(),
            server_tcp: self.tcp(),
            initial: self.chance(0.3).then_some(initial),
            detector: DetectorConfig {
                interval: self.pick(&[5 * MS, 10 * MS, 20 * MS]),
                missed: 4,
                agent_timeout: Duration::from_secs(1),
            },
            nap: self.pick(&[MS / 10, MS / 2, 5 * MS]),
            costs: Costs::measured(self.pick(&[1, 10, 100])),
            ring_bytes: self.pick(&[30_000, 200_000, 4_000_000]),
            pace: self.pace(),
            think: self.pick(&[Duration::ZERO, MS, 20 * MS]),
            same_chunks: false,
            ..SimPairConfig::quiet(seed, policy)
        }
    }

    fn pace(&mut self) -> Option<ReadPace> {
        self.chance(0.2).then(|| ReadPace {
            bytes: self.pick(&[500, 2_000]),
            every: 4 * MS,
        })
    }

    fn pause(&mut self) -> Duration {
        if self.chance(0.5) {
            Duration::ZERO
        } else {
            self.time(100 * MS)
        }
    }

    /// Requests for replies of at most `len_max` bytes.
    pub fn requests(&mut self, count: u64, len_max: u64) -> Vec<http::PlannedRequest> {
        let mut planned = Vec::new();
        for index in 0..count {
            let is_last = index + 1 == count;
            let framings = [Framing::Length, Framing::Chunked, Framing::Close];
            let method = self.pick(&[
                HttpMethod::Get,
                HttpMethod::Get,
                HttpMethod::Head,
                HttpMethod::Put,
                HttpMethod::Post,
            ]);
            let is_write = matches!(method, HttpMethod::Put | HttpMethod::Post);
            let upload = RequestBody {
                body: SeededStream::new(self.below(1 << 30), self.below(len_max)),
                chunked: self.chance(0.5),
                expects: self.chance(0.3),
            };
            let request = HttpRequest {
                id: self.below(1 << 60),
                method,
                upload: (is_write && self.chance(0.9)).then_some(upload),
                has_key: is_write && self.chance(0.2),
                is_poison: self.chance(0.05),
                framing: self.pick(&framings[..if is_last { 3 } else { 2 }]),
                body: SeededStream::new(self.below(1 << 30), self.below(len_max)),
                close: is_last && self.chance(0.2),
            };
            let pipelined = index > 0 && self.chance(0.2);
            planned.push(http::PlannedRequest {
                request,
                after: self.pause(),
                pipelined,
            });
        }
        planned
    }

    /// Messages of at most `len_max` bytes each way.
    pub fn messages(&mut self, count: u64, len_max: u64) -> Vec<echo::PlannedMessage> {
        let mut planned = Vec::new();
        for index in 0..count {
            let [upload, download] = [self.below(len_max), self.below(len_max)];
            let small = self.pick(&[(1, 1), (0, 1), (1, 0)]);
            let message = echo::EchoMessage {
                upload: u32::try_from(upload * small.0).expect("fits u32"),
                download: u32::try_from(download * small.1).expect("fits u32"),
                seed: u32::try_from(self.below(1 << 30)).expect("fits u32"),
                echo: self.chance(0.3),
                is_last: index + 1 == count && self.chance(0.3),
            };
            planned.push((message, self.pause()));
        }
        planned
    }

    /// A client of one connection, with its requests or messages.
    pub fn talk(&mut self, policy: RestartPolicy) -> SimClient {
        let count = 1 + self.below(4);
        let half_closes = self.chance(0.2);
        let len_max = self.pick(&[300, 5_000, 60_000]);
        self.talk_of(policy, count, len_max, half_closes)
    }

    /// `count` requests or messages of at most `len_max` bytes.
    pub fn talk_of(
        &mut self,
        policy: RestartPolicy,
        count: u64,
        len_max: u64,
        half_closes: bool,
    ) -> SimClient {
        match policy {
            RestartPolicy::Http => {
                let requests = self.requests(count, len_max);
                SimClient::Http(http::HttpClient::new(requests, half_closes, self.pace()))
            }
            RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
                let messages = self.messages(count, len_max);
                SimClient::Echo(echo::EchoClient::new(messages, half_closes, self.pace()))
            }
        }
    }
}
