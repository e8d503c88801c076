//! What a client process is asked to do, and what it says while it does it: JSON, one object per line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::report::Report;

/// The work of one client process: the first line on its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The service.
    pub server: SocketAddr,
    /// What it speaks.
    pub protocol: Protocol,
    /// What every connection does.
    pub workload: Workload,
    /// Connections, all open at once.
    pub connections: usize,
    /// How many of them, the first ones, are idle whatever the workload: [`Workload::Idle`] with [`Plan::IDLE_SIZE`].
    pub idle: usize,
    /// Seed of the pattern. HTTP: that of the files. Redis: connection *i* writes the pattern `seed + i`, under
    /// keys of its own.
    pub seed: u64,
    /// Content bytes per second and connection; `None`: as fast as it goes.
    ///
    /// Redis and requests are paced by when the client asks. An HTTP download is paced by the server, which gets the
    /// argument `?rate=N` (nginx: `limit_rate $arg_rate; sendfile_max_chunk 16k;`): a client that reads slowly would
    /// see its own buffers, not the stall.
    pub bytes_per_second: Option<u64>,
    /// Milliseconds after which a connection that has not ended has failed.
    pub deadline_ms: u64,
    /// Handshakes under way at once, below the server's backlog.
    pub connects_at_once: usize,
    /// Points of each connection's timeline; between half of it and all of it are used.
    pub timeline_points: usize,
    /// Of how many connections, the first ones, the SHA-256 of the content is computed. The content is compared byte by byte with or
    /// without it; hashing takes longer than that.
    pub hashed: usize,
    /// Every request that stores something may be refused (503), and not only one that must not be executed again: the nodes may
    /// have given up its log.
    pub refusable: bool,
}

/// Application protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 (RFC 9112), GET of [`file_name`](crate::pattern::file_name)s.
    Http,
    /// Redis' RESP2.
    Redis,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Workload {
    /// Content flows to the client. HTTP: one file of this size. Redis: pipelined reads of a value which the
    /// connection wrote before.
    Download {
        /// Content bytes.
        bytes: u64,
    },
    /// Content flows to the server, in pipelined commands whose replies are checked; then it is read back. Redis only.
    Upload {
        /// Content bytes.
        bytes: u64,
    },
    /// Content flows to the server in requests, each stored under a name of its own, and is read back. HTTP only.
    ///
    /// By turns a PUT with a length, a POST with an `Idempotency-Key`, a PUT in chunks that expects `100 Continue`. Every
    /// fourth connection POSTs without a key instead: it may be refused (503), which ends it in order; see also
    /// [`Plan::refusable`].
    Post {
        /// Content bytes.
        bytes: u64,
        /// Those of a request.
        piece: u64,
    },
    /// One small request after the other, each after the reply to the one before. Redis: what a connection wrote at its beginning is
    /// read back at the end of the next one, after [`Order::Reconnect`].
    Request {
        /// Content bytes of a reply (and for Redis of a request).
        size: u64,
        /// When it ends.
        until: Until,
    },
    /// One exchange, silence until [`Order::Wake`], another exchange.
    Idle {
        /// Content bytes in both directions of each exchange.
        size: u64,
    },
}

/// The end of a [`Workload::Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// After so many requests on each connection.
    Count(u64),
    /// At [`Order::Stop`].
    Told,
}

/// Told to a running client process: further lines on its standard input. When that ends, the process ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A fault happened; the report shall say how long connections stalled around it.
    Fault {
        /// When, in nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// Gaps that begin later than so many milliseconds after the fault are not counted as its stall.
        window_ms: u64,
        /// Of a wait that began before, only what comes after the fault counts: it may have had another cause.
        clips: bool,
    },
    /// Each connection of a workload `request` ends in order, and its client connects anew.
    Reconnect,
    /// Requests end.
    Stop,
    /// Idle connections go on. Told to others it changes nothing.
    Wake,
}

/// Said by a running client process: the lines on its standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Every connection has received its first content or has failed; idle ones wait now. Said once.
    Ready {
        /// Connections that have received content.
        flowing: usize,
    },
    /// Said every 100 ms.
    Progress {
        /// Content bytes received and right, over all connections.
        bytes_received: u64,
        /// Content bytes sent and confirmed by replies, over all connections.
        bytes_sent: u64,
    },
    /// The last line.
    Report(Report),
}

