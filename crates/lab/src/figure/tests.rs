use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use super::rows::Rows;
use super::*;

fn options(name: &str, out: &Path) -> FigureOptions {
    FigureOptions {
        name: name.to_owned(),
        out: out.to_owned(),
        seeds: 1,
        jobs: NonZeroUsize::new(1),
        shard: None,
        scenario: None,
    }
}

/// All files directly in a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// A small scenario of two strings and at most 6 s. Its runs give all kinds of rows that a scenario with strings can have.
const SMALL: &str = r#"
[strings]
buffers = [40]
rate_control = [false, true]
sampled = 3

[strings.rate]
flows = 4
segments = 200
failure_at = 0.6
failover = 0.3
rate_bits_per_s = [20_000_000, 20_000_000]
end = 6
"#;

#[test]
fn the_same_command_gives_the_same_bytes_whatever_the_jobs_and_the_shards() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("small.toml");
    fs::write(&file, SMALL).unwrap();
    let at = |name: &str| directory.path().join(name);
    let with = |out: &str, change: &dyn Fn(&mut FigureOptions)| {
        let mut options = options("halr-22", &at(out));
        options.seeds = 3;
        options.scenario = Some(file.clone());
        change(&mut options);
        assert_eq!(run(&options).unwrap(), LabOutcome::Held);
    };
    with("one", &|_| ());
    with("again", &|options| options.jobs = NonZeroUsize::new(3));
    with("parts", &|options| options.shard = Some("1/2".parse().unwrap()));
    let merge_parts = || {
        merge(&MergeOptions {
            directories: vec![at("parts")],
            out: Some(at("merged")),
        })
    };
    let error = merge_parts().unwrap_err();
    assert!(
        error.is::<WrongUse>() && error.to_string() == "part 2/2 is missing",
        "{error}"
    );
    with("parts", &|options| options.shard = Some("2/2".parse().unwrap()));
    assert_eq!(merge_parts().unwrap(), LabOutcome::Held);
    let one = files(&at("one"));
    assert_eq!(one.keys().collect::<Vec<_>>(), ["halr-22.csv", "halr-22.svg"]);
    assert!(one["halr-22.csv"].len() > 1000);
    assert_eq!(one, files(&at("again")));
    assert_eq!(one, files(&at("merged")));
    let runs = files(&at("one/runs"));
    assert_eq!(runs.len(), 5);
    assert_eq!(runs, files(&at("again/runs")));
    assert_eq!(runs, files(&at("merged/runs")));
    // Rows that were written can be read back.
    let name = "halr-strings-buffer-750";
    let rows = Rows::read(&at("one/runs"), name).unwrap();
    rows.write(&at("parts"), name).unwrap();
    assert_eq!(rows, Rows::read(&at("parts"), name).unwrap());
    assert_eq!(
        fs::read(at("parts").join(format!("{name}.bins.csv"))).unwrap(),
        runs[&format!("{name}.bins.csv")]
    );
}

const FLOWS: &str = include_str!("../../../../scenarios/halr-completion-failover-3s.toml");
const STRINGS: &str = include_str!("../../../../scenarios/halr-strings-buffer-750.toml");

