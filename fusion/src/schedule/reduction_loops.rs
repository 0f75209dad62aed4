//! Loops over reduced variables: one nest for each level of reductions, with what it stores.

use tilefuse_block::{Builder, Value};

use super::accumulate::Accumulator;
use super::emit::{Emitter, Memo, parts};
use super::error::Result;
use super::tiles::Walk;
use crate::index::Var;
use crate::kernel::KExpr;
use crate::taken::taken;

impl Emitter<'_> {
    /// One loop nest for each level of reductions, and one more for stores that need them all.
    pub(super) fn looped(&mut self) -> Result<()> {
        taken!("loops over what is reduced");
        let reduced = self.reduced_vars();
        let last = self.kernel.reduces.iter().map(|r| r.level).max().unwrap_or(0);
        let mut level = 1;
        while level <= last + 1 {
            let (reduces, next) = self.accumulators(level, reduced);
            let stores: Vec<usize> =
                (0..self.kernel.stores.len()).filter(|&s| self.stage_of(s, reduced) == Some(level)).collect();
            if !reduces.is_empty() || !stores.is_empty() {
                self.stage(&reduces, &stores, reduced)?;
            }
            level = next;
        }
        for store in 0..self.kernel.stores.len() {
            if self.stage_of(store, reduced).is_none() {
                self.store(store)?;
            }
        }
        Ok(())
    }

    fn reduced_vars(&self) -> u64 {
        let kernel = self.kernel;
        (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v]).fold(0, |set, v| set | 1 << v.min(63))
    }

    /// The level of loops in which a store belongs; `None` if it is made once per row.
    pub(super) fn stage_of(&self, store: usize, reduced: u64) -> Option<u32> {
        let store = &self.kernel.stores[store];
        let info = self.kernel.info(store.value);
        let vars = info.vars | self.kernel.indices.vars(store.addr);
        (vars & reduced != 0).then_some(info.level + 1)
    }

    fn stage(&mut self, reduces: &[Accumulator], stores: &[usize], reduced: u64) -> Result<()> {
        let mut needed: Vec<KExpr> = reduces.iter().flat_map(|&r| self.elements_of(r)).collect();
        needed.extend(stores.iter().map(|&s| self.kernel.stores[s].value));
        self.hoist(&needed, reduced)?;
        let carried = self.fresh(reduces)?;
        self.persistent.fresh.clone_from(&carried);
        let loops: Vec<Var> = (0..self.kernel.reduced.len())
            .filter(|&v| self.kernel.reduced[v])
            .map(|v| Var(v as u32))
            .collect();
        let results = self.nest(&loops, reduces, stores, &carried)?;
        let results = self.parts_of(reduces, &results);
        results.into_iter().try_for_each(|(reduce, parts)| self.finish_walk(reduce, parts))
    }

    /// Emits, before a loop, what the loop needs and does not change in it.
    pub(super) fn hoist(&mut self, needed: &[KExpr], reduced: u64) -> Result<()> {
        let mut stack: Vec<KExpr> = needed.to_vec();
        let mut seen = vec![false; self.kernel.exprs.len()];
        while let Some(expr) = stack.pop() {
            if std::mem::replace(&mut seen[expr.index()], true) {
                continue;
            }
            if self.kernel.info(expr).vars & reduced == 0 {
                self.value(expr)?;
                continue;
            }
            stack.extend(parts(self.kernel, expr));
        }
        Ok(())
    }

    /// Loops over the reduced variables from the outermost; the body reduces and stores.
    pub(super) fn nest(
        &mut self,
        loops: &[Var],
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        let Some((&var, rest)) = loops.split_first() else {
            return self.body(reduces, stores, carried);
        };
        if rest.is_empty()
            && let Some(axis) = self.tiling.axis_of(var).filter(|_| self.machine.is_gpu())
        {
            return match self.tiling.walk {
                Walk::Persistent => self.persistent_walk(var, axis, reduces, stores, carried),
                _ => self.walk(var, axis, reduces, stores, carried),
            };
        }
        let extent = self.kernel.indices.extents()[var.0 as usize];
        let step = self.tiling.axis_of(var).map_or(1, |a| i64::from(self.tiling.axes[a].extent));
        self.accumulating([0, extent, step], reduces, carried, |this, index, carried| {
            this.step(var, index, rest, reduces, stores, carried)
        })
    }

    /// One iteration of the loop over a variable.
    pub(super) fn step(
        &mut self,
        var: Var,
        index: Value,
        rest: &[Var],
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        let outer_state = std::mem::replace(&mut self.in_loop, true);
        self.bases[var.0 as usize] = Some(index);
        self.inner = Memo::default();
        let alone = self.starts_anew(var, rest);
        let next = self.accumulate_partially(reduces, carried, alone, |this, carried| {
            this.nest(rest, reduces, stores, carried)
        });
        self.inner = Memo::default();
        self.bases[var.0 as usize] = None;
        self.in_loop = outer_state;
        next
    }

    /// A counted loop whose body gets its index.
    pub(super) fn counted(
        &mut self,
        bounds: (Value, Value, Value),
        carried: &[Value],
        body: impl FnOnce(&mut Self, Value, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let mut builder = std::mem::replace(&mut self.b, Builder::new(""));
        let results = builder.for_loop(bounds, carried, |b, index, carried| {
            std::mem::swap(&mut self.b, b);
            let next = body(self, index, carried);
            std::mem::swap(&mut self.b, b);
            next
        });
        self.b = builder;
        results
    }

    pub(super) fn body(
        &mut self,
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        for &s in stores {
            self.store(s)?;
        }
        let mut next = Vec::with_capacity(carried.len());
        for (reduce, parts) in self.parts_of(reduces, carried) {
            self.at(self.loc_of(reduce), |this| match reduce {
                Accumulator::One(r) => this.accumulate(r, parts[0]).map(|value| next.push(value)),
                Accumulator::Tuple(t) => this.accumulate_tuple(t, parts).map(|values| next.extend(values)),
            })?;
        }
        Ok(next)
    }
}
