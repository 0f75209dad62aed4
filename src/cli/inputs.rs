//! Inputs of a model: written as `i64[4,128]{0..50257}`, with strides as `f32[4,8](1,4)`, or read from a safetensors file.

use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use tch::{Device, Kind, Tensor};

use super::Failure;

/// Most elements of one input.
const MAX_ELEMENTS: i64 = 1 << 36;

/// One input: element type, sizes, strides where they are not those of a contiguous tensor, and for integers the range of
/// values, its end excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) range: Option<(i64, i64)>,
}

/// What is wrong with the text of an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input {text:?}: {reason}; write it like f32[8,3,224,224], f32[4,8](1,4) or i64[4,128]{{0..50257}}")]
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
    let (strides, rest) = match rest.strip_prefix('(') {
        Some(inner) => {
            let (inner, rest) = inner.split_once(')').ok_or("there is no ) after (")?;
            (Some(numbers(inner, "stride")?), rest.trim())
        }
        None => (None, rest),
    };
    if let Some(strides) = &strides {
        check_strides(&shape, strides)?;
    }
    let range = if rest.is_empty() { None } else { Some(range(rest)?) };
    if range.is_some() && !is_integer(kind) {
        return Err(String::from("only integers take a range"));
    }
    Ok(Spec { kind, shape, strides, range })
}

fn numbers(text: &str, what: &str) -> Result<Vec<i64>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let number = |part: &str| match part.trim().parse::<i64>() {
        Ok(n) if n >= 0 => Ok(n),
        _ => Err(format!("{part:?} is no {what}")),
    };
    text.split(',').map(number).collect()
}

/// Whether strides are of this shape; those of 0 repeat elements.
pub(crate) fn check_strides(shape: &[i64], strides: &[i64]) -> Result<(), String> {
    if shape.len() != strides.len() {
        return Err(format!("{} strides for {} dimensions", strides.len(), shape.len()));
    }
    match extent(shape, strides) {
        Some(n) if n <= MAX_ELEMENTS && strides.iter().all(|&s| s >= 0) => Ok(()),
        _ => Err(format!("strides {strides:?} are negative or too large")),
    }
}

/// Elements from the first to the last.
fn extent(shape: &[i64], strides: &[i64]) -> Option<i64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let far = |sum: i64, (n, s): (&i64, &i64)| sum.checked_add((n - 1).checked_mul(*s)?);
    shape.iter().zip(strides).try_fold(1i64, far)
}

fn sizes(text: &str) -> Result<Vec<i64>, String> {
    let shape = numbers(text, "size")?;
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
        match &self.strides {
            Some(strides) => {
                let flat = self.draw_contiguous(&[extent(&self.shape, strides).unwrap_or(0)], device);
                flat.as_strided(&self.shape, strides, 0)
            }
            None => self.draw_contiguous(&self.shape, device),
        }
    }

    fn draw_contiguous(&self, shape: &[i64], device: Device) -> Tensor {
        let (low, end) = self.range.unwrap_or((0, 2));
        match self.kind {
            Kind::Bool => Tensor::randint_low(0, 2, shape, (Kind::Int64, device)).to_kind(Kind::Bool),
            kind if is_integer(kind) => {
                Tensor::randint_low(low, end, shape, (Kind::Int64, device)).to_kind(kind)
            }
            kind => Tensor::randn(shape, (Kind::Float, device)).to_kind(kind),
        }
    }
}

/// A copy with the same strides and memory of its own, where elements overlap or have gaps between them too.
pub(crate) fn copy(tensor: &Tensor) -> Tensor {
    let (sizes, strides) = (tensor.size(), tensor.stride());
    match extent(&sizes, &strides) {
        Some(n) if n > 0 && n != tensor.numel() as i64 => {
            tensor.as_strided([n], [1], None).copy().as_strided(sizes, strides, 0)
        }
        _ => tensor.copy(),
    }
}

/// Copies with the same strides.
pub(crate) fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(copy).collect()
}

/// The elements of a tensor at other strides.
fn at_strides(tensor: &Tensor, strides: &[i64]) -> Result<Tensor, String> {
    let sizes = tensor.size();
    check_strides(&sizes, strides)?;
    let flat = Tensor::zeros([extent(&sizes, strides).unwrap_or(0)], (tensor.kind(), tensor.device()));
    let mut placed = flat.as_strided(&sizes, strides, 0);
    placed.f_copy_(tensor).map_err(|e| super::one_line(&e.to_string()))?;
    Ok(placed)
}

/// Where the inputs of a case come from.
#[derive(Debug)]
pub(crate) enum Inputs {
    /// Drawn at random.
    Drawn(Vec<Spec>),
    /// Given.
    Given(Vec<Tensor>),
}

impl Clone for Inputs {
    fn clone(&self) -> Inputs {
        match self {
            Inputs::Drawn(specs) => Inputs::Drawn(specs.clone()),
            Inputs::Given(tensors) => Inputs::Given(tensors.iter().map(Tensor::shallow_clone).collect()),
        }
    }
}

impl Inputs {
    /// The tensors of a safetensors file, those of floating-point numbers in the type of the model where one is given.
    pub(crate) fn read(path: &Path, device: Device, dtype: Option<Kind>) -> Result<Inputs, Failure> {
        let convert = |tensor: Tensor| match dtype.filter(|_| tensor.is_floating_point()) {
            Some(kind) => tensor.to_kind(kind),
            None => tensor,
        };
        Ok(Inputs::Given(read_safetensors(path, device)?.into_iter().map(convert).collect()))
    }

