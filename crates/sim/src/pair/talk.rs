//! What a client says on one connection.

use std::time::Duration;

use proto::Instant;
use proto::follower::Policy;

use super::{echo, http};
use crate::exchange::Stream;
use crate::host::App;
use crate::tcp::Endpoint;

/// What a client says on one connection.
#[derive(Debug)]
pub enum Talk {
    /// HTTP requests.
    Http(http::Client),
    /// Messages to be echoed.
    Echo(echo::Client),
}

impl Talk {
    /// One plain request for a reply of `len` bytes.
    pub fn plain(policy: Policy, len: u32) -> Self {
        let after = Duration::ZERO;
        match policy {
            Policy::Http => {
                let request = http::Request::get(len.into(), Stream::new(1, len.into()));
                let pipelined = false;
                let planned = http::Planned {
                    request,
                    after,
                    pipelined,
                };
                Self::Http(http::Client::new(vec![planned], false, None))
            }
            Policy::Replica => {
                let message = echo::Message {
                    upload: 0,
                    download: len,
                    seed: 1,
                    echo: false,
                    is_last: false,
                };
                Self::Echo(echo::Client::new(vec![(message, after)], false, None))
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

    /// Whether the pair may have to cut the open reply.
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

impl App for Talk {
    fn drive(&mut self, now: Instant, endpoint: &mut Endpoint) -> Option<Instant> {
        match self {
            Self::Http(client) => client.drive(now, endpoint),
            Self::Echo(client) => client.drive(now, endpoint),
        }
    }
}