/// Figure, scenario, a correct text in the scenario, its wrong replacement, and the expected error.
const IMPOSSIBLE: &[(&str, &str, &str, &str, &str)] = &[
    (
        "halr-13",
        FLOWS,
        "variants = [\"reno\"]",
        "kernel = true\nvariants = [\"reno\"]",
        "flows.kernel: the kernel plays Linux's TCP",
    ),
    (
        "halr-22",
        STRINGS,
        "buffers = [750]",
        "kernel = true\nbuffers = [750]",
        "strings.kernel: the kernel plays Linux's TCP",
    ),
    (
        "halr-13",
        FLOWS,
        "hosts = 60",
        "colour = 1",
        "flows.cluster.colour: unknown field `colour`",
    ),
    (
        "halr-13",
        FLOWS,
        "access_rate_bits_per_s = 100_000_000",
        "access_rate_bits_per_s = -5",
        "flows.cluster.access_rate_bits_per_s: invalid value: integer `-5`",
    ),
    (
        "halr-13",
        FLOWS,
        "cluster_rate_bits_per_s = 10_000_000_000",
        "cluster_rate_bits_per_s = 0",
        "flows.cluster.cluster_rate_bits_per_s: must be positive",
    ),
    (
        "halr-13",
        FLOWS,
        "failovers = [3]",
        "failovers = [999]",
        "flows.failovers: the failover must end within",
    ),
    (
        "halr-13",
        FLOWS,
        "failovers = [3]",
        "failovers = [3, -1]",
        "flows.failovers: -1 is not a number of seconds",
    ),
    (
        "halr-13",
        FLOWS,
        "hosts = 60",
        "hosts = 0",
        "flows.cluster.hosts: must be positive",
    ),
    (
        "halr-13",
        FLOWS,
        "mss = 1460",
        "mss = 0",
        "flows.cluster.tcp.mss: must be positive",
    ),
    (
        "halr-13",
        FLOWS,
        "variants = [\"reno\"]",
        "variants = [\"vegas\"]",
        "flows.variants",
    ),
    (
        "halr-13",
        FLOWS,
        "caching_after = 0",
        "caching_after = 9",
        "flows.cluster.recovery.caching_after: is 9, but must not exceed",
    ),
    ("halr-13", FLOWS, "gap = 0.02", "gap = ", "gap: "),
    (
        "halr-13",
        FLOWS,
        "gap = 0.02",
        "gap = 0.000000001",
        "flows.cluster.gap: more than",
    ),
    (
        "halr-13",
        FLOWS,
        "hosts = 60",
        "hosts = 5000000000",
        "flows.cluster.hosts: more than",
    ),
    (
        "halr-13",
        FLOWS,
        "failover_at = 2",
        "failover_at = 500",
        "flows.cluster.failover_at: must be within the run",
    ),
    (
        "halr-13",
        FLOWS,
        "failover_at = 2",
        "failover_at = 1e19",
        "flows.cluster.failover_at: 10000000000000000000 is not a number of seconds",
    ),
    (
        "halr-13",
        FLOWS,
        "failovers = [3]",
        "window_interval = 1e-9\nfailovers = [3]",
        "flows.window_interval: must be at least",
    ),
    (
        "halr-13",
        FLOWS,
        "[flows]",
        "[colours]\n[flows]",
        "colours: a scenario is one table",
    ),
    (
        "halr-13",
        FLOWS,
        "[flows.cluster.recovery]",
        "[strings]\n[flows.cluster.recovery]",
        "strings: a scenario is one table",
    ),
    (
        "halr-26",
        STRINGS,
        "buffers = [750]",
        "buffers = [750, 0]",
        "strings.buffers: a buffer holds at least",
    ),
    (
        "halr-26",
        STRINGS,
        "rate_bits_per_s = [100_000_000, 100_000_000]",
        "rate_bits_per_s = [100_000_000, 0]",
        "strings.rate.rate_bits_per_s: each string's must be positive",
    ),
    (
        "halr-26",
        STRINGS,
        "rate_bits_per_s = [100_000_000, 100_000_000]",
        "rate_bits_per_s = [100_000_000, 100_000_000, 1]",
        "strings.rate.rate_bits_per_s: invalid length 3",
    ),
    (
        "halr-26",
        STRINGS,
        "bin = 0.1",
        "bin = 1e-9",
        "strings.rate.bin: more than",
    ),
    (
        "halr-26",
        STRINGS,
        "failover = 3",
        "failover = 56",
        "strings.rate.failover: must end within the run",
    ),
    (
        "halr-26",
        STRINGS,
        "sampled = 10",
        "sampled = 101",
        "strings.sampled: must be at most",
    ),
];

