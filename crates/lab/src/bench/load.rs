//! The two ends of the bulk load: a client that downloads or uploads once, and a sink that takes uploads. Both ends take as little CPU time
//! as possible, so that the measured cost is mostly that of the path between them. A third command only keeps a CPU busy.

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
    /// Accept PUTs at a port, and drop their bodies.
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

/// Runs one end; a client prints its [`Transfer`] as JSON.
///
/// # Errors
/// If the transfer is not complete.
pub fn run(options: &LoadOptions) -> Result<()> {
    let transfer = match &options.end {
        LoadCommand::Download { server, path } => download(*server, path)?,
        LoadCommand::Upload { server, bytes } => upload(*server, *bytes)?,
        LoadCommand::Sink { port } => return sink(*port),
        LoadCommand::Spin => loop {
            std::hint::spin_loop();
        },
    };
    say!("{}", serde_json::to_string(&transfer)?);
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
    let block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK as u64);
        stream.write_all(&block[..usize::try_from(count)?])?;
        left -= count;
    }
    let (status, _) = read_head(&mut BufReader::new(stream))?;
    if status != 200 {
        bail!("PUT: status {status}");
    }
    Ok(Transfer {
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
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
            if let Err(error) = swallow(stream) {
                tracing::warn!(%error, "an upload to the sink failed");
            }
        });
    }
    Ok(())
}

fn swallow(stream: TcpStream) -> Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(BLOCK, stream);
    let (_, length) = read_head(&mut reader)?;
    let copied = io::copy(&mut reader.take(length), &mut io::sink())?;
    if copied < length {
        bail!("{copied} of {length} bytes");
    }
    writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    Ok(())
}
