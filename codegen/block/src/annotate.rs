//! The text form with notes: what is known or decided about a program, beside its lines.
//!
//! ```text
//! kernel @f(%x: ptr<f32> align(4)) warps(4) {
//!   %i = range 0 128    // facts: consecutive
//!                       // layout: none, each use computes it
//!   %v = load %x, %i    // layout: [32 lanes, 4 warps]
//! }
//! ```

use std::cell::RefCell;

use crate::print::{Printer, value_names};
use crate::program::{Loc, Op, Program};

/// The most columns that notes begin behind; longer lines have theirs on lines of their own.
const WIDEST: usize = 72;

impl Program {
    /// The text form with the notes about each operation as comments beside it, and those about the whole before it.
    /// It reads back as this program.
    pub fn annotated(&self, about: &[String], notes: &dyn Fn(&Op) -> Vec<String>) -> String {
        let (text, noted) = Printer::noted(self, notes);
        let head: String = about.iter().map(|note| format!("// {}\n", one_line(note))).collect();
        head + &beside(&text, noted)
    }

    /// The text form line by line, each with the location of the operation that begins there.
    pub fn located_lines(&self) -> Vec<(String, Loc)> {
        let locs = RefCell::new(Vec::new());
        let note = |op: &Op| {
            locs.borrow_mut().push(op.loc);
            vec![String::new()]
        };
        let (text, noted) = Printer::noted(self, &note);
        let mut noted = noted.into_iter().map(|(at, _)| at).zip(locs.into_inner()).peekable();
        let mut end = 0;
        let line = |line: &str| {
            end += line.len();
            let loc = noted.next_if(|(at, _)| *at == end).map_or(Loc::UNKNOWN, |(_, loc)| loc);
            end += 1;
            (line.to_owned(), loc)
        };
        text.lines().map(line).collect()
    }

    /// The names of all values in the text form, without the `%`, by index; empty where nothing defines a value.
    pub fn value_names(&self) -> Vec<String> {
        value_names(self)
    }
}

/// Puts notes behind the lines that end at given positions, below one another in one column.
fn beside(text: &str, noted: Vec<(usize, Vec<String>)>) -> String {
    let mut noted = noted.into_iter().peekable();
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    let mut end = 0;
    for line in text.lines() {
        end += line.len();
        lines.push((line, noted.next_if(|(at, _)| *at == end).map_or_else(Vec::new, |(_, notes)| notes)));
        end += 1;
    }
    let width = |line: &str| line.chars().count();
    let widths = lines.iter().filter(|(_, notes)| !notes.is_empty()).map(|(line, _)| width(line));
    let column = widths.filter(|&w| w <= WIDEST).max().unwrap_or(0) + 2;
    let mut out = String::new();
    for (line, notes) in lines {
        out.push_str(line);
        let mut at = width(line);
        for note in &notes {
            if at + 2 > column {
                out.push('\n');
                at = 0;
            }
            out.extend(std::iter::repeat_n(' ', column - at));
            out.push_str("// ");
            out.push_str(&one_line(note));
            at = usize::MAX - 2;
        }
        out.push('\n');
    }
    out
}

fn one_line(note: &str) -> String {
    note.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn lines_have_the_locations_of_their_operations() {
        let text = "kernel @f(%n: i32) {
          %z = const 0 : i32
          %s = for %i in %z..%n step %n with (%a = %z) { %b = map add %a, %i  yield %b }
        }";
        let mut program: Program = text.parse().unwrap();
        program.body.ops[1].regions[0].ops[0].loc = Loc::new(5);
        program.body.ops[1].loc = Loc::new(4);
        let found: Vec<Option<u32>> =
            program.located_lines().into_iter().map(|(_, loc)| loc.number()).collect();
        assert_eq!(found, [None, None, Some(4), Some(5), None, None, None]);
    }

    #[test]
    fn notes_stand_in_one_column_and_read_back() {
        let text = "kernel @f(%n: i32) {
          %z = const 0 : i32  %one = const 1 : i32
          %s = for %i in %z..%n step %one with (%a = %z) { %b = map add %a, %i  yield %b }
          %a_name_that_makes_the_line_of_this_multiplication_a_long_one = map mul %s, %s
        }";
        let program: Program = text.parse().unwrap();
        let notes = |op: &Op| match op.kind.name() {
            "for" => vec!["a loop".to_owned(), "that\nadds".to_owned()],
            "map" => vec!["one".to_owned()],
            _ => Vec::new(),
        };
        let annotated = program.annotated(&["all of it".to_owned()], &notes);
        expect![[r#"
            // all of it
            kernel @f(%n: i32) warps(4) {
              %z = const 0 : i32
              %one = const 1 : i32
              %s = for %i in %z..%n step %one with (%a = %z) {  // a loop
                                                                // that adds
                %b = map add %a, %i                             // one
                yield %b
              }
              %a_name_that_makes_the_line_of_this_multiplication_a_long_one = map mul %s, %s
                                                                // one
            }
        "#]]
        .assert_eq(&annotated);
        assert_eq!(annotated.parse::<Program>().unwrap().to_string(), program.to_string());
    }
}
