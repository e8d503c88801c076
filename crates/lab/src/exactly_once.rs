//! `steadfast-lab pg-exactly-once`: PostgreSQL front-ends with policy `snapshot` fail in the middle of series of transactions (Migratory
//! TCP, section 6).
//!
//! ```text
//!   pg_client.py × N ── router, PostgreSQL ── [ node b: wire, front-end ] ── node a: front-end
//! ```
//!
//! Afterwards `pg_check.py` compares the ledger in the database with the answers that the clients received.

use std::fs;
use std::ops::AddAssign;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::clock::ClockOffset;
use crate::database;
use crate::net::NODE_NAMES;
use crate::node::{
    DATABASE_PORT, DEBIAN_PYTHON, PG_CHECK, PG_CLIENT, PSYCOPG, ReportedStatus, ServerSoftware,
};
use crate::pair::aftermath::follow;
use crate::pair::expect::{BACKUP, changes, expectations};
use crate::pair::fault::{CrashFault, CrashTarget, Sequel};
use crate::pair::inject::inject;
use crate::pair::judged::JudgedRun;
use crate::pair::testbed::Testbed;
use crate::pair::work::Work;
use crate::pair::{LanOptions, PairOptions, PolicyOption, Returning, WorkloadOption};
use crate::process::{LoggedProcess, output};
use crate::run::{Lab, LabFindings, LabRun, RunOptions, WrongUse, require_nothing, value_name};
use judge::Closing;

/// Time limit for a client.
const LIMIT: Duration = Duration::from_secs(120);
/// Time from the moment at which all connections are protected until the fault.
const MOMENT_MS: std::ops::Range<u64> = 0..1_200;
/// Largest number of items in one series.
const SERIES_MAX: u32 = 12;

/// Fail PostgreSQL front-ends in the middle of series of transactions; each transaction must be executed and answered exactly once.
///
/// Clients send series of transactions over HTTP, each over one connection. The sample front-end (bindings/python) executes them in an
/// unmodified PostgreSQL, and exports its state inside each transaction, before the COMMIT. At a random moment, the fault hits the primary.
/// Afterwards, the ledger in the database is compared with the answers that the clients received.
#[derive(Clone, Debug, Args)]
pub struct ExactlyOnceOptions {
    /// Number of failures. Each one has a network and a database of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Only the failure with this number, counted from 0.
    #[arg(long)]
    kill: Option<u32>,
    /// The fault: power-off, link-down, kill-server, kill-agent-after-takeover or handover.
    #[arg(long, value_enum, default_value_t)]
    fault: CrashFault,
    /// Number of clients.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    connections: u32,
    /// Transactions of each client.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    items: u32,
    /// Commit before the export: the mistake of which the paper warns. The run shows the duplicates, and does not hold.
    #[arg(long)]
    wrong_order: bool,
    #[command(flatten)]
    lan: LanOptions,
    #[command(flatten)]
    run: RunOptions,
}

/// The sums over all failures.
#[derive(Default, Serialize)]
pub struct ExactlyOnceFindings {
    kills: u32,
    fault: CrashFault,
    wrong_order: bool,
    #[serde(flatten)]
    ledger: LedgerCheck,
    connections: u64,
    connections_survived: u64,
    connections_taken_over: u64,
    resets_seen: u64,
    /// Broken rules that the judge has found in the captures, and things that could not be judged.
    violations: Vec<String>,
}

/// The output of `pg_client.py`.
#[derive(Deserialize)]
struct ClientAnswers {
    name: String,
    committed: Vec<String>,
    aborted: Vec<String>,
    error: Option<String>,
}

/// The output of `pg_check.py`.
#[derive(Default, Serialize, Deserialize)]
struct LedgerCheck {
    /// Items that are more than once in the ledger.
    duplicates: u64,
    /// Items that were answered `committed` and are not in the ledger.
    lost: u64,
    /// Items that were answered `aborted` and are in the ledger.
    contradicted: u64,
    /// Items that are in the ledger and were never answered.
    unanswered_in_ledger: u64,
    /// Clients whose balance is not the sum of their amounts in the ledger.
    wrong_balances: u64,
    committed: u64,
    aborted: u64,
}

impl ExactlyOnceOptions {
    fn pair(&self, returning: Returning) -> PairOptions {
        PairOptions {
            run: self.run.clone(),
            lan: self.lan,
            policy: PolicyOption::Snapshot,
            server: Some(if self.wrong_order {
                ServerSoftware::WrongPgFrontEnd
            } else {
                ServerSoftware::PgFrontEnd
            }),
            fault: self.fault,
            returning,
            ..PairOptions::new(WorkloadOption::Request, self.connections)
        }
    }
}

