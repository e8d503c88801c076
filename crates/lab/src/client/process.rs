//! Starts a client process, sends it orders, and receives its events.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use linux::netns::Netns;

use super::plan::{ClientEvent, ClientOrder, ClientPlan};
use super::report::ClientReport;

/// The hidden subcommand that runs this binary as a client process.
pub const CLIENT: &str = "client";

/// A running client process. It is killed on drop.
pub struct ClientProcess {
    child: Child,
    orders: ChildStdin,
    events: mpsc::Receiver<anyhow::Result<ClientEvent>>,
    report: Option<ClientReport>,
}

impl ClientProcess {
    /// Starts a client process on `host` and sends it `plan`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(host: &Netns, plan: &ClientPlan) -> anyhow::Result<Self> {
        let mut command = host.command(std::env::current_exe()?)?;
        command.arg(CLIENT);
        Self::start(command, plan)
    }

    /// Starts `command` and sends `plan` to the new process. The process must call [`super::main`], as `steadfast-lab client` does. If
    /// `command` enters no network namespace, the process runs in the calling thread's namespace.
    ///
    /// # Errors
    /// If the plan is invalid, or the process does not start.
    fn start(mut command: Command, plan: &ClientPlan) -> anyhow::Result<Self> {
        plan.check()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the client {command:?}"))?;
        let output = child.stdout.take().expect("it is piped");
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let event = line.context("reading the client's output").and_then(|line| {
                    serde_json::from_str(&line).context("the client printed a line that is not an event")
                });
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let orders = child.stdin.take().expect("it is piped");
        let mut process = Self {
            child,
            orders,
            events,
            report: None,
        };
        writeln!(process.orders, "{}", serde_json::to_string(plan)?).context("writing to the client")?;
        Ok(process)
    }

    /// Sends an order to the process. An order to a process that has ended is no error: [`Self::finish`] tells why the process ended.
    ///
    /// # Errors
    /// If the order cannot be sent.
    pub fn order(&mut self, order: ClientOrder) -> anyhow::Result<()> {
        match writeln!(self.orders, "{}", serde_json::to_string(&order)?) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome.context("writing to the client"),
        }
    }

    /// Waits for the next event of the process. `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// If the process has ended without a report, or wrote an invalid line.
    pub fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Option<ClientEvent>> {
        let event = match self.events.recv_timeout(timeout) {
            Ok(event) => event?,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the client ended without a report: {}", self.child.wait()?)
            }
        };
        if let ClientEvent::Report(report) = &event {
            self.report = Some(report.clone());
        }
        Ok(Some(event))
    }

    /// Waits until every connection transfers data or has failed. Returns the number of connections that transfer data.
    ///
    /// # Errors
    /// If this takes longer than `timeout`, or if the process ends.
    pub fn wait_ready(&mut self, timeout: Duration) -> anyhow::Result<usize> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next_event(left)? {
                Some(ClientEvent::Ready { flowing }) => return Ok(flowing),
                Some(ClientEvent::Progress { .. }) => {}
                Some(ClientEvent::Report(report)) => {
                    let first = report.connections.iter().find_map(|one| one.failure.as_ref());
                    bail!("the client ended before it was ready; first failure: {first:?}");
                }
                None => bail!("the client was not ready after {timeout:?}"),
            }
        }
    }

    /// Waits for the report of the process.
    ///
    /// # Errors
    /// If the report does not come within `timeout`, or if the process ends without a report.
    pub fn finish(mut self, timeout: Duration) -> anyhow::Result<ClientReport> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(report) = self.report.take() {
                return Ok(report);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.next_event(left)?
                .ok_or_else(|| anyhow!("no report from the client after {timeout:?}"))?;
        }
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // These calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Protocol, Workload};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn start(script: &str) -> ClientProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let workload = Workload::Download { bytes: 1 };
        let plan = ClientPlan::new("127.0.0.1:1".parse().unwrap(), Protocol::Http, workload);
        ClientProcess::start(command, &plan).unwrap()
    }

    #[test]
    fn a_process_is_told_its_plan_and_orders_and_reports() {
        let mut process = start(
            r#"read plan; echo '{"progress":{"bytes_received":0,"bytes_sent":0}}'; echo '{"ready":{"flowing":7}}'
            read order; [ "$order" = '"wake"' ] || exit 4
            echo '{"report":{"connections":[],"latency":null,"started_ns":1,"ended_ns":2}}'"#,
        );
        assert_eq!(process.wait_ready(PATIENCE).unwrap(), 7);
        process.order(ClientOrder::Wake).unwrap();
        let report = process.finish(PATIENCE).unwrap();
        assert_eq!((report.started_ns, report.ended_ns), (1, 2));
    }

    #[test]
    fn an_end_without_a_report_is_an_error_that_tells_the_exit_code() {
        let mut process = start("read plan; exit 3");
        let error = process.wait_ready(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        let error = start("read plan; echo nonsense").finish(PATIENCE).unwrap_err();
        assert!(format!("{error:#}").contains("not an event"), "{error:#}");
    }
}
