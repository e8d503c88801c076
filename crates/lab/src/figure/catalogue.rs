//! The catalogue of figures. Each figure has a scenario and a function that draws it.

use super::chart::{MarkPosition, Panel};
use super::plot::flows::{self, Marks};
use super::plot::{measured, models, paths, sessions, strings, timeouts};
use super::rows::Rows;
use super::scenario::FigureScenario;

/// A figure of the HALR thesis or of the SCTP failover paper, or a figure of the same kind.
pub struct CatalogueEntry {
    /// The figure's name on the command line.
    pub name: &'static str,
    /// The figure's title.
    pub title: &'static str,
    /// The scenario that the figure is drawn from.
    pub scenario: &'static str,
    /// Further scenarios, which only the figure's claims need.
    pub also: &'static [&'static str],
    /// Lines that are drawn for comparison, such as numbers from the thesis.
    pub marks: Marks,
    /// Makes the figure's panels from the scenario's rows.
    pub draw: fn(&FigureScenario, &Rows, Marks) -> Vec<Panel>,
}

/// A scenario file that comes with the program.
pub struct ScenarioFile {
    /// The file's name without the extension.
    pub name: &'static str,
    /// The file's contents.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(ScenarioFile { name: $name, text: include_str!(concat!("../../../../scenarios/", $name, ".toml")) }),*]
    };
}

/// All scenario files.
pub const FILES: &[ScenarioFile] = files![
    "halr-window-data-loss",
    "halr-window-syn-loss",
    "halr-unused-flow-time",
    "halr-restarts",
    "halr-memory",
    "halr-memory-syns",
    "halr-completion-failover-0.5s",
    "halr-completion-failover-3s",
    "halr-completion-failover-5s",
    "halr-timeouts-reno",
    "halr-timeouts-newreno",
    "halr-timeouts-sack",
    "halr-timeouts-near-sources",
    "halr-timeouts-1.5s",
    "halr-timeouts-1.5s-near-sources",
    "halr-recovery-policies",
    "halr-initial-window-2",
    "halr-completion-short-flows",
    "halr-completion-long-flows",
    "halr-strings-buffer-750",
    "halr-strings-buffer-1500",
    "halr-strings-buffer-3000",
    "today-completion-failover-0.5s",
    "today-completion-failover-3s",
    "today-completion-failover-5s",
    "today-timeouts",
    "today-strings-buffer-750",
    "today-strings-buffer-1500",
    "unequal-strings-2-to-1",
    "unequal-strings-4-to-1",
    "caro-spurious",
    "caro-times-90-90",
    "caro-times-90-210",
    "caro-times-90-1040",
    "caro-spurious-low",
    "caro-times-three-paths",
    "caro-cross",
    "caro-dormant",
    "caro-all-fail",
    "caro-machines",
    "caro-short",
    "caro-sync",
    "caro-timeouts",
    "caro-timeouts-210-90",
    "caro-timeouts-1040-90",
    "caro-permanent-90-210",
    "caro-informed-90-90",
    "caro-informed-90-210",
    "caro-informed-210-90",
    "kernel-completion-failover-0.5s",
    "kernel-completion-failover-3s",
    "kernel-completion-failover-5s",
    "kernel-strings-buffer-750",
    "kernel-strings-buffer-1500",
    "kernel-strings-2-to-1",
    "kernel-strings-4-to-1",
    "mtcp-moves",
    "mtcp-streams",
    "ft-tcp",
    "coral",
];

const CAPACITY: (&str, MarkPosition) = ("capacity of the string that is left", MarkPosition::Y(100.0));
const QUEUE_MAX: (&str, MarkPosition) = ("thesis, with rate control: at most 600", MarkPosition::Y(600.0));

