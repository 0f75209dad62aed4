//! Operations on whole tiles: movement between tiles, products, random bits, debugging.

use std::fmt::Write as _;

use super::Fault;
use super::exec::{Content, Machine};
use crate::data::{Data, Element};
use crate::eval;
use crate::program::{Assumption, Op};
use crate::types::{Elem, Literal, Shape};

/// For every line along an axis, the positions of its elements, row-major in the other axes.
pub(super) fn lines(shape: &Shape, axis: usize) -> Option<Vec<Vec<usize>>> {
    let extent = |dims: &[u32]| dims.iter().map(|&d| d as usize).product::<usize>();
    let (outer, along, inner) =
        (extent(shape.get(..axis)?), *shape.get(axis)? as usize, extent(shape.get(axis + 1..)?));
    let line = |o: usize, i: usize| (0..along).map(|e| (o * along + e) * inner + i).collect();
    Some((0..outer).flat_map(|o| (0..inner).map(move |i| line(o, i))).collect())
}

/// Writes one element of each content at a position of its bytes.
pub(super) fn place(out: &mut [Vec<u8>], position: usize, contents: &[Content]) {
    for (out, content) in out.iter_mut().zip(contents) {
        let Content::Tile(data) = content else { continue };
        let bytes = data.to_bytes();
        if let Some(slot) = out.get_mut(position * bytes.len()..(position + 1) * bytes.len()) {
            slot.copy_from_slice(&bytes);
        }
    }
}

