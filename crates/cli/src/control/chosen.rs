//! The clients whose connections an order is about.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One host, or one connection of it. As text: an address, or an address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ChosenClient {
    /// All connections of this host.
    Host(IpAddr),
    /// The connection from this address and port.
    Connection(SocketAddr),
}

impl ChosenClient {
    /// Whether a connection from `client` is chosen.
    pub fn has(&self, client: &SocketAddr) -> bool {
        match self {
            Self::Host(host) => client.ip() == *host,
            Self::Connection(connection) => client == connection,
        }
    }
}

/// A text that names no client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address, 192.0.2.1, or an address with a port, 192.0.2.1:40000 or [2001:db8::1]:40000")]
pub struct NoClientError;

impl FromStr for ChosenClient {
    type Err = NoClientError;

    fn from_str(text: &str) -> Result<Self, NoClientError> {
        let host = text.parse().map(Self::Host);
        host.or_else(|_| text.parse().map(Self::Connection))
            .map_err(|_| NoClientError)
    }
}

impl TryFrom<String> for ChosenClient {
    type Error = NoClientError;

    fn try_from(text: String) -> Result<Self, NoClientError> {
        text.parse()
    }
}

impl fmt::Display for ChosenClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Connection(connection) => connection.fmt(f),
        }
    }
}

impl From<ChosenClient> for String {
    fn from(client: ChosenClient) -> Self {
        client.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_all_its_connections() {
        let texts = [
            "192.0.2.1",
            "192.0.2.1:40000",
            "2001:db8::1",
            "[2001:db8::1]:40000",
        ];
        let [host, connection, host_v6, connection_v6] = texts.map(|text| {
            let client: ChosenClient = text.parse().unwrap();
            assert_eq!(client.to_string(), text);
            client
        });
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(host.has(&address("192.0.2.1:1")) && !host.has(&address("192.0.2.2:1")));
        assert!(connection.has(&address("192.0.2.1:40000")) && !connection.has(&address("192.0.2.1:1")));
        assert!(host_v6.has(&address("[2001:db8::1]:1")));
        assert!(connection_v6.has(&address(texts[3])) && !connection_v6.has(&address(texts[1])));
        for wrong in ["", "10.1", "192.0.2.1:70000", "2001:db8::1:x", "name"] {
            assert_eq!(wrong.parse::<ChosenClient>(), Err(NoClientError), "{wrong}");
        }
    }
}
