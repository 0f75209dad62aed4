//! The scalar functions: one table that every other part of Tilefuse reads.
//!
//! A row gives the name in text forms, the arity, the type rule, whether targets implement the function directly
//! or the `expand-math` pass rewrites it into functions that they do, algebraic facts, and the accuracy in `f32`.
//! The interpreter defines the meaning of each function on one element.

use crate::types::Elem;

/// How result and operand kinds of a scalar function relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeRule {
    /// All operands and the result have one floating-point kind.
    Float,
    /// All operands and the result have one integer kind.
    Int,
    /// All operands and the result have one integer or floating-point kind.
    Number,
    /// All operands and the result have one integer kind or are booleans.
    Bits,
    /// Both operands have one kind of any sort; the result is boolean.
    Compare,
    /// The operands have one floating-point kind; the result is boolean.
    FloatTest,
    /// A boolean and two operands of one kind, which is the result's.
    Select,
}

/// Whether targets implement a function or a pass rewrites it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every target implements it.
    Base(BaseFn),
    /// The `expand-math` pass rewrites it into base functions.
    Math(MathFn),
}

/// Makes the functions from the rows of both levels. Whoever matches on [`BaseFn`] or [`MathFn`] leaves no function out: the
/// compiler names every place that a new row needs.
macro_rules! scalar_fns {
    (
        base { $($base:ident $base_name:literal $base_arity:literal $base_rule:ident $base_ulp:literal $base_cost:literal $base_doc:literal;)* }
        math { $($math:ident $math_name:literal $math_arity:literal $math_rule:ident $math_ulp:literal $math_cost:literal $math_doc:literal;)* }
    ) => {
        scalar_fns! {
            $($base $base_name $base_arity $base_rule $base_ulp $base_cost $base_doc;)*
            $($math $math_name $math_arity $math_rule $math_ulp $math_cost $math_doc;)*
        }

        /// A function that every target implements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BaseFn { $(#[doc = $base_doc] $base,)* }

        /// A mathematical function, which the `expand-math` pass rewrites.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum MathFn { $(#[doc = $math_doc] $math,)* }

        impl From<BaseFn> for ScalarFn {
            fn from(function: BaseFn) -> ScalarFn {
                match function { $(BaseFn::$base => ScalarFn::$base,)* }
            }
        }

        impl ScalarFn {
            /// Whether targets implement it directly, and as which of these functions.
            pub const fn level(self) -> Level {
                match self {
                    $(ScalarFn::$base => Level::Base(BaseFn::$base),)*
                    $(ScalarFn::$math => Level::Math(MathFn::$math),)*
                }
            }
        }
    };
    ($($variant:ident $name:literal $arity:literal $rule:ident $ulp:literal $cost:literal $doc:literal;)*) => {
        /// A function of one element of each operand.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ScalarFn { $(#[doc = $doc] $variant,)* }

        impl ScalarFn {
            /// Every function, in the order of the table.
            pub const ALL: &'static [ScalarFn] = &[$(ScalarFn::$variant,)*];

            /// The spelling in text forms.
            pub const fn name(self) -> &'static str { match self { $(ScalarFn::$variant => $name,)* } }

            /// Number of operands.
            pub const fn arity(self) -> usize { match self { $(ScalarFn::$variant => $arity,)* } }

            /// The type rule.
            pub const fn rule(self) -> TypeRule { match self { $(ScalarFn::$variant => TypeRule::$rule,)* } }

            /// Largest error in units in the last place of `f32`, over the whole range; 0 is exact or correctly
            /// rounded.
            pub const fn max_ulp(self) -> f64 { match self { $(ScalarFn::$variant => $ulp,)* } }

            /// Approximate number of vector instructions for one vector of `f32`.
            pub const fn cost(self) -> u32 { match self { $(ScalarFn::$variant => $cost,)* } }

            /// One sentence of documentation.
            pub const fn doc(self) -> &'static str { match self { $(ScalarFn::$variant => $doc,)* } }
        }
    };
}

