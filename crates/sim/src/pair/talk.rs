//! The client's program of one connection.

use std::time::Duration;

use proto::Instant;
use proto::follower::RestartPolicy;

use super::{echo, http};
use crate::exchange::SeededStream;
use crate::host::App;
use crate::tcp::TcpEndpoint;

/// The client's program of one connection.
#[derive(Debug)]
pub enum SimClient {
    /// HTTP requests.
    Http(http::HttpClient),
    /// Messages to be echoed.
    Echo(echo::EchoClient),
}

impl SimClient {
    /// A client that sends one plain request for a reply of `len` bytes.
    pub fn plain(policy: RestartPolicy, len: u32) -> Self {
        let after = Duration::ZERO;
        match policy {
            RestartPolicy::Http => {
                let request = http::HttpRequest::get(len.into(), SeededStream::new(1, len.into()));
                let pipelined = false;
                let planned = http::PlannedRequest {
                    request,
                    after,
                    pipelined,
                };
                Self::Http(http::HttpClient::new(vec![planned], false, None))
            }
            RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
                let message = echo::EchoMessage {
                    upload: 0,
                    download: len,
                    seed: 1,
                    echo: false,
                    is_last: false,
                };
                Self::Echo(echo::EchoClient::new(vec![(message, after)], false, None))
            }
        }
    }

    /// Whether every reply came as expected, and nothing else.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Http(client) => client.is_complete(),
            Self::Echo(client) => client.is_complete(),
        }
    }

    /// The first thing that was unexpected, if any.
    pub fn wrong(&self) -> Option<&str> {
        match self {
            Self::Http(client) => client.wrong(),
            Self::Echo(client) => client.wrong(),
        }
    }

    /// Whether the pair may have to cut the reply to the oldest request that has no complete reply yet.
    pub fn may_be_cut(&self) -> bool {
        match self {
            Self::Http(client) => client.may_be_cut(),
            Self::Echo(_) => false,
        }
    }

    /// Whether the client has sent the request with this number.
    pub fn has_sent(&self, id: u64) -> bool {
        match self {
            Self::Http(client) => client.has_sent(id),
            Self::Echo(_) => false,
        }
    }
}

impl App for SimClient {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        match self {
            Self::Http(client) => client.drive(now, endpoint),
            Self::Echo(client) => client.drive(now, endpoint),
        }
    }
}
