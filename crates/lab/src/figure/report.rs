//! The report: a table for the terminal, and one HTML page with everything.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use super::chart::Figure;
use super::claims::{ClaimEvidence, FigureClaimVerdict, Judged};

/// Prints a table with the columns claim, paper, here, verdict.
pub fn print(judged: &[Judged]) {
    if judged.is_empty() {
        return;
    }
    let mut lines = vec![["claim", "paper", "here", "verdict"].map(str::to_owned)];
    for Judged {
        claim,
        found,
        verdict,
    } in judged
    {
        lines.push([
            format!("{} §{}: {}", claim.id, claim.section, claim.statement),
            or_dash(claim.paper),
            or_dash(found.as_ref().map_or("", |found| &found.here)),
            verdict.to_string(),
        ]);
    }
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths = [width(0).min(100), width(1), width(2)];
    let mut out = io::stdout().lock();
    for [claim, paper, here, verdict] in &lines {
        // Ignore a closed stdout: the reader does not want the rest.
        let _ = writeln!(
            out,
            "{claim:0$} | {paper:1$} | {here:2$} | {verdict}",
            widths[0], widths[1], widths[2]
        );
    }
    for line in counts(judged) {
        let _ = writeln!(out, "{line}");
    }
}

/// Lines with the number of claims per verdict. There is one line for each pair of origin (the thesis and the paper, or ourselves) and kind
/// of evidence, if the pair has claims.
fn counts(judged: &[Judged]) -> Vec<String> {
    let mut lines = Vec::new();
    for (is_of_thesis, whose) in [
        (true, "claims of the thesis and the paper"),
        (false, "claims of ours"),
    ] {
        for evidence in ClaimEvidence::ALL {
            let claims = judged.iter().filter(|judged| {
                judged.claim.is_of_thesis() == is_of_thesis && judged.claim.evidence == evidence
            });
            let count = |of: fn(&FigureClaimVerdict) -> bool| {
                claims.clone().filter(|judged| of(&judged.verdict)).count()
            };
            if claims.clone().next().is_none() {
                continue;
            }
            let unmeasured = match count(|verdict| matches!(verdict, FigureClaimVerdict::NotMeasured(_))) {
                0 => String::new(),
                unmeasured => format!("{unmeasured} not measured, "),
            };
            lines.push(format!(
                "{} {whose}, judged {}: {} hold, {} differ, {unmeasured}{} not run, {} surprising",
                claims.clone().count(),
                evidence.name(),
                count(|verdict| *verdict == FigureClaimVerdict::Holds),
                count(|verdict| matches!(verdict, FigureClaimVerdict::Differs(_))),
                count(|verdict| *verdict == FigureClaimVerdict::NotRun),
                count(|verdict| *verdict == FigureClaimVerdict::Surprising),
            ));
        }
    }
    lines
}

fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "–".to_owned()
    } else {
        text.to_owned()
    }
}

/// The text with HTML's special characters escaped.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The style of a page.
pub const STYLE: &str = ":root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}\
h2{margin-top:3rem}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;width:100%;font-size:13px}\
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid #d0d7de}\
.holds{color:#1a7f37}.differs{color:#9a6700}.surprising{color:#cf222e;font-weight:bold}.not-run{color:#656d76}\
@media (prefers-color-scheme: dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}\
.holds{color:#3fb950}.differs{color:#d29922}.surprising{color:#ff7b72}.not-run{color:#9198a1}a{color:#58a6ff}}";

const OF_THESIS: &str = "<p>Figures of the thesis on <em>High Availability cluster with Local Recovery</em>, drawn from \
our simulator, and from the thesis' models as we read them. Dashed marks are values that the thesis states, and grey bands are \
failovers. Rings and grey lines are results of ns-2.35 for plain TCP. A verdict says whether a sentence of the thesis \
holds here, and if not, why.</p>\n";

const OF_OURS: &str = "<p>Figures whose names begin with <em>today</em> and <em>unequal</em> are ours: the thesis' networks, but with hosts \
of today (CUBIC, RACK, tail loss probes, Linux's constants), or with unequal strings, of which the faster one fails. The \
thesis does not cover these cases, and neither ns-2 nor the models have such hosts. We wrote the claims about these figures \
after we had seen the runs, so a verdict says only whether a new run confirms a claim.</p>\n";

const OF_KERNEL: &str = "<p>Figures whose names begin with <em>kernel</em> come from runs on a Linux kernel. Hosts, nodes and the two \
edges were network namespaces. The edges ran <em>steadfast edge</em>, and the lab's link program made delay and rate. All numbers come \
from captures. Beside each figure are the thesis' figure from our simulator, and the simulator's figure for today's hosts, if there is \
one.</p>\n";

const OF_CARO: &str = "<p>Figures whose names begin with <em>caro</em> are those of Caro, Amer and Stewart, <em>Rethinking End-to-End \
Failover with Transport Layer Multihoming</em>: transfers of 80 MiB between two hosts with two paths, simulated with our SCTP \
state machines (docs/sctp.md).</p>\n";

