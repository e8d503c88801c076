//! Input and output of a client process: its plan, the orders to it, and its events. JSON, one object per line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::report::ClientReport;

/// The work of one client process: the first line on its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientPlan {
    /// The service.
    pub server: SocketAddr,
    /// The service's protocol.
    pub protocol: Protocol,
    /// The work of every connection except the first `idle` ones.
    pub workload: Workload,
    /// Number of connections, all open at once.
    pub connections: usize,
    /// Number of idle connections. The first connections have the workload [`Workload::Idle`] with [`ClientPlan::IDLE_SIZE`], whatever
    /// `workload` is.
    pub idle: usize,
    /// Seed of the pattern. HTTP: the seed of the files. Redis: connection *i* writes the pattern `seed + i`, under
    /// its own keys.
    pub seed: u64,
    /// Content bytes per second of each connection. `None`: as fast as possible.
    ///
    /// The client paces Redis, `post` and `request` by delaying its requests. An HTTP download is paced by the server,
    /// which gets the argument `?rate=N` (nginx: `limit_rate $arg_rate; sendfile_max_chunk 16k;`). If the client paced
    /// a download by reading slowly, its own buffers would hide the stall.
    pub bytes_per_second: Option<u64>,
    /// Time limit of a connection, in milliseconds. A connection that has not ended by then has failed.
    pub deadline_ms: u64,
    /// Maximum number of handshakes under way at once. It must be below the server's backlog.
    pub connects_at_once: usize,
    /// Maximum number of points of each connection's timeline. A long timeline uses at least half of them.
    pub timeline_points: usize,
    /// Number of connections, from the first on, whose content is hashed by SHA-256. All content is compared byte by
    /// byte in any case. Hashing takes longer than comparing.
    pub hashed: usize,
    /// Whether any request that stores something may be refused (503), because the nodes may have given up the connection's log. Otherwise
    /// only a request that must not be executed twice may be refused.
    pub refusable: bool,
    /// Whether the replies of a workload `request` are random (HTTP only). A client that is refused then connects anew, and asks again.
    pub random: bool,
}

/// Application protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 (RFC 9112). The client GETs files that are named by [`file_name`](pattern::file_name). With [`Workload::Post`], it stores
    /// content by PUT and POST, and reads the content back.
    Http,
    /// Redis' RESP2.
    Redis,
}

/// The work of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Workload {
    /// Content flows to the client. HTTP: one file of this size. Redis: pipelined reads of a value which the
    /// connection wrote before.
    Download {
        /// Content bytes.
        bytes: u64,
    },
    /// Content flows to the server in pipelined commands, and their replies are checked. Then the content is read back. Redis only.
    Upload {
        /// Content bytes.
        bytes: u64,
    },
    /// Content flows to the server in requests, and is read back. The server stores each request under a name of its own. HTTP only.
    ///
    /// A connection first sends a request with little content, so that its first reply does not wait for `piece` bytes. Its requests are, in
    /// turn, a PUT with a length, a POST with an `Idempotency-Key`, and a PUT in chunks that expects `100 Continue`. Every fourth
    /// connection sends POSTs without a key instead. Such a POST may be refused (503). A refusal ends the connection, and is no error. See
    /// also [`ClientPlan::refusable`].
    Post {
        /// Content bytes.
        bytes: u64,
        /// Content bytes of each request but the first.
        piece: u64,
    },
    /// Small requests. The client sends each request after the reply to the request before. Redis: each connection first writes a value. If
    /// [`ClientOrder::Reconnect`] replaces the connection, the new connection reads this value back before the new connection closes.
    Request {
        /// Content bytes of a reply (and for Redis of a request).
        size: u64,
        /// End of the workload.
        until: Until,
    },
    /// One exchange, silence until [`ClientOrder::Wake`], another exchange.
    Idle {
        /// Content bytes of each exchange, in each direction.
        size: u64,
    },
}

/// The end of a [`Workload::Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// After this number of requests on each connection.
    Count(u64),
    /// At [`ClientOrder::Stop`].
    Told,
}

/// An order to a running client process: a further line on its standard input. When standard input ends, the process ends at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientOrder {
    /// A fault happened. The report must contain the stall of each connection around it.
    Fault {
        /// When, in nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// Milliseconds after the fault. A gap that begins later does not count as the fault's stall.
        window_ms: u64,
        /// If true, only the part of a wait after the fault counts. A wait that began before the fault may have another cause.
        clips: bool,
    },
    /// Each connection of a workload `request` closes normally, and its client connects again.
    Reconnect,
    /// Requests end.
    Stop,
    /// Idle connections go on. The order has no effect on other connections.
    Wake,
}

/// An event of a running client process: a line on its standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientEvent {
    /// Every connection has received its first content or has failed; idle connections now wait. Sent once.
    Ready {
        /// Connections that have received content.
        flowing: usize,
    },
    /// Sent every 100 ms.
    Progress {
        /// Correct content bytes received, over all connections.
        bytes_received: u64,
        /// Content bytes sent and confirmed by replies, over all connections.
        bytes_sent: u64,
    },
    /// The last line.
    Report(ClientReport),
}

/// Why a plan cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A number is too small.
    #[error("{field} = {value}, but it must be at least {least}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The minimum.
        least: u64,
    },
    /// A size is larger than the protocol's requests can carry.
    #[error("workload.size = {size}, but a request carries at most {most} bytes")]
    TooLarge {
        /// The size.
        size: u64,
        /// The maximum.
        most: u64,
    },
    /// Uploads are Redis commands. Over HTTP, [`Workload::Post`] stores content.
    #[error("workload upload needs protocol redis")]
    UploadOverHttp,
    /// POST is a method of HTTP.
    #[error("workload post needs protocol http")]
    PostOverRedis,
}

/// Maximum number of content bytes of a request. A request of this size fits nginx's default request buffers. The content of a Redis
/// exchange fits one SET command.
const SIZE_MAX: u64 = 4096;

impl ClientPlan {
    /// Content bytes of each exchange, in each direction, on the connections that [`ClientPlan::idle`] makes idle.
    pub const IDLE_SIZE: u64 = 1024;

    /// The workload of connection number `index`.
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
            random: false,
        }
    }

    /// Checks that the plan can be carried out.
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
            // Not limited by SIZE_MAX: over HTTP only the reply has this size, and the request is small.
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

    fn plan(workload: Workload) -> ClientPlan {
        ClientPlan::new("10.0.0.1:80".parse().unwrap(), Protocol::Http, workload)
    }

    #[test]
    fn a_plan_survives_json_and_unknown_fields_do_not() {
        let original = plan(Workload::Request {
            size: 1024,
            until: Until::Count(7),
        });
        let text = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<ClientPlan>(&text).unwrap(), original);
        let odd = text.replacen('{', r#"{"speed":1,"#, 1);
        let error = serde_json::from_str::<ClientPlan>(&odd).unwrap_err().to_string();
        assert!(error.contains("speed"), "{error}");
    }

    #[test]
    fn the_first_connections_may_be_idle() {
        let mut plan = plan(Workload::Download { bytes: 9 });
        plan.idle = 2;
        assert_eq!(
            plan.workload_of(1),
            Workload::Idle {
                size: ClientPlan::IDLE_SIZE
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