#[test]
fn impossible_scenarios_are_refused_with_file_line_and_field_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("changed.toml");
    let mut failed = Vec::new();
    for (figure, text, right, wrong, expected) in IMPOSSIBLE {
        assert!(text.contains(right), "{right}");
        let changed = text.replacen(right, wrong, 1);
        let line = 1 + changed
            .lines()
            .position(|line| line.contains(wrong.lines().next().unwrap()))
            .unwrap();
        fs::write(&file, changed).unwrap();
        let mut options = options(figure, &directory.path().join("out"));
        options.scenario = Some(file.clone());
        let error = run(&options).unwrap_err();
        assert!(error.is::<WrongUse>(), "{wrong}: {error}");
        let place = format!("{}:{line}: {expected}", file.display());
        if !error.to_string().starts_with(&place) {
            failed.push(format!("{wrong}: {error}, not {place}"));
        }
        assert!(!options.out.exists(), "{wrong}");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn wrong_use_is_told_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let wrong = |change: &dyn Fn(&mut FigureOptions)| {
        let mut options = options("halr-9", &out);
        change(&mut options);
        let error = run(&options).unwrap_err();
        assert!(error.is::<WrongUse>(), "{error}");
        assert!(!out.exists());
        error.to_string()
    };
    assert!(
        wrong(&|options| options.name = "halr-10".into())
            .starts_with("no figure halr-10; there are halr-7, ")
    );
    assert!(
        wrong(&|options| options.scenario = Some("none.toml".into()))
            .starts_with("none.toml: the file cannot be read")
    );
    let file = directory.path().join("small.toml");
    fs::write(&file, SMALL).unwrap();
    assert!(wrong(&|options| options.scenario = Some(file.clone())).contains("scenario of another kind"));
    let all = wrong(&|options| (options.name, options.scenario) = ("halr".into(), Some(file.clone())));
    assert!(all.contains("for one figure"), "{all}");
    for shard in ["0/2", "3/2", "1", "a/b", "1/0"] {
        assert!(shard.parse::<Shard>().is_err(), "{shard}");
    }
}

/// The scenario `text` of the catalogue's file `name`, as tests play it. A scenario for the kernel is simulated instead, because its
/// claims are computed in the same way.
pub fn simulated(name: &str, text: &str) -> FigureScenario {
    let text = text.replace("kernel = true\n", "");
    let text = if name.starts_with("caro-") {
        thinned(name, &text)
    } else {
        text
    };
    FigureScenario::parse(Path::new(name), &text).unwrap()
}

/// Reduces the number of transfers and of points in a scenario of SCTP. Otherwise, the informed policy alone would be judged at more than a
/// thousand points.
fn thinned(name: &str, text: &str) -> String {
    let mut thin = String::new();
    let is_informed = name.starts_with("caro-informed");
    for line in text.lines() {
        let line = match (name, line.split_once(" = ").unwrap_or_default()) {
            (_, ("primary_losses", _)) if is_informed => "primary_losses = [0.05, 0.08]\ntransfers = 10",
            (_, ("alternate_losses", _)) if is_informed => "alternate_losses = [0.0, 0.01, 0.05, 0.09]",
            (_, ("change_overs", _)) if is_informed => "change_overs = [0, 5]",
            ("caro-times-90-90" | "caro-times-90-1040", ("alternate_losses", _)) => {
                "alternate_losses = [0.0, 0.05, 0.10]\ntransfers = 10"
            }
            ("caro-times-90-90" | "caro-times-90-1040", ("path_max_retrans", _)) => {
                "path_max_retrans = [0, 5]"
            }
            ("caro-times-90-210", ("alternate_losses", _)) => "alternate_losses = [0.05]\ntransfers = 10",
            ("caro-times-90-210", ("path_max_retrans", _)) => "path_max_retrans = [0]",
            ("caro-times-three-paths", ("path_max_retrans", _)) => {
                "path_max_retrans = [0, 5]\ntransfers = 10"
            }
            ("caro-cross", ("path_max_retrans", _)) => "path_max_retrans = [0, 5]",
            ("caro-spurious", ("alternate_losses", _)) => "alternate_losses = [0.0, 0.07]\ntransfers = 3",
            ("caro-machines", ("path_max_retrans", _)) => "path_max_retrans = [0, 5]\ntransfers = 4",
            ("caro-spurious-low", ("alternate_losses", _)) => "alternate_losses = [0.0, 0.07]",
            ("caro-spurious-low", ("transfers", _)) => "transfers = 17",
            ("caro-all-fail", ("transfers", _)) => "transfers = 2",
            _ => line,
        };
        thin.push_str(line);
        thin.push('\n');
    }
    thin
}

