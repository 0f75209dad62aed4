//! What both text forms are made of: types, arguments, the token stream.

use tilefuse_block::{Elem, Literal};

use super::ParseError;
use super::lexer::{Spanned, Token, tokens};
use crate::recording::Arg;
use crate::types::{DType, Device, Dims, TensorType, row_major};

/// A position in a token stream.
pub(super) struct Parser {
    tokens: Vec<Spanned>,
    next: usize,
}

pub(super) type Result<T> = std::result::Result<T, ParseError>;

/// Largest number of dimensions in a type.
const MAX_RANK: usize = 64;

impl Parser {
    pub(super) fn new(text: &str) -> Result<Parser> {
        Ok(Parser { tokens: tokens(text)?, next: 0 })
    }

    pub(super) fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |s| &s.token)
    }

    pub(super) fn bump(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    /// An error at the next token.
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        let place = self.tokens.get(self.next).or(self.tokens.last());
        let (line, column) = place.map_or((1, 1), |s| (s.line, s.column));
        Err(ParseError { line, column, message: message.into() })
    }

    /// An error at the token that was consumed last.
    pub(super) fn reject<T>(&self, message: impl Into<String>) -> Result<T> {
        let place = self.tokens.get(self.next.saturating_sub(1));
        let (line, column) = place.map_or((1, 1), |s| (s.line, s.column));
        Err(ParseError { line, column, message: message.into() })
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        self.error(format!("expected {what}, found {}", self.peek().describe()))
    }

    pub(super) fn eat(&mut self, mark: char) -> bool {
        let found = *self.peek() == Token::Mark(mark);
        if found {
            self.next += 1;
        }
        found
    }

    pub(super) fn eat_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Token::Name(n) if n == name);
        if found {
            self.next += 1;
        }
        found
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { self.expected(&Token::Mark(mark).describe()) }
    }

    pub(super) fn keyword(&mut self, name: &str) -> Result<()> {
        if self.eat_name(name) { Ok(()) } else { self.expected(&format!("`{name}`")) }
    }

    pub(super) fn name(&mut self) -> Result<String> {
        match self.peek().clone() {
            Token::Name(n) => {
                self.next += 1;
                Ok(n)
            }
            _ => self.expected("a name"),
        }
    }

    /// The name of an argument; `nan` and `inf` are names here.
    pub(super) fn arg_name(&mut self) -> Result<String> {
        let name = match *self.peek() {
            Token::Float(x) if x.is_nan() => "nan",
            Token::Float(f64::INFINITY) => "inf",
            _ => return self.name(),
        };
        self.next += 1;
        Ok(name.to_string())
    }

    pub(super) fn string(&mut self) -> Result<String> {
        match self.peek().clone() {
            Token::Str(s) => {
                self.next += 1;
                Ok(s)
            }
            _ => self.expected("a string"),
        }
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        match *self.peek() {
            Token::Int(n) => {
                self.next += 1;
                Ok(n)
            }
            _ => self.expected("an integer"),
        }
    }

    /// An integer in the range of `T`.
    pub(super) fn small<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let before = self.next;
        let n = self.int()?;
        T::try_from(n).or_else(|_| {
            self.next = before;
            self.error(format!("{n} is out of range here"))
        })
    }

    pub(super) fn value_number(&mut self) -> Result<u32> {
        match *self.peek() {
            Token::Value(n) => {
                self.next += 1;
                Ok(n)
            }
            _ => self.expected("a value like `%0`"),
        }
    }

    /// Items separated by commas up to `close`, which is consumed; the opening mark is consumed before.
    pub(super) fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Parser) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            self.mark(',')?;
        }
    }

    /// `[1,2]`.
    pub(super) fn dims(&mut self) -> Result<Dims> {
        self.mark('[')?;
        let items = self.list(']', Parser::int)?;
        if items.len() > MAX_RANK {
            return self.error(format!("more than {MAX_RANK} dimensions"));
        }
        Ok(Dims::from_vec(items))
    }

    /// `[1,0]`, dimension numbers.
    pub(super) fn axes(&mut self) -> Result<smallvec::SmallVec<[u8; 6]>> {
        self.mark('[')?;
        Ok(self.list(']', Parser::small::<u8>)?.into())
    }

    /// `f32[2,3]{1,2}@cuda:0`.
    pub(super) fn ty(&mut self) -> Result<TensorType> {
        let name = self.name()?;
        let Some(dtype) = dtype(&name) else { return self.reject(format!("`{name}` is no element type")) };
        let shape = self.dims()?;
        if shape.iter().any(|&d| d < 0)
            || shape.iter().try_fold(1i64, |n, &d| n.checked_mul(d.max(1))).is_none()
        {
            return self.reject("a size is negative, or the sizes are too large");
        }
        let strides = match self.eat('{') {
            true => Dims::from_vec(self.list('}', Parser::int)?),
            false => row_major(&shape),
        };
        if strides.len() != shape.len() {
            return self.error("as many strides as sizes are needed");
        }
        let device = match *self.peek() == Token::Mark('@') && !matches!(self.ahead(1), Token::Int(_)) {
            true => {
                self.next += 1;
                self.device()?
            }
            false => Device::Cpu,
        };
        Ok(TensorType { dtype, shape, strides, device })
    }

    fn ahead(&self, by: usize) -> &Token {
        self.tokens.get(self.next + by).map_or(&Token::End, |s| &s.token)
    }

    fn device(&mut self) -> Result<Device> {
        let name = self.name()?;
        self.device_named(&name)
    }

    fn device_named(&mut self, name: &str) -> Result<Device> {
        match name {
            "cpu" => Ok(Device::Cpu),
            "cuda" => {
                self.mark(':')?;
                Ok(Device::Cuda(self.small()?))
            }
            other => match other.strip_prefix("device").and_then(|n| n.parse().ok()) {
                Some(n) => Ok(Device::Other(n)),
                None => self.reject(format!("`{other}` is no device")),
            },
        }
    }

    /// The literal of this element kind that `token`, already consumed, spells.
    pub(super) fn literal_from(&mut self, token: Token, elem: Elem) -> Result<Literal> {
        match (token, elem.is_float()) {
            (Token::Float(x), true) => Ok(Literal::float(elem, x)),
            (Token::Int(n), false) => Ok(Literal::int(elem, n)),
            (Token::Name(n), false) if elem == Elem::Bool && (n == "true" || n == "false") => {
                Ok(Literal::int(elem, i64::from(n == "true")))
            }
            (other, _) => self.error(format!("{} is no literal of type {elem}", other.describe())),
        }
    }

    /// An argument of a call; `tensor` reads a value.
    pub(super) fn arg<T>(&mut self, tensor: &mut dyn FnMut(&mut Parser) -> Result<T>) -> Result<Arg<T>> {
        match self.peek().clone() {
            Token::Value(_) => Ok(Arg::Tensor(tensor(self)?)),
            Token::Mark('[') => self.list_arg(tensor),
            Token::Int(n) => self.took(Arg::Int(n)),
            Token::Float(x) => self.took(Arg::Float(x)),
            Token::Str(s) => self.took(Arg::Str(s)),
            Token::Name(n) => {
                self.next += 1;
                self.named_arg(&n, tensor)
            }
            _ => self.expected("an argument"),
        }
    }

    fn took<T>(&mut self, arg: Arg<T>) -> Result<Arg<T>> {
        self.next += 1;
        Ok(arg)
    }

    fn named_arg<T>(
        &mut self,
        name: &str,
        tensor: &mut dyn FnMut(&mut Parser) -> Result<T>,
    ) -> Result<Arg<T>> {
        match name {
            "None" => Ok(Arg::None),
            "true" => Ok(Arg::Bool(true)),
            "false" => Ok(Arg::Bool(false)),
            "other" => Ok(Arg::Other(self.string()?)),
            "tensors" => {
                self.mark('[')?;
                Ok(Arg::Tensors(self.list(']', |p| p.optional(tensor))?))
            }
            "ints" => self.empty(Arg::Ints(Vec::new())),
            "floats" => self.empty(Arg::Floats(Vec::new())),
            "bools" => self.empty(Arg::Bools(Vec::new())),
            other => match dtype(other) {
                Some(found) => Ok(Arg::DType(found)),
                None => self.device_named(other).map(Arg::Device),
            },
        }
    }

    fn empty<T>(&mut self, arg: Arg<T>) -> Result<Arg<T>> {
        self.mark('[')?;
        self.mark(']')?;
        Ok(arg)
    }

    fn optional<T>(&mut self, tensor: &mut dyn FnMut(&mut Parser) -> Result<T>) -> Result<Option<T>> {
        if self.eat_name("None") { Ok(None) } else { tensor(self).map(Some) }
    }

    fn list_arg<T>(&mut self, tensor: &mut dyn FnMut(&mut Parser) -> Result<T>) -> Result<Arg<T>> {
        self.mark('[')?;
        match self.peek().clone() {
            Token::Int(_) => Ok(Arg::Ints(self.list(']', Parser::int)?)),
            Token::Float(_) => Ok(Arg::Floats(self.list(']', Parser::float)?)),
            Token::Name(n) if n == "true" || n == "false" => Ok(Arg::Bools(self.list(']', Parser::truth)?)),
            Token::Value(_) => Ok(Arg::Tensors(self.list(']', |p| p.optional(tensor))?)),
            _ => self.expected("a list element"),
        }
    }

    pub(super) fn float(&mut self) -> Result<f64> {
        match *self.peek() {
            Token::Float(x) => {
                self.next += 1;
                Ok(x)
            }
            _ => self.expected("a floating-point number"),
        }
    }

    fn truth(&mut self) -> Result<bool> {
        match self.name()?.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => self.reject(format!("expected `true` or `false`, found `{other}`")),
        }
    }
}

fn dtype(name: &str) -> Option<DType> {
    if let Some(elem) = Elem::from_name(name) {
        return Some(DType::Elem(elem));
    }
    name.strip_prefix("dtype").and_then(|n| n.parse().ok()).map(DType::Other)
}

/// Dimensions in brackets.
pub(super) fn axes_text(dims: &[u8]) -> String {
    format!("[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

/// A floating-point number that reads back as the same.
pub(super) fn float_text(x: f64) -> String {
    if x.is_nan() { "nan".into() } else { format!("{x:?}") }
}