/// The Philox generator's four words for a key and a counter.
fn philox(mut key: [u32; 2], mut counter: [u32; 4], rounds: u8) -> [u32; 4] {
    for _ in 0..rounds {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

impl Machine<'_, '_> {
    fn operand(&self, op: &Op, index: usize) -> Option<std::rc::Rc<Data>> {
        self.data(*op.args.get(index)?)
    }

    fn operand_mask(&self, op: &Op, index: usize, masked: bool) -> Option<Option<Vec<bool>>> {
        if !masked {
            return Some(None);
        }
        bool::slice(self.operand(op, index)?.as_ref()).map(|m| Some(m.to_vec()))
    }

    pub(super) fn join(&self, op: &Op) -> Option<Data> {
        let (a, b) = (self.operand(op, 0)?, self.operand(op, 1)?);
        let both: Vec<u8> = a.to_bytes().into_iter().chain(b.to_bytes()).collect();
        let order: Vec<usize> = (0..a.len()).flat_map(|i| [i, a.len() + i]).collect();
        Data::from_bytes(a.elem(), &both).pick(&order)
    }

    pub(super) fn split(&self, op: &Op) -> Option<Vec<Data>> {
        let both = self.operand(op, 0)?;
        let half = |first: usize| both.pick(&(first..both.len()).step_by(2).collect::<Vec<_>>());
        Some(vec![half(0)?, half(1)?])
    }

    pub(super) fn gather(&self, op: &Op, axis: u8) -> Option<Data> {
        let (from, indices) = (self.operand(op, 0)?, self.operand(op, 1)?.to_i64()?);
        let (shape, to) = (&self.arg_type(op)?.shape, &self.program.ty(*op.results.first()?).shape);
        let sources = lines(shape, usize::from(axis))?;
        let mut order = vec![0; indices.len()];
        for (source, target) in sources.iter().zip(lines(to, usize::from(axis))?) {
            for position in target {
                let index = indices.get(position)?.rem_euclid(source.len() as i64);
                order[position] = *source.get(index as usize)?;
            }
        }
        from.pick(&order)
    }

    pub(super) fn histogram(&self, op: &Op, bins: u32, masked: bool) -> Option<Data> {
        let mask = self.operand_mask(op, 1, masked)?;
        let mut counts = vec![0i32; bins as usize];
        for (index, literal) in self.operand(op, 0)?.literals().into_iter().enumerate() {
            let counted = mask.as_ref().is_none_or(|m| m.get(index) == Some(&true));
            let value = literal.as_i64().filter(|_| counted);
            if let Some(count) = value.and_then(|v| usize::try_from(v).ok()).and_then(|v| counts.get_mut(v)) {
                *count = count.wrapping_add(1);
            }
        }
        Some(Data::I32(counts))
    }

    pub(super) fn dot(&self, op: &Op) -> Option<Data> {
        let (a, b, sum) = (self.operand(op, 0)?, self.operand(op, 1)?, self.operand(op, 2)?);
        let (left, right) = (&self.arg_type(op)?.shape, &self.program.ty(*op.args.get(1)?).shape);
        let extent = |shape: &Shape, back: usize| Some(*shape.get(shape.len().checked_sub(back)?)? as usize);
        let (m, k, n) = (extent(left, 2)?, extent(left, 1)?, extent(right, 1)?);
        if sum.elem() == Elem::I32 {
            let (a, b, c) = (a.to_i64()?, b.to_i64()?, sum.to_i64()?);
            let sums = products(&a, &b, [m, k, n], &c, |x, y, s| s.wrapping_add(x.wrapping_mul(y)));
            return Some(eval::cast(&Data::I64(sums), Elem::I32));
        }
        let sums = products(&a.to_f64(), &b.to_f64(), [m, k, n], &sum.to_f64(), |x, y, s| s + x * y);
        Some(eval::cast(&Data::F64(sums), sum.elem()))
    }

    pub(super) fn philox(&self, op: &Op, rounds: u8) -> Option<Vec<Data>> {
        let seed = self.operand(op, 0)?.get(0)?.bits;
        let offsets = self.operand(op, 1)?;
        let wide = offsets.elem().bits() == 64;
        let words = offsets.literals().into_iter().map(|offset| {
            let high = if wide { (offset.bits >> 32) as u32 } else { 0 };
            philox([seed as u32, (seed >> 32) as u32], [offset.bits as u32, high, 0, 0], rounds)
        });
        let words: Vec<[u32; 4]> = words.collect();
        Some((0..4).map(|w| Data::U32(words.iter().map(|all| all[w]).collect())).collect())
    }

    pub(super) fn print(&self, op: &Op, prefix: &str, hex: bool) -> Result<(), Fault> {
        let [x, y, z] = self.instance;
        for &value in &op.args {
            let data = self.data(value).ok_or(Fault::Malformed)?;
            let shape = &self.program.ty(value).shape;
            for (position, literal) in data.literals().into_iter().enumerate() {
                let mut line = format!("pid ({x}, {y}, {z}) idx {} {prefix}: ", Index { position, shape });
                // Writing to a string does not fail.
                let _ = match hex && literal.elem.is_int() {
                    true => write!(line, "0x{:x}", literal.bits & (u64::MAX >> (64 - literal.elem.bits()))),
                    false => write!(line, "{literal}"),
                };
                (self.print)(&line);
            }
        }
        if op.args.is_empty() {
            (self.print)(&format!("pid ({x}, {y}, {z}) {prefix}"));
        }
        Ok(())
    }

    pub(super) fn assert(&self, op: &Op, message: &str, masked: bool) -> Result<(), Fault> {
        let condition = self.operand(op, 0).ok_or(Fault::Malformed)?;
        let condition = bool::slice(&condition).ok_or(Fault::Malformed)?;
        let mask = self.operand_mask(op, 1, masked).ok_or(Fault::Malformed)?;
        let counted = |index: usize| mask.as_ref().is_none_or(|m| m.get(index) == Some(&true));
        match condition.iter().enumerate().find(|&(index, &holds)| !holds && counted(index)) {
            Some((element, _)) => Err(Fault::Assertion { element, message: message.to_owned() }),
            None => Ok(()),
        }
    }

    pub(super) fn assume(&self, op: &Op, assumption: Assumption) -> Result<Data, Fault> {
        let data = self.operand(op, 0).ok_or(Fault::Malformed)?;
        let row = self.arg_type(op).and_then(|ty| ty.shape.last().copied()).unwrap_or(1) as usize;
        let values: Vec<i128> = data.literals().into_iter().map(whole).collect();
        let holds = |element: usize, value: i128| match assumption {
            Assumption::MultipleOf(n) => !element.is_multiple_of(row) || value % i128::from(n) == 0,
            Assumption::Contiguous(n) => {
                (element % row).is_multiple_of(n as usize) || values[element - 1] + 1 == value
            }
            Assumption::Between(low, high) => (i128::from(low)..=i128::from(high)).contains(&value),
        };
        match values.iter().enumerate().find(|&(element, &value)| !holds(element, value)) {
            Some((element, &value)) => Err(Fault::Assumption { element, value }),
            None => Ok(data.as_ref().clone()),
        }
    }
}

fn whole(literal: Literal) -> i128 {
    if literal.elem == Elem::U64 { literal.bits.into() } else { (literal.bits as i64).into() }
}

/// `c + a b` for batches of matrices.
fn products<T: Copy>(a: &[T], b: &[T], [m, k, n]: [usize; 3], c: &[T], fma: impl Fn(T, T, T) -> T) -> Vec<T> {
    let sum = |(at, &start): (usize, &T)| {
        let (batch, row, col) = (at / (m * n), at / n % m, at % n);
        let term = |sum: T, i: usize| fma(a[(batch * m + row) * k + i], b[(batch * k + i) * n + col], sum);
        (0..k).fold(start, term)
    };
    c.iter().enumerate().map(sum).collect()
}

/// The index of a position in a tile, as `(1, 2)`.
struct Index<'a> {
    position: usize,
    shape: &'a Shape,
}

impl std::fmt::Display for Index<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.position;
        let mut index: Vec<usize> = Vec::new();
        for &extent in self.shape.iter().rev() {
            index.push(rest % extent as usize);
            rest /= extent as usize;
        }
        let parts: Vec<String> = index.iter().rev().map(usize::to_string).collect();
        write!(f, "({})", parts.join(", "))
    }
}
