//! Checks after a scenario whether a new client is served.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use linux::netns::Netns;

use crate::node::ServerSoftware;

/// Timeout of a new client for connecting, and for an answer. Long enough for two lost SYNs: Linux repeats a SYN after 1 s, and again at
/// most 3 s after the first SYN.
const LIMIT: Duration = Duration::from_secs(5);

/// Connects a new client to `application` at `service`. Returns the reason why the client is not served. `None` if the client is served.
/// The client runs on `router`, so it is not one of the clients that are judged.
///
/// # Errors
/// If the router's namespace cannot be entered.
pub fn greet(router: &Netns, application: ServerSoftware, service: SocketAddr) -> Result<Option<String>> {
    let health = application.health();
    let ask = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&service, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(health.send.as_bytes())?;
        let mut answer = vec![0; health.expect.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    let said = match router.run(ask)? {
        Ok(answer) if answer == health.expect.as_bytes() => return Ok(None),
        Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
        Err(error) => error.to_string(),
    };
    Ok(Some(format!("a new client is not served: {said}")))
}
