//! Short connections at a fixed rate: connect, send one request, receive the reply, close.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use linux::netns::Netns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Timeout of one connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Size of a request, in bytes.
const REQUEST_BYTES: usize = 1024;
/// Time between two checks whether new connections are due.
const PACE: Duration = Duration::from_millis(1);

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shorts {
    /// Number of completed connections.
    pub completed: u64,
    /// Number of failed connections.
    pub failed: u64,
    /// The error of the first failed connection.
    pub first_failure: Option<String>,
    /// Completed connections per second, from the start until the last completion.
    pub per_s: f64,
    /// 99th percentile of the completed connections' durations, in milliseconds.
    pub p99_ms: f64,
}

/// Opens `per_s` connections per second from `client` to `server` for `seconds`. Each connection requests `path`, whose content has
/// `length` bytes. Then the server closes the connection.
///
/// # Errors
/// If the run could not be made. Failed connections are no error.
pub fn run(
    client: &Netns,
    server: SocketAddr,
    (path, length): (&str, u64),
    per_s: u32,
    seconds: f64,
) -> Result<Shorts> {
    let request = request(path);
    let work = || -> Result<Shorts> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("make a runtime")?;
        runtime.block_on(offer(server, &request, length, per_s, seconds))
    };
    client.run(work)?
}

/// A GET request of [`REQUEST_BYTES`] bytes that asks the server to close afterwards.
fn request(path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nX-Padding: ");
    let padding = REQUEST_BYTES.saturating_sub(head.len() + 4);
    head + &"x".repeat(padding) + "\r\n\r\n"
}

async fn offer(server: SocketAddr, request: &str, length: u64, per_s: u32, seconds: f64) -> Result<Shorts> {
    let count = (f64::from(per_s) * seconds) as u64;
    let start = Instant::now();
    let (mut begun, mut all) = (0, JoinSet::new());
    let mut shorts = Shorts::default();
    let mut took = Histogram::<u64>::new(3)?;
    let mut last = start;
    let mut note = |outcome: Result<(Instant, Duration)>| match outcome {
        Ok((at, time)) => {
            shorts.completed += 1;
            last = last.max(at);
            took.saturating_record(time.as_micros() as u64);
        }
        Err(error) => {
            shorts.failed += 1;
            shorts.first_failure.get_or_insert_with(|| format!("{error:#}"));
        }
    };
    while begun < count {
        let due = count.min((start.elapsed().as_secs_f64() * f64::from(per_s)) as u64);
        for _ in begun..due {
            let request = request.to_owned();
            all.spawn(async move {
                let start = Instant::now();
                let exchange = exchange(server, &request, length);
                tokio::time::timeout(PATIENCE, exchange)
                    .await
                    .context("took too long")??;
                Ok((Instant::now(), start.elapsed()))
            });
        }
        begun = due;
        while let Some(outcome) = all.try_join_next() {
            note(outcome?);
        }
        tokio::time::sleep(PACE).await;
    }
    while let Some(outcome) = all.join_next().await {
        note(outcome?);
    }
    shorts.per_s = shorts.completed as f64 / last.duration_since(start).as_secs_f64();
    shorts.p99_ms = took.value_at_quantile(0.99) as f64 / 1e3;
    Ok(shorts)
}

async fn exchange(server: SocketAddr, request: &str, length: u64) -> Result<()> {
    let mut stream = TcpStream::connect(server).await.context("connect")?;
    stream.write_all(request.as_bytes()).await.context("send")?;
    let mut reply = Vec::with_capacity(2048);
    stream.read_to_end(&mut reply).await.context("receive")?;
    let body = reply.windows(4).position(|end| end == b"\r\n\r\n");
    let body = body.context("no reply")? + 4;
    anyhow::ensure!(reply.starts_with(b"HTTP/1.1 200 "), "refused");
    anyhow::ensure!(
        (reply.len() - body) as u64 == length,
        "{} of {length} bytes",
        reply.len() - body
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// A server that sends `replies`, one per connection.
    fn serve(replies: Vec<&'static str>) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; REQUEST_BYTES];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn each_is_counted_and_a_short_reply_fails() {
        const WHOLE: &str = "HTTP/1.1 200 OK\r\n\r\nabc";
        let server = serve(vec![
            WHOLE,
            "HTTP/1.1 200 OK\r\n\r\nab",
            WHOLE,
            "HTTP/1.1 404 No\r\n\r\nabc",
        ]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let request = request("/x");
        assert_eq!(request.len(), REQUEST_BYTES);
        let shorts = runtime.block_on(offer(server, &request, 3, 1000, 0.004)).unwrap();
        assert_eq!((shorts.completed, shorts.failed), (2, 2));
        assert!(shorts.first_failure.is_some());
    }
}
