//! Attention in a primitive graph, however it is spelled.
//!
//! From the product of weights and values up to the product of queries and keys: the axes of scores (those of the batch,
//! queries, keys) are followed through views and casts, softmax and what is done to scores.

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ScalarFn};

use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::hints::Hints;
use crate::rewrite::simplify::known;
use crate::rewrite::softmax::{Softmax, softmax};
use crate::types::Dims;

/// Attention, as it was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The product of weights and values.
    pub(super) last: NodeId,
    /// The product of queries and keys.
    pub(super) first: NodeId,
    /// Queries: their batch, rows, elements.
    pub(super) query: Operand,
    /// Keys: their batch, rows, elements.
    pub(super) key: Operand,
    /// Values: their batch, rows, elements.
    pub(super) value: Operand,
    /// The dimension of the last product's result for each axis: of the batch, queries, elements of values.
    pub(super) result: Vec<usize>,
    /// The factor of scores.
    pub(super) scale: f64,
    /// A factor that is the same for all scores of a member of the batch.
    pub(super) factor: Option<Broadcast>,
    /// What is done to scores, the last first. Of several, all are added.
    pub(super) masks: Vec<Mask>,
    /// Whether rows that are -inf throughout give 0.
    pub(super) safe: bool,
    /// Sizes of the batch wherever scores are looked at, beginning at the last product. All have one product.
    pub(super) batches: Vec<Dims>,
    /// Whether heads of queries share keys and values: these have all axes of the batch but the last one.
    pub(super) grouped: bool,
    /// Nodes behind the operands and the mask, but for those that follow the last product.
    pub(super) inner: Vec<NodeId>,
}

impl Found {
    /// The captured calls that it is made of, those of its products at the ends.
    pub(super) fn origins<'g>(&'g self, graph: &'g Graph) -> impl Iterator<Item = Option<u32>> + 'g {
        let nodes = [self.first].into_iter().chain(self.inner.iter().copied()).chain([self.last]);
        nodes.map(|node| graph.node(node).origin)
    }

    /// Whether hints let all of it be one operator.
    pub(super) fn is_allowed(&self, graph: &Graph, hints: &Hints) -> bool {
        let first = graph.node(self.first).origin;
        self.origins(graph).all(|origin| hints.allow(first, origin))
    }
}

/// An operand of a product.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) value: ValueRef,
    /// Views between the value and the product, the first one last.
    pub(super) views: Vec<NodeId>,
    /// The product's dimension for each axis.
    pub(super) dims: Vec<usize>,
}

/// What broadcasts to scores somewhere between the products.
#[derive(Clone, Debug)]
pub(super) struct Broadcast {
    pub(super) value: ValueRef,
    /// The dimension of scores there for each axis.
    pub(super) dims: Vec<usize>,
    /// Sizes of the batch there.
    pub(super) batch: Dims,
}

/// What is done to scores by position.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    pub(super) kind: MaskOf,
    pub(super) of: Broadcast,
    /// The type of scores where it is applied.
    pub(super) elem: Elem,
}

/// How a mask acts on scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MaskOf {
    /// They are replaced by a number where it is this.
    Replaces(bool, f64),
    /// They are replaced by a number where a key comes after the query.
    Causal(f64),
    /// It is added.
    Added,
    /// -inf is added where it is false.
    Opens,
}

/// The attention whose last product is a node.
pub(super) fn find(graph: &Graph, last: NodeId) -> Option<Found> {
    let Op::Contract(pairs) = &graph.node(last).op else { return None };
    (0..2).find_map(|side| Walk::new(graph, last, pairs, side)?.found())
}

#[derive(Clone)]
struct Walk<'g> {
    graph: &'g Graph,
    last: NodeId,
    /// The type of queries, keys, values.
    elem: Elem,
    value: Operand,
    result: Vec<usize>,
    shared: usize,
    /// Where the walk begins.
    weights: ValueRef,
    /// The dimension of the value that is looked at for each axis.
    dims: Vec<usize>,
    /// Sizes of the batch there and before.
    batches: Vec<Dims>,
    scale: f64,
    factor: Option<Broadcast>,
    masks: Vec<Mask>,
    safe: bool,
    inner: Vec<NodeId>,
}

