//! The text of programs:
//!
//! ```text
//! s0 = f32 12 normal
//! s1 = i64 1 data 0200000000000000
//! %0 = input s0 [3, 4] strides [4, 1] offset 0
//! %2 = add.Scalar(%0, 1.5, 1)
//! %3! %4! = max.dim(%0, 1, false)
//! return %2 %3!
//! ```
//!
//! `other` before a call says that the model makes it instead of the one with the same results once its state has changed.
//! `!` marks values that must agree to the bit. `data` is followed by the bytes of the storage; `conj` and `neg` after an
//! input's offset are its bits of that name; `coo` and `csr` say that it is a sparse copy.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tch::Kind;

use super::program::{Input, KINDS, Layout, Named, OpCall, Program, Storage, Values, code_of, kind_of};
use crate::torch::Arg;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, s) in self.storages.iter().enumerate() {
            writeln!(f, "s{at} = {} {} {}", kind_name(s.kind), s.len, s.values)?;
        }
        for i in &self.inputs {
            let role = if i.param { "param" } else { "input" };
            let (id, storage, sizes, strides, offset) = (i.id, i.storage, &i.sizes, &i.strides, i.offset);
            let layout = match i.layout {
                Layout::Strided => "",
                Layout::Coo => " coo",
                Layout::Csr => " csr",
            };
            let bits = [if i.conj { " conj" } else { "" }, if i.neg { " neg" } else { "" }, layout].concat();
            writeln!(f, "%{id} = {role} s{storage} {sizes:?} strides {strides:?} offset {offset}{bits}")?;
        }
        for op in &self.ops {
            writeln!(f, "{}", call_text(op))?;
        }
        if let Some(other) = &self.other {
            writeln!(f, "other {}", call_text(other))?;
        }
        writeln!(f, "return {}", names(&self.outputs))
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Normal => f.write_str("normal"),
            Values::Ints(low, end) => write!(f, "ints {low} {end}"),
            Values::Special => f.write_str("special"),
            Values::Fill(x) => write!(f, "fill {x:?}"),
            Values::Data(bytes) => {
                f.write_str("data ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

fn call_text(op: &OpCall) -> String {
    let args: Vec<String> = op.args.iter().map(arg_text).collect();
    format!("{} = {}({})", names(&op.results), op.name, args.join(", "))
}

fn names(list: &[Named]) -> String {
    list.iter().map(|n| format!("%{}{}", n.id, if n.exact { "!" } else { "" })).collect::<Vec<_>>().join(" ")
}

fn kind_name(kind: Kind) -> &'static str {
    KINDS.iter().find(|k| k.1 == kind).map_or("?", |k| k.0)
}

fn arg_text(arg: &Arg<u32>) -> String {
    match arg {
        Arg::None => String::from("none"),
        Arg::Tensor(id) => format!("%{id}"),
        Arg::Tensors(list) => {
            let items = list.iter().map(|t| t.map_or(String::from("none"), |id| format!("%{id}")));
            format!("{{{}}}", items.collect::<Vec<_>>().join(", "))
        }
        Arg::Bool(b) => b.to_string(),
        Arg::Int(i) => i.to_string(),
        Arg::Float(x) => format!("{x:?}"),
        Arg::Str(s) => format!("{s:?}"),
        Arg::Ints(list) => format!("{list:?}"),
        Arg::Floats(list) => format!("{list:?}"),
        Arg::DType(code) => {
            kind_of(*code).map_or_else(|| format!("dtype{code}"), |k| kind_name(k).to_owned())
        }
        Arg::MemoryFormat(code) => format!("format{code}"),
        Arg::Layout(code) => format!("layout{code}"),
        Arg::Complex(re, im) => format!("complex({re:?}; {im:?})"),
        Arg::Device { kind: 0, .. } => String::from("cpu"),
        Arg::Device { kind: 1, index } => format!("cuda:{index}"),
        other => format!("{other:?}"),
    }
}

/// A line that is no part of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Program, ParseError> {
        let mut program = Program::default();
        for (at, line) in text.lines().enumerate() {
            let line = uncommented(line).trim();
            if !line.is_empty() {
                parse_line(line, &mut program).map_err(|reason| ParseError { line: at + 1, reason })?;
            }
        }
        Ok(program)
    }
}

