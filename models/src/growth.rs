//! Models of any number of operators, to see how the cost of compiling grows.

use tch::Tensor;

/// What a model of [`growing`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// One pointwise operator after the other.
    Pointwise,
    /// Pointwise operators, and the mean of each row subtracted after every third.
    RowMeans,
    /// Pointwise operators that take what earlier ones made, so that nothing is a chain.
    Branches,
    /// Transpositions, slices and reshapes between pointwise operators.
    Views,
}

impl Growth {
    /// All of them.
    pub const ALL: [Growth; 4] = [Growth::Pointwise, Growth::RowMeans, Growth::Branches, Growth::Views];
}

/// Calls about `operators` operators on a matrix of even sizes. What it computes stays small for any number of them.
pub fn growing(kind: Growth, operators: usize, x: &Tensor) -> Tensor {
    match kind {
        Growth::Pointwise => (0..operators).fold(x.shallow_clone(), |x, at| pointwise(&x, at)),
        Growth::RowMeans => (0..operators / 5).fold(x.shallow_clone(), |x, at| {
            let x = (0..3).fold(x, |x, step| pointwise(&x, 3 * at + step));
            let mean = x.mean_dim([-1i64].as_slice(), true, None);
            x - mean
        }),
        Growth::Branches => branches(operators, x),
        Growth::Views => (0..operators / 5).fold(x.shallow_clone(), |x, at| match at % 3 {
            0 => pointwise(&x, at) + pointwise(&x.transpose(0, 1), at).contiguous().reshape(x.size()),
            1 => pointwise(&x, at) + pointwise(&x.flip([1i64]), at) * 0.5,
            _ => {
                let half = x.size()[1] / 2;
                let (left, right) = (x.narrow(1, 0, half), x.narrow(1, half, half));
                Tensor::cat(&[&right, &(left * 0.5)], 1)
            }
        }),
    }
}

fn pointwise(x: &Tensor, at: usize) -> Tensor {
    match at % 4 {
        0 => x * 1.01,
        1 => x + 0.1,
        2 => x.relu(),
        _ => x.tanh(),
    }
}

fn branches(operators: usize, x: &Tensor) -> Tensor {
    let mut made = vec![x.shallow_clone(), x * 0.5];
    for at in 0..operators / 2 {
        // A short and a longer way back, as skip connections are.
        let (near, far) = (&made[made.len() - 1], &made[made.len() - 1 - at % 7 % made.len()]);
        made.push((near + far).tanh());
    }
    made.pop().unwrap_or_else(|| x.shallow_clone())
}
