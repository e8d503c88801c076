//! The two ends of the load: clients that transfer, ask or hold a connection, and a sink that answers them. Both ends take as little CPU time
//! as possible, so that the measured cost is mostly that of the path between them. Another command only keeps a CPU busy.
//!
//! The sink's replies follow from the requests alone, so it can be protected with each restart policy.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

/// The hidden subcommand that makes this binary one of the two ends.
pub const LOAD: &str = "bench-load";
const BLOCK: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);

/// The end to run.
#[derive(Clone, Debug, Args)]
pub struct LoadOptions {
    #[command(subcommand)]
    end: LoadCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum LoadCommand {
    /// GET a path and drop its contents.
    Download { server: SocketAddr, path: String },
    /// PUT this number of zero bytes.
    Upload { server: SocketAddr, bytes: u64 },
    /// Store a value of this size in Redis.
    Store { server: SocketAddr, bytes: u64 },
    /// Fetch the value that was stored, and drop it.
    Fetch { server: SocketAddr },
    /// Take a stream for this number of seconds: the server sends at this rate.
    Stream {
        server: SocketAddr,
        kilobytes_per_s: u32,
        seconds: u32,
    },
    /// Send short requests one after the other, and take the time of each.
    Exchange { server: SocketAddr, requests: u32 },
    /// Write and read a small value in Redis, one request after the other, and take the time of each in microseconds.
    Ask { server: SocketAddr, requests: u32 },
    /// Upload over several connections, each at its own limited rate, for this number of seconds.
    Paced {
        server: SocketAddr,
        connections: u32,
        kilobytes_per_s: u32,
        seconds: u32,
    },
    /// Upload all but the last byte, print a line, and wait for a line. Then send the last byte, and take the time until the reply.
    Hold { server: SocketAddr, bytes: u64 },
    /// Accept connections at a port: drop the bodies of PUTs, answer `GET /zeros/N` with N bytes, and short requests.
    Sink { port: u16 },
    /// Use a CPU until killed.
    Spin,
}

/// Size and duration of a transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// Body bytes.
    pub bytes: u64,
    /// From the request to the last byte, in seconds.
    pub seconds: f64,
}

/// Runs one end; a client prints what it has measured as JSON.
///
/// # Errors
/// If the transfer is not complete.
pub fn run(options: &LoadOptions) -> Result<()> {
    let measured = match options.end {
        LoadCommand::Download { server, ref path } => serde_json::to_string(&download(server, path)?)?,
        LoadCommand::Upload { server, bytes } => serde_json::to_string(&upload(server, bytes)?)?,
        LoadCommand::Store { server, bytes } => serde_json::to_string(&store(server, bytes)?)?,
        LoadCommand::Fetch { server } => serde_json::to_string(&fetch(server)?)?,
        LoadCommand::Stream {
            server,
            kilobytes_per_s,
            seconds,
        } => serde_json::to_string(&stream(server, kilobytes_per_s, seconds)?)?,
        LoadCommand::Exchange { server, requests } => serde_json::to_string(&exchange(server, requests)?)?,
        LoadCommand::Ask { server, requests } => serde_json::to_string(&ask(server, requests)?)?,
        LoadCommand::Paced {
            server,
            connections,
            kilobytes_per_s,
            seconds,
        } => serde_json::to_string(&paced(server, connections, kilobytes_per_s, seconds)?)?,
        LoadCommand::Hold { server, bytes } => serde_json::to_string(&hold(server, bytes)?)?,
        LoadCommand::Sink { port } => return sink(port),
        LoadCommand::Spin => loop {
            std::hint::spin_loop();
        },
    };
    say!("{measured}");
    Ok(())
}

fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, PATIENCE).with_context(|| server.to_string())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    socket2::SockRef::from(&stream).set_tcp_congestion(b"cubic")?;
    Ok(stream)
}