/// The pairs of a contraction along one dimension.
struct Sides {
    /// Dimensions of either operand that are the batch.
    batch: [Vec<usize>; 2],
    /// The dimension of either operand that is summed.
    sum: [usize; 2],
}

impl Sides {
    fn new(pairs: &Contraction) -> Option<Sides> {
        let &[(left, right)] = &pairs.sum[..] else { return None };
        let of = |operand: usize, (l, r): (u8, u8)| usize::from([l, r][operand]);
        let batch = [0, 1].map(|operand| pairs.batch.iter().map(|&pair| of(operand, pair)).collect());
        Some(Sides { batch, sum: [0, 1].map(|operand| of(operand, (left, right))) })
    }
}

impl<'g> Walk<'g> {
    /// At the weights of a product, its operand of this number.
    fn new(graph: &'g Graph, last: NodeId, pairs: &Contraction, rows: usize) -> Option<Walk<'g>> {
        let sides = Sides::new(pairs)?;
        let operands = graph.operands(last);
        let (weights, value) = (*operands.get(rows)?, *operands.get(1 - rows)?);
        let rank = |value: ValueRef| graph.ty(value).rank();
        let others = |operand: usize, value: ValueRef| pairs.others(operand, rank(value));
        let &[depth] = &others(1 - rows, value)[..] else { return None };
        let own: SmallVec<[usize; 4]> = others(rows, weights).iter().map(|&d| usize::from(d)).collect();
        if own.is_empty() {
            return None;
        }
        let dims: Vec<usize> = [&sides.batch[rows][..], &own, &[sides.sum[rows]]].concat();
        let batch = (0..dims.len() - 2).map(|axis| graph.ty(weights).shape[dims[axis]]).collect();
        // The result's dimensions are those of the batch, of the left and of the right operand.
        let (shared, own) = (pairs.batch.len(), own.len());
        let rows_at = if rows == 0 { shared } else { shared + 1 };
        let depth_at = if rows == 0 { shared + own } else { shared };
        let result = (0..shared).chain(rows_at..rows_at + own).chain([depth_at]).collect();
        let value_dims = [&sides.batch[1 - rows][..], &[sides.sum[1 - rows], usize::from(depth)]].concat();
        Some(Walk {
            graph,
            last,
            elem: graph.ty(value).dtype.elem().filter(|elem| elem.is_float())?,
            value: Operand { value, views: Vec::new(), dims: value_dims },
            result,
            shared,
            weights,
            dims,
            batches: vec![batch],
            scale: 1.0,
            factor: None,
            masks: Vec::new(),
            safe: false,
            inner: Vec::new(),
        })
    }

    fn found(mut self) -> Option<Found> {
        let weights = self.through(self.weights)?;
        let scores = self.softmax(weights)?;
        let (walk, first) = self.scores(scores)?;
        walk.ends(first)
    }

    /// With the product of queries and keys found.
    fn ends(mut self, first: NodeId) -> Option<Found> {
        let Op::Contract(pairs) = &self.graph.node(first).op else { return None };
        let operands = self.graph.operands(first);
        let &[lhs, rhs] = &operands[..] else { return None };
        let batch = pairs.batch.len();
        let others = [lhs, rhs].map(|v| self.graph.ty(v).rank());
        let others = [0, 1].map(|operand| pairs.others(operand, others[operand]));
        // Which operand has a dimension of the result alone, and which dimension it is there.
        let place = |dim: usize| {
            let at = dim.checked_sub(batch)?;
            let left = others[0].get(at).map(|&d| (0, usize::from(d)));
            left.or_else(|| Some((1, usize::from(*others[1].get(at - others[0].len())?))))
        };
        let (&keys, axes) = self.dims.split_last()?;
        let (&queries, axes) = axes.split_last()?;
        let ((rows, query), (side, key)) = (place(queries)?, place(keys)?);
        let sides = Sides::new(pairs)?;
        let (mut query_dims, mut key_dims) = (Vec::new(), Vec::new());
        for (axis, &dim) in axes.iter().enumerate() {
            match place(dim) {
                None if axis == key_dims.len() => {
                    query_dims.push(sides.batch[rows][dim]);
                    key_dims.push(sides.batch[1 - rows][dim]);
                }
                Some((side, dim)) if side == rows => query_dims.push(dim),
                _ => return None,
            }
        }
        query_dims.extend([query, sides.sum[rows]]);
        key_dims.extend([key, sides.sum[1 - rows]]);
        let typed = |v: &ValueRef| self.graph.ty(*v).dtype.elem() == Some(self.elem);
        // Axes that queries have alone.
        let alone = [self.batches.first()?.len() - self.shared, axes.len() + 2 - key_dims.len()];
        let same = self.batches.first() == self.batches.last();
        let fits = side == 1 - rows && (alone == [0, 0] || alone == [1, 1] && same && self.shared > 0);
        if !fits || !operands.iter().all(typed) {
            return None;
        }
        let ((query, of_query), (key, of_key)) =
            (self.unscaled(operands[rows]), self.unscaled(operands[1 - rows]));
        self.inner.push(first);
        Some(Found {
            last: self.last,
            first,
            query: Operand { dims: query_dims, ..query },
            key: Operand { dims: key_dims, ..key },
            value: self.value,
            result: self.result,
            scale: self.scale * of_query * of_key,
            factor: self.factor,
            masks: self.masks,
            safe: self.safe,
            batches: self.batches,
            grouped: alone == [1, 1],
            inner: self.inner,
        })
    }

    fn operands(&self, value: ValueRef) -> SmallVec<[ValueRef; 4]> {
        self.graph.operands(value.node)
    }

    fn shape(&self, value: ValueRef) -> &'g [i64] {
        &self.graph.ty(value).shape
    }