/// All figures: of the HALR thesis (in the thesis' order), for today's hosts, of the SCTP failover paper, of the kernel, and of the papers on
/// Migratory TCP, FT-TCP and CoRAL. The figures
/// `today-N` and `kernel-N` repeat the thesis' figure N. The figures `kernel-unequal-N` repeat the figures `unequal-N`.
pub const FIGURES: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "halr-7",
        title: "Figure 7. Congestion window of a flow whose data is lost",
        scenario: "halr-window-data-loss",
        also: &[],
        marks: &[],
        draw: flows::window,
    },
    CatalogueEntry {
        name: "halr-8",
        title: "Figure 8. Congestion window of a flow whose SYN is lost",
        scenario: "halr-window-syn-loss",
        also: &[],
        marks: &[],
        draw: flows::window,
    },
    CatalogueEntry {
        name: "halr-9",
        title: "Figure 9. Unused flow time over flow down time",
        scenario: "halr-unused-flow-time",
        also: &["halr-restarts", "halr-memory", "halr-memory-syns"],
        marks: &[],
        draw: models::sawtooth,
    },
    CatalogueEntry {
        name: "halr-12",
        title: "Figure 12. Completion over arrival, failover of 0.5 s",
        scenario: "halr-completion-failover-0.5s",
        also: &[],
        marks: &[
            ("thesis, without HALR, Case 3: 4.01 s", MarkPosition::Y(4.01)),
            ("thesis, with HALR: up to 1.9 s", MarkPosition::Y(1.9)),
            ("thesis, with HALR: from 0.8 s", MarkPosition::Y(0.8)),
        ],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "halr-13",
        title: "Figure 13. Completion over arrival, failover of 3 s",
        scenario: "halr-completion-failover-3s",
        also: &["halr-initial-window-2"],
        marks: &[
            (
                "thesis, without HALR: a group at about 10 s",
                MarkPosition::Y(10.0),
            ),
            ("thesis, the same with HALR: about 4 s", MarkPosition::Y(4.0)),
        ],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "halr-14",
        title: "Figure 14. Completion over arrival, failover of 5 s",
        scenario: "halr-completion-failover-5s",
        also: &[],
        marks: &[
            ("thesis, without HALR: 40 % wait 9 s longer", MarkPosition::Y(9.6)),
            ("thesis, without HALR: the others 3 s", MarkPosition::Y(3.6)),
        ],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "halr-15",
        title: "Figure 15. Timeouts of Case 2 flows, TCP Reno",
        scenario: "halr-timeouts-reno",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-16",
        title: "Figure 16. Timeouts of Case 2 flows, TCP NewReno",
        scenario: "halr-timeouts-newreno",
        also: &["halr-recovery-policies"],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-17",
        title: "Figure 17. Timeouts of Case 2 flows, TCP SACK",
        scenario: "halr-timeouts-sack",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-15-17-near-sources",
        title: "Figures 15 to 17 with the cluster next to the sources",
        scenario: "halr-timeouts-near-sources",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-15-17-1.5s",
        title: "Figures 15 to 17 with a least timeout of 1.5 s",
        scenario: "halr-timeouts-1.5s",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-15-17-1.5s-near-sources",
        title: "Figures 15 to 17 with a least timeout of 1.5 s and the cluster next to the sources",
        scenario: "halr-timeouts-1.5s-near-sources",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "halr-18",
        title: "Figure 18. Short flows: model and simulation",
        scenario: "halr-completion-short-flows",
        also: &[],
        marks: &[
            (
                "thesis, without HALR, below 3 s: at most 5.3 s",
                MarkPosition::Y(5.3),
            ),
            ("thesis, without HALR, 5 s: at most 11.2 s", MarkPosition::Y(11.2)),
        ],
        draw: models::short_flows,
    },
    CatalogueEntry {
        name: "halr-19",
        title: "Figure 19. Long flows: model and simulation",
        scenario: "halr-completion-long-flows",
        also: &[],
        marks: &[],
        draw: models::long_flows,
    },
    CatalogueEntry {
        name: "halr-20",
        title: "Figure 20. Throughput without rate control",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[CAPACITY],
        draw: strings::throughput_without,
    },
    CatalogueEntry {
        name: "halr-21",
        title: "Figure 21. Throughput with rate control",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[CAPACITY],
        draw: strings::throughput_with,
    },
    CatalogueEntry {
        name: "halr-22",
        title: "Figure 22. Throughput with and without rate control",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::throughput_compared,
    },
    CatalogueEntry {
        name: "halr-23",
        title: "Figure 23. Fairness without rate control",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_without,
    },
    CatalogueEntry {
        name: "halr-24",
        title: "Figure 24. Fairness with rate control",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_with,
    },
    CatalogueEntry {
        name: "halr-25",
        title: "Figure 25. Bottleneck queue, buffer of 1500 packets",
        scenario: "halr-strings-buffer-1500",
        also: &[],
        marks: &[QUEUE_MAX],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "halr-26",
        title: "Figure 26. Bottleneck queue, buffer of 750 packets",
        scenario: "halr-strings-buffer-750",
        also: &[],
        marks: &[QUEUE_MAX],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "halr-buffer-3000",
        title: "Section 7.4.3. Bottleneck queue, buffer of 3000 packets",
        scenario: "halr-strings-buffer-3000",
        also: &[],
        marks: &[QUEUE_MAX],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "today-12",
        title: "Figure 12 with today's hosts: a failover of 0.5 s",
        scenario: "today-completion-failover-0.5s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "today-13",
        title: "Figure 13 with today's hosts: a failover of 3 s",
        scenario: "today-completion-failover-3s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "today-14",
        title: "Figure 14 with today's hosts: a failover of 5 s",
        scenario: "today-completion-failover-5s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "today-16",
        title: "Figures 15 to 17 with today's hosts: timeouts",
        scenario: "today-timeouts",
        also: &[],
        marks: &[],
        draw: flows::timeouts,
    },
    CatalogueEntry {
        name: "today-22",
        title: "Figures 20 to 22 with today's hosts: throughput",
        scenario: "today-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::throughput_compared,
    },
    CatalogueEntry {
        name: "today-23",
        title: "Figure 23 with today's hosts: fairness without rate control",
        scenario: "today-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_without,
    },
    CatalogueEntry {
        name: "today-24",
        title: "Figure 24 with today's hosts: fairness with rate control",
        scenario: "today-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_with,
    },
    CatalogueEntry {
        name: "today-25",
        title: "Figure 25 with today's hosts: bottleneck queue, buffer of 1500 packets",
        scenario: "today-strings-buffer-1500",
        also: &[],
        marks: &[],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "today-26",
        title: "Figure 26 with today's hosts: bottleneck queue, buffer of 750 packets",
        scenario: "today-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "unequal-2",
        title: "Section 6.1 with today's hosts: half of the failed string's bandwidth is left",
        scenario: "unequal-strings-2-to-1",
        also: &[],
        marks: &[],
        draw: strings::overview,
    },
    CatalogueEntry {
        name: "unequal-4",
        title: "Section 6.1 with today's hosts: a quarter of the failed string's bandwidth is left",
        scenario: "unequal-strings-4-to-1",
        also: &[],
        marks: &[],
        draw: strings::overview,
    },
    CatalogueEntry {
        name: "caro-1",
        title: "SCTP, section II. Time until a failure is detected",
        scenario: "caro-timeouts",
        also: &[],
        marks: &[],
        draw: timeouts::detection,
    },
    CatalogueEntry {
        name: "caro-3",
        title: "SCTP, Figure 3. Fraction of transfers with spurious failovers",
        scenario: "caro-spurious",
        also: &[],
        marks: &[],
        draw: paths::spurious,
    },
    CatalogueEntry {
        name: "caro-4",
        title: "SCTP, Figure 4. Number of spurious failovers of a transfer",
        scenario: "caro-spurious",
        also: &[],
        marks: &[],
        draw: paths::spread,
    },
    CatalogueEntry {
        name: "caro-4-low",
        title: "SCTP, Figure 4 at small losses, with more transfers",
        scenario: "caro-spurious-low",
        also: &[],
        marks: &[],
        draw: paths::spread,
    },
    CatalogueEntry {
        name: "caro-5",
        title: "SCTP, Figure 5. Transfer time, round trips of 90 ms on both paths",
        scenario: "caro-times-90-90",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-6",
        title: "SCTP, Figure 6. Transfer time, 90 ms on the primary path and 1040 ms on the alternate",
        scenario: "caro-times-90-1040",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-6-210",
        title: "SCTP, section III.4. Transfer time, 90 ms on the primary path and 210 ms on the alternate",
        scenario: "caro-times-90-210",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-three-paths",
        title: "SCTP, section III.5. Transfer time with two alternate paths",
        scenario: "caro-times-three-paths",
        also: &["caro-times-90-90"],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-cross",
        title: "SCTP, section III.1. Transfer time with losses by other traffic",
        scenario: "caro-cross",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-7",
        title: "SCTP, Figures 1 and 7. Transfer time of the dormant behaviours",
        scenario: "caro-dormant",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-7-all-fail",
        title: "SCTP, section III.6. Transfer time when all paths fail, the alternate for 6 s and the primary for 50 s",
        scenario: "caro-all-fail",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-8",
        title: "SCTP, Figure 8. Packets after a timeout in scenarios 1 to 4",
        scenario: "caro-timeouts",
        also: &["caro-timeouts-210-90", "caro-timeouts-1040-90"],
        marks: &[],
        draw: timeouts::packets,
    },
    CatalogueEntry {
        name: "caro-equations",
        title: "SCTP, Eq. 2 to 9. Packets sent in slow start and after it",
        scenario: "caro-timeouts",
        also: &[],
        marks: &[],
        draw: timeouts::growth,
    },
    CatalogueEntry {
        name: "caro-9",
        title: "SCTP, Figure 9. Permanent failovers of a transfer, 90 ms on both paths",
        scenario: "caro-informed-90-90",
        also: &[],
        marks: &[],
        draw: paths::promotions,
    },
    CatalogueEntry {
        name: "caro-10",
        title: "SCTP, Figure 10. Permanent failovers, 90 ms on both paths",
        scenario: "caro-informed-90-90",
        also: &[],
        marks: &[],
        draw: paths::permanent,
    },
    CatalogueEntry {
        name: "caro-11",
        title: "SCTP, Figure 11. Permanent failovers, 90 ms on the primary path and 210 ms on the alternate",
        scenario: "caro-informed-90-210",
        also: &["caro-permanent-90-210"],
        marks: &[],
        draw: paths::permanent,
    },
    CatalogueEntry {
        name: "caro-12",
        title: "SCTP, Figure 12. Permanent failovers, 210 ms on the primary path and 90 ms on the alternate",
        scenario: "caro-informed-210-90",
        also: &[],
        marks: &[],
        draw: paths::permanent,
    },
    CatalogueEntry {
        name: "caro-13",
        title: "SCTP, Figure 13. The proposed machine beside others",
        scenario: "caro-machines",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-short",
        title: "SCTP, section V. Short transfers",
        scenario: "caro-short",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-sync",
        title: "SCTP, section V. Timeouts of 20 associations whose primary path fails for 3 s",
        scenario: "caro-sync",
        also: &[],
        marks: &[],
        draw: paths::synchronization,
    },
    CatalogueEntry {
        name: "caro-informed-90-90",
        title: "SCTP, section IV. Our informed failover beside every CPT, 90 ms on the primary path and 90 ms on the alternate",
        scenario: "caro-informed-90-90",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-informed-90-210",
        title: "SCTP, section IV. Our informed failover beside every CPT, 90 ms on the primary path and 210 ms on the alternate",
        scenario: "caro-informed-90-210",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "caro-informed-210-90",
        title: "SCTP, section IV. Our informed failover beside every CPT, 210 ms on the primary path and 90 ms on the alternate",
        scenario: "caro-informed-210-90",
        also: &[],
        marks: &[],
        draw: paths::times,
    },
    CatalogueEntry {
        name: "kernel-12",
        title: "Figure 12 on the kernel: a failover of 0.5 s",
        scenario: "kernel-completion-failover-0.5s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "kernel-13",
        title: "Figure 13 on the kernel: a failover of 3 s",
        scenario: "kernel-completion-failover-3s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "kernel-14",
        title: "Figure 14 on the kernel: a failover of 5 s",
        scenario: "kernel-completion-failover-5s",
        also: &[],
        marks: &[],
        draw: flows::completion_over_arrival,
    },
    CatalogueEntry {
        name: "kernel-20",
        title: "Figure 20 on the kernel: throughput without rate control",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[CAPACITY],
        draw: strings::throughput_without,
    },
    CatalogueEntry {
        name: "kernel-21",
        title: "Figure 21 on the kernel: throughput with rate control",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[CAPACITY],
        draw: strings::throughput_with,
    },
    CatalogueEntry {
        name: "kernel-22",
        title: "Figure 22 on the kernel: throughput with and without rate control",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::throughput_compared,
    },
    CatalogueEntry {
        name: "kernel-23",
        title: "Figure 23 on the kernel: fairness without rate control",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_without,
    },
    CatalogueEntry {
        name: "kernel-24",
        title: "Figure 24 on the kernel: fairness with rate control",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[],
        draw: strings::shares_with,
    },
    CatalogueEntry {
        name: "kernel-25",
        title: "Figure 25 on the kernel: bottleneck queue, buffer of 1500 packets",
        scenario: "kernel-strings-buffer-1500",
        also: &[],
        marks: &[QUEUE_MAX],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "kernel-26",
        title: "Figure 26 on the kernel: bottleneck queue, buffer of 750 packets",
        scenario: "kernel-strings-buffer-750",
        also: &[],
        marks: &[QUEUE_MAX],
        draw: strings::queue,
    },
    CatalogueEntry {
        name: "kernel-unequal-2",
        title: "Section 6.1 on the kernel: half of the failed string's bandwidth is left",
        scenario: "kernel-strings-2-to-1",
        also: &[],
        marks: &[],
        draw: strings::overview,
    },
    CatalogueEntry {
        name: "kernel-unequal-4",
        title: "Section 6.1 on the kernel: a quarter of the failed string's bandwidth is left",
        scenario: "kernel-strings-4-to-1",
        also: &[],
        marks: &[],
        draw: strings::overview,
    },
    CatalogueEntry {
        name: "mtcp-6",
        title: "Migratory TCP, Figure 6. Time to complete a migration",
        scenario: "mtcp-moves",
        also: &[],
        marks: &[],
        draw: sessions::moves,
    },
    CatalogueEntry {
        name: "mtcp-7",
        title: "Migratory TCP, Figure 7. A stream from servers that become slow after 32 KiB of a connection",
        scenario: "mtcp-streams",
        also: &[],
        marks: &[],
        draw: sessions::streams,
    },
    CatalogueEntry {
        name: "ft-tcp-2",
        title: "FT-TCP, Figure 2. Throughput of each service, clean and with PRS",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::services,
    },
    CatalogueEntry {
        name: "ft-tcp-clients",
        title: "FT-TCP, section 5.2. Several clients at 50 kB/s, on a link of 10 Mbit/s",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::clients,
    },
    CatalogueEntry {
        name: "ft-tcp-3",
        title: "FT-TCP, Figure 3. Throughput of the incoming file server with each commit mode",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::modes,
    },
    CatalogueEntry {
        name: "ft-tcp-latency",
        title: "FT-TCP, Table 1. Latency of requests and packets",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::latency,
    },
    CatalogueEntry {
        name: "ft-tcp-4",
        title: "FT-TCP, Figure 4. An outage of two seconds",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::outages,
    },
    CatalogueEntry {
        name: "ft-tcp-takeover",
        title: "FT-TCP, section 5.4. A takeover as a function of the input",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::takeovers,
    },
    CatalogueEntry {
        name: "ft-tcp-stall",
        title: "FT-TCP, section 5.4. A client's stall at a takeover of a hot backup, with detection after 80 ms",
        scenario: "ft-tcp",
        also: &[],
        marks: &[],
        draw: measured::stalls,
    },
    CatalogueEntry {
        name: "coral-throughput",
        title: "CoRAL, section 4.1. Throughput of plain servers and of a pair",
        scenario: "coral",
        also: &[],
        marks: &[],
        draw: measured::servers,
    },
    CatalogueEntry {
        name: "coral-2",
        title: "CoRAL, Figure 2. Throughput before and after a failure",
        scenario: "coral",
        also: &[],
        marks: &[],
        draw: measured::throughput_around_a_failure,
    },
    CatalogueEntry {
        name: "coral-3",
        title: "CoRAL, Figure 3. Latency of requests, as clients observe it",
        scenario: "coral",
        also: &[],
        marks: &[],
        draw: measured::latencies_around_a_failure,
    },
    CatalogueEntry {
        name: "coral-times",
        title: "CoRAL, Tables 1 and 2. Times of failover and integration",
        scenario: "coral",
        also: &[],
        marks: &[("paper: 1.5 ms", MarkPosition::Y(1.5))],
        draw: measured::times,
    },
];

