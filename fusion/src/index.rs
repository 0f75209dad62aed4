//! Index arithmetic: integer expressions over loop variables, kept in a canonical form.
//!
//! An expression is `constant + Σ coefficient · atom`, where an atom is a variable, a floor quotient or a floor
//! remainder of an expression by a positive constant. Expressions are interned, so equal ones are identical.

use indexmap::IndexSet;
use num_integer::gcd;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::types::Dims;

/// Expressions that there is room for to begin with.
const MIN_CAPACITY: usize = 32;

/// A loop variable; it runs from 0 to its extent, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// An interned expression of an [`Indices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Expr(u32);

/// An indivisible part of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// A loop variable.
    Var(Var),
    /// Floor of the expression divided by a positive constant.
    Div(Expr, i64),
    /// Floor remainder of the expression by a positive constant.
    Mod(Expr, i64),
}

/// `constant + Σ coefficient · atom`, atoms ascending, coefficients not 0.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    /// The terms.
    pub terms: SmallVec<[(Atom, i64); 4]>,
    /// The constant.
    pub constant: i64,
}

impl Clone for Linear {
    /// Terms are copied at once, which the clone of a `SmallVec` does one by one.
    fn clone(&self) -> Linear {
        Linear { terms: SmallVec::from_slice(&self.terms), constant: self.constant }
    }
}

/// An arena of expressions over a list of variables.
#[derive(Clone, Debug, Default)]
pub struct Indices {
    extents: Vec<i64>,
    exprs: IndexSet<Linear, FxBuildHasher>,
    ranges: Vec<(i64, i64)>,
}

impl Indices {
    /// An arena with variables of these extents (each at least 1).
    pub fn new(extents: &[i64]) -> Indices {
        let exprs = IndexSet::with_capacity_and_hasher(MIN_CAPACITY, FxBuildHasher);
        Indices { extents: extents.to_vec(), exprs, ..Indices::default() }
    }

    /// Adds a variable of this extent.
    pub fn add_var(&mut self, extent: i64) -> Var {
        self.extents.push(extent);
        Var(self.extents.len() as u32 - 1)
    }

    /// `(c, rest)` with `expr = c · var + rest` and `rest` free of `var`, if there is such a form.
    pub fn split_var(&mut self, expr: Expr, var: Var) -> Option<(i64, Expr)> {
        if self.nested_vars(expr) & (1 << var.0.min(63)) != 0 {
            return None;
        }
        let mut linear = self.linear(expr).clone();
        let at = linear.terms.iter().position(|&(atom, _)| atom == Atom::Var(var));
        let coefficient = at.map_or(0, |at| linear.terms.remove(at).1);
        Some((coefficient, self.intern(linear)))
    }

    /// Extents of the variables.
    pub fn extents(&self) -> &[i64] {
        &self.extents
    }

    /// The expression's terms.
    pub fn linear(&self, expr: Expr) -> &Linear {
        &self.exprs[expr.0 as usize]
    }

    /// Smallest and largest value, inclusive; exact for affine expressions, else an enclosure.
    pub fn range(&self, expr: Expr) -> (i64, i64) {
        self.ranges[expr.0 as usize]
    }

    /// A constant.
    pub fn constant(&mut self, value: i64) -> Expr {
        self.intern(Linear { terms: SmallVec::new(), constant: value })
    }

    /// A variable; the constant 0 if its extent is 1.
    pub fn var(&mut self, var: Var) -> Expr {
        if self.extents[var.0 as usize] <= 1 {
            return self.constant(0);
        }
        self.atom(Atom::Var(var))
    }

    /// Sum.
    pub fn add(&mut self, a: Expr, b: Expr) -> Expr {
        self.combine(a, b, 1)
    }

    /// `a + factor * b`.
    pub fn add_scaled(&mut self, a: Expr, b: Expr, factor: i64) -> Expr {
        self.combine(a, b, factor)
    }

    /// Sum with a constant.
    pub fn add_const(&mut self, a: Expr, constant: i64) -> Expr {
        let mut linear = self.linear(a).clone();
        linear.constant += constant;
        self.intern(linear)
    }