impl Lab for ExactlyOnceOptions {
    type Part = u32;
    type Findings = ExactlyOnceFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check(&self) -> Result<()> {
        let pair = self.pair(Returning::Killed);
        let is_taken_over = matches!(pair.sequel(CrashTarget::Primary), Sequel::Takeover);
        if !is_taken_over || self.fault.exception(pair.application()).is_some() {
            let faults = "power-off, link-down, kill-server, kill-agent-after-takeover or handover";
            return Err(WrongUse(format!("--fault must be {faults}")).into());
        }
        Ok(())
    }

    fn check_machine(&self) -> Result<()> {
        self.pair(Returning::Killed).check_machine(&[PSYCOPG])?;
        require_nothing(database::missing())
    }

    fn parts(&self) -> Vec<u32> {
        self.kill
            .map_or_else(|| (0..self.kills).collect(), |kill| vec![kill])
    }

    fn selection(&self, kill: u32) -> Vec<(&'static str, String)> {
        vec![("kill", kill.to_string())]
    }

    fn nothing(&self) -> ExactlyOnceFindings {
        ExactlyOnceFindings {
            fault: self.fault,
            wrong_order: self.wrong_order,
            ..ExactlyOnceFindings::default()
        }
    }

    fn play(&self, kill: u32, run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<ExactlyOnceFindings> {
        let seed = run.seed ^ u64::from(kill).rotate_left(32);
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        // A frozen front-end goes on later, in the middle of its transaction.
        let returning = if chance.random() {
            Returning::Frozen
        } else {
            Returning::Killed
        };
        let options = self.pair(returning);
        let clock = ClockOffset::measure();
        run.step("set up");
        let work = Work::new(&options, run.seed);
        let mut testbed = Testbed::set(&options, &work, run)?;
        let server = database::server(
            &testbed.network.router,
            &testbed.directory,
            DATABASE_PORT,
            &["10.0.0.0/8", "fd00::/8"],
        )?;
        let mut server = LoggedProcess::start("postgres", server, &testbed.directory)?;
        database::wait_ready(&mut server)?;
        self.create_tables(&testbed)?;
        let mut clients = self.start_clients(&testbed, &mut chance)?;
        run.step("load");
        let all = u64::from(self.connections);
        let protects_all = |status: &ReportedStatus| status.protects_all() && status.protected() >= all;
        testbed.wait_for(BACKUP, "protect all connections", protects_all, problems)?;
        std::thread::sleep(Duration::from_millis(chance.random_range(MOMENT_MS)));
        let epoch = testbed.epoch();
        run.step("fault");
        let fault_at = inject(&testbed, &options, CrashTarget::Primary)?;
        let mut aftermath = follow(
            &mut testbed,
            &options,
            CrashTarget::Primary,
            (fault_at, epoch),
            run,
        )?;
        problems.append(&mut aftermath.problems);
        let mut found = ExactlyOnceFindings {
            kills: 1,
            connections: all,
            ..self.nothing()
        };
        let files = self.await_clients(&testbed.directory, &mut clients, &mut found, problems)?;
        found.ledger = check_ledger(&testbed, &files)?;
        drop(server);
        let mut expected = expectations(&options, &aftermath, clock);
        expected.closing = Closing::Either;
        let detection = testbed.pair.detection();
        let changes = changes(&options, CrashTarget::Primary, &aftermath, clock, detection);
        let verdict = JudgedRun::of(testbed, expected, &changes)?.verdict;
        found.connections_taken_over = verdict.connections_taken_over;
        found.resets_seen = verdict.resets_to_client;
        let violations = verdict.violations.iter();
        found.violations = violations
            .map(|one| format!("{:?}: {}: {}", one.rule, one.what, one.packet))
            .chain(verdict.unproven)
            .collect();
        if found.connections_taken_over == 0 {
            problems.push("node b never spoke for any connection".to_owned());
        }
        Ok(found)
    }
}

impl ExactlyOnceOptions {
    fn create_tables(&self, testbed: &Testbed) -> Result<()> {
        let front_end = testbed.directory.join(format!(
            "{}-{}",
            self.pair(Returning::Killed).application().name(),
            NODE_NAMES[0]
        ));
        let mut command = testbed.network.router.command(DEBIAN_PYTHON)?;
        command.env("PYTHONPATH", front_end).args([
            "-c",
            "import sys, pg_front_end; pg_front_end.create_tables(sys.argv[1])",
            &local_database(),
        ]);
        output(&mut command, "create the tables").map(drop)
    }

