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

/// Asserts that docs/NAME.dot has this text. `scripts/diagrams` writes the file anew.
#[track_caller]
pub(crate) fn assert_shown(name: &str, graph: &str) {
    let path = format!("{}/../../docs/{name}.dot", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("STEADFAST_DIAGRAMS").is_some() {
        std::fs::write(&path, graph).expect(&path);
    }
    let shown = std::fs::read_to_string(&path).expect(&path);
    assert_eq!(shown, graph, "{path} is old: run scripts/diagrams");
}