    /// Product with a constant.
    pub fn scale(&mut self, a: Expr, factor: i64) -> Expr {
        let zero = self.constant(0);
        self.combine(zero, a, factor)
    }

    /// Floor quotient by a positive constant.
    pub fn div(&mut self, a: Expr, divisor: i64) -> Expr {
        if divisor == 1 {
            return a;
        }
        let (whole, rest) = self.split(a, divisor);
        let whole = self.intern(Linear {
            terms: whole.terms.iter().map(|&(t, c)| (t, c / divisor)).collect(),
            constant: whole.constant / divisor,
        });
        let rest = self.intern(rest);
        let quotient = self.div_rest(rest, divisor);
        self.add(whole, quotient)
    }

    /// Floor remainder by a positive constant.
    pub fn rem(&mut self, a: Expr, divisor: i64) -> Expr {
        if divisor == 1 {
            return self.constant(0);
        }
        let (_, rest) = self.split(a, divisor);
        let rest = self.intern(rest);
        self.rem_rest(rest, divisor)
    }

    /// The row-major position of an index in a shape.
    pub fn linearize(&mut self, index: &[Expr], shape: &[i64]) -> Expr {
        let shape = &shape[..index.len().min(shape.len())];
        let mut weights = Dims::from_elem(1, shape.len());
        for d in (1..shape.len()).rev() {
            weights[d - 1] = weights[d].saturating_mul(shape[d]);
        }
        self.weighted_sum(index, &weights)
    }

    /// The sum of expressions, each times a weight.
    pub fn weighted_sum(&mut self, exprs: &[Expr], weights: &[i64]) -> Expr {
        let mut sum = Linear { terms: SmallVec::new(), constant: 0 };
        for (&expr, &weight) in exprs.iter().zip(weights) {
            add_into(&mut sum, self.linear(expr), weight);
        }
        self.intern(sum)
    }

    /// The index in a shape of a row-major position.
    pub fn delinearize(&mut self, position: Expr, shape: &[i64]) -> SmallVec<[Expr; 6]> {
        let mut index: SmallVec<[Expr; 6]> = SmallVec::new();
        let mut left = position;
        for (d, &n) in shape.iter().enumerate().rev() {
            if n <= 1 {
                index.push(self.constant(0));
            } else if shape[..d].iter().all(|&outer| outer == 1) {
                index.push(left);
                left = self.constant(0);
            } else {
                index.push(self.rem(left, n));
                left = self.div(left, n);
            }
        }
        index.reverse();
        index
    }

    /// The coefficient of each variable and the constant, if the expression is affine in the variables.
    pub fn affine(&self, expr: Expr) -> Option<(Vec<i64>, i64)> {
        let linear = self.linear(expr);
        let mut coefficients = vec![0; self.extents.len()];
        for &(atom, c) in &linear.terms {
            match atom {
                Atom::Var(v) => coefficients[v.0 as usize] = c,
                Atom::Div(..) | Atom::Mod(..) => return None,
            }
        }
        Some((coefficients, linear.constant))
    }

    /// The coefficient of a variable outside quotients and remainders.
    pub fn coefficient(&self, expr: Expr, var: Var) -> i64 {
        self.linear(expr).terms.iter().find(|&&(atom, _)| atom == Atom::Var(var)).map_or(0, |&(_, c)| c)
    }

    /// Which variables the expression depends on, as a bit set.
    pub fn vars(&self, expr: Expr) -> u64 {
        self.linear(expr).terms.iter().fold(0, |set, &(atom, _)| set | self.atom_vars(atom))
    }

    /// Which variables occur inside quotients and remainders, as a bit set.
    pub fn nested_vars(&self, expr: Expr) -> u64 {
        self.linear(expr).terms.iter().fold(0, |set, &(atom, _)| match atom {
            Atom::Var(_) => set,
            Atom::Div(..) | Atom::Mod(..) => set | self.atom_vars(atom),
        })
    }

