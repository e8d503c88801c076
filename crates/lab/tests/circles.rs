//! Tests that the imports between the files of a crate (`proto`, `agent`, `linux`, `judge`, `lab`, `sim` and `cli`) form no circle. So a reader can
//! begin with the files that import no other file of their crate.
//!
//! An import is a path that begins with `crate`, `super`, `self` or a child module. The imported file is the one that
//! defines the item that the path names. A module's re-exports of its own children do not count, and neither do tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module, as its path in the crate. The path of the crate's root is empty.
type Module = Vec<String>;

/// The modules of one crate, each in a file of its own.
struct CrateSource {
    files: BTreeMap<Module, PathBuf>,
    imports: BTreeMap<Module, Vec<ImportPath>>,
}

/// A path in the code of a module.
struct ImportPath {
    path: Vec<String>,
    is_reexport: bool,
}

impl CrateSource {
    fn read(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(name)
            .join("src");
        let (mut files, mut imports) = (BTreeMap::new(), BTreeMap::new());
        let mut directories = vec![root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("a readable directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let below = path.strip_prefix(&root).expect("below it").to_owned();
                    let module = module_of(&below);
                    imports.insert(
                        module.clone(),
                        paths_in(&fs::read_to_string(&path).expect("UTF-8")),
                    );
                    files.insert(module, below);
                }
            }
        }
        Self { files, imports }
    }

    /// Returns the module whose file defines the item that `path` names. `path` occurs in the code of `module`. `None` if another crate
    /// defines the item.
    fn definition(&self, module: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first().map(String::as_str)? {
            "crate" => at.clear(),
            "self" | "super" => {}
            child if self.files.contains_key(&[module, &[child.to_owned()]].concat()) => {}
            _ => return None,
        }
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => at.truncate(at.len().saturating_sub(1)),
                name => {
                    at.push(name.to_owned());
                    if !self.files.contains_key(&at) {
                        at.pop();
                        break;
                    }
                }
            }
            rest = behind;
        }
        let is_named = |import: &&ImportPath| import.is_reexport && import.path.last() == rest.first();
        let reexport = self.imports[&at].iter().find(is_named).filter(|_| depth < 10);
        let defined = reexport.and_then(|import| self.definition(&at, &import.path, depth + 1));
        Some(defined.unwrap_or(at))
    }

    /// For each file, the files that it imports.
    fn edges(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let is_test = |module: &Module| module.iter().any(|name| name == "tests" || name == "fixture");
        let mut edges = BTreeMap::new();
        for (module, imports) in self.imports.iter().filter(|(module, _)| !is_test(module)) {
            let to = imports.iter().filter_map(|import| {
                let to = self.definition(module, &import.path, 0)?;
                let is_own_child = import.is_reexport && to.starts_with(module);
                (!is_own_child && to != *module && !is_test(&to)).then_some(to)
            });
            edges.insert(module, to.collect());
        }
        edges
    }

    /// Returns each import that is part of a circle: the imported file imports the importing file, directly or indirectly.
    fn circles(&self) -> Vec<String> {
        let edges = self.edges();
        let reached_from = |from: &Module| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = next.pop() {
                for to in edges.get(&module).into_iter().flatten() {
                    if reached.insert(to.clone()) {
                        next.push(to.clone());
                    }
                }
            }
            reached
        };
        let mut circles = Vec::new();
        for (from, imported) in &edges {
            for to in imported.iter().filter(|to| reached_from(to).contains(*from)) {
                circles.push(format!(
                    "{} -> {}",
                    self.files[*from].display(),
                    self.files[to].display()
                ));
            }
        }
        circles
    }
}

/// The module path of a file. `file` is relative to `src`.
fn module_of(file: &Path) -> Module {
    let mut names: Module = file
        .with_extension("")
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    names
}

/// The words and punctuation signs of `text`, without comments and unit tests. `::` is one sign.
fn tokens(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut tokens: Vec<String> = Vec::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let mut in_word = false;
        for sign in line.chars() {
            let is_word = sign.is_alphanumeric() || sign == '_';
            match tokens.last_mut() {
                Some(last) if is_word && in_word || sign == ':' && last == ":" => last.push(sign),
                _ if sign.is_whitespace() => {}
                _ => tokens.push(sign.to_string()),
            }
            in_word = is_word;
        }
    }
    tokens
}

/// The paths in some code.
fn paths_in(text: &str) -> Vec<ImportPath> {
    let tokens = tokens(text);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map(|before| tokens[before].as_str());
        if tokens[at] == "use" {
            let end = tokens[at..].iter().position(|token| token == ";");
            let end = end.map_or(tokens.len(), |behind| at + behind);
            let is_test =
                tokens[..at].ends_with(&["#", "[", "cfg", "(", "test", ")", "]"].map(str::to_owned));
            let is_reexport = matches!(before, Some("pub" | ")"));
            if !is_test {
                let found = tree(&[], &tokens[at + 1..end]);
                paths.extend(found.into_iter().map(|path| ImportPath { path, is_reexport }));
            }
            at = end;
        } else if tokens.get(at + 1).is_some_and(|next| next == "::") && !matches!(before, Some("::" | ".")) {
            let parts = tokens[at..].chunks(2).take_while(|pair| pair.len() == 2);
            let mut path = Vec::new();
            for pair in parts {
                path.push(pair[0].clone());
                if pair[1] != "::" {
                    break;
                }
            }
            paths.push(ImportPath {
                path,
                is_reexport: false,
            });
        }
        at += 1;
    }
    paths
}

/// The paths of a `use` declaration.
fn tree(prefix: &[String], tokens: &[String]) -> Vec<Vec<String>> {
    let Some(brace) = tokens.iter().position(|token| token == "{") else {
        let named = tokens.split(|token| token == "as").next().unwrap_or_default();
        let names = named.iter().filter(|token| *token != "::").cloned();
        return vec![prefix.iter().cloned().chain(names).collect()];
    };
    let names = tokens[..brace].iter().filter(|token| *token != "::").cloned();
    let prefix: Vec<_> = prefix.iter().cloned().chain(names).collect();
    let (mut paths, mut depth, mut begin) = (Vec::new(), 0, brace + 1);
    for at in brace..tokens.len() {
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        let is_end = tokens[at] == "," && depth == 1 || depth == 0;
        if is_end && begin < at {
            paths.extend(tree(&prefix, &tokens[begin..at]));
        }
        if is_end {
            begin = at + 1;
        }
    }
    paths
}

#[test]
fn files_import_in_one_direction() {
    for name in ["proto", "agent", "linux", "judge", "lab", "sim", "cli"] {
        let circles = CrateSource::read(name).circles();
        assert!(circles.is_empty(), "{name}:\n{}", circles.join("\n"));
    }
}

#[test]
fn an_import_is_found_wherever_it_is() {
    let paths = |text: &str| -> Vec<String> {
        let paths = paths_in(text).into_iter();
        paths.map(|import| import.path.join("::")).collect()
    };
    assert_eq!(
        paths("use crate::{Instant, path::{self, Damping as D}};"),
        ["crate::Instant", "crate::path::self", "crate::path::Damping"]
    );
    assert_eq!(
        paths("let a = super::b::C::new(d); // crate::e"),
        ["super::b::C::new"]
    );
}
