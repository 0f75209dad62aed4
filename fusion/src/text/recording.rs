//! Parsing of recordings.

use super::ParseError;
use super::lexer::Token;
use super::syntax::{Parser, Result};
use crate::recording::{Arg, Call, Recording, Source, TensorId, TensorInfo};
use crate::types::DType;

/// Reads the text form of a recording.
///
/// # Errors
/// If the text is not of the form that [`Recording`]'s `Display` prints.
pub fn parse_recording(text: &str) -> std::result::Result<Recording, ParseError> {
    let mut state = State { parser: Parser::new(text)?, recording: Recording::default() };
    state.parser.keyword("recording")?;
    state.parser.mark('{')?;
    while !state.parser.eat('}') {
        state.line()?;
    }
    if *state.parser.peek() != Token::End {
        return state.parser.error("text after the recording");
    }
    Ok(state.recording)
}

struct State {
    parser: Parser,
    recording: Recording,
}

enum Left {
    None,
    Existing(u32),
    New(u32, TensorInfo),
}

impl State {
    fn line(&mut self) -> Result<()> {
        match self.parser.peek().clone() {
            Token::Name(n) if n == "outputs" => {
                self.parser.bump();
                loop {
                    let id = self.existing()?;
                    self.recording.outputs.push(id);
                    if !self.parser.eat(',') {
                        return Ok(());
                    }
                }
            }
            Token::Name(n) if n.contains("::") => {
                self.parser.bump();
                self.call(&n, Vec::new())
            }
            _ => self.definition(),
        }
    }

    fn existing(&mut self) -> Result<TensorId> {
        read_tensor(&mut self.parser, self.recording.tensors.len())
    }

    fn definition(&mut self) -> Result<()> {
        let mut left = vec![self.left()?];
        while self.parser.eat(',') {
            left.push(self.left()?);
        }
        self.parser.mark('=')?;
        let name = self.parser.name()?;
        if name.contains("::") {
            return self.call(&name, left);
        }
        let source = self.source(&name)?;
        let [Left::Existing(number)] = left.as_slice() else {
            return self.parser.error("one value is defined by this");
        };
        let number = *number;
        let value = if self.parser.eat('=') { Some(self.parser.bump()) } else { None };
        self.parser.mark(':')?;
        let info = self.info(number, source.clone())?;
        self.known_value(&source, value, info.ty.dtype)?;
        let id = self.define(number, info)?;
        if let Source::Input(index) = source {
            if index as usize != self.recording.inputs.len() {
                return self.parser.error("inputs are numbered in order");
            }
            self.recording.inputs.push(id);
        }
        Ok(())
    }

    fn known_value(&mut self, source: &Source, value: Option<Token>, dtype: DType) -> Result<()> {
        match (source, value, dtype) {
            (_, None, _) => Ok(()),
            (Source::Const(slot), Some(token), DType::Elem(elem)) => {
                let literal = self.parser.literal_from(token, elem)?;
                self.recording.literals.insert(*slot, literal);
                Ok(())
            }
            _ => self.parser.error("only constants of numbers have values"),
        }
    }

    fn source(&mut self, name: &str) -> Result<Source> {
        match name {
            "input" => Ok(Source::Input(self.parser.small()?)),
            "param" => Ok(Source::Param(self.parser.small()?, self.parser.string()?)),
            "const" => Ok(Source::Const(self.parser.small()?)),
            other => self.parser.reject(format!("`{other}` is no source of a tensor")),
        }
    }

    fn left(&mut self) -> Result<Left> {
        if self.parser.eat_name("_") {
            return Ok(Left::None);
        }
        let number = self.parser.value_number()?;
        if !self.parser.eat(':') {
            return Ok(Left::Existing(number));
        }
        let call = self.recording.calls.len() as u32;
        let info = self.info(number, Source::Call(call))?;
        Ok(Left::New(number, info))
    }

    fn info(&mut self, number: u32, source: Source) -> Result<TensorInfo> {
        let ty = self.parser.ty()?;
        let (mut storage, mut storage_offset) = (u64::from(number), 0);
        if self.parser.eat_name("in") {
            let owner = self.existing()?;
            let owner = &self.recording.tensors[owner.0 as usize];
            (storage, storage_offset) = (owner.storage, owner.storage_offset);
        }
        if self.parser.eat('+') {
            let by = self.parser.int()?;
            storage_offset = storage_offset.saturating_add(by);
        }
        let plain = !self.parser.eat_name("opaque");
        Ok(TensorInfo { ty, source, storage, storage_offset, plain })
    }

    fn define(&mut self, number: u32, info: TensorInfo) -> Result<TensorId> {
        if number as usize != self.recording.tensors.len() {
            return self.parser.error(format!("`%{number}` is not the next number"));
        }
        self.recording.tensors.push(info);
        Ok(TensorId(number))
    }

    fn call(&mut self, name: &str, left: Vec<Left>) -> Result<()> {
        let (op, overload) = name.split_once('.').unwrap_or((name, ""));
        let mut call = Call {
            op: op.to_string(),
            overload: overload.to_string(),
            args: Vec::new(),
            results: Vec::new(),
            writes: Vec::new(),
            random: false,
            replay: self.recording.calls.len() as u32,
        };
        self.args(&mut call)?;
        if self.parser.eat('!') {
            self.parser.keyword("random")?;
            call.random = true;
        }
        for item in left {
            call.results.push(match item {
                Left::None => None,
                Left::New(number, info) => Some(self.define(number, info)?),
                Left::Existing(number) if (number as usize) < self.recording.tensors.len() => {
                    Some(TensorId(number))
                }
                Left::Existing(number) => {
                    return self.parser.error(format!("new tensor `%{number}` needs a type"));
                }
            });
        }
        self.recording.calls.push(call);
        Ok(())
    }

    fn args(&mut self, call: &mut Call) -> Result<()> {
        let known = self.recording.tensors.len();
        self.parser.mark('(')?;
        let mut writes = Vec::new();
        let mut position = 0;
        call.args = self.parser.list(')', |p| {
            let name = p.arg_name()?;
            p.mark('=')?;
            let arg: Arg<TensorId> = p.arg(&mut |p: &mut Parser| {
                let id = read_tensor(p, known)?;
                if p.eat('!') && !writes.contains(&position) {
                    writes.push(position);
                }
                Ok(id)
            })?;
            position += 1;
            Ok((name, arg))
        })?;
        call.writes = writes;
        Ok(())
    }
}

fn read_tensor(parser: &mut Parser, known: usize) -> Result<TensorId> {
    let number = parser.value_number()?;
    if (number as usize) < known {
        return Ok(TensorId(number));
    }
    parser.reject(format!("`%{number}` is not defined above"))
}
