//! What reductions combine elements with: a scalar function, or a function of tuples.
//!
//! A tuple has a *base* and members that are sums relative to it. Where the base of what was combined so far changes, these
//! are *corrected*; everything else follows from that correction:
//!
//! ```text
//! max_sumexp (m, s...)    base m = max m_i          s = sum of s_i * exp(m_i - m)
//! argmax (m, i)           base m = max m_i          i = min of (i_i where m_i is m, else the largest integer)
//! argmin (m, i)           base m = min m_i          as argmax
//! moments (n, mean, q)    base n = sum of n_i, mean = sum of n_i * mean_i / n
//!                                                   q = sum of q_i + n_i * (mean_i - mean)^2
//! ```
//!
//! An element `x` is the tuple `(x, 1)`, `(x, its position)` or `(1, x, 0)`, and a partial result is what its members are.
//! `reduce` finds the base of all elements first; `accumulate` combines elements with
//! what was combined so far and needs each of them once.
//!
//! Eager's special values: a sum of exponentials is NaN where the maximum is infinite or NaN; the position is that of the first
//! NaN where there is one.

use smallvec::{SmallVec, smallvec};
use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

/// The members of a tuple.
pub type Members<T> = SmallVec<[T; 3]>;

/// What a reduction combines elements with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combiner {
    /// One value, by a scalar function.
    Scalar(ReduceFn),
    /// The maximum, and the sum of exponentials below it: softmax's statistics.
    MaxSumExp,
    /// The maximum, and the lowest position where it is.
    ArgMax,
    /// The minimum, and the lowest position where it is.
    ArgMin,
    /// A number of elements, their mean, and the sum of squared deviations from it. Chan, Golub and LeVeque, "Updating formulae
    /// and a pairwise algorithm for computing sample variances", 1979.
    Moments,
}

impl From<ReduceFn> for Combiner {
    fn from(function: ReduceFn) -> Combiner {
        Combiner::Scalar(function)
    }
}

impl Combiner {
    /// The combiners of tuples.
    pub const TUPLES: [Combiner; 4] =
        [Combiner::MaxSumExp, Combiner::ArgMax, Combiner::ArgMin, Combiner::Moments];

    /// The spelling in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Combiner::Scalar(function) => function.name(),
            Combiner::MaxSumExp => "max_sumexp",
            Combiner::ArgMax => "argmax",
            Combiner::ArgMin => "argmin",
            Combiner::Moments => "moments",
        }
    }

    /// The combiner that is spelled `name`.
    pub fn from_name(name: &str) -> Option<Combiner> {
        let tuple = Combiner::TUPLES.into_iter().find(|c| c.name() == name);
        tuple.or_else(|| ReduceFn::from_name(name).map(Combiner::Scalar))
    }

    /// How many operands and results a reduction has.
    pub fn arity(self) -> usize {
        match self {
            Combiner::Scalar(_) => 1,
            Combiner::MaxSumExp | Combiner::ArgMax | Combiner::ArgMin => 2,
            Combiner::Moments => 3,
        }
    }

    /// Whether the combiner takes elements of these kinds. The results are of the same ones.
    pub fn accepts(self, elems: &[Elem]) -> bool {
        let wide = |elem: &Elem| matches!(elem, Elem::F32 | Elem::F64) && *elem == elems[0];
        elems.len() == self.arity()
            && match self {
                Combiner::Scalar(function) => function.accepts(elems[0]),
                Combiner::MaxSumExp | Combiner::Moments => elems.iter().all(wide),
                Combiner::ArgMax | Combiner::ArgMin => {
                    ReduceFn::Max.accepts(elems[0]) && matches!(elems[1], Elem::I32 | Elem::I64)
                }
            }
    }

    /// The tuple that changes nothing when combined.
    pub fn identity(self, elems: &[Elem]) -> Members<Literal> {
        match self {
            Combiner::Scalar(function) => elems.iter().map(|&e| function.neutral(e)).collect(),
            Combiner::Moments => elems.iter().map(|&e| Literal::of(e, 0.0)).collect(),
            Combiner::MaxSumExp | Combiner::ArgMax | Combiner::ArgMin => {
                let [base, dependent] = self.functions();
                elems.iter().zip([base, dependent]).map(|(&e, f)| f.neutral(e)).collect()
            }
        }
    }

    /// Whether an element that takes no part may have any number as this member: one that counts for nothing beside the base
    /// of [`identity`](Combiner::identity).
    pub(crate) fn ignores(self, member: usize) -> bool {
        self == Combiner::MaxSumExp && member > 0
    }

    /// The member that every element has a number of its own of.
    pub(crate) fn value(self) -> usize {
        usize::from(self == Combiner::Moments)
    }

    /// What combines the base, and the member that depends on it.
    fn functions(self) -> [ReduceFn; 2] {
        match self {
            Combiner::Scalar(function) => [function; 2],
            Combiner::MaxSumExp => [ReduceFn::Max, ReduceFn::Sum],
            Combiner::ArgMax => [ReduceFn::Max, ReduceFn::Min],
            Combiner::ArgMin => [ReduceFn::Min; 2],
            Combiner::Moments => [ReduceFn::Sum; 2],
        }
    }
}

