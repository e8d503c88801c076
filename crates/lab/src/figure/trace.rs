//! `steadfast-lab trace`: writes every event of a scenario's runs as text lines, CSV rows and captures.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use sim::flow::{FlowDirection, FlowFlags, FlowPacket};
use sim::net::{EventPlace, Happening, TraceEvent};

use super::catalogue;
use super::scenario::FigureScenario;
use super::sweep::SweepRun;
use crate::run::{LabOutcome, WrongUse};
use judge::pcap;

/// Write down every packet of a figure's or a scenario file's runs: one line per event, CSV, and pcap for tcpdump and Wireshark.
#[derive(Clone, Debug, Args)]
pub struct TraceOptions {
    /// A scenario file, or the name of a figure to use that figure's scenario.
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Directory for the results; created if it does not exist. Each run has a subdirectory of its own.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only this format; may be given several times. Default: all formats.
    #[arg(long, value_enum)]
    format: Vec<Format>,
    /// Only this flow, by its number from 0 in the order of arrival; may be given several times.
    #[arg(long, value_name = "N")]
    flow: Vec<u32>,
    /// Only this run, by its directory's name; may be given several times.
    #[arg(long, value_name = "NAME")]
    run: Vec<String>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// trace.txt: one line per event, in packetdrill's notation.
    Packetdrill,
    /// senders.pcap, receivers.pcap, and one per switch.
    Pcap,
    /// trace.csv: one row per event.
    Csv,
}

/// Simulates the runs and writes their events.
///
/// # Errors
/// [`WrongUse`] for an impossible scenario, or an unknown run or flow. Another error if a file cannot be written.
pub fn trace(options: &TraceOptions) -> Result<LabOutcome> {
    let scenario = scenario(&options.scenario)?;
    let runs = chosen(scenario.runs(options.seed..=options.seed), &options.run)?;
    let flows: BTreeSet<u32> = options.flow.iter().copied().collect();
    for flow in &flows {
        let too_few = runs.iter().find(|run| u64::from(*flow) >= run.flows());
        if let Some(run) = too_few {
            let (name, count) = (run.name(), run.flows());
            return Err(WrongUse(format!("--flow {flow}: {name} has {count} flows, counted from 0")).into());
        }
    }
    let wanted = |format| options.format.is_empty() || options.format.contains(&format);
    for run in runs {
        let directory = options.out.join(run.name());
        let files = Rc::new(RefCell::new(TraceFiles::create(&directory, wanted)?));
        let (to, flows) = (Rc::clone(&files), flows.clone());
        run.trace(move |event| {
            let flow = event.flow();
            if flows.is_empty() || flow.is_none_or(|flow| flows.contains(&flow.0)) {
                to.borrow_mut().take(event);
            }
        })?;
        let files = Rc::into_inner(files).context("the run is over")?;
        let events = files
            .into_inner()
            .finish()
            .with_context(|| directory.display().to_string())?;
        say!("{}: {events} events", directory.display());
    }
    Ok(LabOutcome::Held)
}

/// The scenario of a figure, or of a file.
fn scenario(name: &str) -> Result<FigureScenario> {
    let figure = catalogue::FIGURES.iter().find(|figure| figure.name == name);
    if let Some(ours) = figure.and_then(|figure| catalogue::file(figure.scenario)) {
        return Ok(FigureScenario::parse(Path::new(ours.name), ours.text)?);
    }
    let text = fs::read_to_string(name)
        .map_err(|error| WrongUse(format!("{name}: neither a figure nor a file to read: {error}")))?;
    Ok(FigureScenario::parse(Path::new(name), &text)?)
}

