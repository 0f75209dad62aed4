//! Functions that are not expanded to operations of the program, because the processor's instructions for exponents make
//! them shorter.

use std::cell::RefCell;

use inkwell::values::BasicValue;
use tilefuse_block::ScalarFn;
use tilefuse_block::math::with_exponents;

use super::Emitter;
use super::ir::{V, lanes_of, llvm};
use super::lanes::{Lanes, Site};
use crate::Result;

/// Lanes of a formula that takes many registers.
const MAX_LANES: u32 = 32;

impl<'c> Emitter<'c, '_> {
    /// A mathematical function of `f32` numbers. What is built next goes to the block where the builder is left, which
    /// takes the place of the one where it was.
    pub(super) fn formula(&mut self, function: ScalarFn, x: V<'c>) -> Result<V<'c>> {
        let before = self.ir.b.get_insert_block();
        let n = lanes_of(x);
        let result = match function {
            ScalarFn::Sin | ScalarFn::Cos if n > MAX_LANES => self.in_parts(function, x, n)?,
            _ => self.whole_formula(function, x)?,
        };
        let after = self.ir.b.get_insert_block();
        if let (Some(before), Some(after)) = (before, after) {
            for level in self.levels.iter_mut().filter(|level| level.block == before) {
                level.block = after;
            }
        }
        Ok(result)
    }

    /// A function of some lanes after the other.
    fn in_parts(&self, function: ScalarFn, x: V<'c>, n: u32) -> Result<V<'c>> {
        let mut parts = Vec::new();
        for first in (0..n).step_by(MAX_LANES as usize) {
            let lanes: Vec<i64> = (first..first + MAX_LANES).map(i64::from).collect();
            parts.push(self.whole_formula(function, self.ir.shuffle(x, x, &lanes)?)?);
        }
        self.ir.joined(parts)
    }

    fn whole_formula(&self, function: ScalarFn, x: V<'c>) -> Result<V<'c>> {
        let site = Site { ir: &self.ir, function: self.function, failed: RefCell::new(None) };
        let result = with_exponents(function, Lanes::new(&site, x)).map(|lanes| lanes.v);
        if let Some(error) = site.failed.into_inner() {
            return Err(error);
        }
        result.ok_or_else(|| llvm(format!("{} has no formula", function.name())))
    }
}

/// `usual` or, where `rare`, what `other` builds in a block of its own.
pub(super) fn unless<'c>(
    site: &Site<'_, 'c>,
    rare: V<'c>,
    usual: impl FnOnce() -> V<'c>,
    other: impl FnOnce() -> V<'c>,
) -> Result<V<'c>> {
    let Site { ir, function, .. } = site;
    let any = match lanes_of(rare) {
        0 => rare,
        _ => ir.call("llvm.vector.reduce.or", &[rare.get_type()], &[rare])?,
    };
    let block = || ir.cx.append_basic_block(*function, "");
    let (seldom, often, after) = (block(), block(), block());
    ir.b.build_conditional_branch(any.into_int_value(), seldom, often).map_err(llvm)?;
    let mut ways = Vec::new();
    let build: [(_, Box<dyn FnOnce() -> V<'c> + '_>); 2] =
        [(often, Box::new(usual)), (seldom, Box::new(other))];
    for (block, build) in build {
        ir.b.position_at_end(block);
        let v = build();
        let end = ir.b.get_insert_block().ok_or_else(|| llvm("no block"))?;
        ir.b.build_unconditional_branch(after).map_err(llvm)?;
        ways.push((v, end));
    }
    ir.b.position_at_end(after);
    let &[(usual, often), (other, seldom)] = &ways[..] else { return Err(llvm("two ways")) };
    let phi = ir.b.build_phi(usual.get_type(), "").map_err(llvm)?;
    phi.add_incoming(&[(&usual as &dyn BasicValue<'c>, often), (&other, seldom)]);
    Ok(phi.as_basic_value())
}
