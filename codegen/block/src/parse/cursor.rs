//! Tokens of the text form.

use std::str::FromStr;

use super::{ParseError, Result};
use crate::print::{is_name, is_name_byte};

/// A position in a text.
pub(super) struct Cursor<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        let mut cursor = Cursor { text, position: 0 };
        cursor.skip_blank();
        cursor
    }

    /// The start of the next token.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.position..).unwrap_or("")
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            let rest =
                if rest.starts_with("//") { rest.find('\n').map_or("", |end| &rest[end..]) } else { rest };
            let position = self.text.len() - rest.len();
            if position == self.position {
                return;
            }
            self.position = position;
        }
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let (token, _) = self.rest().split_at_checked(bytes).unwrap_or(("", ""));
        self.position += token.len();
        self.skip_blank();
        token
    }

    /// The longest start of the rest whose bytes are all taken by `takes`.
    fn run(&self, takes: impl Fn(u8) -> bool) -> usize {
        self.rest().bytes().take_while(|&c| takes(c)).count()
    }

    pub(super) fn accept(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.advance(token.len());
        }
        found
    }

    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.accept(token) { Ok(()) } else { self.fail(format!("expected `{token}`")) }
    }

    pub(super) fn accept_keyword(&mut self, word: &str) -> bool {
        let found = &self.rest()[..self.run(is_name_byte)] == word;
        if found {
            self.advance(word.len());
        }
        found
    }

    pub(super) fn keyword(&mut self, word: &str) -> Result<()> {
        if self.accept_keyword(word) { Ok(()) } else { self.fail(format!("expected `{word}`")) }
    }

    pub(super) fn name(&mut self) -> Result<&'a str> {
        let len = self.run(is_name_byte);
        if !is_name(&self.rest()[..len]) {
            return self.fail("expected a name");
        }
        Ok(self.advance(len))
    }

    /// The position of a value and its name without the `%`.
    pub(super) fn value(&mut self) -> Result<(usize, &'a str)> {
        let at = self.position;
        let rest = self.rest();
        let len = rest.bytes().skip(1).take_while(|&c| is_name_byte(c)).count();
        let name = rest.get(1..len + 1).unwrap_or("");
        let number = !name.is_empty() && name.bytes().all(|c| c.is_ascii_digit());
        if !rest.starts_with('%') || !(number || is_name(name)) {
            return self.fail("expected a value");
        }
        self.advance(len + 1);
        Ok((at, name))
    }

    /// A text in double quotes.
    pub(super) fn string(&mut self) -> Result<String> {
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        if chars.next().is_none_or(|(_, c)| c != '"') {
            return self.fail("expected a text in double quotes");
        }
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.advance(at + 1);
                    return Ok(out);
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(c @ ('"' | '\\')) => out.push(c),
                    _ => return self.fail_at(self.position + at, "expected `\\n`, `\\t`, `\\\"` or `\\\\`"),
                },
                '\n' => break,
                c => out.push(c),
            }
        }
        self.fail("the text in quotes does not end on its line")
    }

    /// The name of the value that comes next, without the `%`, if one does.
    pub(super) fn peek_value(&self) -> Option<&'a str> {
        let name = self.rest().strip_prefix('%')?;
        let len = name.bytes().take_while(|&c| is_name_byte(c)).count();
        name.get(..len)
    }

    /// The text of a number or truth value.
    pub(super) fn number(&mut self) -> Result<&'a str> {
        let len = self.run(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'+' | b'-'));
        if len == 0 { self.fail("expected a number") } else { Ok(self.advance(len)) }
    }

    pub(super) fn int<T: FromStr>(&mut self) -> Result<T> {
        let sign = usize::from(self.peek() == Some('-'));
        let digits = self.rest().bytes().skip(sign).take_while(u8::is_ascii_digit).count();
        self.parsed(sign + digits)
    }

    /// An extent of a tile: digits, whatever follows.
    pub(super) fn extent(&mut self) -> Result<u32> {
        self.parsed(self.run(|c| c.is_ascii_digit()))
    }

    fn parsed<T: FromStr>(&mut self, len: usize) -> Result<T> {
        match self.rest()[..len].parse() {
            Ok(value) => {
                self.advance(len);
                Ok(value)
            }
            Err(_) if len == 0 => self.fail("expected a number"),
            Err(_) => self.fail(format!("`{}` is out of range", &self.rest()[..len.min(40)])),
        }
    }

    pub(super) fn end(&mut self) -> Result<()> {
        if self.rest().is_empty() { Ok(()) } else { self.fail("expected the end of the text") }
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        self.fail_at(self.position, message)
    }

    pub(super) fn fail_at<T>(&self, position: usize, message: impl Into<String>) -> Result<T> {
        let before = self.text.get(..position).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.bytes().filter(|&c| c == b'\n').count() + 1;
        let column = before.get(start..).map_or(0, |s| s.chars().count()) + 1;
        Err(ParseError { line, column, message: message.into() })
    }
}
