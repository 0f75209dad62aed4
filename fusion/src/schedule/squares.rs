//! The order of instances that transpose.
//!
//! A kernel that reads along one axis and writes along another has no order of its tiles that follows both. In rows of
//! tiles, as many columns of what it reads are under way as there are tiles in a row, each in memory of its own. In squares,
//! one next to the other, and within them along the axis that is read, both sides keep to parts of their memory. On an
//! H200 the sum of a transposed matrix and another of 16384 by 8192 elements takes 378 us that way and 390 in rows (f32),
//! and 198 and 203 (bf16); groups of more or fewer rows take as long as rows.
//!
//! ```text
//! instances of 4 by 2 tiles:   0 2
//!                              1 3
//!                              4 6
//!                              5 7
//! ```

use tilefuse_block::{Builder, Elem, Literal, ScalarFn, Value};

use super::Machine;
use super::emit::Result;
use super::tiling::Tiling;
use crate::index::Var;
use crate::kernel::Kernel;

/// Tiles of a square's side from which on squares were measured to be faster.
const LEAST: i64 = 32;

/// The last two parallel variables with their numbers of tiles, if instances go through these in squares.
pub(super) fn squares(kernel: &Kernel, tiling: &Tiling, machine: Machine) -> Option<[(Var, i64); 2]> {
    let counts = tiling.grid_extents(kernel);
    let &[.., first, second] = counts.as_slice() else { return None };
    let divides = first.1 > second.1 && second.1 >= LEAST && first.1 % second.1 == 0;
    let tiled = [first, second].iter().all(|&(var, _)| tiling.axis_of(var).is_some());
    let reduces = kernel.reduced.iter().any(|&reduced| reduced);
    if !machine.is_gpu() || !divides || !tiled || reduces {
        return None;
    }
    let accesses = kernel.accesses();
    let is_followed =
        |var: Var| accesses.iter().any(|&(addr, _)| kernel.indices.coefficient(addr, var).abs() == 1);
    (is_followed(first.0) && is_followed(second.0)).then_some([first, second])
}

/// The row and the column of an instance's tile, of so many rows and columns; `columns` divides `rows`.
pub(super) fn place(b: &mut Builder, instance: Value, columns: i64) -> Result<[Value; 2]> {
    let side = b.constant(Literal::int(Elem::I32, columns), &[]);
    let area = b.constant(Literal::int(Elem::I32, columns * columns), &[]);
    let square = b.map(ScalarFn::DivTrunc, &[instance, area])?;
    let rest = b.map(ScalarFn::RemTrunc, &[instance, area])?;
    let first = b.map(ScalarFn::Mul, &[square, side])?;
    let down = b.map(ScalarFn::RemTrunc, &[rest, side])?;
    let row = b.map(ScalarFn::Add, &[first, down])?;
    let column = b.map(ScalarFn::DivTrunc, &[rest, side])?;
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
        let out = b.ptr_param("out", Elem::I32, 4, Some(16));
        let instance = b.program_id(0).unwrap();
        let [row, column] = place(&mut b, instance, 2).unwrap();
        for (at, value) in [(0, row), (8, column)] {
            let start = b.constant(Literal::int(Elem::I32, at), &[]);
            let offset = b.map(ScalarFn::Add, &[start, instance]).unwrap();
            b.store(out, offset, value, None, CacheHint::Default).unwrap();
        }
        let mut args = vec![Arg::buffer(Data::from(vec![-1i32; 16]))];
        interp::run(&b.finish(), &mut args, [8, 1, 1]).unwrap();
        let rows = [0, 1, 0, 1, 2, 3, 2, 3];
        let columns = [0, 0, 1, 1, 0, 0, 1, 1];
        assert_eq!(args[0].data().unwrap(), Data::from([rows, columns].concat()));
    }
}
