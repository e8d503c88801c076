//! Rules of this code base that no other tool checks. A file has one subject. Each unsafe block says why it is sound.
//! Comments, documents and texts for people avoid the worst habits. Nothing is left unfinished. No two types share a name.
//! (Clippy checks that functions fit a screen: `too_many_lines` in `clippy.toml`.)

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of lines of a file.
const LINES_MAX: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// The sources below `directory` with these endings.
fn sources(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

fn all(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    sources(&root(), endings, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        (
            path.strip_prefix(root()).expect("below it").to_owned(),
            fs::read_to_string(path),
        )
    };
    paths
        .into_iter()
        .map(read)
        .map(|(path, text)| (path, text.expect("UTF-8")))
        .collect()
}

/// The files in `scripts` that are no C programs.
fn scripts() -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(root().join("scripts")).expect("a readable directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_none())
        .map(|path| {
            let text = fs::read_to_string(&path).expect("UTF-8");
            (path.strip_prefix(root()).expect("below it").to_owned(), text)
        })
        .collect()
}

#[test]
fn a_file_holds_one_subject() {
    let mut too_long = Vec::new();
    for (path, text) in all(&[".rs", ".c", ".h"]) {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            too_long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(
        too_long.is_empty(),
        "more than one subject, probably; split by subject, not by size:\n{}",
        too_long.join("\n")
    );
}

fn opens_unsafe_block(line: &str) -> bool {
    let is_word = |before: &str| !before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    !line.trim_start().starts_with("//")
        && line
            .split_once(concat!("unsafe", " {"))
            .is_some_and(|(before, _)| is_word(before))
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut bare = Vec::new();
    for (path, text) in all(&[".rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if opens_unsafe_block(line) {
                let before = &lines[number.saturating_sub(REASON_WITHIN)..number];
                if !before.iter().any(|line| line.contains("SAFETY:")) {
                    bare.push(format!("{}:{}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(bare.is_empty(), "{}", bare.join("\n"));
}

/// Maximum distance of a SAFETY comment before its block, in lines.
const REASON_WITHIN: usize = 4;

/// Openings of a sentence that hide its subject.
const HIDDEN_SUBJECTS: [&str; 12] = [
    "Who ",
    "Whoever ",
    "Whose ",
    "Whom ",
    "So long ",
    "So many ",
    "So much ",
    "Of this ",
    "Of these ",
    "Of those ",
    "Of which ",
    "Of whom ",
];
/// Pronouns that send the reader back to look for the noun.
const FAR_PRONOUNS: [&str; 6] = [
    "that one.",
    "that one,",
    "that one;",
    "the former",
    "the latter",
    "The latter",
];

/// Beginnings of comments in Rust and C.
const SLASHES: &[&str] = &["/// ", "//! ", "// "];

/// The text of `line`, if the line is a comment that begins with one of `marks`, and does not end with a question mark.
fn comment<'a>(line: &'a str, marks: &[&str]) -> Option<&'a str> {
    let line = line.trim_start();
    let text = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    (!text.ends_with('?')).then_some(text)
}

/// Whether a sentence of `text` hides its subject, or has a pronoun far from its noun.
fn is_hard_to_read(text: &str) -> bool {
    let hides = |sentence: &str| {
        HIDDEN_SUBJECTS
            .iter()
            .any(|opening| sentence.starts_with(opening))
    };
    text.split(". ").any(hides) || FAR_PRONOUNS.iter().any(|far| text.contains(far))
}

/// The texts of `lines`, with their line numbers, that are hard to read.
fn hard_to_read<'a>(path: &Path, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<String> {
    lines
        .filter(|(_, text)| is_hard_to_read(text))
        .map(|(number, text)| format!("{}:{number}: {text}", path.display()))
        .collect()
}

#[test]
fn comments_avoid_the_worst_habits() {
    let mut found = Vec::new();
    let slashes = all(&[".rs", ".c", ".h"]).into_iter().map(|file| (file, SLASHES));
    let hashes = all(&[".toml", ".py", "Makefile"]).into_iter().chain(scripts());
    let hashes = hashes.map(|file| (file, &["# "][..]));
    for ((path, text), marks) in slashes.chain(hashes) {
        if path.ends_with("tests/tidy.rs") {
            continue; // this file quotes the bad habits
        }
        let comments = (1..)
            .zip(text.lines())
            .filter_map(|(number, line)| Some((number, comment(line, marks)?)));
        found.extend(hard_to_read(&path, comments));
    }
    assert!(found.is_empty(), "name the thing instead:\n{}", found.join("\n"));
}

/// String literals (log lines, errors, help) and the prose of documents.
#[test]
fn texts_for_people_avoid_the_worst_habits() {
    let mut found = Vec::new();
    for (path, text) in all(&[".rs"]) {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        let code = (1..)
            .zip(text.lines())
            .filter(|(_, line)| comment(line, SLASHES).is_none());
        let literals = code.flat_map(|(number, line)| {
            let literals = line.split('"').skip(1).step_by(2);
            literals.map(move |literal| (number, literal))
        });
        found.extend(hard_to_read(&path, literals));
    }
    for (path, text) in all(&[".md"]) {
        let mut is_code = false;
        let prose = (1..).zip(text.lines()).filter(|(_, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence && !line.ends_with('?')
        });
        let prose = prose.map(|(number, line)| (number, line.trim_start_matches(['*', '-', '>', '#', ' '])));
        found.extend(hard_to_read(&path, prose));
    }
    assert!(found.is_empty(), "name the thing instead:\n{}", found.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let unfinished: Vec<_> = all(&[".rs", ".c", ".h"])
        .into_iter()
        .filter(|(_, text)| marks.iter().any(|mark| text.contains(mark)))
        .map(|(path, _)| path)
        .collect();
    assert!(unfinished.is_empty(), "{unfinished:?}");
}

/// The name of a type that a line declares outside of an implementation.
fn declared(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let words = words
        .strip_prefix("pub(crate) ")
        .or_else(|| words.strip_prefix("pub(super) "))
        .or_else(|| words.strip_prefix("pub "))
        .unwrap_or(words);
    let (keyword, rest) = words.split_once(' ')?;
    let is_alias = keyword == "type" && !line.starts_with(' ');
    let is_type = is_alias || matches!(keyword, "struct" | "enum" | "trait" | "union");
    let name = rest
        .split(|next: char| !next.is_alphanumeric() && next != '_')
        .next()?;
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// A reader who searches for a name finds one type.
#[test]
fn no_two_types_share_a_name() {
    let mut places = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (path, text) in all(&[".rs"]) {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(name) = declared(line) {
                let place = format!("{}:{number}", path.display());
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "name them by their subjects: {places:#?}");
}
