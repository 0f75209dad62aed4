//! Inputs of a model: written as `i64[4,128]{0..50257}`, or read from a safetensors file.

use std::path::Path;
use std::str::FromStr;

use tch::{Device, Kind, Tensor};

use super::Failure;

/// Most elements of one input.
const MAX_ELEMENTS: i64 = 1 << 36;

/// One input: element type, sizes, and for integers the range of values, its end excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<i64>,
    pub(crate) range: Option<(i64, i64)>,
}

/// What is wrong with the text of an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input {text:?}: {reason}; write it like f32[8,3,224,224] or i64[4,128]{{0..50257}}")]
pub(crate) struct SpecError {
    text: String,
    reason: String,
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        parse(text).map_err(|reason| SpecError { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Spec, String> {
    let text = text.trim();
    let open = text.find('[').ok_or("there is no [")?;
    let close = text.find(']').filter(|&c| c > open).ok_or("there is no ] after [")?;
    let kind = kind(&text[..open]).ok_or_else(|| format!("{:?} is no element type", &text[..open]))?;
    let shape = sizes(&text[open + 1..close])?;
    let rest = text[close + 1..].trim();
    let range = if rest.is_empty() { None } else { Some(range(rest)?) };
    if range.is_some() && !is_integer(kind) {
        return Err(String::from("only integers take a range"));
    }
    Ok(Spec { kind, shape, range })
}

fn sizes(text: &str) -> Result<Vec<i64>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let size = |part: &str| match part.trim().parse::<i64>() {
        Ok(n) if n >= 0 => Ok(n),
        _ => Err(format!("{part:?} is no size")),
    };
    let shape = text.split(',').map(size).collect::<Result<Vec<_>, _>>()?;
    let elements = shape.iter().try_fold(1i64, |all, &n| all.checked_mul(n));
    match elements {
        Some(n) if n <= MAX_ELEMENTS => Ok(shape),
        _ => Err(String::from("it has too many elements")),
    }
}

fn range(text: &str) -> Result<(i64, i64), String> {
    let inner =
        text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or("the range must be {low..end}")?;
    let (low, end) = inner.split_once("..").ok_or("the range must be {low..end}")?;
    let number = |t: &str| t.trim().parse::<i64>().map_err(|_| format!("{t:?} is no integer"));
    let (low, end) = (number(low)?, number(end)?);
    if low < end { Ok((low, end)) } else { Err(String::from("the range is empty")) }
}

/// The element type of this name.
pub(crate) fn kind(name: &str) -> Option<Kind> {
    Some(match name.trim() {
        "f32" => Kind::Float,
        "f64" => Kind::Double,
        "f16" => Kind::Half,
        "bf16" => Kind::BFloat16,
        "i64" => Kind::Int64,
        "i32" => Kind::Int,
        "i16" => Kind::Int16,
        "i8" => Kind::Int8,
        "u8" => Kind::Uint8,
        "bool" => Kind::Bool,
        _ => return None,
    })
}

/// The name of an element type.
pub(crate) fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Float => "f32".into(),
        Kind::Double => "f64".into(),
        Kind::Half => "f16".into(),
        Kind::BFloat16 => "bf16".into(),
        Kind::Int64 => "i64".into(),
        Kind::Int => "i32".into(),
        Kind::Bool => "bool".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn is_integer(kind: Kind) -> bool {
    matches!(kind, Kind::Int64 | Kind::Int | Kind::Int16 | Kind::Int8 | Kind::Uint8)
}

impl Spec {
    /// A random tensor: standard normal, uniform over the range (default 0..2), or truth values.
    pub(crate) fn draw(&self, device: Device) -> Tensor {
        let (low, end) = self.range.unwrap_or((0, 2));
        match self.kind {
            Kind::Bool => Tensor::randint_low(0, 2, &self.shape, (Kind::Int64, device)).to_kind(Kind::Bool),
            kind if is_integer(kind) => {
                Tensor::randint_low(low, end, &self.shape, (Kind::Int64, device)).to_kind(kind)
            }
            kind => Tensor::randn(&self.shape, (Kind::Float, device)).to_kind(kind),
        }
    }
}

/// Where the inputs of a case come from.
#[derive(Debug)]
pub(crate) enum Inputs {
    /// Drawn at random.
    Drawn(Vec<Spec>),
    /// Given.
    Given(Vec<Tensor>),
}

impl Inputs {
    /// Tensors to capture on: a draw, or a shuffled copy of the given ones.
    pub(crate) fn for_capture(&self, device: Device) -> Vec<Tensor> {
        match self {
            Inputs::Drawn(specs) => specs.iter().map(|s| s.draw(device)).collect(),
            Inputs::Given(tensors) => tensors.iter().map(shuffled).collect(),
        }
    }

    /// Tensors to judge on: another draw, or the given ones.
    pub(crate) fn for_judging(&self, device: Device) -> Vec<Tensor> {
        match self {
            Inputs::Drawn(_) => self.for_capture(device),
            Inputs::Given(tensors) => tensors.iter().map(Tensor::copy).collect(),
        }
    }
}

/// The same elements in another order.
fn shuffled(tensor: &Tensor) -> Tensor {
    let order = Tensor::randperm(tensor.numel() as i64, (Kind::Int64, tensor.device()));
    tensor.flatten(0, -1).index_select(0, &order).reshape(tensor.size())
}

/// Reads tensors named `0`, `1`, ... from a safetensors file.
pub(crate) fn read_safetensors(path: &Path, device: Device) -> Result<Vec<Tensor>, Failure> {
    let bad = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
    let named = Tensor::read_safetensors(path).map_err(|e| bad(super::one_line(&e.to_string())))?;
    let mut tensors = Vec::new();
    for position in 0..named.len() {
        let name = position.to_string();
        let found = named.iter().find(|(n, _)| *n == name);
        let (_, tensor) =
            found.ok_or_else(|| bad(format!("tensors must be named 0, 1, ...; {name} is missing")))?;
        tensors.push(tensor.to_device(device));
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_parse() {
        let spec: Spec = "i64[4, 128]{0..50257}".parse().unwrap();
        assert_eq!(spec, Spec { kind: Kind::Int64, shape: vec![4, 128], range: Some((0, 50257)) });
        let spec: Spec = "bf16[]".parse().unwrap();
        assert_eq!(spec, Spec { kind: Kind::BFloat16, shape: vec![], range: None });
    }

    #[test]
    fn malformed_specs_say_what_is_wrong() {
        for (text, reason) in [
            ("f32", "there is no ["),
            ("f32[2", "there is no ] after ["),
            ("f33[2]", "\"f33\" is no element type"),
            ("f32[2,-1]", "\"-1\" is no size"),
            ("f32[2,]", "\"\" is no size"),
            ("i64[2]{5..5}", "the range is empty"),
            ("i64[2]{5}", "the range must be {low..end}"),
            ("f32[2]{0..5}", "only integers take a range"),
            ("f32[9999999999,9999999999]", "it has too many elements"),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap_err().reason, reason, "{text}");
        }
    }
}