    /// Whether a cast is between the operands' type and the one that is computed in. Scores are rounded in no place of the
    /// one operator.
    fn is_rounding(&self, value: ValueRef) -> bool {
        let wide = if matches!(self.elem, Elem::F16 | Elem::Bf16) { Elem::F32 } else { self.elem };
        self.graph.ty(value).dtype.elem().is_some_and(|elem| [self.elem, wide].contains(&elem))
    }

    /// What views and casts that keep rows are made of.
    fn through(&mut self, mut value: ValueRef) -> Option<ValueRef> {
        while self.is_rounding(value) {
            let operand = self.operands(value).first().copied();
            match (&self.graph.node(value.node).op, operand) {
                (Op::Cast, Some(operand)) => {
                    self.inner.push(value.node);
                    value = operand;
                }
                (Op::View(View::Permute(perm)), Some(operand)) => {
                    self.dims = self.dims.iter().map(|&d| usize::from(perm[d])).collect();
                    self.inner.push(value.node);
                    value = operand;
                }
                (Op::View(View::Reshape), Some(operand)) => {
                    self.regroup(self.shape(operand), self.shape(value))?;
                    self.inner.push(value.node);
                    value = operand;
                }
                _ => return Some(value),
            }
        }
        None
    }

    /// Behind a reshape that splits or merges dimensions of the batch.
    fn regroup(&mut self, from: &[i64], to: &[i64]) -> Option<()> {
        let ((batch, matrix), (_, other)) = (from.split_last_chunk::<2>()?, to.split_last_chunk::<2>()?);
        let ordered = self.dims.iter().copied().eq(0..to.len());
        (ordered && matrix == other).then(|| {
            self.dims = (0..from.len()).collect();
            self.batches.push(Dims::from_slice(batch));
        })
    }

    /// Scores whose softmax along keys a value is.
    fn softmax(&mut self, value: ValueRef) -> Option<ValueRef> {
        let keys = u8::try_from(*self.dims.last()?).ok()?;
        let Softmax { scores, dims, safe, inner } = softmax(self.graph, value)?;
        self.safe = safe;
        self.inner.extend(inner);
        (dims[..] == [keys]).then_some(scores)
    }