fn chosen(runs: Vec<SweepRun>, names: &[String]) -> Result<Vec<SweepRun>> {
    if runs.is_empty() {
        return Err(WrongUse("this figure has no simulated runs".into()).into());
    }
    if runs.iter().any(SweepRun::is_on_kernel) {
        return Err(WrongUse(
            "this scenario is played on the kernel; `edge-failover --keep` and `edge-rate --keep` leave captures".into(),
        )
        .into());
    }
    let there: Vec<_> = runs.iter().map(SweepRun::name).collect();
    if let Some(unknown) = names.iter().find(|name| !there.contains(name)) {
        return Err(WrongUse(format!("no run {unknown}; there are {}", there.join(", "))).into());
    }
    let of = |run: &SweepRun| names.is_empty() || names.contains(&run.name());
    Ok(runs.into_iter().filter(of).collect())
}

/// The files of one run.
struct TraceFiles {
    directory: PathBuf,
    lines: Option<BufWriter<File>>,
    rows: Option<csv::Writer<File>>,
    /// Captures by name. A file is created with its first packet.
    captures: Option<BTreeMap<&'static str, BufWriter<File>>>,
    events: u64,
    /// The first error of a write. Nothing is written after it.
    failed: io::Result<()>,
}

impl TraceFiles {
    fn create(directory: &Path, wanted: impl Fn(Format) -> bool) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let create = |name| {
            let path = directory.join(name);
            File::create(&path).with_context(|| path.display().to_string())
        };
        let lines = wanted(Format::Packetdrill).then(|| create("trace.txt"));
        let rows = wanted(Format::Csv).then(|| create("trace.csv"));
        let mut rows = rows.transpose()?.map(csv::Writer::from_writer);
        if let Some(rows) = &mut rows {
            rows.write_record(COLUMNS)?;
        }
        Ok(Self {
            directory: directory.to_owned(),
            lines: lines.transpose()?.map(BufWriter::new),
            rows,
            captures: wanted(Format::Pcap).then(BTreeMap::new),
            events: 0,
            failed: Ok(()),
        })
    }

    fn take(&mut self, event: &TraceEvent) {
        if self.failed.is_ok() {
            self.events += 1;
            self.failed = self.write(event);
        }
    }

    fn write(&mut self, event: &TraceEvent) -> io::Result<()> {
        if let Some(lines) = &mut self.lines {
            writeln!(lines, "{event}")?;
        }
        if let Some(rows) = &mut self.rows {
            rows.write_record(row(event))?;
        }
        if let Some(captures) = &mut self.captures
            && let Some((name, packet)) = captured(event)
        {
            let file = match captures.entry(name) {
                Entry::Occupied(file) => file.into_mut(),
                Entry::Vacant(place) => {
                    let file = File::create(self.directory.join(format!("{name}.pcap")))?;
                    let file = place.insert(BufWriter::new(file));
                    pcap::write_header(file)?;
                    file
                }
            };
            pcap::write_record(file, event.at.as_nanos(), &frame(packet))?;
        }
        Ok(())
    }

    /// Closes the files. Returns how many events were written.
    fn finish(mut self) -> io::Result<u64> {
        self.failed?;
        self.lines.iter_mut().try_for_each(Write::flush)?;
        self.rows.iter_mut().try_for_each(csv::Writer::flush)?;
        let mut captures = self.captures.into_iter().flatten();
        captures.try_for_each(|(_, mut file)| file.flush())?;
        Ok(self.events)
    }
}

const COLUMNS: [&str; 13] = [
    "time_s",
    "place",
    "event",
    "flow",
    "direction",
    "flags",
    "seq",
    "data_bytes",
    "ack",
    "window_bytes",
    "sack",
    "wire_bytes",
    "fate",
];