/// The line before a `#` outside of a string.
fn uncommented(line: &str) -> &str {
    let mut quoted = false;
    let end = line.find(|c: char| {
        quoted ^= c == '"';
        c == '#' && !quoted
    });
    line.get(..end.unwrap_or(line.len())).unwrap_or_default()
}

fn parse_line(line: &str, program: &mut Program) -> Result<(), String> {
    if let Some(rest) = line.strip_prefix("return") {
        program.outputs = parse_names(rest)?;
        return Ok(());
    }
    let (left, right) = line.split_once('=').ok_or("there is no =")?;
    let right = right.trim();
    if left.starts_with('s') {
        program.storages.push(parse_storage(right)?);
    } else if right.starts_with("input ") || right.starts_with("param ") {
        program.inputs.push(parse_input(left, right)?);
    } else if let Some(left) = left.strip_prefix("other ") {
        program.other = Some(parse_call(left, right)?);
    } else {
        program.ops.push(parse_call(left, right)?);
    }
    Ok(())
}

fn parse_call(left: &str, right: &str) -> Result<OpCall, String> {
    let (name, args) =
        right.strip_suffix(')').and_then(|r| r.split_once('(')).ok_or("there are no arguments")?;
    let args = split(args).into_iter().map(parse_arg).collect::<Result<_, _>>()?;
    Ok(OpCall { name: name.to_owned(), args, results: parse_names(left)? })
}

fn parse_names(text: &str) -> Result<Vec<Named>, String> {
    let name = |word: &str| {
        let (word, exact) = word.strip_suffix('!').map_or((word, false), |w| (w, true));
        parse_id(word).map(|id| Named { id, exact })
    };
    text.split_whitespace().map(name).collect()
}

fn parse_id(text: &str) -> Result<u32, String> {
    let digits = text.trim().strip_prefix('%').ok_or_else(|| format!("{text:?} is no value"))?;
    digits.parse().map_err(|_| format!("{text:?} is no value"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no number"))
}

fn parse_kind(text: &str) -> Option<Kind> {
    KINDS.iter().find(|k| k.0 == text).map(|k| k.1)
}

fn parse_storage(text: &str) -> Result<Storage, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [kind, len, values @ ..] = words.as_slice() else {
        return Err(String::from("a storage has a type and a length"));
    };
    let values = match values {
        ["normal"] => Values::Normal,
        ["special"] => Values::Special,
        ["ints", low, end] => Values::Ints(number(low)?, number(end)?),
        ["fill", x] => Values::Fill(number(x)?),
        ["data"] => Values::Data(Arc::default()),
        ["data", hex] => Values::Data(parse_bytes(hex)?),
        _ => return Err(format!("{values:?} are no values")),
    };
    let kind = parse_kind(kind).ok_or_else(|| format!("{kind:?} is no element type"))?;
    Ok(Storage { kind, len: number(len)?, values })
}

fn parse_bytes(hex: &str) -> Result<Arc<[u8]>, String> {
    let digit =
        |c: u8| char::from(c).to_digit(16).map(|d| d as u8).ok_or("the data are no hexadecimal digits");
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(String::from("the data end within a byte"));
    }
    Ok(pairs.iter().map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?)).collect::<Result<_, &str>>()?)
}

