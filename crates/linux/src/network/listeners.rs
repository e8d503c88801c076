//! Lists the TCP listeners.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP_LISTEN in the kernel's `tcp_states.h`.
const LISTEN: &str = "0A";

/// The addresses of all TCP listeners in the calling thread's network namespace.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn listeners() -> io::Result<Vec<SocketAddr>> {
    let mut found = parse(&fs::read_to_string("/proc/thread-self/net/tcp")?);
    match fs::read_to_string("/proc/thread-self/net/tcp6") {
        Ok(text) => found.extend(parse(&text)),
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let listener = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        (state == LISTEN).then(|| address(local)).flatten()
    };
    text.lines().skip(1).filter_map(listener).collect()
}

/// Parses an address such as `0100007F:0050`. All digits are hexadecimal. The IP address is in 32-bit words in the machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |start: usize| {
        let word = u32::from_str_radix(words.get(start..start + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip: IpAddr = match words.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (index, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(index * 8)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn own_listeners_are_found() {
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let v6 = TcpListener::bind("[::1]:0");
        let found = listeners().unwrap();
        assert!(found.contains(&v4.local_addr().unwrap()), "{found:?}");
        if let Ok(v6) = v6 {
            assert!(found.contains(&v6.local_addr().unwrap()), "{found:?}");
        }
        let connected = std::net::TcpStream::connect(v4.local_addr().unwrap()).unwrap();
        assert!(!listeners().unwrap().contains(&connected.local_addr().unwrap()));
    }

    #[test]
    fn odd_lines_are_passed_over() {
        let text = "  sl  local_address rem_address   st\n   0: zz:0050 0:0 0A\n   1: 0100007F:0050\n 2: 01:1 0:0 0A\n";
        assert_eq!(parse(text), []);
    }
}