fn download(server: SocketAddr, path: &str) -> Result<Transfer> {
    let mut stream = connect(server)?;
    let start = Instant::now();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
    )?;
    let mut reader = BufReader::with_capacity(BLOCK, stream);
    let (status, length) = read_head(&mut reader)?;
    if status != 200 {
        bail!("GET {path}: status {status}");
    }
    let mut buffer = vec![0; BLOCK];
    let mut bytes = 0;
    while bytes < length {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            bail!("GET {path}: {bytes} of {length} bytes");
        }
        bytes += count as u64;
    }
    Ok(Transfer {
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn upload(server: SocketAddr, bytes: u64) -> Result<Transfer> {
    let mut stream = connect(server)?;
    let start = Instant::now();
    write!(
        stream,
        "PUT / HTTP/1.1\r\nHost: bench\r\nContent-Length: {bytes}\r\n\r\n"
    )?;
    write_zeros(&mut stream, bytes)?;
    let (status, _) = read_head(&mut BufReader::new(stream))?;
    if status != 200 {
        bail!("PUT: status {status}");
    }
    Ok(Transfer {
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The name of the stored value.
const VALUE: &str = "value";

fn store(server: SocketAddr, bytes: u64) -> Result<Transfer> {
    let mut stream = connect(server)?;
    let start = Instant::now();
    write!(
        stream,
        "*3\r\n$3\r\nSET\r\n${}\r\n{VALUE}\r\n${bytes}\r\n",
        VALUE.len()
    )?;
    write_zeros(&mut stream, bytes)?;
    stream.write_all(b"\r\n")?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    if reply != "+OK\r\n" {
        bail!("SET: {reply:?}");
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Transfer { bytes, seconds })
}

fn fetch(server: SocketAddr) -> Result<Transfer> {
    let mut stream = connect(server)?;
    let start = Instant::now();
    write!(stream, "*2\r\n$3\r\nGET\r\n${}\r\n{VALUE}\r\n", VALUE.len())?;
    let mut reader = BufReader::with_capacity(BLOCK, stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let bytes = head.strip_prefix('$').and_then(|size| size.trim().parse().ok());
    let bytes: u64 = bytes.with_context(|| format!("GET: {head:?}"))?;
    let got = io::copy(&mut (&mut reader).take(bytes + 2), &mut io::sink())?;
    if got < bytes + 2 {
        bail!("GET: {got} of {bytes} bytes");
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Transfer { bytes, seconds })
}

fn stream(server: SocketAddr, kilobytes_per_s: u32, seconds: u32) -> Result<Transfer> {
    let bytes = u64::from(kilobytes_per_s) * 1000 / PIECES_PER_S * PIECES_PER_S * u64::from(seconds);
    download(server, &format!("/paced/{bytes}/{kilobytes_per_s}"))
}

/// Begins a short request. The size of its reply follows.
const SHORT: &str = "SHORT ";
/// Sizes of the requests and replies in bytes: a listing of a directory, and a question for the server's status (FT-TCP, 5.3).
const SHORT_EXCHANGES: [(usize, usize); 2] = [(87, 464), (39, 49)];

/// The times of short requests, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExchangeTimes {
    /// From the first byte of the first request to the last byte of the last reply.
    pub request_us: Vec<f64>,
    /// From a data segment to its acknowledgement, as the client's kernel measures it (its smoothed round-trip time after each request).
    pub packet_us: Vec<f64>,
}

fn exchange(server: SocketAddr, requests: u32) -> Result<ExchangeTimes> {
    let mut stream = connect(server)?;
    stream.set_nodelay(true)?;
    let mut times = ExchangeTimes::default();
    let mut reply = [0; 512];
    for _ in 0..requests {
        let start = Instant::now();
        for (request, size) in SHORT_EXCHANGES {
            let line = format!("{SHORT}{size:<width$}\n", width = request - SHORT.len() - 1);
            stream.write_all(line.as_bytes())?;
            stream.read_exact(&mut reply[..size])?;
        }
        times.request_us.push(start.elapsed().as_secs_f64() * 1e6);
        let round_trip = linux::application::round_trip(&stream)?;
        times.packet_us.push(round_trip.as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// A small value, and the requests and replies that write and read it.
const ASKED: [(&str, &str); 2] = [
    ("*3\r\n$3\r\nSET\r\n$5\r\nsmall\r\n$8\r\n12345678\r\n", "+OK\r\n"),
    ("*2\r\n$3\r\nGET\r\n$5\r\nsmall\r\n", "$8\r\n12345678\r\n"),
];

/// The time of each request, from its first byte to the last byte of its reply.
fn ask(server: SocketAddr, requests: u32) -> Result<Vec<f64>> {
    let mut stream = connect(server)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    let mut buffer = [0; 64];
    for (request, expected) in ASKED.iter().cycle().take(requests as usize) {
        let start = Instant::now();
        stream.write_all(request.as_bytes())?;
        let reply = &mut buffer[..expected.len()];
        stream.read_exact(reply)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        if reply != expected.as_bytes() {
            bail!("{request:?}: {reply:?}");
        }
    }
    Ok(times)
}

/// Uploads over `connections` connections, each limited to `kilobytes_per_s` (1000 bytes). Returns the rate that each has reached.
fn paced(server: SocketAddr, connections: u32, kilobytes_per_s: u32, seconds: u32) -> Result<Vec<f64>> {
    let bytes = u64::from(kilobytes_per_s) * 1000 / PIECES_PER_S * PIECES_PER_S * u64::from(seconds);
    let one = move || -> Result<f64> {
        let mut stream = connect(server)?;
        write!(
            stream,
            "PUT / HTTP/1.1\r\nHost: bench\r\nContent-Length: {bytes}\r\n\r\n"
        )?;
        let start = Instant::now();
        write_paced(&mut stream, bytes, kilobytes_per_s)?;
        let (status, _) = read_head(&mut BufReader::new(stream))?;
        if status != 200 {
            bail!("PUT: status {status}");
        }
        Ok(bytes as f64 / 1000.0 / start.elapsed().as_secs_f64())
    };
    let clients: Vec<_> = (0..connections).map(|_| std::thread::spawn(one)).collect();
    clients
        .into_iter()
        .map(|client| client.join().expect("it does not panic"))
        .collect()
}

/// Number of pieces per second in which paced bytes are sent.
const PIECES_PER_S: u64 = 50;

/// Writes zero bytes at a limited rate, in pieces of equal size.
fn write_paced(writer: &mut impl Write, bytes: u64, kilobytes_per_s: u32) -> io::Result<()> {
    let start = Instant::now();
    let piece = u64::from(kilobytes_per_s) * 1000 / PIECES_PER_S;
    for number in 1..=bytes / piece.max(1) {
        write_zeros(writer, piece)?;
        let due = Duration::from_secs_f64(number as f64 / PIECES_PER_S as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(())
}

fn hold(server: SocketAddr, bytes: u64) -> Result<f64> {
    let mut stream = connect(server)?;
    write!(
        stream,
        "PUT / HTTP/1.1\r\nHost: bench\r\nContent-Length: {bytes}\r\n\r\n"
    )?;
    write_zeros(&mut stream, bytes - 1)?;
    say!("sent");
    io::stdin().read_line(&mut String::new())?;
    let start = Instant::now();
    stream.write_all(&[0])?;
    let (status, _) = read_head(&mut BufReader::new(stream))?;
    if status != 200 {
        bail!("PUT: status {status}");
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Reads the header of a reply or of a request. Returns the status (0 for a request) and the Content-Length.
fn read_head(reader: &mut impl BufRead) -> Result<(u16, u64)> {
    let (mut status, mut length, mut line) = (0, 0, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            bail!("the header ended early");
        }
        let text = line.trim_ascii_end();
        if text.is_empty() {
            return Ok((status, length));
        }
        if let Some(rest) = text.strip_prefix("HTTP/1.1 ") {
            status = rest.split(' ').next().unwrap_or_default().parse()?;
        } else if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
}

fn sink(port: u16) -> Result<()> {
    // Linux accepts IPv4 connections at this address, too.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(error) = serve(stream) {
                tracing::warn!(%error, "a connection to the sink failed");
            }
        });
    }
    Ok(())
}

/// Answers the requests of one connection until its client closes it.
fn serve(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(BLOCK, stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if let Some(size) = line.strip_prefix(SHORT) {
            let size = size.trim().parse()?;
            writer.write_all(&vec![b'.'; size])?;
            continue;
        }
        let (_, length) = read_head(&mut reader)?;
        if let Some(path) = line.strip_prefix("GET /zeros/") {
            let size = path.split(' ').next().unwrap_or_default().parse()?;
            write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
            write_zeros(&mut writer, size)?;
            continue;
        }
        if let Some(path) = line.strip_prefix("GET /paced/") {
            let (size, rate) = path
                .split(' ')
                .next()
                .and_then(|path| path.split_once('/'))
                .unwrap_or_default();
            write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
            write_paced(&mut writer, size.parse()?, rate.parse()?)?;
            continue;
        }
        let copied = io::copy(&mut (&mut reader).take(length), &mut io::sink())?;
        if copied < length {
            bail!("{copied} of {length} bytes");
        }
        writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    }
}

/// Writes this number of zero bytes.
fn write_zeros(writer: &mut impl Write, bytes: u64) -> io::Result<()> {
    let block = vec![0; BLOCK.min(usize::try_from(bytes).unwrap_or(BLOCK))];
    let mut sent = 0;
    while sent < bytes {
        let count = (bytes - sent).min(block.len() as u64);
        writer.write_all(&block[..usize::try_from(count).expect("a block")])?;
        sent += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink for one connection, and its address.
    fn sink_once() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap()).unwrap();
            }
        });
        address
    }

    #[test]
    fn the_sink_answers_each_kind_of_request_on_one_connection() {
        let mut stream = connect(sink_once()).unwrap();
        stream
            .write_all(b"GET /zeros/5 HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        stream
            .write_all(b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
            .unwrap();
        stream.write_all(b"SHORT 4   \nSHORT 2\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        let head = |length| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(replies, format!("{}\0\0\0\0\0{}......", head(5), head(0)));
    }

    #[test]
    fn exchanges_have_the_papers_sizes() {
        let times = exchange(sink_once(), 3).unwrap();
        assert_eq!((times.request_us.len(), times.packet_us.len()), (3, 3));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || exchange(address, 1));
        let (mut stream, _) = listener.accept().unwrap();
        for (request, reply) in SHORT_EXCHANGES {
            let mut asked = vec![0; request];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked.iter().position(|&byte| byte == b'\n'), Some(request - 1));
            stream.write_all(&vec![0; reply]).unwrap();
        }
        client.join().unwrap().unwrap();
    }

    #[test]
    fn each_reply_of_redis_must_be_the_right_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || [ask(address, 3), ask(address, 2)]);
        for replies in [
            ["+OK\r\n", "$8\r\n12345678\r\n", "+OK\r\n"].as_slice(),
            &["+OK\r\n", "$8\r\n12345679\r\n"],
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            for (reply, (request, _)) in replies.iter().zip(ASKED.iter().cycle()) {
                let mut asked = vec![0; request.len()];
                stream.read_exact(&mut asked).unwrap();
                assert_eq!(asked, request.as_bytes());
                stream.write_all(reply.as_bytes()).unwrap();
            }
        }
        let [right, wrong] = client.join().unwrap();
        assert_eq!(right.unwrap().len(), 3);
        assert!(wrong.is_err());
    }

    #[test]
    fn paced_bytes_arrive_and_are_all_there() {
        let rates = paced(sink_once(), 1, 50, 1).unwrap();
        assert_eq!(rates.len(), 1);
        assert_eq!(stream(sink_once(), 50, 1).unwrap().bytes, 50_000);
        let transfer = download(sink_once(), "/zeros/300000").unwrap();
        assert_eq!(transfer.bytes, 300_000);
        assert_eq!(upload(sink_once(), 300_000).unwrap().bytes, 300_000);
    }
}