fn parse_input(left: &str, right: &str) -> Result<Input, String> {
    let (role, rest) = right.split_once(' ').ok_or("there is no storage")?;
    let (storage, rest) = rest.split_once(' ').ok_or("there are no sizes")?;
    let (sizes, rest) = rest.split_once(" strides ").ok_or("there are no strides")?;
    let (strides, rest) = rest.split_once(" offset ").ok_or("there is no offset")?;
    let (offset, bits) = rest.split_once(' ').unwrap_or((rest, ""));
    let has = |word: &str| bits.split(' ').any(|b| b == word);
    let storage = number(storage.strip_prefix('s').ok_or("there is no storage")?)?;
    let sizes = parse_ints(sizes)?;
    let strides = parse_ints(strides)?;
    if sizes.len() != strides.len() {
        return Err(String::from("there are not as many strides as sizes"));
    }
    Ok(Input {
        id: parse_id(left)?,
        storage,
        param: role == "param",
        sizes,
        strides,
        offset: number(offset)?,
        conj: has("conj"),
        neg: has("neg"),
        layout: if has("coo") {
            Layout::Coo
        } else if has("csr") {
            Layout::Csr
        } else {
            Layout::Strided
        },
    })
}

fn inner(text: &str, open: char, close: char) -> Option<&str> {
    text.trim().strip_prefix(open)?.strip_suffix(close)
}

fn parse_ints(text: &str) -> Result<Vec<i64>, String> {
    let list = inner(text, '[', ']').ok_or_else(|| format!("{text:?} is no list"))?;
    list.split(',').filter(|w| !w.trim().is_empty()).map(number).collect()
}

/// The parts between commas outside of brackets and strings.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start, mut quoted) = (Vec::new(), 0, 0, false);
    for (at, c) in text.char_indices() {
        quoted ^= c == '"';
        match c {
            _ if quoted => {}
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    parts.extend((!last.is_empty()).then_some(last));
    parts
}

fn parse_arg(text: &str) -> Result<Arg<u32>, String> {
    if let Some(list) = inner(text, '{', '}') {
        let item = |word: &str| if word == "none" { Ok(None) } else { parse_id(word).map(Some) };
        return Ok(Arg::Tensors(split(list).into_iter().map(item).collect::<Result<_, _>>()?));
    }
    if let Some(list) = inner(text, '[', ']') {
        let floats = list.contains(['.', 'e', 'n']);
        return Ok(if list.contains(['t', 'l']) {
            let truth = |word: &str| word.trim().parse().map_err(|_| format!("{word:?} is no truth value"));
            Arg::Bools(list.split(',').map(truth).collect::<Result<_, _>>()?)
        } else if floats {
            Arg::Floats(list.split(',').map(number).collect::<Result<_, _>>()?)
        } else {
            Arg::Ints(parse_ints(text)?)
        });
    }
    if let Some(string) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Ok(Arg::Str(string.to_owned()));
    }
    if let Some(kind) = parse_kind(text) {
        return Ok(Arg::DType(code_of(kind)));
    }
    match text {
        "none" => return Ok(Arg::None),
        "true" | "false" => return Ok(Arg::Bool(text == "true")),
        _ if text.starts_with('%') => return parse_id(text).map(Arg::Tensor),
        _ => {}
    }
    if let Some(code) = text.strip_prefix("format") {
        return number(code).map(Arg::MemoryFormat);
    }
    if let Some(code) = text.strip_prefix("dtype") {
        return number(code).map(Arg::DType);
    }
    if let Some(code) = text.strip_prefix("layout") {
        return number(code).map(Arg::Layout);
    }
    if let Some((re, im)) = text.strip_prefix("complex(").and_then(|t| t.strip_suffix(')')?.split_once(';')) {
        return Ok(Arg::Complex(number(re)?, number(im)?));
    }
    if text == "cpu" {
        return Ok(Arg::Device { kind: 0, index: -1 });
    }
    if let Some(index) = text.strip_prefix("cuda:") {
        return Ok(Arg::Device { kind: 1, index: number(index)? });
    }
    text.parse().map(Arg::Int).or_else(|_| number(text).map(Arg::Float))
}