    /// The same inputs at these strides, in order; those without stay as they are.
    pub(crate) fn with_strides(self, all: &[Option<Vec<i64>>]) -> Result<Inputs, Failure> {
        let bad = |position: usize, reason: String| {
            Failure::usage(format!("strides of input {position}: {reason}"))
        };
        let count = match &self {
            Inputs::Drawn(specs) => specs.len(),
            Inputs::Given(tensors) => tensors.len(),
        };
        if all.len() > count {
            return Err(bad(count, format!("there are only {count} inputs")));
        }
        let given = all.iter().enumerate().filter_map(|(at, strides)| Some((at, strides.as_deref()?)));
        match self {
            Inputs::Drawn(mut specs) => {
                for (at, strides) in given {
                    let spec = &mut specs[at];
                    check_strides(&spec.shape, strides).map_err(|reason| bad(at, reason))?;
                    spec.strides = Some(strides.to_vec());
                }
                Ok(Inputs::Drawn(specs))
            }
            Inputs::Given(mut tensors) => {
                for (at, strides) in given {
                    tensors[at] = at_strides(&tensors[at], strides).map_err(|reason| bad(at, reason))?;
                }
                Ok(Inputs::Given(tensors))
            }
        }
    }

    /// Inputs of another first dimension: of all that have the one of the first input.
    pub(crate) fn with_batch(&self, batch: i64) -> Result<Inputs, Failure> {
        let Inputs::Drawn(specs) = self else {
            return Err(Failure::usage(String::from("inputs that are given have one batch alone")));
        };
        let first = specs.first().and_then(|spec| spec.shape.first().copied());
        let first =
            first.ok_or_else(|| Failure::usage(String::from("the first input has no first dimension")))?;
        let resized = |spec: &Spec| {
            let mut spec = spec.clone();
            if let Some(size) = spec.shape.first_mut().filter(|size| **size == first) {
                *size = batch;
            }
            // What a contiguous tensor has is what it has at another size.
            spec.strides = spec.strides.filter(|_| spec.shape.first() == Some(&first));
            spec
        };
        Ok(Inputs::Drawn(specs.iter().map(resized).collect()))
    }

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
            Inputs::Given(tensors) => copies(tensors),
        }
    }
}

/// The same elements in another order, at the same strides.
fn shuffled(tensor: &Tensor) -> Tensor {
    let order = Tensor::randperm(tensor.numel() as i64, (Kind::Int64, tensor.device()));
    let other = tensor.flatten(0, -1).index_select(0, &order).reshape(tensor.size());
    let mut placed = copy(tensor);
    placed.copy_(&other);
    placed
}

/// Reads tensors named `0`, `1`, ... from a safetensors file.
fn read_safetensors(path: &Path, device: Device) -> Result<Vec<Tensor>, Failure> {
    let bad = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
    let unread = |e: std::io::Error| Failure::usage(format!("cannot read {}: {e}", path.display()));
    // What libtorch's wrapper says of the system's errors is not for people.
    std::fs::File::open(path).and_then(|mut file| file.read(&mut [0])).map_err(unread)?;
    let named = Tensor::read_safetensors(path).map_err(|e| {
        let text = super::one_line(&e.to_string());
        let reason = text.rsplit(": ").next().unwrap_or_default();
        bad(format!("it is not a safetensors file: {reason}"))
    })?;
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
        let range = Some((0, 50257));
        assert_eq!(spec, Spec { kind: Kind::Int64, shape: vec![4, 128], strides: None, range });
        let spec: Spec = "bf16[]".parse().unwrap();
        assert_eq!(spec, Spec { kind: Kind::BFloat16, shape: vec![], strides: None, range: None });
        let spec: Spec = "i64[4, 128](1, 4){0..50257}".parse().unwrap();
        assert_eq!(spec, Spec { kind: Kind::Int64, shape: vec![4, 128], strides: Some(vec![1, 4]), range });
    }

    #[test]
    fn tensors_are_drawn_and_copied_at_their_strides() {
        for (text, strides) in
            [("f32[3,4](1,3)", [1, 3]), ("f32[3,4](9,2)", [9, 2]), ("i64[3,4](0,1){5..9}", [0, 1])]
        {
            let drawn = text.parse::<Spec>().unwrap().draw(Device::Cpu);
            let copied = copy(&drawn);
            assert_eq!(
                (drawn.size(), drawn.stride(), copied.stride()),
                (vec![3, 4], strides.into(), strides.into())
            );
            assert!(copied.equal(&drawn) && copied.data_ptr() != drawn.data_ptr());
        }
        let given = Inputs::Given(vec![Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3])]);
        let Ok(Inputs::Given(placed)) = given.with_strides(&[Some(vec![2, 5])]) else { panic!() };
        assert_eq!((placed[0].stride(), placed[0].sum(Kind::Float).double_value(&[])), (vec![2, 5], 15.0));
        let captured = Inputs::Given(placed).for_capture(Device::Cpu);
        assert_eq!(
            (captured[0].stride(), captured[0].sum(Kind::Float).double_value(&[])),
            (vec![2, 5], 15.0)
        );
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
            ("f32[2,3](1)", "1 strides for 2 dimensions"),
            ("f32[2](x)", "\"x\" is no stride"),
            ("f32[2](1", "there is no ) after ("),
            ("f32[9,9](9999999999,9999999999)", "strides [9999999999, 9999999999] are negative or too large"),
            ("f32[9999999999,9999999999]", "it has too many elements"),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap_err().reason, reason, "{text}");
        }
    }
}
