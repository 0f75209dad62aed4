//! What is asked of a plan to find its outer loops.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::Program;
use tilefuse_block::bounds::{Accesses, Reach};

use super::super::ir::{KernelStep, Plan, StepKind};
use super::super::liveness::last_uses;
use super::super::reinplace::direct;
use crate::graph::ValueRef;
use crate::machine::Profile;
use crate::place::Place;

/// Program, grid, units, and which parameters are asked for.
type Question = (usize, [u32; 3], Range<u64>, Vec<bool>);

/// A kernel and how its instances are divided.
#[derive(Clone, Copy)]
pub(super) struct KernelGrid<'p> {
    pub(super) at: usize,
    pub(super) step: &'p KernelStep,
    pub(super) program: &'p Program,
    pub(super) grid: [u32; 3],
    /// The axis along which they are divided.
    pub(super) axis: usize,
    /// Instances along it.
    pub(super) units: u64,
    /// Instances of each of them along the other axes.
    pub(super) inner: u64,
}

/// Finds the outer loops of a plan.
pub(super) struct Finder<'p> {
    plan: &'p Plan,
    pub(super) threads: u64,
    /// Bytes of a thread's own cache.
    pub(super) cache: u64,
    /// Bytes that are moved in a microsecond.
    pub(super) bytes_per_us: f64,
    pub(super) launch_us: f64,
    pub(super) last_uses: FxHashMap<ValueRef, usize>,
    /// For values that may share memory with others, one of these.
    classes: FxHashMap<ValueRef, ValueRef>,
    /// The plan's programs, each value of which is computed once.
    pub(super) programs: FxHashMap<usize, Program>,
    /// What of these decides about accesses through the parameters that are asked for.
    pub(super) accesses: FxHashMap<(usize, Vec<bool>), Accesses>,
    /// What units of a kernel reach of its buffers, in bytes, by program and grid.
    pub(super) known: FxHashMap<Question, Vec<Reach>>,
}

impl<'p> Finder<'p> {
    pub(super) fn new(plan: &'p Plan, profile: &Profile, threads: u64) -> Finder<'p> {
        let returned: FxHashSet<ValueRef> = plan.outputs.iter().map(Place::base).collect();
        Finder {
            threads: threads.max(1),
            cache: profile.cache,
            bytes_per_us: profile.bandwidth * 1000.0,
            launch_us: profile.launch_us,
            last_uses: last_uses(plan, &returned),
            ..Finder::bare(plan)
        }
    }

    pub(super) fn bare(plan: &'p Plan) -> Finder<'p> {
        let mut finder = Finder {
            plan,
            threads: 1,
            cache: 0,
            bytes_per_us: 1.0,
            launch_us: 0.0,
            last_uses: FxHashMap::default(),
            classes: FxHashMap::default(),
            programs: FxHashMap::default(),
            accesses: FxHashMap::default(),
            known: FxHashMap::default(),
        };
        let in_place = plan.steps.iter().flat_map(|step| match &step.kind {
            StepKind::Kernel(kernel) => kernel.in_place.as_slice(),
            StepKind::Extern(_) => &[],
        });
        for (a, b) in in_place.copied().chain(direct(plan)) {
            let (a, b) = (finder.class(a), finder.class(b));
            if a != b {
                finder.classes.insert(a, b);
            }
        }
        finder
    }

    /// The one value for all that may share memory with this one.
    pub(super) fn class(&self, mut value: ValueRef) -> ValueRef {
        while let Some(&next) = self.classes.get(&value) {
            value = next;
        }
        value
    }

    /// The bytes of a thread's cache in which it holds a block; beside them lies what else its kernels read.
    pub(super) fn room(&self) -> u64 {
        self.cache / 4 * 3
    }

    pub(super) fn bytes(&self, value: ValueRef) -> u64 {
        self.plan.graph.ty(value).bytes()
    }

    pub(super) fn kernel(&self, at: usize) -> Option<KernelGrid<'p>> {
        let StepKind::Kernel(step) = &self.plan.steps.get(at)?.kind else { return None };
        let program = self.plan.programs.get(step.program)?;
        let mut grid = [0; 3];
        for (extent, &n) in grid.iter_mut().zip(&step.grid) {
            *extent = u32::try_from(n).ok().filter(|&n| n > 0)?;
        }
        let axis = (0..3).rev().find(|&axis| grid[axis] > 1).unwrap_or(0);
        let inner = grid[..axis].iter().map(|&n| u64::from(n)).product();
        Some(KernelGrid { at, step, program, grid, axis, units: grid[axis].into(), inner })
    }
}
