//! The grid of a launch.

use super::LaunchError;

/// Most instances along each axis: what CUDA takes, on every target.
const MAX: [i64; 3] = [(1 << 31) - 1, 65_535, 65_535];

/// How many instances run along each of the three axes; made from one number or an array of up to three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid([i64; 3]);

impl Grid {
    /// At most two instances along the first two axes, one along the third.
    pub(super) fn corner(self) -> Grid {
        Grid([self.0[0].min(2), self.0[1].min(2), self.0[2].min(1)])
    }

    /// The extents, if a launch can have them.
    pub(super) fn extents(self) -> Result<[u32; 3], LaunchError> {
        if self.0.iter().zip(MAX).any(|(&n, most)| n < 0 || n > most) {
            return Err(LaunchError::Grid { grid: self.0, most: MAX });
        }
        Ok(self.0.map(|n| n as u32))
    }
}

/// The extents of a grid along up to three axes, whole numbers of any type: `grid![rows]`, `grid![8, rows]`.
#[macro_export]
macro_rules! grid {
    ($($extent:expr),+ $(,)?) => {
        $crate::Grid::from([$($crate::jit::extent($extent)),+])
    };
}

impl From<[i64; 3]> for Grid {
    fn from(extents: [i64; 3]) -> Grid {
        Grid(extents)
    }
}

impl From<[i64; 2]> for Grid {
    fn from([x, y]: [i64; 2]) -> Grid {
        Grid([x, y, 1])
    }
}

impl From<[i64; 1]> for Grid {
    fn from([x]: [i64; 1]) -> Grid {
        Grid([x, 1, 1])
    }
}

impl From<i64> for Grid {
    fn from(x: i64) -> Grid {
        Grid([x, 1, 1])
    }
}

impl From<i32> for Grid {
    fn from(x: i32) -> Grid {
        Grid([x.into(), 1, 1])
    }
}

impl From<u32> for Grid {
    fn from(x: u32) -> Grid {
        Grid([x.into(), 1, 1])
    }
}

impl From<usize> for Grid {
    fn from(x: usize) -> Grid {
        Grid([i64::try_from(x).unwrap_or(i64::MAX), 1, 1])
    }
}