/// The figures that a name on the command line selects. For `kernel`, the figures of the thesis and for today's hosts that a figure of the
/// kernel repeats come before that figure.
pub fn named(name: &str) -> Option<Vec<&'static CatalogueEntry>> {
    let of = |group: &'static str| {
        FIGURES
            .iter()
            .filter(move |figure| figure.name.starts_with(group))
    };
    match name {
        "all" => Some(
            FIGURES
                .iter()
                .filter(|figure| !figure.is_of_the_kernel())
                .collect(),
        ),
        "halr" => Some(of("halr-").collect()),
        "caro" => Some(of("caro-").collect()),
        "mtcp" => Some(of("mtcp-").collect()),
        "ft-tcp" => Some(of("ft-tcp-").collect()),
        "coral" => Some(of("coral-").collect()),
        "today" => Some(of("today-").chain(of("unequal-")).collect()),
        "kernel" => {
            let beside = |figure: &'static CatalogueEntry| {
                let repeated = figure.name.trim_start_matches("kernel-");
                let same = move |group: &str| {
                    let name = format!("{group}{repeated}");
                    FIGURES.iter().find(|figure| figure.name == name)
                };
                [same("halr-"), same("today-"), same(""), Some(figure)]
                    .into_iter()
                    .flatten()
            };
            Some(of("kernel-").flat_map(beside).collect())
        }
        one => FIGURES
            .iter()
            .find(|figure| figure.name == one)
            .map(|figure| vec![figure]),
    }
}

