//! State tables as Graphviz graphs, for the documents.

use std::fmt::{Debug, Write};

/// A state table as Graphviz text. `leads` gives the next state and the text of the arrow, or nothing if `event` changes nothing. Events
/// with the same outcome share an arrow. The states in `bold` have a bold frame.
pub(crate) fn graphviz<S: Copy + Debug + PartialEq, E: Copy>(
    name: &str,
    (states, bold): (&[S], &[S]),
    events: &[E],
    leads: impl Fn(S, E) -> Option<(S, String)>,
) -> String {
    let mut graph = format!("digraph {name} {{\n");
    graph += "    node [shape=box, style=rounded, fontname=\"sans-serif\"];\n    edge [fontname=\"sans-serif\", fontsize=10];\n";
    for state in bold {
        writeln!(graph, "    {state:?} [style=\"rounded,bold\"];").expect("text");
    }
    for state in states {
        let arrows: Vec<_> = events.iter().filter_map(|event| leads(*state, *event)).collect();
        for next in states {
            let texts = arrows.iter().filter(|(to, _)| to == next);
            let texts: Vec<_> = texts.map(|(_, text)| text.as_str()).collect();
            if !texts.is_empty() {
                let label = texts.join("\\n");
                writeln!(graph, "    {state:?} -> {next:?} [label=\"{label}\"];").expect("text");
            }
        }
    }
    graph + "}\n"
}

/// The whole table as text: a line for each state, with the next state after each event.
pub(crate) fn matrix<S: Copy + Debug, E: Copy + Debug>(
    states: &[S],
    events: &[E],
    after: impl Fn(S, E) -> S,
) -> String {
    let row = |state: &S| {
        let cells: Vec<_> = events
            .iter()
            .map(|event| format!("{event:?} {:?}", after(*state, *event)))
            .collect();
        format!("{state:?}: {}\n", cells.join(", "))
    };
    states.iter().map(row).collect()
}

/// The arrow of an event without other effects than the next state, for [`graphviz`].
pub(crate) fn arrow<S: Copy + PartialEq, E: Copy + Debug>(
    after: impl Fn(S, E) -> S,
) -> impl Fn(S, E) -> Option<(S, String)> {
    move |state, event| {
        let next = after(state, event);
        (next != state).then(|| (next, format!("{event:?}")))
    }
}

/// Asserts that docs/NAME.dot has this text, and that docs/NAME.svg shows it. `scripts/diagrams` writes the files anew.
#[track_caller]
pub(crate) fn assert_shown(name: &str, graph: &str) {
    let path = |ending| format!("{}/../../docs/{name}.{ending}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("STEADFAST_DIAGRAMS").is_some() {
        std::fs::write(path("dot"), graph).expect("a writable directory");
        return; // scripts/diagrams draws the picture afterwards
    }
    let read = |ending| std::fs::read_to_string(path(ending)).expect(ending);
    assert_eq!(read("dot"), graph, "docs/{name}.dot is old: run scripts/diagrams");
    let (wanted, shown) = (arrows_of(graph), arrows_in(&read("svg")));
    assert_eq!(wanted, shown, "docs/{name}.svg is old: run scripts/diagrams");
}

/// The arrows of a Graphviz text with the lines of their labels, sorted.
fn arrows_of(graph: &str) -> Vec<(String, Vec<String>)> {
    let arrow = |line: &str| {
        let (ends, label) = line.trim().split_once(" [label=\"")?;
        let lines = label.strip_suffix("\"];")?.split("\\n");
        Some((ends.replace(" -> ", "->"), lines.map(str::to_owned).collect()))
    };
    let mut arrows: Vec<_> = graph.lines().filter_map(arrow).collect();
    arrows.sort();
    arrows
}

/// The arrows of a picture that Graphviz has drawn, as in [`arrows_of`].
fn arrows_in(picture: &str) -> Vec<(String, Vec<String>)> {
    let plain = |text: &str| {
        text.replace("&#45;", "-")
            .replace("&gt;", ">")
            .replace("&#160;", " ")
    };
    let arrow = |group: &str| {
        let group = group.split_once("</g>")?.0;
        let ends = group.split_once("<title>")?.1.split_once("</title>")?.0;
        let texts = group.split("<text").skip(1);
        let lines = texts.filter_map(|text| text.split_once('>')?.1.split_once("</text>"));
        Some((plain(ends), lines.map(|(line, _)| plain(line)).collect()))
    };
    let groups = picture.split("class=\"edge\"").skip(1);
    let mut arrows: Vec<_> = groups.filter_map(arrow).collect();
    arrows.sort();
    arrows
}
