//! Selects libtorch's operator for attention, however it is spelled.
//!
//! ```text
//! %4 = contract batch[0,1]x[0,1] sum[3]x[3](%q, %k)      ->   %9 = aten::scaled_dot_product_attention(
//! %5 = map mul(%4, 0.125)                                           query=%q, key=%k, value=%v, attn_mask=None,
//! %6 = map select(%m, -inf, %5)                                     dropout_p=0, is_causal=true, scale=0.125)
//! %7 = softmax of %6
//! %9 = contract batch[0,1]x[0,1] sum[3]x[2](%7, %v)
//! ```
//!
//! The scores then stay out of memory. What the operator was lowered to is the same call again, up to the default scale, which is
//! left out, and what broadcasts a mask. What a model wrote out is rewritten where nothing else reads scores or weights and both compute
//! the same. Scores of a row may be -inf throughout, by queries and keys or by what is added to them: the written-out form gives NaN then
//! and libtorch's operator 0, so that there must be a kernel of ours, which gives NaN as well. A mask that replaces scores by a large
//! negative number leaves such a row a mean of all values: it must be known to leave each row something. [`Facts`] says so for masks that
//! no input has a part in. Libtorch's operator is called in the place of what a model wrote out only where the user asks for that, and
//! what is added is known to leave each row something, too.
//!
//! Masks that are added one after the other are added together first, and a factor for each head is one of its queries.
//!
//! A call keeps what it computes as an `AttentionForm`, from which [`crate::choose_products`] may make a kernel instead: what its
//! mask does, which libtorch may do in another way, and which heads share keys and values, though a model repeats these for it.

use std::collections::{HashMap, HashSet};

use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef, View};
use crate::hints::Hints;
use crate::library_form::{AttentionForm, LibraryForm, MaskForm, is_factor, is_scale};
use crate::place::{Alignments, repeated_place, strides_in_base};
use crate::recording::Arg;
use crate::rewrite_limit::Rewrites;
use crate::types::{Device, Dims, TensorType, row_major};
use find::{Broadcast, Found, Mask, MaskOf, Operand, find, is_result};
use tilefuse_block::{Elem, Literal, ScalarFn};

mod find;
#[cfg(test)]
mod tests;

/// What a mask of attention scores, `[..., queries, keys]`, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskFacts {
    /// It excludes just the keys that come after the query, and leaves other scores as they are.
    pub causal: bool,
    /// Each row keeps at least one key.
    pub rows_open: bool,
}

/// How a mask acts on scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// A truth value: true excludes.
    Excludes,
    /// A truth value: true keeps.
    Keeps,
    /// A number that is added.
    Added,
}

/// What the owner of the tensors knows.
pub trait Facts {
    /// What a mask of a primitive graph does, where its value depends on nothing but parameters and constants.
    fn mask(&mut self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<MaskFacts>;

    /// The graph has been rewritten on what [`Facts::mask`] says of a mask: it must stay true of the parameters.
    fn rely(&mut self, mask: ValueRef, kind: MaskKind);

    /// The strides of the result of a call with operands of these types.
    fn result_strides(&mut self, call: &AtenCall, operands: &[TensorType]) -> Option<Dims>;
}

impl<F: Facts + ?Sized> Facts for &mut F {
    fn mask(&mut self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<MaskFacts> {
        (**self).mask(graph, mask, kind)
    }

    fn rely(&mut self, mask: ValueRef, kind: MaskKind) {
        (**self).rely(mask, kind);
    }

    fn result_strides(&mut self, call: &AtenCall, operands: &[TensorType]) -> Option<Dims> {
        (**self).result_strides(call, operands)
    }
}

/// Knows nothing: of written-out attention only that without a mask is recognised, and results are taken to be row-major.
#[derive(Clone, Copy, Debug)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn mask(&mut self, _: &Graph, _: ValueRef, _: MaskKind) -> Option<MaskFacts> {
        None
    }

    fn rely(&mut self, _: ValueRef, _: MaskKind) {}

    fn result_strides(&mut self, _: &AtenCall, _: &[TensorType]) -> Option<Dims> {
        None
    }
}