/// Where combiners compute: on data, in expressions of kernels, in block programs.
pub(crate) trait Arithmetic {
    /// A number, or one for each element.
    type Value: Clone;
    /// Why something cannot be computed.
    type Error;

    /// A scalar function of values for each element, or of some that are the same for all.
    fn map(&mut self, function: ScalarFn, args: &[&Self::Value]) -> Result<Self::Value, Self::Error>;

    /// A literal, for all elements.
    fn number(&mut self, literal: Literal) -> Self::Value;

    /// The literal that every element is, where that is known.
    fn known(&self, value: &Self::Value) -> Option<Literal>;

    /// Where every element is 1 or 0, because some elements are left out: the condition of 1.
    fn condition(&self, _value: &Self::Value) -> Option<Self::Value> {
        None
    }

    /// The kind of a value.
    fn elem(&self, value: &Self::Value) -> Elem;

    /// The elements combined.
    fn reduce(&mut self, function: ReduceFn, value: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// How many elements are combined.
    fn extent(&self) -> i64;

    /// By what a sum of exponentials below one base is multiplied to be one below another; of an element, its own.
    fn exp_below(&mut self, own: &Self::Value, base: &Self::Value) -> Result<Self::Value, Self::Error> {
        let below = self.map(ScalarFn::Sub, &[own, base])?;
        self.map(ScalarFn::Exp, &[&below])
    }
}

/// What sums relative to a base are multiplied by where elements join that have a base of their own.
pub(crate) struct Rebased<V> {
    /// The base of all.
    pub(crate) base: V,
    /// By which sums of the elements are multiplied, one for each.
    pub(crate) weights: V,
    /// By which those of what was combined so far are, if anything was.
    pub(crate) factor: Option<V>,
}

type Tuple<A> = Result<Members<<A as Arithmetic>::Value>, <A as Arithmetic>::Error>;
type One<A> = Result<<A as Arithmetic>::Value, <A as Arithmetic>::Error>;

impl Combiner {
    /// The elements that operands of a reduction stand for. Partial results may have NaN where nothing is above minus infinity.
    pub(crate) fn elements<A: Arithmetic>(self, a: &mut A, operands: &[A::Value]) -> Tuple<A> {
        let mut elements = Members::from(operands);
        if let (Combiner::MaxSumExp, [base, sum]) = (self, operands)
            && a.known(sum).is_none()
        {
            let (nothing, zero) = (self.nothing(a, base)?, number(a, sum, 0.0));
            elements[1] = a.map(ScalarFn::Select, &[&nothing, &zero, sum])?;
        }
        Ok(elements)
    }

    /// All elements combined: the base first, then what depends on it.
    pub(crate) fn reduce<A: Arithmetic>(self, a: &mut A, elements: &[A::Value]) -> Tuple<A> {
        let [base, dependent] = self.functions();
        match elements {
            [value] => Ok(smallvec![a.reduce(base, value)?]),
            [value, _] => {
                let all = a.reduce(base, value)?;
                let corrected = self.corrected(a, elements, &all)?;
                let second = a.reduce(dependent, &corrected)?;
                Ok(smallvec![all, second])
            }
            _ => moments(a, elements, None),
        }
    }