    /// The value for given values of the variables.
    pub fn eval(&self, expr: Expr, values: &[i64]) -> i64 {
        let linear = self.linear(expr);
        linear.terms.iter().fold(linear.constant, |sum, &(atom, c)| {
            sum + c * match atom {
                Atom::Var(v) => values[v.0 as usize],
                Atom::Div(e, d) => self.eval(e, values).div_euclid(d),
                Atom::Mod(e, d) => self.eval(e, values).rem_euclid(d),
            }
        })
    }

    fn atom_vars(&self, atom: Atom) -> u64 {
        match atom {
            Atom::Var(v) => 1 << v.0.min(63),
            Atom::Div(e, _) | Atom::Mod(e, _) => self.vars(e),
        }
    }

    fn atom(&mut self, atom: Atom) -> Expr {
        self.intern(Linear { terms: SmallVec::from_slice(&[(atom, 1)]), constant: 0 })
    }

    fn intern(&mut self, mut linear: Linear) -> Expr {
        self.recombine(&mut linear);
        let (at, is_new) = self.exprs.insert_full(linear);
        if is_new {
            self.ranges.push(self.range_of(&self.exprs[at]));
        }
        Expr(at as u32)
    }

    fn combine(&mut self, a: Expr, b: Expr, factor: i64) -> Expr {
        if factor == 0 || self.is_zero(b) {
            return a;
        }
        if factor == 1 && self.is_zero(a) {
            return b;
        }
        let mut sum = self.linear(a).clone();
        add_into(&mut sum, self.linear(b), factor);
        self.intern(sum)
    }

    fn is_zero(&self, expr: Expr) -> bool {
        let linear = self.linear(expr);
        linear.terms.is_empty() && linear.constant == 0
    }

    /// Rewrites `k·d·(x div d) + k·(x mod d)` to `k·x`, and `k·d·((x mod n·d) div d) + k·(x mod d)` to `k·(x mod n·d)`, until
    /// nothing changes.
    fn recombine(&mut self, linear: &mut Linear) {
        while let Some((whole, part, factor, sum)) = self.find_pair(linear) {
            let (first, second) = (whole.max(part), whole.min(part));
            linear.terms.remove(first);
            linear.terms.remove(second);
            add_into(linear, &sum, factor);
        }
    }

    /// Positions of a quotient and a remainder that belong together, their common factor, and what both are.
    fn find_pair(&self, linear: &Linear) -> Option<(usize, usize, i64, Linear)> {
        for (part, &(atom, factor)) in linear.terms.iter().enumerate() {
            let Atom::Mod(x, d) = atom else { continue };
            let quotient = self.quotient_atom(x, d);
            let sum = |term: Atom| match term {
                _ if term == quotient => Some(self.linear(x).clone()),
                Atom::Div(y, e) if e == d => self.is_remainder(y, x, d).then(|| self.linear(y).clone()),
                _ => None,
            };
            let mut terms = linear.terms.iter().enumerate().filter(|&(_, &(_, c))| c == factor * d);
            if let Some((whole, sum)) = terms.find_map(|(at, &(term, _))| Some((at, sum(term)?))) {
                return Some((whole, part, factor, sum));
            }
        }
        None
    }

    /// Whether `y` is `x mod n·d` for some `n`.
    fn is_remainder(&self, y: Expr, x: Expr, d: i64) -> bool {
        let linear = self.linear(y);
        linear.constant == 0
            && matches!(linear.terms[..], [(Atom::Mod(of, modulus), 1)] if of == x && modulus % d == 0)
    }

    /// The atom that `x div d` is kept as: nested quotients are one quotient.
    fn quotient_atom(&self, x: Expr, d: i64) -> Atom {
        let linear = self.linear(x);
        match linear.terms[..] {
            [(Atom::Div(inner, e), 1)] if linear.constant == 0 => Atom::Div(inner, e * d),
            _ => Atom::Div(x, d),
        }
    }

