//! The command that repeats one run.

use clap::ValueEnum;

/// The directory that keeps the files of a repeated run.
const KEEP: &str = "/tmp/steadfast-lab";

/// The command that plays only the run with `seed`, and only the part that the options of `selection` select. `given` is this
/// process's command line: the program and its arguments.
pub fn command(
    given: impl IntoIterator<Item = String>,
    seed: u64,
    mut selection: Vec<(&'static str, String)>,
) -> String {
    selection.push(("seed", seed.to_string()));
    selection.push(("keep", KEEP.to_owned()));
    let mut words = vec!["steadfast-lab".to_owned()];
    let mut given = given.into_iter().skip(1);
    while let Some(word) = given.next() {
        let option = word.strip_prefix("--").unwrap_or_default();
        let (name, value) = option
            .split_once('=')
            .map_or((option, None), |(name, value)| (name, Some(value)));
        if name == "json" {
            continue;
        }
        if name == "repeat" || selection.iter().any(|(selected, _)| *selected == name) {
            if value.is_none() {
                given.next();
            }
            continue;
        }
        words.push(quoted(word));
    }
    for (option, value) in selection {
        words.extend([format!("--{option}"), quoted(value)]);
    }
    words.join(" ")
}

/// The option's value as it is written on the command line.
pub fn value_name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// `word`, quoted for a shell if necessary.
fn quoted(word: String) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_./:=,%+@".contains(one);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(given: &str, selection: Vec<(&'static str, String)>) -> String {
        command(given.split_whitespace().map(str::to_owned), 9, selection)
    }

    #[test]
    fn a_run_is_repeated_alone_with_its_own_seed() {
        let given =
            "/x/steadfast-lab crash --fault flush-tc --seed 3 --repeat=50 --json --ipv6 --keep /x --rtt 20";
        assert_eq!(
            again(given, Vec::new()),
            "steadfast-lab crash --fault flush-tc --ipv6 --rtt 20 --seed 9 --keep /tmp/steadfast-lab"
        );
    }

    #[test]
    fn a_part_is_repeated_alone() {
        let given = "steadfast-lab split --fault flap,cut-between --members 3";
        let selection = vec![("fault", "flap".to_owned()), ("assume", "etcd".to_owned())];
        assert_eq!(
            again(given, selection),
            "steadfast-lab split --members 3 --fault flap --assume etcd --seed 9 --keep /tmp/steadfast-lab"
        );
    }

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        assert_eq!(quoted("a-b/c.d=e".to_owned()), "a-b/c.d=e");
        assert_eq!(quoted("it's here".to_owned()), r"'it'\''s here'");
        assert_eq!(quoted(String::new()), "''");
    }
}
