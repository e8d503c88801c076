//! Text for operators: aligned columns, and numbers with units.

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows of words in columns.
pub(super) struct TextTable<const N: usize> {
    aligns: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    /// A table with these headings.
    pub(super) fn new(columns: &[(&str, Align); N]) -> Self {
        Self {
            aligns: columns.map(|(_, align)| align),
            rows: vec![columns.map(|(heading, _)| heading.to_owned())],
        }
    }

    pub(super) fn row(&mut self, words: [String; N]) {
        self.rows.push(words);
    }

    /// The table for a usual terminal: [`text`](Self::text) if that fits, otherwise a block for each row, with a line for each word that is
    /// not empty.
    pub(super) fn fitted(&self) -> String {
        let text = self.text();
        if text.lines().all(|line| line.chars().count() <= WIDTH) {
            return text;
        }
        let Some((headings, rows)) = self.rows.split_first() else {
            return text;
        };
        let width = headings
            .iter()
            .map(|heading| heading.chars().count())
            .max()
            .unwrap_or(0);
        let block = |row: &[String; N]| {
            let words = headings.iter().zip(row).filter(|(_, word)| !word.is_empty());
            let line = |(heading, word)| fold(&format!("{heading:<width$}  {word}"), width + 2);
            words.map(line).collect::<String>()
        };
        rows.iter().map(block).collect::<Vec<_>>().join("\n")
    }

    /// The headings and the rows, a line each.
    pub(super) fn text(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((word, width), align) in row.iter().zip(widths).zip(self.aligns) {
                let gap = if line.is_empty() { "" } else { "  " };
                line += &match align {
                    Align::Left => format!("{gap}{word:<width$}"),
                    Align::Right => format!("{gap}{word:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Columns of a usual terminal.
const WIDTH: usize = 80;

/// A line, folded between words so that it fits a usual terminal. The lines after the first are indented by `indent` columns. A word that
/// is longer than a line stays whole, so that it can be copied.
pub(super) fn fold(line: &str, indent: usize) -> String {
    let indent = " ".repeat(indent);
    let options = textwrap::Options::new(WIDTH)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(line, options) + "\n"
}

/// Bytes in the largest binary unit that gives at least 1: `4.0 MiB`.
pub(super) fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(unit) = count.max(1).ilog2().checked_div(10).filter(|unit| *unit > 0) else {
        return format!("{count} B");
    };
    let tenths = (u128::from(count) * 10) >> (10 * unit);
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit as usize - 1])
}

/// Nanoseconds as milliseconds with two places: `1.25 ms`.
pub(super) fn milliseconds(nanos: u64) -> String {
    let hundredths = nanos / 10_000;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_one_below_the_other() {
        let mut table = TextTable::new(&[
            ("NAME", Align::Left),
            ("COUNT", Align::Right),
            ("NOTE", Align::Left),
        ]);
        table.row(["a".into(), "1".into(), String::new()]);
        table.row(["a long one".into(), "1234567".into(), "ü".into()]);
        let expected = "NAME          COUNT  NOTE\na                 1\na long one  1234567  ü\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_table_that_is_too_wide_is_told_row_by_row() {
        let mut table = TextTable::new(&[
            ("NAME", Align::Left),
            ("COUNT", Align::Right),
            ("NOTE", Align::Left),
        ]);
        table.row(["a".into(), "1".into(), "x".repeat(WIDTH - 13)]);
        assert_eq!(table.fitted(), table.text());
        table.row(["b".into(), "2".into(), String::new()]);
        table.row(["c".repeat(20), "3".into(), "y".into()]);
        let x = "x".repeat(WIDTH - 13);
        let c = "c".repeat(20);
        let expected = format!(
            "NAME   a\nCOUNT  1\nNOTE   {x}\n\nNAME   b\nCOUNT  2\n\nNAME   {c}\nCOUNT  3\nNOTE   y\n"
        );
        assert_eq!(table.fitted(), expected);
    }

    #[test]
    fn a_long_line_is_folded_between_words() {
        let word = "x".repeat(WIDTH + 1);
        let folded = fold(&format!("key  {}ends here {word}", "a b ".repeat(18)), 5);
        let expected = format!(
            "key  {}\n     ends here\n     {word}\n",
            "a b ".repeat(18).trim_end()
        );
        assert_eq!(folded, expected);
        assert_eq!(fold("short", 5), "short\n");
    }

    #[test]
    fn numbers_have_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_572_864, "1.5 MiB"),
            (u64::MAX, "15.9 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(milliseconds(1_259_999), "1.25 ms");
        assert_eq!(milliseconds(0), "0.00 ms");
    }
}
