//! In what the code of two kernels differs.

use std::collections::HashMap;

use crate::explain::{CodeReport, LineReport};

/// In what a text with a line for each operation differs from an older one, but for how values are numbered.
pub(super) fn difference(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    lines_differ(&old.lines().collect::<Vec<_>>(), &new.lines().collect::<Vec<_>>())
}

/// In what the processor's code of a kernel differs from an older one, where both are known and in one language.
pub(super) fn machine_difference(old: Option<&CodeReport>, new: Option<&CodeReport>) -> Option<String> {
    let (old, new) = old.zip(new).filter(|(old, new)| old.language == new.language)?;
    let lines = |lines: &'_ [LineReport]| lines.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
    let (old_lines, new_lines) = (lines(&old.machine), lines(&new.machine));
    let texts = |lines: &'_ [String]| lines.iter().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let (old_texts, new_texts) = (texts(&old_lines), texts(&new_lines));
    let difference = lines_differ(
        &old_texts.iter().map(String::as_str).collect::<Vec<_>>(),
        &new_texts.iter().map(String::as_str).collect::<Vec<_>>(),
    )?;
    Some(format!("{}: {difference}", new.language))
}

fn lines_differ(old: &[&str], new: &[&str]) -> Option<String> {
    let before: Vec<String> = old.iter().map(|line| unnumbered(line)).collect();
    let now: Vec<String> = new.iter().map(|line| unnumbered(line)).collect();
    if before == now {
        return None;
    }
    let mut counts: HashMap<&str, i64> = HashMap::new();
    before.iter().for_each(|line| *counts.entry(line).or_default() -= 1);
    now.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    let came: i64 = counts.values().filter(|&&count| count > 0).sum();
    let gone: i64 = -counts.values().filter(|&&count| count < 0).sum::<i64>();
    if (came, gone) == (0, 0) {
        return Some(format!("{} lines in another order", now.len()));
    }
    Some(format!("{} -> {} lines, {gone} of them gone and {came} new", before.len(), now.len()))
}

/// A line without the numbers of values, which change with each operation before them.
fn unnumbered(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut after_mark = false;
    for c in line.chars() {
        if !(after_mark && c.is_ascii_digit()) {
            after_mark = matches!(c, '%' | '!' | '#');
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_without_the_numbers_of_values() {
        let old = "kernel @k() {\n  %1 = load %0\n  %2 = map exp %1\n  store %0, %2\n}";
        let renumbered = old.replace("%1", "%11").replace("%2", "%12");
        let said = |new: &str| difference(old, new);
        assert_eq!(said(old), None);
        assert_eq!(said(&renumbered), None);
        let longer = old.replace("exp %1", "exp %1\n  %3 = map neg %2");
        assert_eq!(said(&longer).as_deref(), Some("5 -> 6 lines, 0 of them gone and 1 new"));
        let other = old.replace("exp", "log");
        assert_eq!(said(&other).as_deref(), Some("5 -> 5 lines, 1 of them gone and 1 new"));
        let swapped = "kernel @k() {\n  %2 = map exp %1\n  %1 = load %0\n  store %0, %2\n}";
        assert_eq!(said(swapped).as_deref(), Some("5 lines in another order"));
    }

    #[test]
    fn code_of_one_language_is_compared() {
        let code = |language: &str, lines: &[&str]| CodeReport {
            language: language.to_owned(),
            machine: lines.iter().map(|&line| (line.to_owned(), None)).collect(),
            ..CodeReport::default()
        };
        let (old, new) = (code("PTX", &["add", " ret"]), code("PTX", &["mul", "ret"]));
        let said = machine_difference(Some(&old), Some(&new));
        assert_eq!(said.as_deref(), Some("PTX: 2 -> 2 lines, 1 of them gone and 1 new"));
        assert_eq!(machine_difference(Some(&old), Some(&code("assembly", &["ret"]))), None);
        assert_eq!(machine_difference(None, Some(&new)), None);
    }
}
