//! Checks whether the local applications still work. Each application has a thread of its own that probes it, because a probe of a hung
//! application blocks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use proto::action::ServiceIndex;
use proto::application::HealthAnswers;

use crate::config::HealthSettings;

/// State of the applications that have a health probe.
pub struct HealthWatch {
    /// For each service, whether too many probes in a row have failed. `None` if the service has no probe.
    hung: Vec<Option<Arc<AtomicBool>>>,
}

impl HealthWatch {
    /// Starts the probes of these services, which have a name, an application and perhaps a probe. `wake` is called when a state changes.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start<'a>(
        services: impl IntoIterator<Item = (&'a str, SocketAddr, Option<&'a HealthSettings>)>,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut hung = Vec::new();
        for (name, application, health) in services {
            let Some(health) = health.cloned() else {
                hung.push(None);
                continue;
            };
            let (state, wake) = (Arc::new(AtomicBool::new(false)), wake.clone());
            let (told, name) = (Arc::downgrade(&state), name.to_owned());
            std::thread::Builder::new()
                .name("health".into())
                .spawn(move || watch(&name, application, &health, &told, &wake))
                .context("starting a thread")?;
            hung.push(Some(state));
        }
        Ok(Self { hung })
    }

    /// Whether a service's application does not answer.
    pub fn is_hung(&self, service: ServiceIndex) -> bool {
        self.hung[usize::from(service)]
            .as_ref()
            .is_some_and(|hung| hung.load(Ordering::Relaxed))
    }
}

/// Probes one application until the [`HealthWatch`] is dropped.
fn watch(
    name: &str,
    application: SocketAddr,
    health: &HealthSettings,
    told: &Weak<AtomicBool>,
    wake: &impl Fn(),
) {
    let mut answers = HealthAnswers::default();
    loop {
        let begun = Instant::now();
        let outcome = ask(application, health);
        let is_hung = answers.hangs_after(outcome.is_ok(), health.failures);
        let Some(hung) = told.upgrade() else { return };
        if hung.swap(is_hung, Ordering::Relaxed) != is_hung {
            match outcome {
                Ok(()) => tracing::info!(service = name, "the application answers again"),
                Err(error) => tracing::warn!(service = name, %error, "the application does not answer"),
            }
            wake();
        }
        drop(hung);
        std::thread::sleep(health.interval.saturating_sub(begun.elapsed()));
    }
}

/// Sends one probe.
fn ask(application: SocketAddr, health: &HealthSettings) -> io::Result<()> {
    let deadline = Instant::now() + health.timeout;
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        left.max(Duration::from_micros(1)) // zero would mean no timeout
    };
    let mut stream = TcpStream::connect_timeout(&application, left())?;
    stream.set_write_timeout(Some(left()))?;
    stream.write_all(health.send.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 256];
    while answer.len() < health.expect.len() {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left()))?;
        match stream.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    if answer.starts_with(health.expect.as_bytes()) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer).into_owned();
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("it said {said:?}, not {:?}", health.expect),
    ))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn health() -> HealthSettings {
        HealthSettings {
            interval: Duration::from_millis(10),
            timeout: Duration::from_millis(100),
            failures: 2,
            send: "PING\r\n".to_owned(),
            expect: "+PONG".to_owned(),
        }
    }

    fn server(answer: &'static [u8]) -> SocketAddr {
        server_of(std::iter::repeat(answer), Arc::default())
    }

    /// A server that gives these answers, one to each connection, and counts the questions in `asked`.
    fn server_of(
        answers: impl Iterator<Item = &'static [u8]> + Send + 'static,
        asked: Arc<AtomicU32>,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                asked.fetch_add(1, Ordering::SeqCst);
                let mut question = [0; 6];
                stream.read_exact(&mut question).unwrap();
                assert_eq!(&question, b"PING\r\n");
                answer
                    .iter()
                    .for_each(|byte| drop(stream.write_all(std::slice::from_ref(byte))));
            }
        });
        address
    }

    #[test]
    fn an_answer_is_what_begins_as_expected() {
        ask(server(b"+PONG\r\n"), &health()).unwrap();
        let error = ask(server(b"-LOADING"), &health()).unwrap_err();
        let said = error.to_string(); // quotes the part of the answer that had arrived
        assert!(
            said.starts_with("it said \"-LOAD") && said.ends_with("not \"+PONG\""),
            "{said}"
        );
        ask(server(b"+PO"), &health()).unwrap_err();
    }

    /// The kernel accepts connections for a program that is stopped.
    #[test]
    fn a_listener_that_never_accepts_is_hung() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = ask(listener.local_addr().unwrap(), &health()).unwrap_err();
        assert!(
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            "{error}"
        );
    }

    #[test]
    fn so_many_failures_in_a_row_are_a_death_and_one_answer_ends_it() {
        const GOOD: &[u8] = b"+PONG\r\n";
        const BAD: &[u8] = b"-ERR";
        let asked = Arc::new(AtomicU32::new(0));
        let answers = [GOOD, BAD, GOOD, BAD, BAD, BAD, GOOD].into_iter();
        let address = server_of(answers.chain(std::iter::repeat(GOOD)), Arc::clone(&asked));
        let state = Arc::new(AtomicBool::new(false));
        let (told, (news, heard)) = (Arc::downgrade(&state), std::sync::mpsc::channel());
        let wake = move || {
            let _ = news.send(asked.load(Ordering::SeqCst));
        };
        let patience = Duration::from_secs(20);
        let patient = HealthSettings {
            timeout: patience,
            ..health()
        };
        let watching = std::thread::spawn(move || watch("web", address, &patient, &told, &wake));
        // Number of questions at each change: after answers 4 and 5 failed, and after answer 7 succeeded.
        assert_eq!(heard.recv_timeout(patience), Ok(5));
        assert_eq!(heard.recv_timeout(patience), Ok(7));
        assert!(!state.load(Ordering::SeqCst));
        drop(state);
        watching.join().unwrap();
    }
}