    /// Goes on from scores to the product that they are made of.
    fn scores(mut self, value: ValueRef) -> Option<(Walk<'g>, NodeId)> {
        let value = self.through(value)?;
        let function = match self.graph.node(value.node).op {
            Op::Contract(_) => return Some((self, value.node)),
            Op::Map(function) => function,
            _ => return None,
        };
        self.inner.push(value.node);
        let operands = self.operands(value);
        if let Some((scores, factor)) = self.multiple(function, &operands) {
            self.scale *= factor;
            return self.scores(scores);
        }
        if let (ScalarFn::Mul, None, &[a, b]) = (function, &self.factor, &operands[..]) {
            return self.clone().multiplied(a, b).or_else(|| self.multiplied(b, a));
        }
        // A factor of masked scores is one of the mask, too.
        if self.scale != 1.0 || self.factor.is_some() {
            return None;
        }
        match (function, &operands[..]) {
            (ScalarFn::Add, &[a, b]) => self.clone().added(a, b).or_else(|| self.added(b, a)),
            (ScalarFn::Select, &[condition, a, b]) => match (self.number(a), self.number(b)) {
                (Some(fill), None) => self.masked(MaskOf::Replaces(true, fill), condition, b),
                (None, Some(fill)) => self.masked(MaskOf::Replaces(false, fill), condition, a),
                _ => None,
            },
            _ => None,
        }
    }

    fn number(&self, value: ValueRef) -> Option<f64> {
        known(self.graph, value).map(number)
    }

    /// What a map is a known multiple of, and the factor.
    fn multiple(&self, function: ScalarFn, operands: &[ValueRef]) -> Option<(ValueRef, f64)> {
        let &[a, b] = operands else { return None };
        match (function, self.number(a), self.number(b)) {
            (ScalarFn::Mul, None, Some(factor)) => Some((a, factor)),
            (ScalarFn::Mul, Some(factor), None) => Some((b, factor)),
            (ScalarFn::Div, None, Some(divisor)) => Some((a, 1.0 / divisor)),
            _ => None,
        }
    }

    fn added(self, scores: ValueRef, mask: ValueRef) -> Option<(Walk<'g>, NodeId)> {
        self.masked(MaskOf::Added, mask, scores)
    }

    /// Scores times a tensor that is the same for all queries and keys, as a factor for each head is.
    fn multiplied(mut self, scores: ValueRef, factor: ValueRef) -> Option<(Walk<'g>, NodeId)> {
        let Op::View(View::Expand) = self.graph.node(factor.node).op else { return None };
        let value = self.operands(factor).first().copied()?;
        let shape = self.shape(value);
        let &[.., query, key] = &self.dims[..] else { return None };
        let exact = matches!(self.elem, Elem::F32 | Elem::F64);
        let typed = self.graph.ty(value).dtype.elem() == Some(self.elem);
        if !exact || !typed || shape.get(query) != Some(&1) || shape.get(key) != Some(&1) {
            return None;
        }
        self.factor = Some(Broadcast { value, dims: self.dims.clone(), batch: self.batches.last()?.clone() });
        self.scores(scores)
    }

    fn masked(mut self, kind: MaskOf, mask: ValueRef, scores: ValueRef) -> Option<(Walk<'g>, NodeId)> {
        let elem = self.graph.ty(scores).dtype.elem()?;
        let batch = self.batches.last()?.clone();
        let operand = |value: ValueRef| self.operands(value).first().copied();
        let mut value = mask;
        if let Op::View(View::Expand) = self.graph.node(value.node).op {
            value = operand(value)?;
        }
        let (mut kind, mut source) = (kind, leading_ones(self.graph, value));
        match kind {
            MaskOf::Added if self.graph.node(source.node).op == Op::Cast => {
                let narrow = operand(source)?;
                if self.graph.ty(narrow).dtype.elem() == Some(self.elem) {
                    (value, source) = (narrow, narrow);
                }
            }
            MaskOf::Added => {
                if let (Op::Map(ScalarFn::Select), &[open, zero, hidden]) =
                    (&self.graph.node(source.node).op, &self.operands(source)[..])
                    && [zero, hidden].map(|v| self.number(v)) == [Some(0.0), Some(f64::NEG_INFINITY)]
                {
                    (kind, value, source) = (MaskOf::Opens, open, open);
                }
            }
            MaskOf::Replaces(false, fill) if self.is_causal(source, self.shape(scores)) => {
                kind = MaskOf::Causal(fill)
            }
            _ => {}
        }
        // A mask of the rank of scores, or with fewer dimensions.
        let same = self.safe || [2, self.dims.len()].contains(&self.graph.ty(source).rank());
        let value = if same { source } else { value };
        self.masks.push(Mask { kind, of: Broadcast { value, dims: self.dims.clone(), batch }, elem });
        // Numbers that are added one after the other are added together.
        let together = self.masks.len() == 1 || self.masks.iter().all(|mask| mask.kind == MaskOf::Added);
        if together { self.scores(scores) } else { None }
    }