impl CatalogueEntry {
    /// Whether the figure's runs use the kernel instead of the simulator.
    pub fn is_of_the_kernel(&self) -> bool {
        let groups = ["kernel-", "mtcp-", "ft-tcp-", "coral-"];
        groups.iter().any(|group| self.name.starts_with(group))
    }
}

/// The scenario file of this name.
pub fn file(name: &str) -> Option<&'static ScenarioFile> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sim::flow::FlowConfig;

    use super::*;

    #[test]
    fn todays_hosts_are_linux() {
        let others = ["halr-", "caro-", "mtcp-", "ft-tcp", "coral"];
        let ours = |file: &&ScenarioFile| !others.iter().any(|paper| file.name.starts_with(paper));
        for file in FILES.iter().filter(ours) {
            let tcp = match FigureScenario::parse(Path::new(file.name), file.text).unwrap() {
                FigureScenario::Flows(sweep) => {
                    assert_eq!(sweep.variants, [sweep.cluster.tcp.variant]);
                    sweep.cluster.tcp
                }
                FigureScenario::Strings(sweep) => sweep.rate.tcp,
                FigureScenario::Paths(_)
                | FigureScenario::SharedPaths(_)
                | FigureScenario::Timeouts(_)
                | FigureScenario::UnusedFlowTime(_)
                | FigureScenario::Moves(_)
                | FigureScenario::Streams(_)
                | FigureScenario::Measurements(_) => {
                    panic!("{} has no hosts with TCP", file.name)
                }
            };
            assert_eq!(tcp, FlowConfig::linux(), "{}", file.name);
        }
    }

    #[test]
    fn every_figure_has_its_scenario_and_every_scenario_is_valid_and_used() {
        for figure in FIGURES {
            assert!(file(figure.scenario).is_some(), "{}", figure.name);
            assert_eq!(named(figure.name).unwrap().len(), 1);
        }
        for file in FILES {
            FigureScenario::parse(Path::new(file.name), file.text).unwrap();
            assert!(
                FIGURES
                    .iter()
                    .any(|figure| figure.scenario == file.name || figure.also.contains(&file.name)),
                "{}",
                file.name
            );
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), FILES.len());
    }
}