/// The results with one seed of the scenarios that `is_of` selects. Scenarios that the kernel should play are simulated.
pub fn results_of(is_of: impl Fn(&str) -> bool) -> Results {
    let scenarios = catalogue::FILES
        .iter()
        .filter(|file| is_of(file.name))
        .map(|file| (file.name.to_owned(), simulated(file.name, file.text)));
    let jobs = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    work::results(scenarios.collect(), 1, None, jobs).unwrap()
}

/// Whether a scenario or a figure of this name has flows of TCP. Only the kernel plays those about sessions that move (`mtcp-`), and the
/// measurements of FT-TCP and CoRAL.
pub fn is_about_tcp(name: &str) -> bool {
    let others = ["caro-", "mtcp-", "ft-tcp", "coral"];
    !others.iter().any(|paper| name.starts_with(paper))
}

/// The results of the scenarios with TCP, computed once.
pub fn results_of_tcp() -> Results {
    static RESULTS: LazyLock<Results> = LazyLock::new(|| results_of(is_about_tcp));
    RESULTS.clone()
}

/// The results of the scenarios with SCTP, computed once.
pub fn results_of_sctp() -> Results {
    static RESULTS: LazyLock<Results> = LazyLock::new(|| results_of(|name| name.starts_with("caro-")));
    RESULTS.clone()
}

/// Judges the claims about the figures that `is_of` selects, and draws these figures.
fn assert_claims_come_out_as_known(results: &Results, is_of: impl Fn(&str) -> bool) {
    let entries: Vec<_> = catalogue::FIGURES
        .iter()
        .filter(|figure| is_of(figure.name))
        .collect();
    let names: Vec<_> = entries.iter().map(|figure| figure.name).collect();
    let judged = claims::judge(results, &names);
    assert_eq!(
        judged.len(),
        claims::all().filter(|claim| is_of(claim.figure)).count()
    );
    let mut surprising = Vec::new();
    for judged in &judged {
        let known = matches!(
            judged.verdict,
            FigureClaimVerdict::Holds | FigureClaimVerdict::Differs(_)
        );
        if !known {
            let (id, found, verdict) = (judged.claim.id, &judged.found, judged.verdict);
            surprising.push(format!("{id}: {found:?} {verdict}"));
        }
    }
    assert!(surprising.is_empty(), "{}", surprising.join("\n"));
    let figures = draw_all(&entries, results);
    assert_eq!(figures.len(), entries.len());
    for figure in &figures {
        let series = figure.panels.iter().flat_map(|panel| &panel.series);
        assert!(
            series.clone().count() > 0 && series.clone().all(|series| !series.points.is_empty()),
            "{}",
            figure.name
        );
        for panel in &figure.panels {
            assert!(
                visible::is_visible(panel),
                "{}: nothing is drawn in the panel {}",
                figure.name,
                panel.title
            );
        }
        assert!(draw::svg(figure).unwrap().contains("prefers-color-scheme: dark"));
    }
}

#[test]
fn the_claims_about_tcp_come_out_as_known() {
    assert_claims_come_out_as_known(&results_of_tcp(), is_about_tcp);
}

#[test]
fn the_claims_about_sctp_come_out_as_known() {
    assert_claims_come_out_as_known(&results_of_sctp(), |name| name.starts_with("caro-"));
}