    /// As [`reduce`](Combiner::reduce), where the elements are partial results, of so many elements in all where that is known.
    pub(crate) fn finish<A: Arithmetic>(self, a: &mut A, parts: &[A::Value], of: Option<i64>) -> Tuple<A> {
        match (self, parts) {
            (Combiner::Moments, _) if a.extent() == 1 => Ok(parts.into()),
            (Combiner::Moments, [count, ..]) => {
                let all = of.map(|of| number(a, count, of as f64));
                moments(a, parts, all)
            }
            _ => self.reduce(a, parts),
        }
    }

    /// Elements combined with what was combined so far.
    pub(crate) fn accumulate<A: Arithmetic>(
        self,
        a: &mut A,
        so_far: &[A::Value],
        elements: &[A::Value],
    ) -> Tuple<A> {
        let [base, dependent] = self.functions();
        match (so_far, elements) {
            ([first], [value]) => {
                let all = a.reduce(base, value)?;
                Ok(smallvec![a.map(base.combine(), &[first, &all])?])
            }
            ([first, _], [value, _]) => {
                let next = self.joined(a, Some(first), value)?;
                let to = self.finite_base(a, &next)?;
                let corrected = self.corrected(a, elements, &to)?;
                let part = a.reduce(dependent, &corrected)?;
                let kept = self.corrected(a, so_far, &to)?;
                let second = a.map(dependent.combine(), &[&kept, &part])?;
                Ok(smallvec![next, second])
            }
            _ => {
                let part = if a.extent() == 1 { elements.into() } else { moments(a, elements, None)? };
                merge(a, so_far, &part)
            }
        }
    }

    /// What elements make of the base of what was combined so far, of a combiner whose members are sums: attention's tuple has a
    /// sum of values that the exponentials weigh, which a product makes and not a reduction.
    pub(crate) fn rebased<A: Arithmetic>(
        self,
        a: &mut A,
        so_far: Option<&A::Value>,
        value: &A::Value,
    ) -> Result<Rebased<A::Value>, A::Error> {
        let base = self.joined(a, so_far, value)?;
        let to = self.finite_base(a, &base)?;
        let weights = a.exp_below(value, &to)?;
        let factor = so_far.map(|own| a.exp_below(own, &to)).transpose()?;
        Ok(Rebased { base, weights, factor })
    }

    /// The base of elements and of what was combined so far.
    fn joined<A: Arithmetic>(self, a: &mut A, so_far: Option<&A::Value>, value: &A::Value) -> One<A> {
        let [base, _] = self.functions();
        let all = a.reduce(base, value)?;
        match so_far {
            Some(first) => a.map(base.combine(), &[first, &all]),
            None => Ok(all),
        }
    }

    /// The member that depends on the base, as it counts beside another base.
    fn corrected<A: Arithmetic>(self, a: &mut A, tuple: &[A::Value], base: &A::Value) -> One<A> {
        let [own, member] = tuple else { return Ok(tuple[0].clone()) };
        if self == Combiner::MaxSumExp {
            let factor = a.exp_below(own, base)?;
            return match a.known(member).is_some_and(|l| l.as_f64() == 1.0) {
                true => Ok(factor),
                false => a.map(ScalarFn::Mul, &[member, &factor]),
            };
        }
        let mut same = a.map(ScalarFn::Eq, &[own, base])?;
        if a.elem(own).is_float() {
            let is_nan = a.map(ScalarFn::IsNan, &[own])?;
            same = a.map(ScalarFn::Or, &[&same, &is_nan])?;
        }
        let none = a.number(ReduceFn::Min.neutral(a.elem(member)));
        a.map(ScalarFn::Select, &[&same, member, &none])
    }

    /// A base to which sums so far can be corrected: where nothing was above minus infinity yet, their exponentials are 0.
    fn finite_base<A: Arithmetic>(self, a: &mut A, base: &A::Value) -> One<A> {
        if self != Combiner::MaxSumExp {
            return Ok(base.clone());
        }
        let (nothing, zero) = (self.nothing(a, base)?, number(a, base, 0.0));
        a.map(ScalarFn::Select, &[&nothing, &zero, base])
    }

