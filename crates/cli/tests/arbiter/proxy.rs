//! A proxy in front of etcd that drops some of etcd's answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A part of the value that the client stores. Only transactions contain this text.
const STORED: &[u8] = b"\"owner\"";

pub struct Proxy {
    pub address: SocketAddr,
    /// Number of further transactions whose answers will be dropped.
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    /// A proxy in front of `etcd` that forwards everything, except the answers to the first `cuts` transactions. Instead of forwarding such
    /// an answer, the proxy closes the connection.
    pub fn start(etcd: SocketAddr, cuts: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicUsize::new(cuts));
        let left = Arc::clone(&cuts);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(etcd)) else {
                    continue;
                };
                let left = Arc::clone(&left);
                std::thread::spawn(move || forward(&client, &server, &left));
            }
        });
        Self { address, cuts }
    }

    /// Number of further transactions whose answers will be dropped.
    pub fn left(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

/// Forwards until one side ends. If a transaction's answer is to be dropped, nothing that etcd sends after the transaction is forwarded.
fn forward(client: &TcpStream, server: &TcpStream, left: &AtomicUsize) {
    let is_cut = AtomicUsize::new(0);
    let end = || {
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = copy(server, |answer| {
                if is_cut.load(Ordering::SeqCst) == 0 {
                    let mut client = client;
                    return client.write_all(answer);
                }
                // HTTP/2's control frames (PING, WINDOW_UPDATE) are short. Only the transaction's result has 30 bytes or more.
                if answer.len() < 30 {
                    return Ok(());
                }
                Err(std::io::ErrorKind::ConnectionAborted.into())
            });
            end();
        });
        let _ = copy(client, |request| {
            let is_stored = request.windows(STORED.len()).any(|window| window == STORED);
            let one_less = |left: usize| left.checked_sub(1);
            if is_stored
                && left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
                    .is_ok()
            {
                is_cut.store(1, Ordering::SeqCst);
            }
            let mut server = server;
            server.write_all(request)
        });
        end();
    });
}

fn copy(mut from: &TcpStream, mut to: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut buffer = [0; 64 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => to(&buffer[..count])?,
        }
    }
}