/// Why a plan cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A number that must be larger.
    #[error("{field} = {value}, but it must be at least {least}")]
    TooSmall {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// The least it may be.
        least: u64,
    },
    /// A size that the protocol's requests cannot carry.
    #[error("workload.size = {size}, but a request carries at most {most} bytes")]
    TooLarge {
        /// What it is.
        size: u64,
        /// The most it may be.
        most: u64,
    },
    /// A static file server takes no uploads.
    #[error("workload upload needs protocol redis")]
    UploadOverHttp,
    /// POST is a method of HTTP.
    #[error("workload post needs protocol http")]
    PostOverRedis,
}

/// Fits nginx's default request buffers, and one Redis command of an exchange.
const SIZE_MAX: u64 = 4096;

impl Plan {
    /// Content bytes of an exchange of a connection that is idle beside another workload.
    pub const IDLE_SIZE: u64 = 1024;

    /// What connection number `index` does.
    #[must_use]
    pub fn workload_of(&self, index: usize) -> Workload {
        if index < self.idle {
            Workload::Idle {
                size: Self::IDLE_SIZE,
            }
        } else {
            self.workload
        }
    }

    /// A plan with everything optional at its default.
    pub fn new(server: SocketAddr, protocol: Protocol, workload: Workload) -> Self {
        Self {
            server,
            protocol,
            workload,
            connections: 1,
            idle: 0,
            seed: 1,
            bytes_per_second: None,
            deadline_ms: 60_000,
            connects_at_once: 64,
            timeline_points: 512,
            hashed: usize::MAX,
            refusable: false,
        }
    }

    /// Whether the plan can be carried out.
    ///
    /// # Errors
    /// Names the first field that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.protocol == Protocol::Http && matches!(self.workload, Workload::Upload { .. }) {
            return Err(PlanError::UploadOverHttp);
        }
        if self.protocol == Protocol::Redis && matches!(self.workload, Workload::Post { .. }) {
            return Err(PlanError::PostOverRedis);
        }
        let (field, amount) = match self.workload {
            Workload::Download { bytes } | Workload::Upload { bytes } => ("workload.bytes", bytes),
            Workload::Post { bytes, piece } => ("workload.bytes and piece", bytes.min(piece)),
            // A file may have any size; only its request is small.
            Workload::Request { size, .. } if self.protocol == Protocol::Http => ("workload.size", size),
            Workload::Request { size, .. } | Workload::Idle { size } if size > SIZE_MAX => {
                return Err(PlanError::TooLarge { size, most: SIZE_MAX });
            }
            Workload::Request { size, .. } | Workload::Idle { size } => ("workload.size", size),
        };
        let at_least = [
            (field, amount, 1),
            ("connections", self.connections as u64, 1),
            ("bytes_per_second", self.bytes_per_second.unwrap_or(u64::MAX), 1),
            ("deadline_ms", self.deadline_ms, 1),
            ("connects_at_once", self.connects_at_once as u64, 1),
            ("timeline_points", self.timeline_points as u64, 2),
        ];
        match at_least.into_iter().find(|(_, value, least)| value < least) {
            Some((field, value, least)) => Err(PlanError::TooSmall { field, value, least }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(workload: Workload) -> Plan {
        Plan::new("10.0.0.1:80".parse().unwrap(), Protocol::Http, workload)
    }

    #[test]
    fn a_plan_survives_json_and_unknown_fields_do_not() {
        let original = plan(Workload::Request {
            size: 1024,
            until: Until::Count(7),
        });
        let text = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), original);
        let odd = text.replacen('{', r#"{"speed":1,"#, 1);
        let error = serde_json::from_str::<Plan>(&odd).unwrap_err().to_string();
        assert!(error.contains("speed"), "{error}");
    }

    #[test]
    fn the_first_connections_may_be_idle() {
        let mut plan = plan(Workload::Download { bytes: 9 });
        plan.idle = 2;
        assert_eq!(
            plan.workload_of(1),
            Workload::Idle {
                size: Plan::IDLE_SIZE
            }
        );
        assert_eq!(plan.workload_of(2), plan.workload);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        assert_eq!(plan(Workload::Download { bytes: 1 }).check(), Ok(()));
        let none = plan(Workload::Download { bytes: 0 }).check().unwrap_err();
        assert_eq!(none.to_string(), "workload.bytes = 0, but it must be at least 1");
        let upload = plan(Workload::Upload { bytes: 1 });
        assert_eq!(upload.check(), Err(PlanError::UploadOverHttp));
        let mut post = plan(Workload::Post { bytes: 1, piece: 1 });
        assert_eq!(post.check(), Ok(()));
        post.protocol = Protocol::Redis;
        assert_eq!(post.check(), Err(PlanError::PostOverRedis));
        let large = plan(Workload::Idle { size: 4097 }).check().unwrap_err();
        assert!(large.to_string().contains("at most 4096"), "{large}");
    }
}