const OF_MTCP: &str = "<p>Figures whose names begin with <em>mtcp</em> are those of Sultan, Srinivasan, Iyer and Iftode, <em>Migratory \
TCP: Highly Available Internet Services Using Connection Migration</em>. Client and servers were network namespaces on one machine, with \
<em>steadfast connect</em> and <em>steadfast accept</em> (docs/connect.md). The lab's link program made the delays.</p>\n";

const OF_FT_TCP: &str = "<p>Figures whose names begin with <em>ft-tcp</em> repeat the measurements of Zagorodnov, Marzullo, Alvisi and \
Bressoud, <em>Engineering Fault-Tolerant TCP/IP Servers Using FT-TCP</em> (2003, sections 5.2 to 5.4). <em>Clean</em> is a service behind a \
node that only forwards packets. A cold backup is policy <em>replay</em>, a hot one policy <em>replica</em>. The sink of the benchmark, Redis \
and a paced download take the places of ttcp, Samba and the streaming server (docs/ft-tcp.md). All hosts were network namespaces of one \
machine, so only ratios mean something.</p>\n";

const OF_CORAL: &str = "<p>Figures whose names begin with <em>coral</em> repeat the evaluation of Aghdaie and Tamir, <em>Fast Transparent \
Failover for Reliable Web Service</em> (2003), with <em>steadfast stage</em> (docs/restart-staged.md): eight clients, and random replies \
of 1 KB from a CGI script. The plain server that stands for two has all CPUs of the machine, as the pair has. The one that stands for one has \
half of them.</p>\n";

/// One HTML page without external resources.
pub fn html(figures: &[Figure], svgs: &[String], judged: &[Judged], seeds: u64) -> String {
    let has = |of: fn(&str) -> bool| figures.iter().any(|figure| of(figure.name));
    let is_thesis = |name: &str| name.starts_with("halr-");
    let is_kernel = |name: &str| name.starts_with("kernel-");
    let parts = [
        (has(is_thesis), "the HALR thesis' figures", OF_THESIS),
        (
            has(|name| name.starts_with("today-") || name.starts_with("unequal-")),
            "today's hosts and unequal strings",
            OF_OURS,
        ),
        (
            has(|name| name.starts_with("caro-")),
            "the SCTP failover paper's figures",
            OF_CARO,
        ),
        (has(is_kernel), "the kernel", OF_KERNEL),
        (
            has(|name| name.starts_with("mtcp-")),
            "the Migratory TCP paper's figures",
            OF_MTCP,
        ),
        (
            has(|name| name.starts_with("ft-tcp-")),
            "the FT-TCP paper's measurements",
            OF_FT_TCP,
        ),
        (
            has(|name| name.starts_with("coral-")),
            "CoRAL's evaluation",
            OF_CORAL,
        ),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(is_there, ..)| *is_there).collect();
    let titles: Vec<_> = parts.iter().map(|(_, title, _)| *title).collect();
    let introduction: String = parts.iter().map(|(.., introduction)| *introduction).collect();
    let mut title = titles.join(", ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
<style>{STYLE}</style></head><body>\n<h1>{title}, {seeds} seed(s)</h1>\n{}",
        introduction
    );
    page.push_str("<h2>Claims</h2>\n");
    for line in counts(judged) {
        writeln!(page, "<p>{}.</p>", escape(&line)).expect("writing to a string cannot fail");
    }
    page.push_str(&table(judged.iter()));
    for (figure, svg) in figures.iter().zip(svgs) {
        write!(
            page,
            "<h2 id=\"{}\">{}</h2>\n{svg}\n",
            figure.name,
            escape(figure.title)
        )
        .expect("writing to a string cannot fail");
        page.push_str(&table(
            judged.iter().filter(|judged| judged.claim.figure == figure.name),
        ));
    }
    page.push_str("</body></html>\n");
    page
}

fn table<'a>(judged: impl Iterator<Item = &'a Judged>) -> String {
    let mut rows = String::new();
    for Judged {
        claim,
        found,
        verdict,
    } in judged
    {
        let class = match verdict {
            FigureClaimVerdict::Holds => "holds",
            FigureClaimVerdict::Differs(_) => "differs",
            FigureClaimVerdict::Surprising => "surprising",
            FigureClaimVerdict::NotRun | FigureClaimVerdict::NotMeasured(_) => "not-run",
        };
        let here = found.as_ref().map_or("", |found| &found.here);
        let beside = found
            .as_ref()
            .and_then(|found| found.beside.as_deref())
            .unwrap_or("");
        writeln!(
            rows,
            "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
<td class=\"{class}\">{}</td></tr>",
            claim.figure,
            claim.id,
            claim.section,
            escape(claim.statement),
            escape(&or_dash(claim.paper)),
            escape(&or_dash(beside)),
            escape(&or_dash(here)),
            escape(&verdict.to_string()),
        )
        .expect("writing to a string cannot fail");
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<table><thead><tr><th></th><th>§</th><th>claim</th><th>paper</th><th>ns-2, simulator</th><th>here</th><th>verdict</th></tr>\
</thead><tbody>\n{rows}</tbody></table>\n"
    )
}
