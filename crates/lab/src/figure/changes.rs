//! Tests that each claim can fail: for each claim, a change of a scenario reverses the claim's result.

use std::process::Command;
use std::{env, fs, thread};

use super::claims::{self, FigureClaimVerdict};
use super::results::Results;
use super::{catalogue, shard, work};

/// A change of a scenario: the scenario's name, a text in its file, the text's replacement, and the claims whose results the change
/// reverses. After the change, a claim that is expected to hold does not hold, and a claim that is expected to differ holds.
type ScenarioChange = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// Limits the edges' caches to one byte. No packet fits, so local recovery has no effect.
const NO_MEMORY: &str = "caching_after = 0\nmax_packets = 1\nmax_bytes = 1";

/// Cuts the primary path six times, each time for two timeouts in a row.
const SIX_CUTS: &str = "paths = [{ delay = 0.025, cuts = [{ from = 20, until = 25 }, { from = 80, until = 85 }, \
     { from = 140, until = 145 }, \
     { from = 200, until = 205 }, { from = 260, until = 265 }, { from = 320, until = 325 }] }";

/// A short transfer whose primary path fails.
const SHORT: (&str, &str) = (
    "bytes = 83_886_080\npolicy = \"dormant-hop-once\"\npaths = [{ delay = 0.025 }",
    "bytes = 500_000\npolicy = \"dormant-hop-once\"\npaths = [{ delay = 0.025, cuts = [{ from = 1, until = 3000 }] }",
);

/// An alternate path with a short delay while idle, and with a low rate.
const NARROW: &str = "{ delay = 0.025, rate_bits_per_s = 20_000 }]";

/// An alternate path with a short delay while idle. The path has no losses, but its throughput is lower than that of a primary path with
/// losses.
const MODEST: &str = "{ delay = 0.025, rate_bits_per_s = 100_000 }]";

/// Two lists in the files of the scenarios with the longest runs: the failovers and the recovery policies.
const ALL_FAILOVERS: &str = "failovers = [0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12]";
const ALL_RECOVERIES: &str = "recoveries = [\"none\", \"lowest\"]";

/// The sizes of snapshots in the scenario of moves.
const ALL_SIZES: &str = "sizes_kb = [0, 1, 2, 4, 8, 12, 16, 64, 256, 1024, 16_384]";