/// Whether a call may take the place of what a model wrote out, and whether that is so of a kernel of ours alone.
pub(crate) type MayReplace<'a> = dyn Fn(&Graph, NodeId, bool) -> bool + 'a;

/// Attention that a call computes.
struct Selected {
    found: Found,
    /// Sizes of the call's batch.
    batch: Dims,
    /// Queries, keys, elements of keys, elements of values.
    sizes: [i64; 4],
    mask: CallMask,
    /// The mask that the facts are of.
    known: Option<(ValueRef, MaskKind)>,
    /// Whether libtorch's operator may compute another result.
    ours: bool,
}

/// The mask of a call.
enum CallMask {
    None,
    Causal,
    /// Of truth values of which true keeps, or numbers that are added, of one mask or of several.
    Given(Vec<Mask>),
    /// Of truth values of which true excludes.
    Not(Mask),
}

/// Replaces attention in a primitive graph by calls of libtorch, unless hints keep its operators separate; returns how many
/// there are.
pub(crate) fn select_attention(
    graph: &mut Graph,
    alignments: &Alignments,
    (facts, may_replace): (&mut dyn Facts, &MayReplace<'_>),
    rewrites: &Rewrites,
    hints: &mut Hints,
) -> usize {
    let found =
        graph.ids().filter_map(|id| find(graph, id)).filter(|found| is_aligned(graph, found, alignments));
    let found: Vec<Found> = found.filter(|found| found.is_allowed(graph, hints)).collect();
    let mut selected: Vec<Selected> =
        found.into_iter().filter_map(|found| Selected::of(graph, found, facts)).collect();
    drop_what_others_read(graph, &mut selected);
    let mut replaced = HashMap::new();
    let mut count = 0;
    for attention in &selected {
        if !rewrites.is_spent()
            && attention.replace(graph, (facts, may_replace, hints), &mut replaced).is_some()
        {
            rewrites.allow("select-attention");
            if let Some((mask, kind)) = attention.known {
                facts.rely(mask, kind);
            }
            count += 1;
        }
    }
    if !selected.is_empty() {
        graph.remove_unused();
    }
    count
}

/// Leaves what a model wrote out where something beside selected attention reads its scores or weights.
fn drop_what_others_read(graph: &Graph, selected: &mut Vec<Selected>) {
    loop {
        let nodes = |s: &Selected| s.found.inner.iter().copied().chain([s.found.last]).collect::<Vec<_>>();
        let own: HashSet<NodeId> = selected.iter().flat_map(nodes).collect();
        let inside = |&node: &NodeId| {
            !is_result(graph, node) && graph.users(node).iter().all(|(user, _)| own.contains(user))
        };
        let before = selected.len();
        selected.retain(|s| s.found.safe || s.found.inner.iter().all(inside));
        if selected.len() == before {
            return;
        }
    }
}

impl Selected {
    fn of(graph: &Graph, found: Found, facts: &mut dyn Facts) -> Option<Selected> {
        let batch = batch_of(&found)?;
        // Libtorch's fast operators take one of batch and heads.
        let of_more = !found.safe && batch.len() > 2;
        let size = |operand: &Operand, from_end: usize| {
            let dim = *operand.dims.iter().nth_back(from_end)?;
            Some(graph.ty(operand.of_product()).shape[dim])
        };
        let sizes =
            [size(&found.query, 1)?, size(&found.key, 1)?, size(&found.key, 0)?, size(&found.value, 0)?];
        let usable = match found.safe {
            true => is_factor(found.scale, !found.masks.is_empty()) && found.factor.is_none(),
            false => is_scale(found.scale) && is_fast(graph, &found, &sizes),
        };
        if !usable {
            return None;
        }
        let Masked { mask, known, ours } = mask_of(graph, &found, &sizes, facts)?;
        Some(Selected { found, batch, sizes, mask, known, ours: ours || of_more })
    }

    fn replace(
        &self,
        graph: &mut Graph,
        (facts, may_replace, hints): (&mut dyn Facts, &MayReplace<'_>, &mut Hints),
        replaced: &mut HashMap<ValueRef, ValueRef>,
    ) -> Option<()> {
        let Selected { found, batch, sizes: [queries, keys, width, depth], .. } = self;
        let root = self.root(graph)?;
        let with = |rows: &[i64]| -> Dims { batch.iter().chain(rows).copied().collect() };
        let mut few = batch.clone();
        if let (true, Some(heads)) = (found.grouped, few.last_mut()) {
            *heads /= found.batches[0].last()?;
        }
        let origin = graph.node(root).origin;
        let own: Dims = few.iter().chain([keys, width]).copied().collect();
        let values: Dims = few.iter().chain([keys, depth]).copied().collect();
        let mut operands = vec![
            found.query.build(graph, &with(&[*queries, *width]), replaced, origin)?,
            found.key.build(graph, &own, replaced, origin)?,
            found.value.build(graph, &values, replaced, origin)?,
        ];
        if let Some(factor) = &found.factor {
            // Of queries instead of scores.
            let factor = self.spread(graph, factor, replaced, origin)?;
            operands[0] = of_both(graph, ScalarFn::Mul, [operands[0], factor], origin)?;
        }
        if found.safe {
            operands
                .iter_mut()
                .for_each(|value| *value = narrow(graph, *value, graph.node(found.first).origin));
        }
        operands.extend(self.mask(graph, replaced, origin)?);
        let call = self.call(graph, operands.len() > 3);
        let types: Vec<TensorType> = operands.iter().map(|&v| graph.ty(v).clone()).collect();
        let shape = with(&[*queries, *depth]);
        let mut ty = TensorType { strides: row_major(&shape), shape, ..graph.ty(root.into()).clone() };
        let direct = graph.ty(root.into()).shape == ty.shape && is_ordered(&found.result);
        if direct {
            ty.strides.clone_from(&graph.ty(root.into()).strides);
        }
        // What is one operator's has its strides.
        let captured = direct && found.safe && graph.node(found.first).origin == origin;
        if let Some(strides) = if captured { None } else { facts.result_strides(&call, &types) } {
            (strides.len() == ty.rank()).then(|| ty.strides = strides)?;
        }
        let call = call.of(LibraryForm::Attention(self.form(graph, &operands)));
        let node = graph.add(Op::Aten(Box::new(call)), &operands, [ty], origin);
        if !found.safe {
            if !may_replace(graph, node, self.ours) {
                return None;
            }
            graph.node_mut(node).origin = self.describe(graph, hints);
        }
        let result = if direct { node.into() } else { self.arranged(graph, node.into())? };
        graph.replace_uses(root.into(), result);
        replaced.insert(root.into(), result);
        Some(())
    }

    fn call(&self, graph: &Graph, masked: bool) -> AtenCall {
        let found = &self.found;
        let (scale, default) = self.scale(graph);
        let scale = if default && found.safe { Arg::None } else { Arg::Float(scale) };
        let args = [
            ("query", Arg::Tensor(0)),
            ("key", Arg::Tensor(1)),
            ("value", Arg::Tensor(2)),
            ("attn_mask", if masked { Arg::Tensor(3) } else { Arg::None }),
            ("dropout_p", Arg::Float(0.0)),
            ("is_causal", Arg::Bool(matches!(self.mask, CallMask::Causal))),
            ("scale", scale),
            ("enable_gqa", Arg::Bool(found.grouped)),
        ];
        AtenCall::new("aten::scaled_dot_product_attention", "", args)
    }

    /// The factor of scores, and whether it is the operator's own.
    fn scale(&self, graph: &Graph) -> (f64, bool) {
        let elem = graph.ty(self.found.first.into()).dtype.elem().unwrap_or(Elem::F32);
        let default = 1.0 / (self.sizes[2] as f64).sqrt();
        match Literal::float(elem, default) == Literal::float(elem, self.found.scale) {
            true => (default, true),
            false => (self.found.scale, false),
        }
    }

    /// What the call of these operands computes. What a model excludes from scores counts for nothing, whatever it is; libtorch's
    /// operator adds -inf to it, which leaves what is NaN.
    fn form(&self, graph: &Graph, operands: &[ValueRef]) -> AttentionForm {
        let mask = self.found.masks.first().filter(|_| operands.len() > 3);
        let mask = mask.map(|mask| match mask.kind {
            MaskOf::Replaces(..) | MaskOf::Causal(_) => MaskForm::Keeps,
            MaskOf::Opens => MaskForm::Opens,
            MaskOf::Added => MaskForm::Added,
        });
        AttentionForm {
            query: 0,
            key: 1,
            value: 2,
            scale: self.scale(graph).0,
            causal: matches!(self.mask, CallMask::Causal),
            mask: mask.map(|mask| (3, mask)),
            shared: self.shared(graph, operands).unwrap_or(1),
            safe: self.found.safe,
        }
    }

    /// How many heads of queries share keys and values, which a model may have repeated for them.
    fn shared(&self, graph: &Graph, operands: &[ValueRef]) -> Option<i64> {
        if self.found.grouped {
            return self.found.batches[0].last().copied();
        }
        let &[query, key, value, ..] = operands else { return None };
        let heads = |value: ValueRef| graph.ty(value).shape.iter().nth_back(2).copied();
        let many = heads(query).filter(|&many| heads(key) == Some(many) && heads(value) == Some(many))?;
        let repeated =
            |v: ValueRef, shared: i64| repeated_place(graph, v, graph.ty(v).rank() - 3, shared).is_some();
        // As few heads as there are.
        let shared = (2..=many).rev().filter(|n| many % n == 0);
        shared.into_iter().find(|&n| repeated(key, n) && repeated(value, n))
    }

    /// The last node of it: the product of weights and values, the rounding of that, or what brings it into the call's shape.
    fn root(&self, graph: &Graph) -> Option<NodeId> {
        let only = |node: NodeId| match &graph.users(node)[..] {
            &[(user, _)] if !is_result(graph, node) => Some(user),
            _ => None,
        };
        let elem = graph.ty(self.found.value.value).dtype;
        let mut root = self.found.last;
        if graph.ty(root.into()).dtype != elem {
            let rounds =
                |&user: &NodeId| graph.node(user).op == Op::Cast && graph.ty(user.into()).dtype == elem;
            root = only(root).filter(rounds)?;
        }
        let shape = &graph.ty(root.into()).shape;
        let rows = [self.sizes[0], self.sizes[3]];
        let whole = self.batch.iter().chain(&rows);
        if is_ordered(&self.found.result) && !shape.iter().eq(whole.clone()) {
            let is_whole = |&user: &NodeId| {
                graph.node(user).op == Op::View(View::Reshape)
                    && graph.ty(user.into()).shape.iter().eq(whole.clone())
            };
            root = only(root).filter(is_whole).unwrap_or(root);
        }
        Some(root)
    }

    /// The result of a call, in the shape and order of the last product's.
    fn arranged(&self, graph: &mut Graph, call: ValueRef) -> Option<ValueRef> {
        let origin = graph.node(call.node).origin;
        let axes: Dims =
            self.found.batches[0].iter().chain([&self.sizes[0], &self.sizes[3]]).copied().collect();
        let value = reshaped(graph, call, &axes, origin)?;
        let mut order = vec![0; axes.len()];
        for (axis, &dim) in self.found.result.iter().enumerate() {
            *order.get_mut(dim)? = axis;
        }
        Some(permuted(graph, value, &order, origin))
    }

    /// The operand that is the mask.
    fn mask(
        &self,
        graph: &mut Graph,
        replaced: &HashMap<ValueRef, ValueRef>,
        origin: Option<u32>,
    ) -> Option<Option<ValueRef>> {
        let spread = |graph: &mut Graph, mask: &Mask| self.spread(graph, &mask.of, replaced, origin);
        match &self.mask {
            CallMask::None | CallMask::Causal => Some(None),
            CallMask::Given(masks) => {
                let mut sum = None;
                // In the order in which they were added.
                for mask in masks.iter().rev() {
                    let value = spread(graph, mask)?;
                    sum = Some(match sum {
                        Some(sum) => of_both(graph, ScalarFn::Add, [sum, value], origin)?,
                        None => value,
                    });
                }
                Some(sum)
            }
            CallMask::Not(mask) => {
                let value = spread(graph, mask)?;
                let ty = graph.ty(value);
                let ty = TensorType::contiguous(ty.dtype, &ty.shape, ty.device);
                Some(Some(graph.add(Op::Map(ScalarFn::Not), &[value], [ty], origin).into()))
            }
        }
    }

    /// What broadcasts to scores with the dimensions of the call's scores, from the last one on.
    fn spread(
        &self,
        graph: &mut Graph,
        mask: &Broadcast,
        replaced: &HashMap<ValueRef, ValueRef>,
        origin: Option<u32>,
    ) -> Option<ValueRef> {
        let value = replaced.get(&mask.value).copied().unwrap_or(mask.value);
        let shape = graph.ty(value).shape.clone();
        let whole = self.found.safe || shape.len() == mask.dims.len();
        if is_ordered(&mask.dims) && (shape.len() == 2 || whole && mask.batch == self.batch) {
            return Some(value);
        }
        let mut whole = Dims::from_elem(1, mask.dims.len().checked_sub(shape.len())?);
        whole.extend_from_slice(&shape);
        let value = reshaped(graph, value, &whole, origin)?;
        let value = permuted(graph, value, &mask.dims, origin);
        let shape = graph.ty(value).shape.clone();
        let (own, matrix) = shape.split_last_chunk::<2>()?;
        let (before, batch) = regrouped(own, &mask.batch, &self.batch)?;
        let with = |batch: &[i64]| -> Dims { batch.iter().chain(matrix).copied().collect() };
        let value = expanded(graph, value, &with(&before), origin);
        reshaped(graph, value, &with(&batch), origin)
    }

    /// A new origin that names the operators from the first product to the last.
    fn describe(&self, graph: &mut Graph, hints: &mut Hints) -> Option<u32> {
        let (first, last) = (graph.origin(self.found.first)?, graph.origin(self.found.last)?);
        let text = format!("attention ({first} .. {last})");
        let origin = graph.add_origin(text);
        hints.derive(origin, &self.found.origins(graph).collect::<Vec<_>>());
        Some(origin)
    }
}

/// Sizes of the batch of the call: those of the operator that it is, else batch and heads, which are what fast operators take.
fn batch_of(found: &Found) -> Option<Dims> {
    let mut own = found.batches.first()?.clone();
    if found.grouped {
        let shared = own.pop()?;
        *own.last_mut()? *= shared;
    }
    let as_it_is = |batch: &Dims| *batch == own || *batch == found.batches[0];
    if found.batches.iter().all(as_it_is) && (found.safe || own.len() >= 2) {
        return Some(own);
    }
    let mut pairs = found.batches.iter().filter(|batch| batch.len() == 2);
    match pairs.next() {
        _ if found.grouped => None,
        Some(batch) => pairs.all(|other| other == batch).then(|| batch.clone()),
        None if own.len() < 2 => {
            (own.len()..2).for_each(|_| own.insert(0, 1));
            Some(own)
        }
        None => None,
    }
}

/// Whether libtorch has a fast operator for attention of these sizes.
fn is_fast(graph: &Graph, found: &Found, &[queries, keys, width, depth]: &[i64; 4]) -> bool {
    let ty = graph.ty(found.value.value);
    let half = matches!(ty.dtype.elem(), Some(Elem::F16 | Elem::Bf16));
    let kind = match (ty.device, ty.dtype.elem()) {
        (Device::Cpu, Some(Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16)) => true,
        (Device::Cuda(_), Some(Elem::F32 | Elem::Bf16 | Elem::F16)) => {
            width % 8 == 0 && width <= 256 && (half || !found.grouped)
        }
        _ => false,
    };
    let rows = |operand: &Operand| {
        let strides = &graph.ty(operand.of_product()).strides;
        operand.dims.last().is_some_and(|&d| strides[d] == 1)
    };
    // libtorch broadcasts a mask over keys by a stride of 0, which its kernels for a GPU refuse.
    let keys_of = |mask: &Mask| {
        let shape = &graph.ty(mask.of.value).shape;
        let own = mask.of.dims.last()?.checked_sub(mask.of.dims.len().checked_sub(shape.len())?);
        Some(own.map_or(1, |d| shape[d]))
    };
    let one_for_keys = matches!(ty.device, Device::Cuda(_))
        && keys != 1
        && found.masks.iter().any(|mask| keys_of(mask) == Some(1));
    let members: i64 = found.batches[0].iter().product();
    let full = [members, queries, keys, width].iter().all(|&n| n > 0);
    let operands = [&found.query, &found.key, &found.value];
    kind && full && !one_for_keys && width == depth && operands.into_iter().all(rows)
}

/// Whether the memory of all operands is aligned as libtorch's kernels for a GPU need it to be: at 16 bytes, each row of them,
/// where rows are whole vectors. They check rows, and fail; the first element they do not check.
fn is_aligned(graph: &Graph, found: &Found, alignments: &Alignments) -> bool {
    let Device::Cuda(_) = graph.ty(found.value.value).device else { return true };
    let operands = [&found.query, &found.key, &found.value];
    let in_vectors = |operand: &Operand| {
        let ty = graph.ty(operand.of_product());
        let bytes = ty.dtype.elem().map_or(1, |elem| elem.bytes() as i64);
        operand.dims.last().is_none_or(|&d| ty.shape[d] * bytes % 16 == 0)
    };
    if !operands.iter().any(|operand| in_vectors(operand)) {
        return true;
    }
    let rows = |operand: &Operand| {
        let value = operand.of_product();
        let ty = graph.ty(value);
        let bytes = ty.dtype.elem().map_or(1, |elem| elem.bytes() as i64);
        let aligned = |strides: &Dims| {
            let outer = operand.dims.iter().rev().skip(1).enumerate();
            outer.filter(|&(i, &d)| i == 0 || ty.shape[d] > 1).all(|(_, &d)| strides[d] * bytes % 16 == 0)
        };
        // The call may get what this is a view of.
        aligned(&ty.strides) && strides_in_base(graph, value).is_none_or(|strides| aligned(&strides))
    };
    // A factor between them is the call's: it gets the views of the product's operand, of what lies before the factor.
    let ends = |operand: &Operand| [operand.of_product(), operand.value];
    let values = operands.into_iter().flat_map(ends).chain(found.masks.iter().map(|mask| mask.of.value));
    // libtorch leaves others to matrix products.
    let of_kernels = |operand: &Operand| {
        let ty = graph.ty(operand.of_product());
        let neighbours = operand.dims.last().is_none_or(|&d| ty.strides[d] == 1);
        in_vectors(operand) && neighbours && ty.dtype.elem() != Some(Elem::F64)
    };
    let in_kernels = operands.iter().all(|operand| of_kernels(operand));
    (!in_kernels || operands.into_iter().all(rows))
        && values.into_iter().all(|value| alignments.of_view(graph, value) >= 16)
}

/// A mask of a call, what was asked of the facts, and whether libtorch's operator may compute another result.
struct Masked {
    mask: CallMask,
    known: Option<(ValueRef, MaskKind)>,
    ours: bool,
}

/// The mask of the call; `None` where there is one that it cannot have.
fn mask_of(graph: &Graph, found: &Found, sizes: &[i64; 4], facts: &mut dyn Facts) -> Option<Masked> {
    let sure = |mask: CallMask| Masked { mask, known: None, ours: false };
    let Some(mask) = found.masks.first() else { return Some(sure(CallMask::None)) };
    let square = sizes[0] == sizes[1];
    let (kind, hides) = match mask.kind {
        MaskOf::Added => (MaskKind::Added, true),
        MaskOf::Opens => (MaskKind::Keeps, true),
        MaskOf::Replaces(true, fill) => (MaskKind::Excludes, fill <= highest_excluded(mask.elem)),
        MaskOf::Replaces(false, fill) => (MaskKind::Keeps, fill <= highest_excluded(mask.elem)),
        MaskOf::Causal(fill) => {
            let hides = fill == f64::NEG_INFINITY || !found.safe && fill <= highest_excluded(mask.elem);
            return (hides && (found.safe || square)).then(|| sure(CallMask::Causal));
        }
    };
    let given = || match kind {
        MaskKind::Excludes => CallMask::Not(mask.clone()),
        _ => CallMask::Given(found.masks.clone()),
    };
    if found.safe {
        let infinite = !matches!(mask.kind, MaskOf::Replaces(_, fill) if fill != f64::NEG_INFINITY);
        return (infinite && found.masks.len() == 1).then(|| sure(given()));
    }
    let elem = graph.ty(found.value.value).dtype;
    let typed = |mask: &Mask| mask.kind != MaskOf::Added || graph.ty(mask.of.value).dtype == elem;
    let typed = found.masks.iter().all(typed);
    let one = found.masks.len() == 1 && hides && is_ordered(&mask.of.dims);
    let known = if one { facts.mask(graph, mask.of.value, kind) } else { None };
    let whole = graph.ty(mask.of.value).shape.ends_with(&sizes[..2]);
    let mask_of_call = match known {
        Some(MaskFacts { causal: true, .. }) if square && whole => CallMask::Causal,
        Some(MaskFacts { rows_open: true, .. }) if typed => given(),
        // What is added to scores is no more than that: rows that are -inf throughout are NaN.
        _ if typed && matches!(mask.kind, MaskOf::Added | MaskOf::Opens) => {
            return Some(Masked { mask: given(), known: None, ours: true });
        }
        _ => return None,
    };
    Some(Masked { mask: mask_of_call, known: Some((mask.of.value, kind)), ours: false })
}

/// The highest score that has no weight beside one that is not excluded.
pub fn highest_excluded(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => -65504.0,
        _ => -1e30,
    }
}

/// The operand of a call that views of this origin broadcast along the batch.
fn narrow(graph: &Graph, value: ValueRef, origin: Option<u32>) -> ValueRef {
    let step = |value: ValueRef, view: View| {
        let node = graph.node(value.node);
        let of = graph.operands(value.node).first().copied();
        of.filter(|_| node.op == Op::View(view) && node.origin == origin)
    };
    let matrix = |value: ValueRef| graph.ty(value).shape.iter().rev().take(2).copied().collect::<Vec<_>>();
    let mut found = value;
    if let Some(of) = step(found, View::Expand).filter(|&of| matrix(of) == matrix(value)) {
        found = of;
    }
    let shape = &graph.ty(found).shape;
    let ones = |&of: &ValueRef| {
        let own = &graph.ty(of).shape;
        let lead = shape.len().checked_sub(own.len());
        own.len() >= 2
            && lead.is_some_and(|n| n > 0 && shape[..n].iter().all(|&n| n == 1))
            && shape.ends_with(own)
    };
    step(found, View::Reshape).filter(ones).unwrap_or(found)
}

fn is_ordered(dims: &[usize]) -> bool {
    dims.iter().copied().eq(0..dims.len())
}

impl Operand {
    /// The value that the product takes.
    fn of_product(&self) -> ValueRef {
        self.views.first().map_or(self.value, |&view| view.into())
    }

    /// The operand of a call, of this shape.
    fn build(
        &self,
        graph: &mut Graph,
        shape: &[i64],
        replaced: &HashMap<ValueRef, ValueRef>,
        origin: Option<u32>,
    ) -> Option<ValueRef> {
        let mut value = replaced.get(&self.value).copied().unwrap_or(self.value);
        let mut order: Vec<usize> = (0..graph.ty(value).rank()).collect();
        for &view in self.views.iter().rev() {
            let Op::View(View::Permute(perm)) = &graph.node(view).op else { return None };
            order = perm.iter().map(|&d| order[usize::from(d)]).collect();
        }
        let order: Vec<usize> = self.dims.iter().map(|&d| order[d]).collect();
        value = permuted(graph, value, &order, origin);
        reshaped(graph, value, shape, origin)
    }
}

/// A value with its dimensions in another order.
fn permuted(graph: &mut Graph, value: ValueRef, order: &[usize], origin: Option<u32>) -> ValueRef {
    if is_ordered(order) {
        return value;
    }
    let ty = graph.ty(value).clone();
    let picked = |dims: &[i64]| order.iter().map(|&d| dims[d]).collect();
    let ty = TensorType { shape: picked(&ty.shape), strides: picked(&ty.strides), ..ty };
    let view = View::Permute(order.iter().map(|&d| d as u8).collect());
    graph.add(Op::View(view), &[value], [ty], origin).into()
}

/// What a mask's batch of these sizes, which broadcasts to `from`, is expanded to, and what that is then as a batch that broadcasts to `to`:
/// dimensions that `to` splits or joins are whole or 1, all of them.
fn regrouped(own: &[i64], from: &[i64], to: &[i64]) -> Option<(Dims, Dims)> {
    if own.iter().all(|&n| n == 1) {
        return Some((Dims::from_slice(own), Dims::from_elem(1, to.len())));
    }
    let (mut before, mut batch) = (Dims::new(), Dims::new());
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        // As few dimensions as have one product.
        let (start, first) = (i, j);
        let (mut left, mut right) = (1, 1);
        while i == start || j == first || left != right {
            if left <= right && i < from.len() {
                left *= from[i];
                i += 1;
            } else {
                right *= to.get(j)?;
                j += 1;
            }
        }
        let same = own.get(start..i)?.iter().all(|&n| n == 1);
        before.extend_from_slice(if same { &own[start..i] } else { &from[start..i] });
        batch.extend(to[first..j].iter().map(|&n| if same { 1 } else { n }));
    }
    Some((before, batch))
}