    fn nothing<A: Arithmetic>(self, a: &mut A, base: &A::Value) -> One<A> {
        let infinity = number(a, base, f64::NEG_INFINITY);
        a.map(ScalarFn::Eq, &[base, &infinity])
    }
}

fn number<A: Arithmetic>(a: &mut A, like: &A::Value, value: f64) -> A::Value {
    let elem = a.elem(like);
    a.number(Literal::of(elem, value))
}

fn is<A: Arithmetic>(a: &A, value: &A::Value, number: f64) -> bool {
    a.known(value).is_some_and(|literal| literal.as_f64() == number)
}

/// `x / n`; by a power of two, the product that is the same number.
fn quotient<A: Arithmetic>(a: &mut A, x: &A::Value, n: &A::Value) -> One<A> {
    match a.known(n).map(Literal::as_f64) {
        Some(by) if by.log2().fract() == 0.0 => {
            let inverse = number(a, n, 1.0 / by);
            a.map(ScalarFn::Mul, &[x, &inverse])
        }
        Some(_) => a.map(ScalarFn::Div, &[x, n]),
        None => {
            let one = number(a, n, 1.0);
            let some = a.map(ScalarFn::Max, &[n, &one])?;
            a.map(ScalarFn::Div, &[x, &some])
        }
    }
}

/// The moments of elements, of which there are `all` where that is known.
fn moments<A: Arithmetic>(a: &mut A, elements: &[A::Value], all: Option<A::Value>) -> Tuple<A> {
    let [count, mean, squares] = elements else { return Ok(elements.into()) };
    let ones = is(a, count, 1.0);
    let condition = a.condition(count);
    // What is left out has a mean of 0.
    let single = ones || condition.is_some();
    let sums = if single { mean.clone() } else { a.map(ScalarFn::Mul, &[mean, count])? };
    let sum = a.reduce(ReduceFn::Sum, &sums)?;
    let all = match all {
        Some(all) => all,
        None if ones => number(a, count, a.extent() as f64),
        None => a.reduce(ReduceFn::Sum, count)?,
    };
    let middle = quotient(a, &sum, &all)?;
    let off = a.map(ScalarFn::Sub, &[mean, &middle])?;
    // In this order nothing weighs nothing, however far it is.
    let weighed = match condition {
        Some(condition) => {
            let zero = number(a, &off, 0.0);
            a.map(ScalarFn::Select, &[&condition, &off, &zero])?
        }
        None if ones => off.clone(),
        None => a.map(ScalarFn::Mul, &[&off, count])?,
    };
    let mut square = a.map(ScalarFn::Mul, &[&weighed, &off])?;
    if !is(a, squares, 0.0) {
        square = a.map(ScalarFn::Add, &[squares, &square])?;
    }
    let squares = a.reduce(ReduceFn::Sum, &square)?;
    Ok(smallvec![all, middle, squares])
}

/// The moments of two parts together.
fn merge<A: Arithmetic>(a: &mut A, first: &[A::Value], second: &[A::Value]) -> Tuple<A> {
    let ([count, mean, squares], [more, middle, own]) = (first, second) else { return Ok(first.into()) };
    let all = a.map(ScalarFn::Add, &[count, more])?;
    let some = match a.known(more) {
        Some(_) => all.clone(),
        None => {
            let one = number(a, &all, 1.0);
            a.map(ScalarFn::Max, &[&all, &one])?
        }
    };
    let part = a.map(ScalarFn::Div, &[more, &some])?;
    let weight = a.map(ScalarFn::Mul, &[count, &part])?;
    let delta = a.map(ScalarFn::Sub, &[middle, mean])?;
    let step = a.map(ScalarFn::Mul, &[&delta, &part])?;
    let mean = a.map(ScalarFn::Add, &[mean, &step])?;
    let far = a.map(ScalarFn::Mul, &[&delta, &weight])?;
    let between = a.map(ScalarFn::Mul, &[&far, &delta])?;
    let both = if is(a, own, 0.0) { squares.clone() } else { a.map(ScalarFn::Add, &[squares, own])? };
    let squares = a.map(ScalarFn::Add, &[&both, &between])?;
    Ok(smallvec![all, mean, squares])
}
