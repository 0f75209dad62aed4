//! Tokens of the text forms.

use super::ParseError;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// `%12`.
    Value(u32),
    /// A name, perhaps with `::` and `.` in it: `aten::add.Tensor`, `cuda`, `true`.
    Name(String),
    /// An integer.
    Int(i64),
    /// A floating-point number, `inf` and `nan` with a sign included.
    Float(f64),
    /// A string in double quotes.
    Str(String),
    /// A punctuation mark; `<-` is `'<'`.
    Mark(char),
    /// The end of the text.
    End,
}

impl Token {
    /// The token in words, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Value(n) => format!("`%{n}`"),
            Token::Name(n) => format!("`{n}`"),
            Token::Int(n) => format!("`{n}`"),
            Token::Float(x) => format!("`{x:?}`"),
            Token::Str(s) => format!("{s:?}"),
            Token::Mark('<') => "`<-`".to_string(),
            Token::Mark(c) => format!("`{c}`"),
            Token::End => "the end of the text".to_string(),
        }
    }
}

/// A token with its place.
#[derive(Clone, Debug)]
pub(super) struct Spanned {
    /// The token.
    pub(super) token: Token,
    /// Line, from 1.
    pub(super) line: u32,
    /// Column, from 1.
    pub(super) column: u32,
}

struct Cursor<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: u32,
    column: u32,
}

impl Cursor<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn take(&mut self, mut accept: impl FnMut(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek().filter(|&c| accept(c)) {
            text.push(c);
            self.bump();
        }
        text
    }

    fn skip_blank(&mut self) {
        loop {
            self.take(char::is_whitespace);
            if self.peek() != Some('#') {
                return;
            }
            self.take(|c| c != '\n');
        }
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { line: self.line, column: self.column, message: message.into() })
    }
}

/// The tokens of a text; the last one is [`Token::End`]. `#` begins a comment that ends with the line.
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned>, ParseError> {
    let mut cursor = Cursor { rest: text.chars().peekable(), line: 1, column: 1 };
    let mut found = Vec::new();
    loop {
        cursor.skip_blank();
        let (line, column) = (cursor.line, cursor.column);
        let token = next(&mut cursor)?;
        let end = token == Token::End;
        found.push(Spanned { token, line, column });
        if end {
            return Ok(found);
        }
    }
}

fn next(cursor: &mut Cursor<'_>) -> Result<Token, ParseError> {
    let Some(c) = cursor.peek() else { return Ok(Token::End) };
    match c {
        '%' => {
            cursor.bump();
            let digits = cursor.take(|c| c.is_ascii_digit());
            digits.parse().map(Token::Value).or_else(|_| cursor.error("expected a value number after `%`"))
        }
        '"' => string(cursor),
        '<' => {
            cursor.bump();
            if cursor.bump() == Some('-') { Ok(Token::Mark('<')) } else { cursor.error("expected `<-`") }
        }
        '-' | '0'..='9' => number(cursor),
        c if c.is_alphabetic() || c == '_' => Ok(name(cursor)),
        '{' | '}' | '(' | ')' | '[' | ']' | ',' | '=' | ':' | '@' | '!' | '+' => {
            cursor.bump();
            Ok(Token::Mark(c))
        }
        other => cursor.error(format!("unexpected character {other:?}")),
    }
}

fn name(cursor: &mut Cursor<'_>) -> Token {
    let mut text = cursor.take(|c| c.is_alphanumeric() || c == '_' || c == '.');
    if matches!(text.as_str(), "dtype" | "device") && cursor.peek() == Some('-') {
        cursor.bump();
        text.push('-');
        text.push_str(&cursor.take(|c| c.is_ascii_digit()));
    }
    let mut ahead = cursor.rest.clone();
    if (ahead.next(), ahead.next()) == (Some(':'), Some(':')) {
        cursor.bump();
        cursor.bump();
        text.push_str("::");
        text.push_str(&cursor.take(|c| c.is_alphanumeric() || c == '_' || c == '.' || c == ':'));
    }
    match text.as_str() {
        "inf" => Token::Float(f64::INFINITY),
        "nan" => Token::Float(f64::NAN),
        _ => Token::Name(text),
    }
}

fn number(cursor: &mut Cursor<'_>) -> Result<Token, ParseError> {
    let mut text = String::new();
    if cursor.peek() == Some('-') {
        cursor.bump();
        text.push('-');
        if cursor.peek().is_some_and(char::is_alphabetic) {
            return match cursor.take(char::is_alphabetic).as_str() {
                "inf" => Ok(Token::Float(f64::NEG_INFINITY)),
                _ => cursor.error("expected a number after `-`"),
            };
        }
    }
    let mut last = '0';
    text.push_str(&cursor.take(|c| {
        let accept = c.is_ascii_digit() || c == '.' || c == 'e' || (matches!(c, '-' | '+') && last == 'e');
        last = c;
        accept
    }));
    let parsed = if text.contains(['.', 'e']) {
        text.parse().ok().map(Token::Float)
    } else {
        text.parse().ok().map(Token::Int)
    };
    match parsed {
        Some(token) => Ok(token),
        None => cursor.error(format!("`{text}` is no number")),
    }
}

fn string(cursor: &mut Cursor<'_>) -> Result<Token, ParseError> {
    cursor.bump();
    let mut text = String::new();
    loop {
        match cursor.bump() {
            None => return cursor.error("a string is not closed"),
            Some('"') => return Ok(Token::Str(text)),
            Some('\\') => match cursor.bump() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(c @ ('"' | '\\')) => text.push(c),
                _ => return cursor.error("unknown escape in a string"),
            },
            Some(c) => text.push(c),
        }
    }
}