/// A value whose dimensions of size 1 are repeated.
fn expanded(graph: &mut Graph, value: ValueRef, shape: &[i64], origin: Option<u32>) -> ValueRef {
    let ty = graph.ty(value).clone();
    if ty.shape[..] == *shape {
        return value;
    }
    let strides = ty.strides.iter().zip(ty.shape.iter().zip(shape));
    let strides = strides.map(|(&stride, (own, n))| if own == n { stride } else { 0 }).collect();
    let ty = TensorType { shape: Dims::from_slice(shape), strides, ..ty };
    graph.add(Op::View(View::Expand), &[value], [ty], origin).into()
}

/// A function of two values, which broadcast to each other.
fn of_both(
    graph: &mut Graph,
    function: ScalarFn,
    mut values: [ValueRef; 2],
    origin: Option<u32>,
) -> Option<ValueRef> {
    let rank = values.iter().map(|&value| graph.ty(value).rank()).max()?;
    for value in &mut values {
        let shape = &graph.ty(*value).shape;
        let whole: Dims = std::iter::repeat_n(1, rank - shape.len()).chain(shape.iter().copied()).collect();
        *value = reshaped(graph, *value, &whole, origin)?;
    }
    let [a, b] = values.map(|value| graph.ty(value).shape.clone());
    let shape: Dims = a.iter().zip(&b).map(|(&a, &b)| a.max(b)).collect();
    let values = values.map(|value| expanded(graph, value, &shape, origin));
    let ty = graph.ty(values[0]);
    let ty = TensorType::contiguous(ty.dtype, &shape, ty.device);
    Some(graph.add(Op::Map(function), &values, [ty], origin).into())
}

/// A value in another shape, or what is in this shape before it is brought into the value's.
fn reshaped(graph: &mut Graph, value: ValueRef, shape: &[i64], origin: Option<u32>) -> Option<ValueRef> {
    let ty = graph.ty(value);
    if ty.shape[..] == *shape {
        return Some(value);
    }
    if let (Op::View(View::Reshape), Some(&of)) =
        (&graph.node(value.node).op, graph.operands(value.node).first())
        && graph.ty(of).shape[..] == *shape
    {
        return Some(of);
    }
    if ty.numel() != shape.iter().product::<i64>() {
        return None;
    }
    let contiguous = TensorType::contiguous(ty.dtype, shape, ty.device);
    let node = graph.add(Op::View(View::Reshape), &[value], [contiguous.clone()], origin);
    // The strides at which it lies, where it needs no copy.
    if let Some(mut strides) = repeated_place(graph, node.into(), 0, 1).map(|place| place.strides) {
        let single = (0..shape.len()).filter(|&d| shape[d] == 1);
        single.for_each(|d| strides[d] = contiguous.strides[d]);
        graph.node_mut(node).outs[0].strides = strides;
    }
    Some(node.into())
}
