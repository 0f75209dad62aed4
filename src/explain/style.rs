//! How a summary looks where it is read.

/// Where a summary is read, and how it is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Columns of a line.
    pub(crate) width: usize,
    /// Whether escape codes of a terminal are understood.
    pub(crate) colour: bool,
    /// What comes first.
    pub(crate) order: Order,
}

/// The order of what takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Order {
    /// Steps in the order of a call.
    #[default]
    Calls,
    /// Distinct kernels, all launches of one together, those that take most time first.
    Time,
}

impl Style {
    /// A file, or another program.
    pub(crate) const PLAIN: Style = Style { width: 120, colour: false, order: Order::Calls };

    /// That of standard output where it is a terminal: its width, and colours unless `NO_COLOR` or the terminal says otherwise.
    pub(crate) fn of_terminal() -> Option<Style> {
        Style::of(&console::Term::stdout())
    }

    /// That of standard error, likewise.
    pub(crate) fn of_standard_error() -> Option<Style> {
        Style::of(&console::Term::stderr())
    }

    fn of(term: &console::Term) -> Option<Style> {
        let (_, columns) = term.size_checked().filter(|_| term.is_term())?;
        let colour = console::colors_enabled() && !Style::wants_plain_text();
        Some(Style { width: usize::from(columns).max(60), colour, ..Style::PLAIN })
    }

    /// Whether the user asks for no colours, as <https://no-color.org> says: nothing is drawn with escape codes then.
    pub(crate) fn wants_plain_text() -> bool {
        std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
    }

    fn styled(self, text: &str) -> console::StyledObject<&str> {
        console::style(text).force_styling(self.colour)
    }

    pub(super) fn strong(self, text: &str) -> String {
        self.styled(text).bold().to_string()
    }

    pub(super) fn faint(self, text: &str) -> String {
        self.styled(text).dim().to_string()
    }

    pub(super) fn warning(self, text: &str) -> String {
        self.styled(text).yellow().to_string()
    }

    /// A line that goes on in further ones where it is too long, each with so many spaces before it.
    pub(crate) fn wrapped(self, line: &str, indent: usize) -> String {
        let (mut text, mut column) = (String::new(), 0);
        for word in words(line) {
            // A word that is longer than a line is not broken.
            if column > indent && column + word.trim_end().chars().count() > self.width {
                text.truncate(text.trim_end().len());
                text.push_str(&format!("\n{:indent$}", ""));
                column = indent;
            }
            text.push_str(word);
            column += word.chars().count();
        }
        text
    }
}

/// The words of a line, each with the spaces behind it; a number and its unit are one.
fn words(line: &str) -> Vec<&str> {
    const UNITS: [&str; 15] = [
        "%", "us", "ms", "s", "B", "kB", "MB", "GB", "GB/s", "flop", "kflop", "Mflop", "Gflop", "GFLOP/s",
        "TFLOP/s",
    ];
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    let mut start = 0;
    for word in line.split_inclusive(' ') {
        let unit = word.trim_end().trim_end_matches([',', ';', ':', '.', ')']);
        let end = start + word.len();
        match found.last_mut() {
            Some(before)
                if UNITS.contains(&unit) && line[before.clone()].trim_end().ends_with(char::is_numeric) =>
            {
                before.end = end;
            }
            _ => found.push(start..end),
        }
        start = end;
    }
    found.into_iter().map(|range| &line[range]).collect()
}

/// Text of at most so many characters.
pub(super) fn clip(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_clipped_or_go_on() {
        assert_eq!(clip("abcdef", 6), "abcdef");
        assert_eq!(clip("abcdefg", 6), "abc...");
        let style = Style { width: 12, ..Style::PLAIN };
        assert_eq!(style.wrapped("    a  bc de", 4), "    a  bc de");
        assert_eq!(style.wrapped("    a  bc def g", 4), "    a  bc\n    def g");
        assert_eq!(style.wrapped("  abcdefghijklmn o", 2), "  abcdefghijklmn\n  o");
        assert_eq!(style.wrapped("takes 12.5 ms, 3 x", 2), "takes\n  12.5 ms, 3\n  x");
    }
}
