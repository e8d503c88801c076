//! The metrics endpoint of a node, of an edge, of a tunnel, of a proxy and of a server's half: the contents of `steadfast status`, for
//! Prometheus. A stage, which has no `status`, has this endpoint, too.
//!
//! One thread serves `GET /metrics` in the text exposition format 0.0.4. To make the page, the thread asks the agent for its status, as a
//! client of the control socket does. The thread uses a page for a second. The thread limits the connections, the memory and the time that
//! its clients can use. If the thread fails, connections stay protected.

mod connect;
mod edge;
mod exposition;
mod page;
mod stage;
#[cfg(test)]
mod tests;
mod tunnel;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use connect::{half_exposition, proxy_exposition};
pub use edge::edge_exposition;
pub use exposition::{exposition, exposition_of_pairs};
pub use stage::stage_exposition;
pub use tunnel::tunnel_exposition;

/// Maximum age of a page. Clients that ask more often get the same page again.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum number of connections at a time; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may stay open.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// How long a request's head may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum length of a request head, in bytes. hyper allows no smaller limit.
const HEAD_BYTES: usize = 8192;
/// Pause after a failure to listen or to accept.
const PAUSE: Duration = Duration::from_secs(1);

/// Asks the agent for its status and makes the page of metrics. Blocks until the agent answers, for a bounded time. The error text says why
/// the agent gave no status.
type PageMaker = Box<dyn Fn() -> Result<String, String> + Send + Sync>;

/// Serves the page from `make_page` at the address `listen`, on a separate thread, until the process ends. If the address is in use or not
/// configured yet, the thread retries once a second, because the agent must start without its metrics, too.
///
/// # Errors
/// If the event loop or the thread cannot be started.
pub fn serve(
    listen: SocketAddr,
    make_page: impl Fn() -> Result<String, String> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let source = Arc::new(MetricsSource::new(Box::new(make_page)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the metrics' event loop")?;
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            if let Err(error) = linux::process::yield_precedence() {
                tracing::debug!(%error, "metrics are served at the agent's priority");
            }
            runtime.block_on(accept(listen, source));
        })
        .context("starting a thread")?;
    Ok(())
}

async fn accept(listen: SocketAddr, source: Arc<MetricsSource>) {
    let listener = bind(listen).await;
    tracing::info!(%listen, "serving metrics");
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return; // unreachable: the semaphore is never closed
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "metrics: connection not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let response = answer(&source, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), answer);
            if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_TIME, connection).await {
                tracing::debug!(%error, "metrics: connection ended");
            }
            drop(place);
        });
    }
}

async fn bind(listen: SocketAddr) -> TcpListener {
    let mut is_told = false;
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => return listener,
            Err(error) if !std::mem::replace(&mut is_told, true) => {
                tracing::error!(%error, %listen, "metrics cannot be served yet; trying again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn answer(source: &MetricsSource, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match source.page(Instant::now()) {
            Ok(page) => (StatusCode::OK, page),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n").into()),
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD only\n".into()),
        _ => (StatusCode::NOT_FOUND, "the metrics are at /metrics\n".into()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = match status {
        StatusCode::OK => prometheus::TEXT_FORMAT,
        _ => "text/plain; charset=utf-8",
    };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The agent's last page. It is used again until it is [`FRESH`] old.
struct MetricsSource {
    make_page: PageMaker,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl MetricsSource {
    fn new(make_page: PageMaker) -> Self {
        Self {
            make_page,
            last: Mutex::new(None),
        }
    }

    /// Returns a page that is less than [`FRESH`] old at `now`. Blocks until the agent answers, for a bounded time. Blocking is harmless,
    /// because this thread does nothing else.
    fn page(&self, now: Instant) -> Result<Bytes, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, page)) = &*last
            && now.saturating_duration_since(*at) < FRESH
        {
            return Ok(page.clone());
        }
        let page = Bytes::from((self.make_page)()?);
        *last = Some((now, page.clone()));
        Ok(page)
    }
}