    /// Whether a condition is that the query does not come before the key, of scores of this shape.
    fn is_causal(&self, condition: ValueRef, scores: &[i64]) -> bool {
        let (shape, axes) = (self.shape(condition), scores.len() - 2);
        let Some(queries) = shape.len().checked_sub(2) else { return false };
        let place = |value: &ValueRef| match self.graph.node(value.node).op {
            Op::Iota { dim } => Some(usize::from(dim)),
            _ => None,
        };
        let places: Vec<_> = self.operands(condition).iter().map(place).collect();
        self.graph.node(condition.node).op == Op::Map(ScalarFn::Ge)
            && places == [Some(queries), Some(queries + 1)]
            && shape[queries..] == scores[axes..]
            && self.dims.ends_with(&[axes, axes + 1])
    }

    /// An operand before it is multiplied by a number, also behind views, and the number.
    fn unscaled(&self, value: ValueRef) -> (Operand, f64) {
        let (mut at, mut views) = (value, Vec::new());
        while let (Op::View(View::Permute(_)), Some(&operand)) =
            (&self.graph.node(at.node).op, self.operands(at).first())
        {
            views.push(at.node);
            at = operand;
        }
        // What the operator is given stays what it is given.
        let once = !self.safe && views.iter().all(|&view| is_used_once(self.graph, view.into()));
        match self.product(at).filter(|_| once) {
            Some((value, factor)) => (Operand { value, views, dims: Vec::new() }, factor),
            None => (Operand { value, views: Vec::new(), dims: Vec::new() }, 1.0),
        }
    }

    /// What a value that nothing else reads is a known multiple of, before it is rounded, and the factor.
    fn product(&self, value: ValueRef) -> Option<(ValueRef, f64)> {
        let mut at = value;
        let casts = self.graph.node(at.node).op == Op::Cast;
        if casts {
            at = self.operands(at).first().copied().filter(|&v| is_used_once(self.graph, v))?;
        }
        let Op::Map(function) = self.graph.node(at.node).op else { return None };
        let (mut of, factor) = self.multiple(function, &self.operands(at))?;
        if casts {
            of = *self.operands(of).first().filter(|_| self.graph.node(of.node).op == Op::Cast)?;
        }
        let typed = self.graph.ty(of).dtype == self.graph.ty(value).dtype;
        (typed && is_used_once(self.graph, value)).then_some((of, factor))
    }
}

/// Whether a value has one user, and is no result.
pub(super) fn is_used_once(graph: &Graph, value: ValueRef) -> bool {
    graph.users(value.node).len() == 1 && !is_result(graph, value.node)
}

/// Whether a node is an output or the value of a write-back.
pub(super) fn is_result(graph: &Graph, node: NodeId) -> bool {
    graph.outputs.iter().any(|v| v.node == node) || graph.updates.iter().any(|u| u.value.node == node)
}

/// The value that a view gives dimensions of size 1 in front of its own, or the value itself.
fn leading_ones(graph: &Graph, value: ValueRef) -> ValueRef {
    let (Op::View(View::Reshape), Some(&of)) =
        (&graph.node(value.node).op, graph.operands(value.node).first())
    else {
        return value;
    };
    let (wide, narrow) = (&graph.ty(value).shape, &graph.ty(of).shape);
    let ones = wide.len().checked_sub(narrow.len());
    let fits = ones.is_some_and(|n| wide[..n].iter().all(|&n| n == 1) && wide[n..] == narrow[..]);
    if fits { of } else { value }
}

/// The number of a literal: of `f32`, the shortest one that is rounded to it, which is what a model wrote.
pub(super) fn number(literal: Literal) -> f64 {
    let exact = literal.as_f64();
    let short = if literal.elem == Elem::F32 { (exact as f32).to_string().parse().ok() } else { None };
    short.unwrap_or(exact)
}
