//! Conversions and copies.

use super::cx::{Call, Cx};
use super::registry::Registry;
use crate::graph::ValueRef;

pub(super) fn register(r: &mut Registry) {
    r.one(
        &[
            "to",
            "_to_copy",
            "type_as",
            "contiguous",
            "clone",
            "alias",
            "detach",
            "lift_fresh",
            "positive",
            "resolve_conj",
            "resolve_neg",
            "real",
        ],
        convert,
    );
    r.one(&["copy"], copy);
}

/// The result's element type says it all; the device is the same, and the layout is in the recorded strides.
fn convert(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    cx.cast(call.tensor("self")?, call.elem()?)
}

/// `copy(self, src)`: `src` in the type and shape of `self`.
fn copy(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let value = cx.cast(call.tensor("src")?, call.elem()?)?;
    cx.broadcast(value, &call.out().shape)
}