scalar_fns! {
    base {
        // Arithmetic. Integers wrap.
        Add "add" 2 Number 0.0 1 "Sum.";
        Sub "sub" 2 Number 0.0 1 "Difference.";
        Mul "mul" 2 Number 0.0 1 "Product.";
        Div "div" 2 Float 0.0 5 "Quotient of floats.";
        Fma "fma" 3 Float 0.0 1 "`a * b + c`, rounded once.";
        Neg "neg" 1 Number 0.0 1 "Negation.";
        Abs "abs" 1 Number 0.0 1 "Absolute value; the smallest integer stays itself.";
        MulHi "mul_hi" 2 Int 0.0 4 "Upper half of the product, which has twice the bits.";
        DivTrunc "div_trunc" 2 Int 0.0 20 "Integer quotient rounded toward zero; 0 for a zero divisor; INT_MIN / -1 = INT_MIN.";
        DivFloor "div_floor" 2 Int 0.0 24 "Integer quotient rounded toward minus infinity; 0 for a zero divisor.";
        RemTrunc "rem_trunc" 2 Number 0.0 24 "Remainder with the sign of the dividend (C's `%`, `fmod`); 0 for a zero integer divisor.";
        RemFloor "rem_floor" 2 Number 0.0 28 "Remainder with the sign of the divisor (Python's `%`); 0 for a zero integer divisor.";
        Max "max" 2 Number 0.0 1 "Larger operand; NaN if either is NaN; +0 is larger than -0.";
        Min "min" 2 Number 0.0 1 "Smaller operand; NaN if either is NaN; -0 is smaller than +0.";
        FMax "fmax" 2 Float 0.0 2 "Larger operand; the other one where one is NaN.";
        FMin "fmin" 2 Float 0.0 2 "Smaller operand; the other one where one is NaN.";
        CopySign "copysign" 2 Float 0.0 2 "The first operand's magnitude with the second one's sign.";
        // Rounding.
        Floor "floor" 1 Float 0.0 1 "Largest integer not above.";
        Ceil "ceil" 1 Float 0.0 1 "Smallest integer not below.";
        Trunc "trunc" 1 Float 0.0 1 "Integer part.";
        RoundEven "round_even" 1 Float 0.0 1 "Nearest integer, half to even.";
        // Bits.
        And "and" 2 Bits 0.0 1 "Bitwise or logical and.";
        Or "or" 2 Bits 0.0 1 "Bitwise or logical or.";
        Xor "xor" 2 Bits 0.0 1 "Bitwise or logical exclusive or.";
        Not "not" 1 Bits 0.0 1 "Bitwise or logical not.";
        Shl "shl" 2 Int 0.0 2 "Shift left; 0 where the amount is negative or not below the width.";
        Shr "shr" 2 Int 0.0 2 "Shift right, arithmetic for signed kinds; an amount out of range gives 0, or -1 for a negative signed value.";
        // Comparison. Ordered: false where an operand is NaN, except `ne`, which is true.
        Eq "eq" 2 Compare 0.0 1 "Equal.";
        Ne "ne" 2 Compare 0.0 1 "Not equal.";
        Lt "lt" 2 Compare 0.0 1 "Less.";
        Le "le" 2 Compare 0.0 1 "Less or equal.";
        Gt "gt" 2 Compare 0.0 1 "Greater.";
        Ge "ge" 2 Compare 0.0 1 "Greater or equal.";
        IsNan "is_nan" 1 FloatTest 0.0 1 "Whether the operand is NaN.";
        IsInf "is_inf" 1 FloatTest 0.0 2 "Whether the operand is infinite.";
        Select "select" 3 Select 0.0 1 "The second operand where the first is true, else the third.";
        // Roots.
        Sqrt "sqrt" 1 Float 0.0 5 "Square root, correctly rounded.";
    }
    math {
        // Roots and powers.
        Rsqrt "rsqrt" 1 Float 1.5 10 "One over the square root.";
        Pow "pow" 2 Float 2.0 105 "First operand to the power of the second, with C's special cases.";
        // Exponentials and logarithms.
        Exp "exp" 1 Float 2.0 16 "e to the power of the operand.";
        Exp2 "exp2" 1 Float 2.0 17 "2 to the power of the operand.";
        Expm1 "expm1" 1 Float 2.0 18 "exp(x) - 1.";
        Log "log" 1 Float 2.0 28 "Natural logarithm.";
        Log2 "log2" 1 Float 2.0 29 "Logarithm to base 2.";
        Log10 "log10" 1 Float 2.0 31 "Logarithm to base 10.";
        Log1p "log1p" 1 Float 2.0 31 "log(1 + x).";
        // Trigonometry.
        Sin "sin" 1 Float 2.0 56 "Sine.";
        Cos "cos" 1 Float 2.0 56 "Cosine.";
        Tan "tan" 1 Float 2.0 74 "Tangent.";
        Asin "asin" 1 Float 2.0 23 "Arc sine.";
        Acos "acos" 1 Float 2.0 28 "Arc cosine.";
        Atan "atan" 1 Float 2.0 24 "Arc tangent.";
        Atan2 "atan2" 2 Float 2.0 36 "Angle of the point (second, first), with C's special cases.";
        Sinh "sinh" 1 Float 2.0 32 "Hyperbolic sine.";
        Cosh "cosh" 1 Float 2.0 21 "Hyperbolic cosine.";
        Tanh "tanh" 1 Float 2.0 25 "Hyperbolic tangent.";
        Asinh "asinh" 1 Float 2.0 71 "Inverse hyperbolic sine.";
        Acosh "acosh" 1 Float 2.0 66 "Inverse hyperbolic cosine.";
        Atanh "atanh" 1 Float 2.0 74 "Inverse hyperbolic tangent.";
        // Error function and the logistic function.
        Erf "erf" 1 Float 2.0 26 "Error function.";
        Erfc "erfc" 1 Float 4.0 49 "Complementary error function.";
        Sigmoid "sigmoid" 1 Float 2.0 31 "1 / (1 + exp(-x)).";
        // What a target may compute less exactly than the others, where it is quicker so.
        Exp2Approx "exp2_approx" 1 Float 4.0 17 "2 to the power of the operand, to about 22 bits; targets differ.";
        Exp2ApproxFtz "exp2_approx_ftz" 1 Float 4.0 17 "`exp2_approx`, or 0 where that is below the smallest normal number; targets differ.";
        RecipApprox "recip_approx" 1 Float 2.0 5 "One over the operand, to about 22 bits, 0 for one below the smallest normal number; targets differ.";
        RsqrtApprox "rsqrt_approx" 1 Float 2.0 10 "One over the square root, to about 22 bits; targets differ.";
    }
}

