//! Makes inputs in the target's language. An input begins as an input of the corpus or as a sequence of phrases, and is then changed at up
//! to five places.

use std::path::PathBuf;

use bolero::{Driver, ValueGenerator};

/// In an input of this length in bytes, or longer, no part is duplicated.
const LENGTH_MAX: usize = 64 * 1024;

type Corpus = [(PathBuf, Vec<u8>)];

pub(crate) fn input<D: Driver>(driver: &mut D, corpus: &Corpus, phrases: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut input = match below(driver, 8)? {
        0 if !phrases.is_empty() => {
            let mut row = Vec::new();
            for _ in 0..below(driver, 16)? {
                row.extend_from_slice(phrase(driver, phrases)?);
            }
            row
        }
        _ => one(driver, corpus)?.to_vec(),
    };
    for _ in 0..below(driver, 6)? {
        change(driver, &mut input, corpus, phrases)?;
    }
    Some(input)
}

fn change<D: Driver>(
    driver: &mut D,
    input: &mut Vec<u8>,
    corpus: &Corpus,
    phrases: &[Vec<u8>],
) -> Option<()> {
    let (from, to) = (place(driver, input)?, place(driver, input)?);
    let range = from.min(to)..from.max(to);
    match below(driver, 8)? {
        0 => drop(input.drain(range)),
        1 if input.len() < LENGTH_MAX => {
            let copy = input[range].to_vec();
            input.splice(to..to, copy);
        }
        2 => {
            let other = one(driver, corpus)?;
            let cut = place(driver, other)?;
            input.truncate(from);
            input.extend_from_slice(&other[cut..]);
        }
        3 => {
            let byte = byte(driver)?;
            input.get_mut(from).into_iter().for_each(|place| *place = byte);
        }
        4 => {
            let byte = byte(driver)?;
            input.insert(from, byte);
        }
        5 => drop(input.drain(from..input.len().min(from + 1))),
        // A phrase replaces the rest of a word, or goes between two words.
        6 if !phrases.is_empty() => {
            let end = input[from..].iter().position(ends_word);
            let word = from..end.map_or(input.len(), |end| from + end);
            input.splice(word, phrase(driver, phrases)?.iter().copied());
        }
        _ if !phrases.is_empty() => drop(input.splice(from..from, phrase(driver, phrases)?.iter().copied())),
        _ => {}
    }
    Some(())
}

/// Draws a position in `input`. In half of the draws, returns the position after the next delimiter instead.
fn place<D: Driver>(driver: &mut D, input: &[u8]) -> Option<usize> {
    let anywhere = below(driver, input.len() + 1)?;
    if below(driver, 2)? == 0 {
        return Some(anywhere);
    }
    let ends = |byte: &u8| {
        matches!(
            byte,
            b'\n' | b' ' | b':' | b',' | b';' | b'=' | b'"' | b'{' | b'}'
        )
    };
    let end = input[anywhere..].iter().position(ends);
    Some(end.map_or(input.len(), |end| anywhere + end + 1))
}

fn ends_word(byte: &u8) -> bool {
    b"\r\n :,;=\"{}[]".contains(byte)
}

fn one<'a, D: Driver>(driver: &mut D, corpus: &'a Corpus) -> Option<&'a [u8]> {
    Some(&corpus[below(driver, corpus.len())?].1)
}

fn phrase<'a, D: Driver>(driver: &mut D, phrases: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    Some(&phrases[below(driver, phrases.len())?])
}

fn byte<D: Driver>(driver: &mut D) -> Option<u8> {
    (0..=u8::MAX).generate(driver)
}

fn below<D: Driver>(driver: &mut D, end: usize) -> Option<usize> {
    (0..end).generate(driver)
}
