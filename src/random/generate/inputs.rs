//! Inputs: their shapes, types, values and layouts.

use tch::Kind;

use super::{Fact, Generator, first_draw};
use crate::random::program::{Input, Layout, Program, Storage, Values, is_float};
use crate::rng::Rng;
use crate::torch::as_strided_of;

const DIMS: &[i64] =
    &[1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 1000, 1023, 1025, 4097];

/// A shape of rank 0 to 5 with `least..=most` elements, or with a dimension of size 0.
pub(super) fn shape(rng: &mut Rng, least: i64, most: i64, zero: bool) -> Vec<i64> {
    let rank = rng.weighted(&[4, 18, 32, 24, 16, 6]);
    for _ in 0..200 {
        let mut shape: Vec<i64> = (0..rank).map(|_| *rng.pick(DIMS)).collect();
        if zero && rank > 0 {
            let at = rng.below(rank);
            shape[at] = 0;
            if shape.iter().filter(|&&n| n != 0).product::<i64>() <= most {
                return shape;
            }
            continue;
        }
        let elements: i64 = shape.iter().product();
        if (least..=most).contains(&elements) {
            return shape;
        }
    }
    if least > 5_000 { vec![1025, 1023] } else { vec![3, 33] }
}

/// A matrix, a batch of matrices or images of one to three axes, whose sizes fill blocks or leave a part of one.
pub(super) fn shape_of_blocks(rng: &mut Rng) -> Vec<i64> {
    const ROWS: &[i64] = &[1, 7, 16, 64, 65, 129, 200];
    const DEPTHS: &[i64] = &[8, 32, 64, 64, 72, 128, 136, 256];
    let axes = rng.weighted(&[6, 1, 7, 1]);
    if axes > 0 {
        let most = [1, 65, 14, 5][axes];
        let mut shape = vec![rng.range(1, 4), *rng.pick(&[32, 64, 64, 64, 128])];
        shape.extend((0..axes).map(|_| rng.range(1, most)));
        return shape;
    }
    let mut shape = vec![*rng.pick(ROWS), *rng.pick(DEPTHS)];
    if rng.chance(0.5) {
        shape.insert(0, rng.range(1, 4));
    }
    shape
}

impl Generator {
    /// A size of an operand of a product which its other operands do not give.
    pub(super) fn extent(&mut self) -> i64 {
        const SIZES: &[i64] = &[8, 16, 24, 64, 64, 65, 72, 128, 136, 264];
        if self.traits.blocks && self.rng.chance(0.9) { *self.rng.pick(SIZES) } else { self.rng.range(1, 9) }
    }

    /// The program's type, or in mixed programs often another.
    pub(super) fn some_kind(&mut self) -> Kind {
        const ALL: &[Kind] = &[
            Kind::Float,
            Kind::Double,
            Kind::Half,
            Kind::BFloat16,
            Kind::Int64,
            Kind::Int,
            Kind::Uint8,
            Kind::Int8,
            Kind::Bool,
        ];
        if self.traits.mixed && self.rng.chance(0.5) { *self.rng.pick(ALL) } else { self.traits.kind }
    }

    /// A new input of this shape and type.
    pub(super) fn input(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        let values = match kind {
            Kind::Bool => Values::Ints(0, 2),
            Kind::Uint8 => Values::Ints(0, 10),
            _ if !is_float(kind) => Values::Ints(-9, 10),
            _ if self.traits.special && self.rng.chance(0.5) => Values::Special,
            _ if self.rng.chance(0.15) => Values::Ints(-4, 5),
            _ => Values::Normal,
        };
        self.input_of(shape, kind, values)
    }

    /// A new input of indices below `end`.
    pub(super) fn indices(&mut self, shape: &[i64], end: i64) -> Option<u32> {
        let kind = if self.rng.chance(0.9) { Kind::Int64 } else { Kind::Int };
        self.input_of(shape, kind, Values::Ints(0, end))
    }

    /// A new floating-point input without special values.
    pub(super) fn plain_input(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        self.input_of(shape, kind, Values::Normal)
    }

    /// A new operand of a product with a factor: infinite or with other special values now and then, which most products
    /// with a factor of 0 hide.
    pub(super) fn operand_of_factor(&mut self, shape: &[i64], kind: Kind, factor: f64) -> Option<u32> {
        if !self.rng.chance(if factor == 0.0 { 0.9 } else { 0.02 }) {
            return self.operand(shape, kind);
        }
        self.traits.special = true;
        let values = if self.rng.chance(0.5) { Values::Special } else { Values::Fill(f64::INFINITY) };
        self.input_of(shape, kind, values)
    }

    /// A new sparse input, which only calls that ask for it by name read.
    pub(super) fn sparse_input(&mut self, shape: &[i64], kind: Kind, layout: Layout) -> Option<u32> {
        let id = self.fresh();
        let len = shape.iter().product();
        let storage = self.storage(Storage { kind, len, values: Values::Ints(-1, 2) });
        let (sizes, strides) =
            (shape.to_vec(), dense(shape, &(0..shape.len()).collect::<Vec<_>>(), &vec![1; shape.len()]));
        let (param, offset, conj, neg) = (false, 0, false, false);
        self.program.inputs.push(Input { id, storage, param, sizes, strides, offset, conj, neg, layout });
        let one = Program {
            inputs: self.program.inputs[self.program.inputs.len() - 1..].to_vec(),
            ..Program::default()
        };
        let view = one.views(&self.storages).ok()?.pop()?;
        self.env.insert(id, view);
        Some(id)
    }