fn row(event: &TraceEvent) -> [String; COLUMNS.len()] {
    let nanos = event.at.as_nanos();
    let mut row = [(); COLUMNS.len()].map(|()| String::new());
    row[0] = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    row[1] = event.place.to_string();
    row[3] = event.flow().map_or_else(String::new, |flow| flow.0.to_string());
    let (what, packet, fate) = match &event.what {
        Happening::Sent(packet, fate) => ("sent", packet, fate),
        Happening::Received(packet, fate) => ("received", packet, fate),
        Happening::Note(text) => {
            row[2] = (*text).to_owned();
            return row;
        }
    };
    let direction = match packet.direction {
        FlowDirection::Forward => "forward",
        FlowDirection::Backward => "backward",
    };
    let letters = [
        (FlowFlags::SYN, "S"),
        (FlowFlags::FIN, "F"),
        (FlowFlags::ACK, "."),
    ];
    let flags = letters.iter().filter(|(flag, _)| packet.flags.has(*flag));
    let has_ack = packet.flags.has(FlowFlags::ACK);
    let blocks: Vec<_> = packet
        .sack
        .iter(packet.ack)
        .map(|(left, right)| format!("{left}:{right}"))
        .collect();
    row[2] = what.to_owned();
    row[4] = direction.to_owned();
    row[5] = flags.map(|(_, letter)| *letter).collect();
    row[6] = packet.seq.to_string();
    row[7] = packet.len.to_string();
    row[8] = if has_ack {
        packet.ack.to_string()
    } else {
        String::new()
    };
    row[9] = packet.window.to_string();
    row[10] = blocks.join(" ");
    row[11] = packet.wire_bytes().to_string();
    row[12] = (*fate).to_owned();
    row
}

/// The event's packet and the name of its capture. A host's capture contains the packets of both directions. A switch's capture contains
/// the packets that the switch sends, including packets that an edge resends. So each packet is captured once per device. A packet that is
/// lost on the link was sent and is captured. A packet that a full queue or a failed link drops was not sent and is not captured.
fn captured(event: &TraceEvent) -> Option<(&'static str, &FlowPacket)> {
    match (&event.what, event.place) {
        (Happening::Sent(packet, "" | "lost" | "twice"), place) => Some((file_name(place), packet)),
        (Happening::Received(packet, ""), place @ (EventPlace::Sender(_) | EventPlace::Receiver(_))) => {
            Some((file_name(place), packet))
        }
        _ => None,
    }
}

const fn file_name(place: EventPlace) -> &'static str {
    match place {
        EventPlace::Sender(_) => "senders",
        EventPlace::Receiver(_) => "receivers",
        EventPlace::Node(name) => name,
    }
}

