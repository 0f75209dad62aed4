//! The order of instances that transpose.
//!
//! A kernel that reads along one axis and writes along another has no order of its tiles that follows both. Row by row, as
//! many columns of what it reads are under way as there are tiles in a row, each in memory of its own. In groups of some
//! rows, and within them column by column, the instances that run at a time have about eight columns, and both sides keep
//! to parts of their memory. On an H200 the sum of a transposed matrix of 16384 by 8192 elements and another takes 379 us
//! in groups of 128 rows and 390 row by row (f32), and 198 in groups of 64 and 203 (bf16); with half as many rows 385 and
//! 200, with twice as many 203 (bf16).
//!
//! ```text
//! instances of 4 by 3 tiles in groups of 2:   0  2  4
//!                                             1  3  5
//!                                             6  8 10
//!                                             7  9 11
//! ```

use tilefuse_block::{Builder, Elem, Literal, ScalarFn, Value};

use super::error::Result;
use super::tiles::Tiling;
use crate::index::Var;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::taken::taken;

/// Warps of a multiprocessor that run at a time, about, for each column of tiles: 32 for eight.
const WARPS_PER_COLUMN: u32 = 4;
/// Tiles along both axes from which on there are groups.
const MIN_TILES: i64 = 32;

/// An order of tiles, in groups of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swizzle {
    /// The last two parallel variables, and how many tiles there are along them.
    pub(super) axes: [(Var, i64); 2],
    /// Rows of a group.
    pub(super) rows: i64,
}

/// The groups in which instances go through the last two parallel variables, if they do.
pub(super) fn of(kernel: &Kernel, tiling: &Tiling, machine: Machine) -> Option<Swizzle> {
    let Machine::Gpu { processors, .. } = machine else { return None };
    let counts = tiling.grid_extents(kernel);
    let &[.., first, second] = counts.as_slice() else { return None };
    let wanted = i64::from((processors * WARPS_PER_COLUMN / tiling.warps.max(1)).max(1));
    let rows = 1 << wanted.ilog2();
    let fits = first.1 >= MIN_TILES && second.1 >= MIN_TILES && rows > 1 && first.1 % rows == 0;
    let tiled = [first, second].iter().all(|&(var, _)| tiling.axis_of(var).is_some());
    if !fits || !tiled || kernel.reduced.iter().any(|&reduced| reduced) {
        return None;
    }
    let accesses = kernel.accesses();
    let is_followed =
        |var: Var| accesses.iter().any(|&(addr, _)| kernel.indices.coefficient(addr, var).abs() == 1);
    (is_followed(first.0) && is_followed(second.0)).then_some(Swizzle { axes: [first, second], rows })
}

/// The row and the column of an instance's tile, in groups of so many rows, of so many columns.
pub(super) fn place(b: &mut Builder, instance: Value, rows: i64, columns: i64) -> Result<[Value; 2]> {
    taken!("swizzle");
    let high = b.constant(Literal::int(Elem::I32, rows), &[]);
    let size = b.constant(Literal::int(Elem::I32, rows * columns), &[]);
    let group = b.map(ScalarFn::DivTrunc, &[instance, size])?;
    let rest = b.map(ScalarFn::RemTrunc, &[instance, size])?;
    let first = b.map(ScalarFn::Mul, &[group, high])?;
    let down = b.map(ScalarFn::RemTrunc, &[rest, high])?;
    let row = b.map(ScalarFn::Add, &[first, down])?;
    let column = b.map(ScalarFn::DivTrunc, &[rest, high])?;
    Ok([row, column])
}

#[cfg(test)]
mod tests {
    use tilefuse_block::interp::{self, Arg};
    use tilefuse_block::{CacheHint, Data};

    use super::*;

    #[test]
    fn every_tile_has_one_instance() {
        let mut b = Builder::new("order");
        let out = b.ptr_param("out", Elem::I32, 4, Some(24));
        let instance = b.program_id(0).unwrap();
        let [row, column] = place(&mut b, instance, 2, 3).unwrap();
        for (at, value) in [(0, row), (12, column)] {
            let start = b.constant(Literal::int(Elem::I32, at), &[]);
            let offset = b.map(ScalarFn::Add, &[start, instance]).unwrap();
            b.store(out, offset, value, None, CacheHint::Default).unwrap();
        }
        let mut args = vec![Arg::buffer(Data::from(vec![-1i32; 24]))];
        interp::run(&b.finish(), &mut args, [12, 1, 1]).unwrap();
        let rows = [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3];
        let columns = [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2];
        assert_eq!(args[0].data().unwrap(), Data::from([rows, columns].concat()));
    }
}