    /// A new input, if it is not larger than any that a program begins with.
    pub(super) fn input_of(&mut self, shape: &[i64], kind: Kind, values: Values) -> Option<u32> {
        let elements = shape.iter().try_fold(1i64, |all, &n| all.checked_mul(n));
        elements.filter(|&n| n <= MAX_ELEMENTS / 2)?;
        let layout = layout(&mut self.rng, shape, self.traits.blocks);
        let param = self.rng.chance(0.2);
        let shared = self.shareable(kind, &values, layout.len);
        let storage = match shared {
            Some(storage) => storage,
            None => self.storage(Storage { kind, len: layout.len, values: values.clone() }),
        };
        let id = self.fresh();
        let view = as_strided_of(&self.storages[storage], shape, &layout.strides, layout.offset).ok()?;
        let neg = is_float(kind) && self.rng.chance(0.02);
        let view = if neg { view.f_internal_neg_view().ok()? } else { view };
        let (sizes, strides, offset) = (shape.to_vec(), layout.strides, layout.offset);
        self.program.inputs.push(Input {
            id,
            storage,
            param,
            sizes,
            strides,
            offset,
            conj: false,
            neg,
            layout: Layout::Strided,
        });
        self.env.insert(id, view);
        let bound = match values {
            Values::Ints(low, end) => Some(low.abs().max((end - 1).abs()) as f64),
            Values::Fill(x) if x.fract() == 0.0 => Some(x.abs()),
            _ => None,
        };
        self.facts.insert(id, Fact { exact: true, bound }.settle(kind));
        self.values.push(id);
        Some(id)
    }

    fn storage(&mut self, storage: Storage) -> usize {
        let seed = self.rng.bits();
        self.storages.push(first_draw(&storage, seed));
        self.program.storages.push(storage);
        self.storages.len() - 1
    }

    /// Now and then, the storage of another input or a parameter that was not written yet.
    fn shareable(&mut self, kind: Kind, values: &Values, len: i64) -> Option<usize> {
        if self.program.ops.iter().any(|op| op.writes()) || !self.rng.chance(0.15) {
            return None;
        }
        let fits = |i: &&Input| {
            let s = &self.program.storages[i.storage];
            s.kind == kind && s.values == *values && s.len >= len
        };
        self.program.inputs.iter().find(fits).map(|i| i.storage)
    }
}

/// Elements of a storage of which an input takes a part.
const MAX_ELEMENTS: i64 = 1 << 23;

/// Where a tensor lies in a storage.
pub(in crate::random) struct Placement {
    pub(in crate::random) strides: Vec<i64>,
    pub(in crate::random) offset: i64,
    /// Elements of the storage.
    pub(in crate::random) len: i64,
}

/// Strides of a dense tensor whose dimensions lie in this order in memory, outermost first; each size is `pad` times
/// as large in memory.
fn dense(shape: &[i64], order: &[usize], pad: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1;
    for &d in order.iter().rev() {
        strides[d] = step * pad[d].max(1);
        step *= shape[d].max(1) * pad[d].max(1);
    }
    strides
}

/// A place for a tensor of this shape.
pub(in crate::random) fn layout(rng: &mut Rng, shape: &[i64], blocks: bool) -> Placement {
    let rank = shape.len();
    let order: Vec<usize> = (0..rank).collect();
    let channels_last = if blocks { 60 } else { 6 };
    let ones = vec![1; rank];
    let mut offset = 0;
    let strides = match rng.weighted(&[56, 12, channels_last, 12, 8, 3, 3]) {
        1 => dense(shape, &rng.permutation(rank), &ones),
        2 if rank > 2 => {
            let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
            dense(shape, &order, &ones)
        }
        3 => {
            offset = rng.range(0, 5);
            let mut room = MAX_ELEMENTS / shape.iter().product::<i64>().max(1);
            let steps: Vec<i64> = (0..rank)
                .map(|_| {
                    let step = *rng.pick(&[1, 1, 2, 3]);
                    let step = if step <= room { step } else { 1 };
                    room /= step;
                    step
                })
                .collect();
            dense(shape, &order, &steps)
        }
        4 => {
            let mut strides = dense(shape, &order, &ones);
            strides.iter_mut().for_each(|s| *s *= i64::from(!rng.chance(0.4)));
            strides
        }
        5 => dense(shape, &order, &ones).iter().map(|&s| (s / 2).max(1)).collect(),
        6 => {
            offset = 1;
            dense(shape, &order, &ones)
        }
        _ => dense(shape, &order, &ones),
    };
    let empty = shape.contains(&0);
    let span: i64 = shape.iter().zip(&strides).map(|(&n, &s)| (n - 1).max(0) * s).sum();
    Placement { strides, offset, len: if empty { offset.max(1) } else { offset + span + 1 } }
}
