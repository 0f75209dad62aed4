//! Linear maps whose result has rows that begin at no multiples of 16 bytes, made of products of which each has rows
//! that do.
//!
//! ```text
//! rows of 50257 halves: row r begins 50257 r elements after an aligned address; rows 0, 8, 16, ... at aligned ones,
//! 1, 9, 17, ... all 7 elements before one, and so on
//!
//! |########|....|     rows 0, 8, ...: one product, from the first column on
//! |   ########|.|     rows 1, 9, ...: one product, from column 7 on
//! ```
//!
//! libtorch's library takes a fast kernel where the result's first address and the distance of its rows are multiples
//! of 16 bytes. What lies before and after in a row, less than that, is computed for all rows at once and copied.

use std::sync::OnceLock;

use tch::{TchError, Tensor, no_grad};
use tilefuse_fusion::LINEAR_BY_ROWS;

use crate::Error;
use crate::torch;

/// Columns of halves that are 16 bytes.
const UNIT: i64 = 8;

/// Registers the operator, once.
pub(super) fn register() -> Result<(), Error> {
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    let run = |inputs: &[Tensor]| {
        let result = no_grad(|| linear(inputs)).map_err(|e| Error::Torch(e.to_string()))?;
        Ok(vec![result])
    };
    let made = DONE.get_or_init(|| torch::register(LINEAR_BY_ROWS, Box::new(run)).map_err(|e| e.to_string()));
    made.clone().map_err(Error::Torch)
}

/// `x wᵀ + b` of row-major `x[.., k]`, `w[n, k]` and, where there is one, `b[n]`.
fn linear(inputs: &[Tensor]) -> Result<Tensor, TchError> {
    let (x, weight, bias) = match inputs {
        [x, weight] => (x, weight, None),
        [x, weight, bias] => (x, weight, Some(bias)),
        _ => return Err(TchError::Shape(format!("{LINEAR_BY_ROWS} takes two or three tensors"))),
    };
    let (columns, depth) = weight.size2()?;
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    let out = Tensor::f_empty(&shape, (x.f_kind()?, x.device()))?;
    let (x, result) = (x.f_reshape([-1, depth])?, out.f_view([-1, columns])?);
    let product = |out: &Tensor, x: &Tensor, first: i64| -> Result<(), TchError> {
        let count = out.size2()?.1;
        let weight = weight.f_narrow(0, first, count)?.f_transpose(0, 1)?;
        let written = match bias {
            None => x.f_mm_out(out, &weight),
            Some(bias) => bias.f_narrow(0, first, count)?.f_addmm_out(out, x, &weight),
        };
        written.map(drop)
    };
    let period = UNIT >> columns.trailing_zeros().min(UNIT.trailing_zeros());
    for row in 0..period.min(x.size2()?.0) {
        let skipped = (UNIT - row * columns % UNIT) % UNIT;
        let count = (columns - skipped) / UNIT * UNIT;
        let rows = |t: &Tensor| t.f_slice(0, row, None, period);
        product(&rows(&result)?.f_narrow(1, skipped, count)?, &rows(&x)?, skipped)?;
    }
    // The end is two units wide, so that its product begins at an aligned address in each row of its own.
    let ends = Tensor::f_empty([x.size2()?.0, 3 * UNIT], (x.f_kind()?, x.device()))?;
    for (at, first, count) in [(0, 0, UNIT), (UNIT, columns - 2 * UNIT, 2 * UNIT)] {
        let part = ends.f_narrow(1, at, count)?;
        product(&part, &x, first)?;
        result.f_narrow(1, first, count)?.f_copy_(&part)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::linear;

    /// Sums of small integers are exact, whichever product makes them.
    #[test]
    fn is_the_linear_map() {
        let draw = |shape: &[i64]| Tensor::randint_low(-3, 4, shape, (Kind::BFloat16, Device::Cpu));
        for (shape, columns, depth) in
            [(&[3, 7][..], 57, 16), (&[40], 50, 8), (&[2], 52, 24), (&[1], 49, 8), (&[9], 56, 8)]
        {
            let x = draw(&[shape, &[depth]].concat());
            let (weight, bias) = (draw(&[columns, depth]), draw(&[columns]));
            for bias in [None, Some(&bias)] {
                let mut inputs = vec![x.shallow_clone(), weight.shallow_clone()];
                inputs.extend(bias.map(Tensor::shallow_clone));
                let (ours, expected) = (linear(&inputs).unwrap(), x.linear(&weight, bias));
                assert_eq!(ours.stride(), expected.stride());
                assert!(ours.equal(&expected), "{shape:?} x {depth} -> {columns}");
            }
        }
    }

    #[test]
    fn wrong_inputs_are_errors() {
        assert!(linear(&[]).is_err());
        let x = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        assert!(linear(&[x.shallow_clone(), Tensor::zeros([60, 8], (Kind::Float, Device::Cpu))]).is_err());
        assert!(linear(&[x, Tensor::zeros([4, 3], (Kind::Float, Device::Cpu))]).is_err());
    }
}