    /// Splits into terms divisible by `divisor` and the rest, whose constant is in `0..divisor`.
    fn split(&self, a: Expr, divisor: i64) -> (Linear, Linear) {
        let linear = self.linear(a);
        let rest = linear.constant.rem_euclid(divisor);
        let mut whole = Linear { terms: SmallVec::new(), constant: linear.constant - rest };
        let mut other = Linear { terms: SmallVec::new(), constant: rest };
        for &(atom, c) in &linear.terms {
            let part = c.rem_euclid(divisor);
            if part == 0 {
                whole.terms.push((atom, c));
            } else if c > divisor && part != c {
                whole.terms.push((atom, c - part));
                other.terms.push((atom, part));
            } else {
                other.terms.push((atom, c));
            }
        }
        (whole, other)
    }

    fn div_rest(&mut self, rest: Expr, divisor: i64) -> Expr {
        let (low, high) = self.range(rest);
        if low.div_euclid(divisor) == high.div_euclid(divisor) {
            return self.constant(low.div_euclid(divisor));
        }
        let (rest, divisor) = self.reduce_common_factor(rest, divisor);
        if divisor == 1 {
            return rest;
        }
        if let [(Atom::Div(inner, d), 1)] = self.linear(rest).terms[..]
            && self.linear(rest).constant == 0
        {
            return self.div(inner, d * divisor);
        }
        self.atom(Atom::Div(rest, divisor))
    }

    /// `floor((g·x + k) / (g·d)) = floor(x / d)` for `0 <= k < g`.
    fn reduce_common_factor(&mut self, rest: Expr, divisor: i64) -> (Expr, i64) {
        let linear = self.linear(rest);
        let g = linear.terms.iter().fold(divisor, |g, &(_, c)| gcd(g, c));
        if g == 1 {
            return (rest, divisor);
        }
        let reduced = Linear {
            terms: linear.terms.iter().map(|&(t, c)| (t, c / g)).collect(),
            constant: linear.constant.div_euclid(g),
        };
        (self.intern(reduced), divisor / g)
    }

    fn rem_rest(&mut self, rest: Expr, divisor: i64) -> Expr {
        let (low, high) = self.range(rest);
        if low >= 0 && high < divisor {
            return rest;
        }
        let linear = self.linear(rest).clone();
        let g = linear.terms.iter().fold(divisor, |g, &(_, c)| gcd(g, c));
        if g > 1 {
            let k = linear.constant.rem_euclid(g);
            let (reduced, d) = self.reduce_common_factor(rest, divisor);
            let inner = self.rem(reduced, d);
            let scaled = self.scale(inner, g);
            return self.add_const(scaled, k);
        }
        if let [(Atom::Mod(inner, d), 1)] = linear.terms[..]
            && linear.constant == 0
            && d % divisor == 0
        {
            return self.rem(inner, divisor);
        }
        self.atom(Atom::Mod(rest, divisor))
    }

    /// As [`Indices::range`], of a sum of terms.
    pub fn range_of(&self, linear: &Linear) -> (i64, i64) {
        linear.terms.iter().fold((linear.constant, linear.constant), |(low, high), &(atom, c)| {
            let (a, b) = match atom {
                Atom::Var(v) => (0, self.extents[v.0 as usize] - 1),
                Atom::Div(e, d) => (self.range(e).0.div_euclid(d), self.range(e).1.div_euclid(d)),
                Atom::Mod(_, d) => (0, d - 1),
            };
            (low + (c * a).min(c * b), high + (c * a).max(c * b))
        })
    }
}

