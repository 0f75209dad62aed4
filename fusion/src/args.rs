//! Reading of call arguments by their schema names.

use crate::recording::Arg;

/// A number given as an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

impl Number {
    /// The value as `f64`.
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Number::Bool(b) => f64::from(u8::from(b)),
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }
    }
}

/// Arguments of a call, by name. An argument that is left out reads as `None`.
#[derive(Debug)]
pub(crate) struct Args<'a, T>(pub(crate) &'a [(String, Arg<T>)]);

impl<T> Clone for Args<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Args<'_, T> {}

impl<'a, T: Copy> Args<'a, T> {
    /// The argument; `None` where it is absent or left out.
    pub(crate) fn get(self, name: &str) -> Option<&'a Arg<T>> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, arg)| arg).filter(|arg| !matches!(arg, Arg::None))
    }

    /// Whether the argument is absent or left out.
    pub(crate) fn absent(self, name: &str) -> bool {
        self.get(name).is_none()
    }

    /// A tensor.
    pub(crate) fn tensor(self, name: &str) -> Option<T> {
        match self.get(name)? {
            Arg::Tensor(t) => Some(*t),
            _ => None,
        }
    }

    /// A list of tensors.
    pub(crate) fn tensors(self, name: &str) -> Option<&'a [Option<T>]> {
        match self.get(name)? {
            Arg::Tensors(list) => Some(list),
            _ => None,
        }
    }

    /// An integer.
    pub(crate) fn int(self, name: &str) -> Option<i64> {
        match self.get(name)? {
            Arg::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// A number of any kind.
    pub(crate) fn number(self, name: &str) -> Option<Number> {
        match self.get(name)? {
            Arg::Bool(b) => Some(Number::Bool(*b)),
            Arg::Int(n) => Some(Number::Int(*n)),
            Arg::Float(x) => Some(Number::Float(*x)),
            _ => None,
        }
    }

    /// A number of any kind, as `f64`.
    pub(crate) fn float(self, name: &str) -> Option<f64> {
        self.number(name).map(Number::as_f64)
    }

    /// A truth value; an integer counts.
    pub(crate) fn bool(self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Arg::Bool(b) => Some(*b),
            Arg::Int(n) => Some(*n != 0),
            _ => None,
        }
    }

    /// A list of integers; a single integer is a list of one.
    pub(crate) fn ints(self, name: &str) -> Option<Vec<i64>> {
        match self.get(name)? {
            Arg::Ints(list) => Some(list.clone()),
            Arg::Int(n) => Some(vec![*n]),
            Arg::Tensors(list) if list.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }

    /// A string.
    pub(crate) fn str(self, name: &str) -> Option<&'a str> {
        match self.get(name)? {
            Arg::Str(s) => Some(s),
            _ => None,
        }
    }
}

/// A dimension number that may count from the end, for a tensor of this rank. A tensor of rank 0 has a dimension 0.
pub(crate) fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let extent = rank.max(1) as i64;
    let wrapped = if dim < 0 { dim + extent } else { dim };
    (0..extent).contains(&wrapped).then_some(wrapped as usize)
}

/// Dimension numbers that may count from the end.
pub(crate) fn wrap_all(dims: &[i64], rank: usize) -> Option<Vec<usize>> {
    dims.iter().map(|&d| wrap(d, rank)).collect()
}

/// The permutation of `movedim`: result dimension `i` is operand dimension `perm[i]`.
pub(crate) fn movedim(source: &[i64], destination: &[i64], rank: usize) -> Option<Vec<usize>> {
    let (source, destination) = (wrap_all(source, rank)?, wrap_all(destination, rank)?);
    if source.len() != destination.len() {
        return None;
    }
    if rank == 0 {
        return Some(Vec::new());
    }
    let mut perm = vec![None; rank];
    for (&from, &to) in source.iter().zip(&destination) {
        *perm.get_mut(to)? = Some(from);
    }
    let mut rest = (0..rank).filter(|d| !source.contains(d));
    perm.into_iter().map(|slot| slot.or_else(|| rest.next())).collect()
}

/// A permutation that swaps two dimensions.
pub(crate) fn swapped(first: i64, second: i64, rank: usize) -> Option<Vec<usize>> {
    let mut perm: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        perm.swap(wrap(first, rank)?, wrap(second, rank)?);
    }
    Some(perm)
}

/// First element and step of a slice along a dimension of size `size`, clamped as libtorch clamps them.
pub(crate) fn slice_start(start: Option<i64>, size: i64) -> i64 {
    let start = start.unwrap_or(0);
    (if start < 0 { start.saturating_add(size) } else { start }).clamp(0, size)
}
