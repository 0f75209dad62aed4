//! What atomic operations do with one element.

use crate::data::Data;
use crate::eval;
use crate::program::AtomicFn;
use crate::scalar_fn::ScalarFn;

/// What takes the place of `old`; both are one element. `None` where the function does not take the kind.
pub(super) fn combined(function: AtomicFn, old: &Data, new: &Data) -> Option<Data> {
    let function = match function {
        AtomicFn::Add => ScalarFn::Add,
        AtomicFn::Max => ScalarFn::Max,
        AtomicFn::Min => ScalarFn::Min,
        AtomicFn::And => ScalarFn::And,
        AtomicFn::Or => ScalarFn::Or,
        AtomicFn::Xor => ScalarFn::Xor,
        AtomicFn::Exchange => return Some(new.clone()),
    };
    eval::map(function, &[old, new])
}