impl ScalarFn {
    /// The function that is spelled `name`.
    pub fn from_name(name: &str) -> Option<ScalarFn> {
        ScalarFn::ALL.iter().copied().find(|f| f.name() == name)
    }

    /// Whether the `expand-math` pass rewrites it.
    pub const fn is_math(self) -> bool {
        matches!(self.level(), Level::Math(_))
    }

    /// Whether targets compute it with errors of their own.
    pub const fn is_approximate(self) -> bool {
        matches!(
            self,
            ScalarFn::Exp2Approx | ScalarFn::Exp2ApproxFtz | ScalarFn::RecipApprox | ScalarFn::RsqrtApprox
        )
    }

    /// Whether exchanging the two operands changes nothing.
    pub const fn is_commutative(self) -> bool {
        use ScalarFn::*;
        matches!(self, Add | Mul | MulHi | Max | Min | FMax | FMin | And | Or | Xor | Eq | Ne)
    }

    /// The kind of the result for operands of these kinds, or `None` if the function does not take them.
    pub fn result(self, operands: &[Elem]) -> Option<Elem> {
        if operands.len() != self.arity() {
            return None;
        }
        let first = *operands.first()?;
        if operands.iter().any(|e| e.is_small_float()) && self.rule() != TypeRule::Select {
            return None;
        }
        let same = operands.iter().all(|&e| e == first);
        let ok = |cond: bool, out: Elem| (cond && same).then_some(out);
        match self.rule() {
            TypeRule::Float => ok(first.is_float(), first),
            TypeRule::Int => ok(first.is_int(), first),
            TypeRule::Number => ok(first != Elem::Bool, first),
            TypeRule::Bits => ok(!first.is_float(), first),
            TypeRule::Compare => ok(true, Elem::Bool),
            TypeRule::FloatTest => ok(first.is_float(), Elem::Bool),
            TypeRule::Select => (first == Elem::Bool && operands[1] == operands[2]).then_some(operands[1]),
        }
    }
}

