//! libtorch's type promotion.
//!
//! Operands fall into three categories: tensors with dimensions, tensors of rank 0, and plain numbers. Within a
//! category types are joined in the lattice; a lower category counts only where its kind (boolean, integer, float)
//! is above the kind of the higher ones. A plain floating-point number has the default type, `f32`.

use tilefuse_block::Elem;

/// How strongly an operand's type counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Category {
    /// A number that is no tensor.
    Number,
    /// A tensor of rank 0.
    ZeroDim,
    /// A tensor with dimensions.
    Dim,
}

/// The type in which operands of these types meet; `None` where there is none (no operands, or unsigned types
/// wider than `u8` with signed ones).
pub(crate) fn promote(operands: &[(Elem, Category)]) -> Option<Elem> {
    let category = |wanted: Category| {
        let mut elems =
            operands.iter().filter(|(_, c)| *c == wanted).map(|&(e, c)| number_type(e, c)).peekable();
        elems.peek()?;
        Some(elems.try_fold(Elem::Bool, join))
    };
    let mut result: Option<Elem> = None;
    for wanted in [Category::Dim, Category::ZeroDim, Category::Number] {
        let Some(found) = category(wanted) else { continue };
        let found = found?;
        result = match result {
            Some(higher) if kind(higher) >= kind(found) => Some(higher),
            _ => Some(found),
        };
    }
    result
}

fn number_type(elem: Elem, category: Category) -> Elem {
    if category == Category::Number && elem.is_float() { Elem::F32 } else { elem }
}

/// Boolean, integer, float.
pub(crate) fn kind(elem: Elem) -> u8 {
    if elem.is_float() { 2 } else { u8::from(elem.is_int()) }
}

/// The smallest type that holds both.
pub(crate) fn join(a: Elem, b: Elem) -> Option<Elem> {
    use Elem::{Bf16, Bool, F16, F32, I16, U8};
    if a == b || b == Bool {
        return Some(a);
    }
    if a == Bool {
        return Some(b);
    }
    match (a.is_float(), b.is_float()) {
        (true, true) if matches!((a, b), (F16, Bf16) | (Bf16, F16)) => Some(F32),
        (true, true) => Some(if a.bits() >= b.bits() { a } else { b }),
        (true, false) => Some(a),
        (false, true) => Some(b),
        (false, false) => match (a.is_signed_int(), b.is_signed_int()) {
            (true, true) => Some(if a.bits() >= b.bits() { a } else { b }),
            (true, false) if b == U8 => Some(if a.bits() > 8 { a } else { I16 }),
            (false, true) if a == U8 => Some(if b.bits() > 8 { b } else { I16 }),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f32`, `f32.` of rank 0, `f64#` a plain number.
    fn operand(text: &str) -> (Elem, Category) {
        let (name, category) = match (text.strip_suffix('.'), text.strip_suffix('#')) {
            (Some(name), _) => (name, Category::ZeroDim),
            (_, Some(name)) => (name, Category::Number),
            _ => (text, Category::Dim),
        };
        (Elem::from_name(name).unwrap(), category)
    }

    #[test]
    fn every_pair_meets_where_it_does_in_libtorch() {
        for line in include_str!("../tests/eager/promotion.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (a, b) = (operand(words[0]), operand(words[1]));
            assert_eq!(promote(&[a, b]), Elem::from_name(words[2]), "{line}");
            assert_eq!(promote(&[b, a]), Elem::from_name(words[2]), "{line}, exchanged");
        }
    }
}
