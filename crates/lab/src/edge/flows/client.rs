//! The measuring client: reads a plan, carries out its flows, and writes a report.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use proto::Instant;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::plan::{FlowOutcome, FlowPlan, FlowReport, PlannedFlow, TransferDirection};
use crate::clock::monotonic;

/// Bytes that are written or read at a time.
const BLOCK: usize = 64 << 10;
/// Maximum length of a reply's header in bytes.
const HEADER_MAX: usize = 8 << 10;

/// The `main` of a measuring client.
///
/// # Errors
/// If the plan cannot be read. A failed flow is no error; the report lists it.
pub fn main() -> Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("read the plan")?;
    let plan: FlowPlan = serde_json::from_str(&text).context("the input is not a plan")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    let report = LocalSet::new().block_on(&runtime, carry_out(Rc::new(plan)))?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

async fn carry_out(plan: Rc<FlowPlan>) -> Result<FlowReport> {
    let flow = |index| tokio::task::spawn_local(MeasuredFlow::run(plan.clone(), index));
    let tasks: Vec<_> = (0..plan.flows.len()).map(flow).collect();
    let mut report = FlowReport::default();
    for task in tasks {
        report.flows.push(task.await.context("a flow's task")?);
    }
    Ok(report)
}

/// One flow under way.
struct MeasuredFlow {
    plan: Rc<FlowPlan>,
    index: usize,
    outcome: RefCell<FlowOutcome>,
}

impl MeasuredFlow {
    async fn run(plan: Rc<FlowPlan>, index: usize) -> FlowOutcome {
        let begin = Instant::from_nanos(plan.start_ns) + Duration::from_micros(plan.flows[index].at_us);
        sleep(begin.since(monotonic())).await;
        let end = Instant::from_nanos(plan.start_ns) + Duration::from_millis(plan.until_ms);
        let flow = Self {
            outcome: RefCell::new(FlowOutcome {
                local: None,
                arrived_ns: monotonic().as_nanos(),
                connected_ns: None,
                ended_ns: 0,
                bytes: 0,
                failure: None,
            }),
            plan,
            index,
        };
        let result = timeout(end.since(monotonic()), flow.transfer()).await;
        let mut outcome = flow.outcome.into_inner();
        outcome.ended_ns = monotonic().as_nanos();
        outcome.failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) if flow.plan.may_stop => None,
            Err(_) => Some("not complete in time".to_owned()),
        };
        outcome
    }

    fn planned(&self) -> PlannedFlow {
        self.plan.flows[self.index]
    }

    async fn transfer(&self) -> Result<()> {
        let mut stream = self.connect().await?;
        match self.planned().direction {
            TransferDirection::Upload => self.upload(&mut stream).await?,
            TransferDirection::Download => self.download(&mut stream).await?,
        }
        stream.shutdown().await.context("close")?;
        let left = stream
            .read(&mut [0; 1])
            .await
            .context("wait for the server's FIN")?;
        ensure!(left == 0, "bytes after the reply");
        Ok(())
    }

    async fn connect(&self) -> Result<TcpStream> {
        let (server, source) = (self.plan.server, self.planned().source);
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SocketAddr::new(source, 0).into()).context("bind")?;
        let socket = TcpSocket::from_std_stream(socket.into());
        self.outcome.borrow_mut().local = socket.local_addr().ok();
        let stream = socket.connect(server).await.context("connect")?;
        self.outcome.borrow_mut().connected_ns = Some(monotonic().as_nanos());
        Ok(stream)
    }

    async fn upload(&self, stream: &mut TcpStream) -> Result<()> {
        let bytes = self.planned().bytes;
        let head = format!(
            "PUT {} HTTP/1.1\r\nHost: lab\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n",
            self.plan.path(self.index)
        );
        let mut block = head.into_bytes();
        let mut from = block.len();
        block.resize(from + BLOCK, 0);
        let (mut written, content) = (0, self.plan.content(self.index));
        loop {
            let count = (bytes - written).min(BLOCK as u64);
            let filled = from + count as usize;
            pattern::fill(content, written, &mut block[from..filled]);
            stream.write_all(&block[..filled]).await.context("send")?;
            written += count;
            self.outcome.borrow_mut().bytes = written;
            if written == bytes {
                break;
            }
            from = 0;
        }
        let (status, _, _) = read_head(stream).await?;
        ensure!((200..300).contains(&status), "PUT: status {status}");
        Ok(())
    }

    async fn download(&self, stream: &mut TcpStream) -> Result<()> {
        let (path, bytes) = (self.plan.path(self.index), self.planned().bytes);
        let request = format!("GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.context("send")?;
        let (status, length, mut block) = read_head(stream).await?;
        ensure!(
            status == 200 && length == bytes,
            "GET: status {status}, {length} of {bytes} bytes"
        );
        let (mut received, content) = (0, self.plan.content(self.index));
        let mut filled = block.len();
        block.resize(filled.max(BLOCK), 0);
        loop {
            pattern::check(content, received, &block[..filled]).context("content")?;
            received += filled as u64;
            self.outcome.borrow_mut().bytes = received;
            if received >= bytes {
                return Ok(());
            }
            filled = stream.read(&mut block).await.context("receive")?;
            ensure!(filled > 0, "end of stream after {received} of {bytes} bytes");
        }
    }
}

/// Reads the header of a reply. Returns the status, the Content-Length, and the bytes that were read after the header.
async fn read_head(stream: &mut TcpStream) -> Result<(u16, u64, Vec<u8>)> {
    let mut text = Vec::new();
    loop {
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let behind = text.split_off(end + 4);
            let (status, length) = understand(&text)?;
            return Ok((status, length, behind));
        }
        ensure!(text.len() < HEADER_MAX, "a reply's header is too long");
        let count = stream.read_buf(&mut text).await.context("receive")?;
        if count == 0 {
            bail!("end of stream before the reply");
        }
    }
}

fn understand(head: &[u8]) -> Result<(u16, u64)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(head).context("a reply's header")?;
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.map_or(Ok(0), |header| {
        std::str::from_utf8(header.value)?
            .parse::<u64>()
            .map_err(anyhow::Error::from)
    })?;
    Ok((response.code.context("no status")?, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_understood() {
        let head = b"HTTP/1.1 201 Created\r\nServer: x\r\ncontent-length: 17\r\n\r\n";
        assert_eq!(understand(head).unwrap(), (201, 17));
        assert!(understand(b"nonsense\r\n\r\n").is_err());
    }
}