/// Claims that use only a part of a scenario's runs. The other runs are not played. An entry has a claim, a list in the scenario's file,
/// and the shortened list.
const SHORTENED: &[(&str, &str, &str)] = &[
    ("15a", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("15c", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("15e", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("15f", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("17b", ALL_FAILOVERS, "failovers = [3]"),
    ("17c", ALL_RECOVERIES, "recoveries = [\"lowest\"]"),
    ("17e", ALL_RECOVERIES, "recoveries = [\"lowest\"]"),
    ("17f", ALL_FAILOVERS, "failovers = [3]"),
    ("19a", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("19b", ALL_RECOVERIES, "recoveries = [\"none\"]"),
    ("19b", ALL_FAILOVERS, "failovers = [0.05, 0.1, 0.2, 0.5, 1, 1.5]"),
    ("mtcp-6a", ALL_SIZES, "sizes_kb = [0]"),
];

const CHANGES: &[ScenarioChange] = &[
    // memory, windows, unused flow time
    (
        "halr-memory",
        "caching_after = 0",
        "caching_after = 0\nmax_packets = 700",
        &["3.4a", "3.3a"],
    ),
    ("halr-memory-syns", "gap = 0.0001", "gap = 0.0002", &["3.4b"]),
    (
        "halr-window-data-loss",
        "syn = 3, initial = 3, min = 1.5",
        "syn = 3.5, initial = 3.5, min = 3.5",
        &["7a"],
    ),
    ("halr-window-data-loss", "caching_after = 0", NO_MEMORY, &["7b"]),
    ("halr-window-syn-loss", "syn = 3", "syn = 2", &["8a"]),
    (
        "halr-window-syn-loss",
        "halve_on_syn = true",
        "halve_on_syn = false",
        &["8b"],
    ),
    ("halr-window-syn-loss", "caching_after = 0", NO_MEMORY, &["8c"]),
    (
        "halr-restarts",
        "first_arrival = 1\nlast_arrival = 1.02",
        "first_arrival = 1.85\nlast_arrival = 1.86",
        &["3.1a"],
    ),
    ("halr-restarts", "min = 1.5", "min = 1", &["9a"]),
    ("halr-restarts", "caching_after = 0", NO_MEMORY, &["9b"]),
    // completion times of short flows
    (
        "halr-completion-failover-0.5s",
        "segments = 9",
        "segments = 30",
        &["12a", "12d"],
    ),
    ("halr-completion-failover-0.5s", "syn = 3", "syn = 3.32", &["12b"]),
    (
        "halr-completion-failover-0.5s",
        "segments = 9",
        "segments = 10",
        &["12c"],
    ),
    ("halr-completion-failover-3s", "syn = 3", "syn = 2", &["13a"]),
    (
        "halr-completion-failover-3s",
        "segments = 9",
        "segments = 200",
        &["13b"],
    ),
    (
        "halr-completion-failover-3s",
        "destination_delay = 0.046",
        "destination_delay = 0.078",
        &["13c"],
    ),
    (
        "halr-initial-window-2",
        "initial_window = 2",
        "initial_window = 1",
        &["12e"],
    ),
    ("halr-completion-failover-5s", "syn = 3", "syn = 2", &["14a"]),
    (
        "halr-completion-failover-5s",
        "caching_after = 0",
        NO_MEMORY,
        &["14b", "14c"],
    ),
    (
        "halr-completion-short-flows",
        "min = 1.5",
        "min = 2.5",
        &["18b", "18f"],
    ),
    (
        "halr-completion-short-flows",
        "caching_after = 0",
        NO_MEMORY,
        &["18c", "18d"],
    ),
    ("halr-completion-short-flows", "max = 64", "max = 3", &["18e"]),
    (
        "halr-completion-short-flows",
        "segments = 9",
        "segments = 60",
        &["18a"],
    ),
    // long flows, timeouts
    (
        "halr-completion-long-flows",
        "destination_delay = 0.046",
        "destination_delay = 0.01",
        &["19a"],
    ),
    (
        "halr-completion-long-flows",
        "halve_on_syn = true",
        "halve_on_syn = false",
        &["19b"],
    ),
    ("halr-timeouts-reno", "max = 64", "max = 3", &["15a", "15b"]),
    ("halr-timeouts-reno", "min = 1,", "min = 3,", &["17c"]),
    ("halr-timeouts-newreno", "caching_after = 0", NO_MEMORY, &["16b"]),
    (
        "halr-timeouts-sack",
        "destination_delay = 0.001",
        "destination_delay = 0.02",
        &["16a", "17a"],
    ),
    (
        "halr-recovery-policies",
        "max_window = 64",
        "max_window = 4",
        &["4.2a"],
    ),
    (
        "halr-recovery-policies",
        "caching_after = 0",
        NO_MEMORY,
        &["4.2b"],
    ),
    (
        "halr-timeouts-near-sources",
        "failover_at = 2",
        "failover_at = 2\nloss = 0.02",
        &["15c", "15d"],
    ),
    (
        "halr-timeouts-near-sources",
        "caching_after = 0",
        NO_MEMORY,
        &["16c", "16d", "17d"],
    ),
    ("halr-timeouts-near-sources", "min = 1,", "min = 3,", &["17e"]),
    ("halr-timeouts-1.5s", "max = 64", "max = 3", &["15e"]),
    ("halr-timeouts-1.5s", "min = 1.5", "min = 1", &["17b"]),
    ("halr-timeouts-1.5s-near-sources", "max = 64", "max = 3", &["15f"]),
    (
        "halr-timeouts-1.5s-near-sources",
        "min = 1.5",
        "min = 1",
        &["17f"],
    ),
    // two strings
    (
        "halr-strings-buffer-750",
        "rate_bits_per_s = [100_000_000, 100_000_000]",
        "rate_bits_per_s = [50_000_000, 50_000_000]",
        &["20a"],
    ),
    (
        "halr-strings-buffer-750",
        "[strings.rate.tcp]",
        "[strings.rate.sharing]\nutilization = 0.5\n[strings.rate.tcp]",
        &["20b", "21a"],
    ),
    (
        "halr-strings-buffer-750",
        "[strings.rate.tcp]",
        "[strings.rate.sharing]\nmin_window = 1_000_000\n[strings.rate.tcp]",
        &["22a", "24a", "24b", "26b"],
    ),
    (
        "halr-strings-buffer-750",
        "buffers = [750]",
        "buffers = [5]",
        &["22b", "23b"],
    ),
    (
        "halr-strings-buffer-750",
        "max_window = 64",
        "max_window = 8",
        &["23a"],
    ),
    ("halr-strings-buffer-750", "flows = 50", "flows = 34", &["23c"]),
    (
        "halr-strings-buffer-750",
        "max_window = 64",
        "max_window = 2",
        &["24c"],
    ),
    (
        "halr-strings-buffer-750",
        "buffers = [750]",
        "buffers = [3000]",
        &["26a", "26c"],
    ),
    (
        "halr-strings-buffer-1500",
        "buffers = [1500]",
        "buffers = [750]",
        &["25a"],
    ),
    (
        "halr-strings-buffer-1500",
        "[strings.rate.tcp]",
        "[strings.rate.sharing]\nmin_window = 1_000_000\n[strings.rate.tcp]",
        &["25b"],
    ),
    (
        "halr-strings-buffer-3000",
        "buffers = [3000]",
        "buffers = [750]",
        &["3000a", "3000b", "3000c"],
    ),
    (
        "halr-strings-buffer-3000",
        "syn = 3, initial = 3, min = 1,",
        "syn = 0.2, initial = 0.2, min = 0.2,",
        &["3000d"],
    ),
    (
        "today-completion-failover-0.5s",
        "caching_after = 0",
        NO_MEMORY,
        &["today-12a", "today-13a", "today-14a", "today-14b"],
    ),
    (
        "today-timeouts",
        "caching_after = 0",
        NO_MEMORY,
        &["today-16a", "today-16b", "today-16c"],
    ),
    (
        "today-strings-buffer-750",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["today-22a", "today-24a", "today-26a", "today-26b"],
    ),
    (
        "today-strings-buffer-1500",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["today-25a"],
    ),
    (
        "unequal-strings-2-to-1",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["unequal-2a", "unequal-2b", "unequal-2c"],
    ),
    (
        "unequal-strings-4-to-1",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["unequal-4a", "unequal-4b", "unequal-4c"],
    ),
    // SCTP
    (
        "caro-spurious",
        "paths = [{ delay = 0.025 }",
        "paths = [{ delay = 0.025, cuts = [{ from = 20, until = 300 }] }",
        &[
            "caro-3a", "caro-3b", "caro-3c", "caro-3d", "caro-3e", "caro-3f", "caro-4c",
        ],
    ),
    (
        "caro-spurious",
        "paths = [{ delay = 0.025 }",
        SIX_CUTS,
        &["caro-4d"],
    ),
    (
        "caro-spurious",
        "bytes = 83_886_080",
        "bytes = 1_000_000",
        &["caro-4a", "caro-4b", "caro-4e", "caro-4f"],
    ),
    (
        "caro-times-90-90",
        "paths = [{ delay = 0.025 }",
        "paths = [{ delay = 0.026 }",
        &["caro-5a"],
    ),
    ("caro-times-90-90", SHORT.0, SHORT.1, &["caro-5b"]),
    (
        "caro-times-90-90",
        "paths = [{ delay = 0.025 }",
        "paths = [{ delay = 0.5 }",
        &["caro-5c"],
    ),
    ("caro-times-90-1040", "{ delay = 0.5 }]", NARROW, &["caro-6a"]),
    // The timeouts that are compared with closed forms
    (
        "caro-timeouts",
        "path_max_retrans = 5, rto = 1 }",
        "path_max_retrans = 5, rto = 2 }",
        &["caro-1a"],
    ),
    ("caro-timeouts", "rto = 60", "rto = 30", &["caro-1b"]),
    (
        "caro-timeouts",
        "path_max_retrans = 3, rto = 1 }",
        "path_max_retrans = 3, rto = 2 }",
        &["caro-1c"],
    ),
    (
        "caro-timeouts",
        "path_max_retrans = 6, rto = 1 }",
        "path_max_retrans = 6, rto = 2 }",
        &["caro-1d"],
    ),
    (
        "caro-timeouts",
        "initial_window_packets = 1",
        "initial_window_packets = 4",
        &["caro-8a"],
    ),
    (
        "caro-timeouts",
        "delays = [0.025, 0.025]",
        "delays = [0.5, 0.5]",
        &[
            "caro-8b",
            "caro-8c",
            "caro-8d",
            "caro-8e",
            "caro-8h",
            "caro-eq-1",
            "caro-eq-9",
        ],
    ),
    (
        "caro-timeouts",
        "delays = [0.025, 0.025]",
        "delays = [0.01, 0.01]",
        &["caro-eq-10"],
    ),
    (
        "caro-timeouts",
        "receive_buffer = 1_048_576",
        "receive_buffer = 2_920",
        &["caro-eq-2", "caro-eq-4", "caro-eq-5", "caro-eq-8"],
    ),
    (
        "caro-times-90-1040",
        "{ delay = 0.5 }]",
        "{ delay = 0.025 }]",
        &["caro-6b"],
    ),
    (
        "caro-times-90-210",
        "{ delay = 0.085 }]",
        "{ delay = 0.025 }]",
        &["caro-6c"],
    ),
    (
        "caro-timeouts-1040-90",
        "delays = [0.5, 0.025]",
        "delays = [0.085, 0.025]",
        &["caro-8f"],
    ),
    (
        "caro-timeouts-210-90",
        "delays = [0.085, 0.025]",
        "delays = [0.5, 0.025]",
        &["caro-8g"],
    ),
    (
        "caro-informed-90-90",
        "{ delay = 0.025 }]",
        "{ delay = 0.085 }]",
        &["caro-10a", "caro-10b"],
    ),
    (
        "caro-informed-90-210",
        "{ delay = 0.085 }]",
        "{ delay = 0.025 }]",
        &["caro-11a", "caro-11c", "caro-11d"],
    ),
    (
        "caro-permanent-90-210",
        "{ delay = 0.085 }]",
        "{ delay = 0.080 }]",
        &["caro-11b"],
    ),
    (
        "caro-informed-210-90",
        "{ delay = 0.085 }, { delay = 0.025 }",
        "{ delay = 0.025 }, { delay = 0.085 }",
        &["caro-12a"],
    ),
    (
        "caro-spurious-low",
        "bytes = 83_886_080",
        "bytes = 100_000",
        &["caro-4g", "caro-4i"],
    ),
    (
        "caro-spurious-low",
        "paths = [{ delay = 0.025 }",
        SIX_CUTS,
        &["caro-4h"],
    ),
    (
        "caro-times-three-paths",
        "{ delay = 0.025 }, { delay = 0.025 }]",
        "{ delay = 0.5 }, { delay = 0.5 }]",
        &["caro-three-a"],
    ),
    ("caro-cross", "sources = 50", "sources = 0", &["caro-cross-a"]),
    (
        "caro-dormant",
        "bytes = 83_886_080\npolicy = \"dormant-hop\"\npaths = [{ delay = 0.025 }, { delay = 0.025 }]",
        "bytes = 500_000\npolicy = \"dormant-hop\"\npaths = [{ delay = 0.025, cuts = [{ from = 1, until = 3000 }] }, \
         { delay = 0.025, cuts = [{ from = 1, until = 5 }] }]",
        &["caro-7a"],
    ),
    (
        "caro-all-fail",
        "bytes = 5_000_000",
        "bytes = 50_000",
        &["caro-7b"],
    ),
    (
        "caro-informed-90-90",
        "path_max_retrans = [0]",
        "path_max_retrans = [5]",
        &["caro-9a"],
    ),
    (
        "caro-machines",
        "paths = [{ delay = 0.025 }",
        "paths = [{ delay = 0.025, cuts = [{ from = 20, until = 300 }] }",
        &["caro-13a"],
    ),
    ("caro-machines", "{ delay = 0.025 }]", NARROW, &["caro-13b"]),
    (
        "caro-short",
        "primary_losses = [0.01, 0.02, 0.03]",
        "primary_losses = [0.10]",
        &["caro-short-a"],
    ),
    (
        "caro-sync",
        "cuts = [{ from = 39, until = 42 }]",
        "cuts = [{ from = 39, until = 42 }, { from = 69, until = 72 }, { from = 99, until = 102 }]",
        &["caro-sync-b", "caro-sync-c"],
    ),
    (
        "caro-sync",
        "cuts = [{ from = 39, until = 42 }]",
        "cuts = []",
        &["caro-sync-a"],
    ),
    (
        "caro-informed-90-90",
        "{ delay = 0.025 }]",
        MODEST,
        &["caro-informed-a"],
    ),
    (
        "caro-informed-90-210",
        "{ delay = 0.085 }]",
        MODEST,
        &["caro-informed-b"],
    ),
    (
        "caro-informed-210-90",
        "{ delay = 0.025 }]",
        NARROW,
        &["caro-informed-c"],
    ),
    (
        "kernel-completion-failover-0.5s",
        "caching_after = 0",
        NO_MEMORY,
        &["kernel-12a", "kernel-13a", "kernel-14a", "kernel-14b"],
    ),
    (
        "kernel-strings-buffer-750",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["kernel-22a", "kernel-24a", "kernel-26a", "kernel-26b"],
    ),
    (
        "kernel-strings-buffer-750",
        "utilization = 0.97",
        "utilization = 0.5",
        &["kernel-20b", "kernel-21a", "kernel-22b"],
    ),
    (
        "kernel-strings-buffer-1500",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &["kernel-25a"],
    ),
    (
        "kernel-strings-buffer-750",
        "rate_bits_per_s = [100_000_000, 100_000_000]",
        "rate_bits_per_s = [50_000_000, 50_000_000]",
        &["kernel-20a"],
    ),
    (
        "kernel-strings-buffer-750",
        "max_window = 2_200",
        "max_window = 20",
        &["kernel-23a"],
    ),
    (
        "kernel-strings-buffer-750",
        "initial_threshold = 4_294_967_295",
        "initial_threshold = 2",
        &["kernel-23b"],
    ),
    (
        "kernel-strings-2-to-1",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &[
            "kernel-unequal-2a",
            "kernel-unequal-2c",
            "kernel-unequal-2d",
            "kernel-unequal-2e",
        ],
    ),
    (
        "kernel-strings-2-to-1",
        "utilization = 0.97",
        "utilization = 0.5",
        &["kernel-unequal-2b"],
    ),
    (
        "kernel-strings-4-to-1",
        "utilization = 0.97",
        "min_window = 1_000_000",
        &[
            "kernel-unequal-4a",
            "kernel-unequal-4c",
            "kernel-unequal-4d",
            "kernel-unequal-4e",
        ],
    ),
    (
        "kernel-strings-4-to-1",
        "utilization = 0.97",
        "utilization = 0.5",
        &["kernel-unequal-4b"],
    ),
    // Migratory TCP
    (
        "mtcp-moves",
        "moves = 200",
        "far_ms = 60\nmoves = 5",
        &["mtcp-6a", "mtcp-6b"],
    ),
    (
        "mtcp-moves",
        "12, 16, 64, 256, 1024, 16_384]",
        "12, 16]",
        &["mtcp-6c"],
    ),
    ("mtcp-streams", "strikes = 1", "strikes = 20", &["mtcp-7a"]),
    ("mtcp-streams", "fast_kb = 32", "fast_kb = 256", &["mtcp-7b"]),
];

/// Executes the runs of one scenario with the first seed.
fn play(name: &str, text: &str) -> Results {
    let scenario = super::tests::simulated(name, text);
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    work::results(vec![(name.to_owned(), scenario)], 1, None, jobs).unwrap()
}

/// As [`play`], on the kernel, with 20 moves instead of 200. The lab's own program plays, because it starts itself anew for some tasks, and
/// a test program cannot do that.
fn play_on_kernel(name: &str, text: &str) -> Results {
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (
        directory.path().join("changed.toml"),
        directory.path().join("out"),
    );
    fs::write(&file, text.replace("moves = 200", "moves = 20")).unwrap();
    let figure = catalogue::FIGURES
        .iter()
        .find(|figure| figure.scenario == name)
        .unwrap();
    let test = env::current_exe().unwrap();
    let lab = test.ancestors().nth(2).unwrap().join("steadfast-lab"); // this test program is one directory deeper
    let mut command = Command::new(&lab);
    command.args(["figure", figure.name, "--seeds", "1", "--shard", "1/1"]);
    command.arg("--scenario").arg(&file).arg("--out").arg(&out);
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", lab.display()));
    assert!(
        done.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    shard::join(&[out]).unwrap().1
}

/// Makes all changes of the scenarios that `is_of` selects, and plays them. `results` are these scenarios' results without a change.
fn assert_claims_can_fail(
    mut results: Results,
    play: impl Fn(&str, &str) -> Results,
    is_of: impl Fn(&str) -> bool,
) {
    let mut wrong = Vec::new();
    for (name, from, to, ids) in CHANGES.iter().filter(|(name, ..)| is_of(name)) {
        let text = catalogue::file(name).unwrap().text;
        assert!(text.contains(from), "{name}: {from}");
        let mut changed = text.replacen(from, to, 1);
        for (_, all, part) in SHORTENED.iter().filter(|(id, ..)| ids.contains(id)) {
            assert!(text.contains(all), "{name}: {all}");
            changed = changed.replacen(all, part, 1);
        }
        let changed = play(name, &changed).scenarios.remove(*name).unwrap();
        let usual = results.scenarios.insert((*name).to_owned(), changed).unwrap();
        let turned = claims::all().filter(|claim| ids.contains(&claim.id));
        let figures: Vec<_> = turned.map(|claim| claim.figure).collect();
        for judged in claims::judge(&results, &figures) {
            if ids.contains(&judged.claim.id) && judged.verdict != FigureClaimVerdict::Surprising {
                let (id, found) = (judged.claim.id, judged.found.map(|found| found.here));
                wrong.push(format!("{id}, {name}, {to}: {} {found:?}", judged.verdict));
            }
        }
        results.scenarios.insert((*name).to_owned(), usual);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_claim_has_a_change() {
    let has_change = |id: &str| CHANGES.iter().any(|(.., ids)| ids.contains(&id));
    // `measured_tests` has the changes of the measured papers.
    let is_measured = |figure: &str| figure.starts_with("ft-tcp-") || figure.starts_with("coral-");
    let without: Vec<_> = claims::all()
        .filter(|claim| !is_measured(claim.figure))
        .map(|claim| claim.id)
        .filter(|id| !has_change(id))
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
#[ignore = "long: plays a changed scenario for each claim about TCP"]
fn every_claim_about_tcp_can_fail() {
    assert_claims_can_fail(super::tests::results_of_tcp(), play, super::tests::is_about_tcp);
}

#[test]
#[ignore = "long: plays a changed scenario for each claim about SCTP"]
fn every_claim_about_sctp_can_fail() {
    assert_claims_can_fail(super::tests::results_of_sctp(), play, |name| {
        name.starts_with("caro-")
    });
}

#[test]
#[ignore = "long, and plays on the kernel: needs root, the lab's program and the daemon's beside this test's directory, and a quiet machine"]
fn every_claim_about_sessions_can_fail() {
    let is_of = |name: &str| name.starts_with("mtcp-");
    let mut results = Results::default();
    for file in catalogue::FILES.iter().filter(|file| is_of(file.name)) {
        results
            .scenarios
            .extend(play_on_kernel(file.name, file.text).scenarios);
    }
    assert_claims_can_fail(results, play_on_kernel, is_of);
}