fn add_into(sum: &mut Linear, other: &Linear, factor: i64) {
    sum.constant += factor * other.constant;
    for &(atom, c) in &other.terms {
        match sum.terms.binary_search_by_key(&atom, |&(t, _)| t) {
            Ok(at) => {
                sum.terms[at].1 += factor * c;
                if sum.terms[at].1 == 0 {
                    sum.terms.remove(at);
                }
            }
            Err(at) if factor * c != 0 => sum.terms.insert(at, (atom, factor * c)),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_points(extents: &[i64]) -> Vec<Vec<i64>> {
        extents.iter().fold(vec![vec![]], |points, &n| {
            points.iter().flat_map(|p| (0..n).map(move |i| [p.clone(), vec![i]].concat())).collect()
        })
    }

    #[test]
    fn reshape_there_and_back_is_the_identity() {
        let mut ix = Indices::new(&[4, 6, 5]);
        let index: Vec<Expr> = (0..3).map(|v| ix.var(Var(v))).collect();
        let flat = ix.linearize(&index, &[4, 6, 5]);
        let other = ix.delinearize(flat, &[24, 5]);
        assert_eq!(ix.linearize(&other, &[24, 5]), flat);
        let back = ix.delinearize(flat, &[4, 6, 5]);
        assert_eq!(&back[..], &index[..]);
    }

    #[test]
    fn quotient_and_remainder_recombine() {
        let mut ix = Indices::new(&[100]);
        let x = ix.var(Var(0));
        let (q, r) = (ix.div(x, 7), ix.rem(x, 7));
        let q7 = ix.scale(q, 7);
        assert_eq!(ix.add(q7, r), x);
    }

    #[test]
    fn quotient_of_a_remainder_and_remainder_recombine() {
        let mut ix = Indices::new(&[1000]);
        let x = ix.var(Var(0));
        let token = ix.div(x, 5);
        let token = ix.rem(token, 28);
        let (row, column) = (ix.div(token, 14), ix.rem(token, 14));
        let rows = ix.scale(row, 14 * 3);
        let all = ix.add_scaled(rows, column, 3);
        assert_eq!(all, ix.scale(token, 3));
        // Another modulus, which 14 does not divide.
        let other = ix.rem(x, 27);
        let (row, column) = (ix.div(other, 14), ix.rem(x, 14));
        let rows = ix.scale(row, 14);
        let all = ix.add(rows, column);
        assert!((0..100).all(|v| ix.eval(all, &[v]) == v % 27 / 14 * 14 + v % 14));
    }

    #[test]
    fn three_way_split_recombines() {
        let mut ix = Indices::new(&[1000]);
        let x = ix.var(Var(0));
        let index = ix.delinearize(x, &[20, 5, 10]);
        assert_eq!(ix.linearize(&index, &[20, 5, 10]), x);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(i64),
        AddVar(u32, i64),
        Scale(i64),
        Div(i64),
        Rem(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (-9i64..10).prop_map(Step::Add),
            (0u32..3, -6i64..7).prop_map(|(v, c)| Step::AddVar(v, c)),
            (-4i64..5).prop_map(Step::Scale),
            (1i64..9).prop_map(Step::Div),
            (1i64..9).prop_map(Step::Rem),
        ]
    }

    proptest! {
        #[test]
        fn simplified_expressions_keep_their_values(
            extents in proptest::collection::vec(1i64..6, 3),
            steps in proptest::collection::vec(step(), 1..12),
        ) {
            let mut ix = Indices::new(&extents);
            let mut expr = ix.var(Var(0));
            let points = all_points(&extents);
            let mut values: Vec<i64> = points.iter().map(|p| p[0]).collect();
            for s in steps {
                expr = match s {
                    Step::Add(c) => ix.add_const(expr, c),
                    Step::AddVar(v, c) => { let v = ix.var(Var(v)); ix.add_scaled(expr, v, c) }
                    Step::Scale(c) => ix.scale(expr, c),
                    Step::Div(d) => ix.div(expr, d),
                    Step::Rem(d) => ix.rem(expr, d),
                };
                for (value, p) in values.iter_mut().zip(&points) {
                    *value = match s {
                        Step::Add(c) => *value + c,
                        Step::AddVar(v, c) => *value + c * p[v as usize],
                        Step::Scale(c) => *value * c,
                        Step::Div(d) => value.div_euclid(d),
                        Step::Rem(d) => value.rem_euclid(d),
                    };
                }
                let (low, high) = ix.range(expr);
                for (value, p) in values.iter().zip(&points) {
                    prop_assert_eq!(ix.eval(expr, p), *value);
                    prop_assert!(low <= *value && *value <= high);
                }
            }
        }
    }
}