    /// Starts the clients. They differ in the length of their series.
    fn start_clients(
        &self,
        testbed: &Testbed,
        chance: &mut Xoshiro256PlusPlus,
    ) -> Result<Vec<LoggedProcess>> {
        let program = testbed.directory.join("pg_client.py");
        fs::write(&program, PG_CLIENT).with_context(|| program.display().to_string())?;
        let service = testbed.pair.service;
        let client = |number: u32| {
            let name = format!("client-{number}");
            let mut command = testbed.network.client.command(DEBIAN_PYTHON)?;
            command.arg(&program);
            command.args([service.ip().to_string(), service.port().to_string(), name.clone()]);
            for (option, value) in [
                ("--items", self.items),
                ("--series-size", chance.random_range(1..=SERIES_MAX)),
                ("--seed", chance.random_range(0..1_000_000)),
            ] {
                command.args([option, &value.to_string()]);
            }
            Ok(LoggedProcess::start(&name, command, &testbed.directory)?)
        };
        (0..self.connections).map(client).collect()
    }

    /// Waits for the clients, and counts those that noticed nothing. Returns the files with their answers.
    fn await_clients(
        &self,
        directory: &Path,
        clients: &mut [LoggedProcess],
        found: &mut ExactlyOnceFindings,
        problems: &mut Vec<String>,
    ) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for client in clients {
            let status = client.wait(LIMIT);
            let said = client.output();
            let answers = said.lines().find_map(|line| {
                let answers = serde_json::from_str::<ClientAnswers>(line).ok()?;
                Some((line, answers))
            });
            let (Ok(_), Some((line, answers))) = (status, answers) else {
                problems.push(format!(
                    "{} has no answers:{}",
                    client.label(),
                    client.last_words()
                ));
                continue;
            };
            let answered = answers.committed.len() + answers.aborted.len();
            match answers.error {
                Some(error) => problems.push(format!("{}: {error}", answers.name)),
                None if answered != self.items as usize => {
                    problems.push(format!(
                        "{}: {answered} answers for {} items",
                        answers.name, self.items
                    ));
                }
                None => found.connections_survived += 1,
            }
            let file = directory.join(format!("{}.json", answers.name));
            fs::write(&file, line).with_context(|| file.display().to_string())?;
            files.push(file.display().to_string());
        }
        Ok(files)
    }
}

/// The database, for a program on its own host.
fn local_database() -> String {
    format!("host=127.0.0.1 port={DATABASE_PORT} user=lab dbname=postgres")
}

/// Compares the ledger with the clients' answers.
fn check_ledger(testbed: &Testbed, files: &[String]) -> Result<LedgerCheck> {
    let program = testbed.directory.join("pg_check.py");
    fs::write(&program, PG_CHECK).with_context(|| program.display().to_string())?;
    let mut command: Command = testbed.network.router.command(DEBIAN_PYTHON)?;
    command.arg(&program).arg(local_database()).args(files);
    // Exit code 1 says that something is wrong, and the numbers say what.
    let said = command.output().context("pg_check.py")?;
    serde_json::from_slice(&said.stdout)
        .with_context(|| format!("pg_check.py: {}", String::from_utf8_lossy(&said.stderr)))
}

impl LedgerCheck {
    fn wrong(&self) -> u64 {
        self.duplicates + self.lost + self.contradicted + self.unanswered_in_ledger + self.wrong_balances
    }
}

impl AddAssign for LedgerCheck {
    fn add_assign(&mut self, other: Self) {
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.contradicted += other.contradicted;
        self.unanswered_in_ledger += other.unanswered_in_ledger;
        self.wrong_balances += other.wrong_balances;
        self.committed += other.committed;
        self.aborted += other.aborted;
    }
}

impl LabFindings for ExactlyOnceFindings {
    fn holds(&self) -> bool {
        self.ledger.wrong() == 0
            && self.connections_survived == self.connections
            && self.resets_seen == 0
            && self.violations.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.ledger += other.ledger;
        self.connections += other.connections;
        self.connections_survived += other.connections_survived;
        self.connections_taken_over += other.connections_taken_over;
        self.resets_seen += other.resets_seen;
        self.violations.extend(other.violations);
    }

    fn line(&self) -> String {
        let mut line = format!(
            "{} times {}: {} transactions committed, {} aborted; {} duplicates, {} lost, {} contradicted, {} unanswered; {} of {} connections \
             survived, {} taken over, {} resets",
            self.kills,
            value_name(&self.fault),
            self.ledger.committed,
            self.ledger.aborted,
            self.ledger.duplicates,
            self.ledger.lost,
            self.ledger.contradicted,
            self.ledger.unanswered_in_ledger,
            self.connections_survived,
            self.connections,
            self.connections_taken_over,
            self.resets_seen
        );
        for violation in &self.violations {
            line += &format!("\n  {violation}");
        }
        line
    }
}