/// The combiner of a reduction. Each is associative and commutative up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceFn {
    /// Sum; integers wrap. Neutral element 0.
    Sum,
    /// Product; integers wrap. Neutral element 1.
    Prod,
    /// Maximum, NaN if any element is NaN. Neutral element: smallest value of the kind (-inf for floats).
    Max,
    /// Minimum, NaN if any element is NaN. Neutral element: largest value of the kind (+inf for floats).
    Min,
    /// Logical or bitwise and. Neutral element: all ones.
    And,
    /// Logical or bitwise or. Neutral element 0.
    Or,
    /// Bitwise exclusive or. Neutral element 0.
    Xor,
}

impl ReduceFn {
    /// Every combiner.
    pub const ALL: [ReduceFn; 7] = [
        ReduceFn::Sum,
        ReduceFn::Prod,
        ReduceFn::Max,
        ReduceFn::Min,
        ReduceFn::And,
        ReduceFn::Or,
        ReduceFn::Xor,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceFn::Sum => "sum",
            ReduceFn::Prod => "prod",
            ReduceFn::Max => "max",
            ReduceFn::Min => "min",
            ReduceFn::And => "and",
            ReduceFn::Or => "or",
            ReduceFn::Xor => "xor",
        }
    }

    /// The combiner that is spelled `name`.
    pub fn from_name(name: &str) -> Option<ReduceFn> {
        ReduceFn::ALL.into_iter().find(|f| f.name() == name)
    }

    /// The scalar function of two operands that combines two partial results.
    pub const fn combine(self) -> ScalarFn {
        match self {
            ReduceFn::Sum => ScalarFn::Add,
            ReduceFn::Prod => ScalarFn::Mul,
            ReduceFn::Max => ScalarFn::Max,
            ReduceFn::Min => ScalarFn::Min,
            ReduceFn::And => ScalarFn::And,
            ReduceFn::Or => ScalarFn::Or,
            ReduceFn::Xor => ScalarFn::Xor,
        }
    }

    /// The value that changes nothing when combined.
    pub fn neutral(self, elem: Elem) -> crate::types::Literal {
        use crate::types::Literal;
        let extreme = |low: bool| {
            if elem.is_float() {
                return Literal::float(elem, if low { f64::NEG_INFINITY } else { f64::INFINITY });
            }
            let bits = elem.bits();
            let signed = elem.is_signed_int();
            let value = match (low, signed) {
                (true, true) => i64::MIN >> (64 - bits),
                (true, false) => 0,
                (false, true) => i64::MAX >> (64 - bits),
                (false, false) => -1,
            };
            Literal::int(elem, value)
        };
        match self {
            ReduceFn::Sum | ReduceFn::Or | ReduceFn::Xor => Literal::of(elem, 0.0),
            ReduceFn::Prod => Literal::of(elem, 1.0),
            ReduceFn::And => Literal::int(elem, -1),
            ReduceFn::Max => extreme(true),
            ReduceFn::Min => extreme(false),
        }
    }

    /// Whether the combiner takes elements of this kind.
    pub fn accepts(self, elem: Elem) -> bool {
        self.combine().result(&[elem, elem]) == Some(elem)
    }
}