/// An Ethernet frame with the packet.
fn frame(packet: &FlowPacket) -> Vec<u8> {
    const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const IPV4: [u8; 2] = [8, 0];
    let (source, destination) = match packet.direction {
        FlowDirection::Forward => (SENDER, RECEIVER),
        FlowDirection::Backward => (RECEIVER, SENDER),
    };
    [&destination[..], &source, &IPV4, &packet.segment().emit()].concat()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proto::packet::{Checksum, Segment};

    use super::*;

    /// A scenario of SACK flows, so that there are SACK blocks, with a failover of 0.3 s and random losses.
    const FLOWS: &str = r#"
[flows]
variants = ["sack"]
failovers = [0.3]
recoveries = ["none", "lowest"]
[flows.cluster]
segments = 60
last_arrival = 0.1
failover_at = 0.6
loss = 0.02
[flows.cluster.tcp]
variant = "sack"
"#;

    fn traced(file: &Path, out: &Path, change: impl FnOnce(&mut TraceOptions)) -> Result<LabOutcome> {
        let mut options = TraceOptions {
            scenario: file.display().to_string(),
            out: out.to_owned(),
            format: Vec::new(),
            flow: Vec::new(),
            run: Vec::new(),
            seed: 1,
        };
        change(&mut options);
        trace(&options)
    }

    fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        };
        entries.map(file).collect()
    }

    #[test]
    fn the_same_seed_writes_the_same_bytes_and_captures_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("some.toml");
        fs::write(&file, FLOWS).unwrap();
        let at = |name: &str| directory.path().join(name);
        for out in ["one", "again"] {
            assert_eq!(traced(&file, &at(out), |_| ()).unwrap(), LabOutcome::Held);
        }
        traced(&file, &at("other"), |options| options.seed = 2).unwrap();
        let run = "sack-0.3s-lowest";
        let one = files(&at("one").join(run));
        let names: Vec<_> = one.keys().map(String::as_str).collect();
        let all = "N.pcap R1.pcap R2.pcap receivers.pcap senders.pcap trace.csv trace.txt";
        assert_eq!(names.join(" "), all);
        assert_eq!(one, files(&at("again").join(run)));
        assert_ne!(one["trace.txt"], files(&at("other").join(run))["trace.txt"]);
        let text = String::from_utf8(one["trace.txt"].clone()).unwrap();
        let rows = one["trace.csv"].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(text.lines().count() + 1, rows);
        for word in [
            "[down]",
            "[lost]",
            "N: down",
            "sack ",
            "S. 0:0(0) ack 1",
            "timeout",
        ] {
            assert!(text.contains(word), "no {word}");
        }
        // A host's capture has every packet that the host sent or received.
        for (name, who) in [("senders", "sender-"), ("receivers", "receiver-")] {
            let lines = text.lines().filter(|line| line.contains(&format!(" {who}")));
            let lines: Vec<_> = lines.filter(|line| !line.ends_with(['n', 't', ']'])).collect();
            assert_eq!(
                read_back(&at("one").join(run).join(format!("{name}.pcap"))),
                lines.len()
            );
        }
        read_back(&at("one").join(run).join("R1.pcap"));
    }

    /// Number of packets in the capture. Asserts that all checksums are right.
    fn read_back(capture: &Path) -> usize {
        const ETHERNET_HEADER: usize = 14;
        let mut reader = pcap::PcapReader::open(capture).unwrap();
        let (mut count, mut last_ns) = (0, 0);
        while let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record.frame.len(), record.original_len as usize);
            assert!(record.at_ns >= last_ns);
            last_ns = record.at_ns;
            let segment = Segment::parse(&record.frame[ETHERNET_HEADER..], Checksum::Unverified).unwrap();
            assert!(segment.payload.iter().all(|byte| *byte == 0));
            count += 1;
        }
        // Check with tcpdump too, if it is installed.
        let tcpdump = Command::new("tcpdump").args(["-nvr"]).arg(capture).output();
        if let Some(output) = tcpdump.ok().filter(|output| output.status.success()) {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(!text.contains("incorrect"), "{text}");
            assert_eq!(text.matches("(correct)").count(), count);
        }
        count
    }

    #[test]
    fn only_what_is_asked_for_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let file = directory.path().join("some.toml");
        fs::write(&file, FLOWS).unwrap();
        let wrong = |change: &dyn Fn(&mut TraceOptions)| {
            let error = traced(&file, &out, change).unwrap_err();
            assert!(error.is::<WrongUse>() && !out.exists(), "{error}");
            error.to_string()
        };
        let runs = "no run x; there are sack-0.3s-none, sack-0.3s-lowest";
        assert_eq!(wrong(&|options| options.run = vec!["x".into()]), runs);
        let flows = "--flow 5: sack-0.3s-none has 5 flows, counted from 0";
        assert_eq!(wrong(&|options| options.flow = vec![0, 5]), flows);
        assert_eq!(
            wrong(&|options| options.scenario = "halr-9".into()),
            "this figure has no simulated runs"
        );
        let neither = wrong(&|options| options.scenario = "none.toml".into());
        assert!(
            neither.starts_with("none.toml: neither a figure nor a file"),
            "{neither}"
        );
        traced(&file, &out, |options| {
            options.flow = vec![3];
            options.run = vec!["sack-0.3s-none".into()];
            options.format = vec![Format::Packetdrill];
        })
        .unwrap();
        let [(name, text)] =
            <[_; 1]>::try_from(files(&out.join("sack-0.3s-none")).into_iter().collect::<Vec<_>>())
                .expect("one file");
        assert_eq!(name, "trace.txt");
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().count() > 100);
        let others = text.lines().filter(|line| !line.contains("10.0.0.4:40000"));
        let others: Vec<_> = others
            .filter(|line| !line.contains(" N: ") && !line.contains("sender-3: "))
            .collect();
        assert!(others.is_empty(), "{others:?}");
    }
}
