//! Data in text form, and comparison with a tolerance.

use tilefuse_block::{Data, Elem, Literal};

/// Elements after their type: `f32 1.5 nan`.
pub(crate) fn data(text: &str) -> Data {
    let mut words = text.split(' ');
    let elem = Elem::from_name(words.next().unwrap()).unwrap();
    let literal = |word: &str| match word {
        "true" => Literal::int(elem, 1),
        "false" => Literal::int(elem, 0),
        _ if elem.is_float() => Literal::float(elem, word.parse().unwrap()),
        _ => Literal::int(elem, word.parse().unwrap()),
    };
    Data::from_literals(elem, words.filter(|w| !w.is_empty()).map(literal))
}

/// Relative tolerance of an element type.
fn tolerance(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => 2e-3,
        Elem::Bf16 => 1.6e-2,
        Elem::F32 => 4e-6,
        Elem::F64 => 1e-11,
        _ => 0.0,
    }
}

fn differs(ours: f64, theirs: f64, elem: Elem) -> bool {
    let tolerance = tolerance(elem);
    if ours.is_nan() || theirs.is_nan() {
        return ours.is_nan() != theirs.is_nan();
    }
    if ours == theirs {
        return false;
    }
    let error = (ours - theirs).abs();
    error.is_nan() || error > tolerance * theirs.abs().max(0.25) || theirs.is_infinite()
}

/// The first element that differs, in words.
pub(crate) fn difference(ours: &Data, theirs: &Data) -> Option<String> {
    if ours.elem() != theirs.elem() || ours.len() != theirs.len() {
        return Some(format!("{}[{}] for {}[{}]", ours.elem(), ours.len(), theirs.elem(), theirs.len()));
    }
    if let (Some(a), Some(b)) = (ours.to_i64(), theirs.to_i64()) {
        return (a != b).then(|| format!("{a:?} for {b:?}"));
    }
    let (a, b) = (ours.to_f64(), theirs.to_f64());
    let at = (0..a.len()).find(|&i| differs(a[i], b[i], theirs.elem()))?;
    Some(format!("element {at}: {} for {}", a[at], b[at]))
}
