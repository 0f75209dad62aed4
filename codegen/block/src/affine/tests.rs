use expect_test::{Expect, expect};

use super::{Affine, Base, Facts};
use crate::data::Data;
use crate::interp::{Options, run_observed};
use crate::program::{Program, Value};
use crate::random::{self, Choices, random_case};
use crate::types::Elem;

fn named(program: &Program, name: &str) -> Value {
    let index = program.values.iter().position(|v| v.name.as_deref() == Some(name)).unwrap();
    Value(index as u32)
}

fn base_text(program: &Program, base: &Base) -> String {
    let name = |v: Value| program.values[v.index()].name.clone().unwrap_or_default();
    let terms: Vec<String> = base.terms.iter().map(|&(v, c)| format!("{c}*{} + ", name(v))).collect();
    format!("{}{}", terms.concat(), base.constant)
}

/// Shows the facts of each named value, a line each.
fn check(body: &str, grid: Option<[u32; 3]>, names: &[&str], expect: Expect) {
    let text = format!("kernel @f(%x: ptr<i32>, %n: i32) {{ {body} }}");
    let program: Program = text.parse().unwrap_or_else(|error| panic!("{error}"));
    crate::verify(&program).unwrap();
    let affine = grid.map_or_else(|| Affine::new(&program), |grid| Affine::for_grid(&program, grid));
    let line = |name: &&str| {
        let facts = affine.get(named(&program, name)).unwrap();
        let base = facts.base.as_ref().map_or("?".to_owned(), |b| base_text(&program, b));
        let strides: Vec<String> =
            facts.strides.iter().map(|s| s.map_or("?".to_owned(), |s| s.to_string())).collect();
        let prefixes = facts
            .prefixes
            .iter()
            .map(|p| format!(" where {}*i{} < {}", p.stride, p.axis, base_text(&program, &p.limit)));
        let exact = if facts.exact { "=" } else { "~" };
        let range = if facts.exact {
            format!(" in {}..={}", facts.interval.lo, facts.interval.hi)
        } else {
            String::new()
        };
        let div = facts.divisible_by;
        format!(
            "{name} {exact} {base} [{}] div {div}{range}{}\n",
            strides.join(", "),
            prefixes.collect::<String>()
        )
    };
    expect.assert_eq(&names.iter().map(line).collect::<String>());
}

const ROWS: &str = "
  %row = program_id 0
  %k = const 1000 : i32
  %start = map mul %row, %k
  %cols = range 0 1024
  %b = splat %start [1024]
  %offs = map add %b, %cols
  %limit = const 1000 : tile<1024xi32>
  %m = map lt %cols, %limit
  %end = splat %n [1024]
  %mm = map lt %offs, %end
  %wide = cast %offs i64
";

#[test]
fn rows_of_a_matrix() {
    let names = ["start", "offs", "m", "mm", "wide"];
    check(
        ROWS,
        None,
        &names,
        expect![[r#"
        start ~ 1000*row + 0 [] div 8
        offs ~ 1000*row + 0 [1] div 8
        m = ? [?] div 1 in 0..=1 where 1*i0 < 1000
        mm = ? [?] div 1 in 0..=1
        wide = ? [?] div 8 in -2147483648..=2147483647
    "#]],
    );
    check(
        ROWS,
        Some([64, 1, 1]),
        &names,
        expect![[r#"
        start = 1000*row + 0 [] div 1000 in 0..=63000
        offs = 1000*row + 0 [1] div 1000 in 0..=64023
        m = ? [?] div 1 in 0..=1 where 1*i0 < 1000
        mm = ? [?] div 1 in 0..=1 where 1*i0 < 1*n + -1000*row + 0
        wide = 1000*row + 0 [1] div 1000 in 0..=64023
    "#]],
    );
}

#[test]
fn tiles_of_rank_two() {
    check(
        "%r = range 0 8
         %e = expand_dims %r axis 1
         %b = broadcast %e [8, 4]
         %s = const 16 : tile<8x4xi32>
         %rs = map mul %b, %s
         %c = range 4 4
         %ce = expand_dims %c axis 0
         %cb = broadcast %ce [8, 4]
         %o = map sub %rs, %cb
         %t = permute %o [1, 0]
         %f = reshape %b [2, 4, 4]
         %l = range 0 32
         %ll = reshape %l [8, 4]
         %g = load %x, %r
         %ge = expand_dims %g axis 1
         %gb = broadcast %ge [8, 4]
         %go = map add %gb, %cb
         %seven = const 7 : tile<8x4xi32>
         %ma = map le %cb, %seven
         %six = const 6 : tile<8x4xi32>
         %mb = map gt %six, %b
         %m = map and %ma, %mb
         %mc = map lt %cb, %six
         %md = map and %mc, %mb
         %mt = permute %md [1, 0]",
        None,
        &["rs", "o", "t", "f", "ll", "go", "ma", "mb", "m", "md", "mt"],
        expect![[r#"
            rs = 0 [16, 0] div 0 in 0..=112
            o = -4 [16, -1] div 4 in -7..=108
            t = -4 [-1, 16] div 4 in -7..=108
            f = ? [?, ?, ?] div 0 in 0..=7
            ll = 0 [4, 1] div 0 in 0..=31
            go ~ ? [?, 1] div 1
            ma = 1 [0, 0] div 1 in 1..=1 where 1*i1 < 4
            mb = ? [?, 0] div 1 in 0..=1 where 1*i0 < 6
            m = ? [?, 0] div 1 in 0..=1 where 1*i0 < 6
            md = ? [?, ?] div 1 in 0..=1 where 1*i1 < 2 where 1*i0 < 6
            mt = ? [?, ?] div 1 in 0..=1 where 1*i0 < 2 where 1*i1 < 6
        "#]],
    );
}

#[test]
fn scalars_and_loops() {
    check(
        "%z = const 0 : i32
         %k = const 64 : i32
         %h = const 1024 : i32
         %two = const 2 : i32
         %p = map mul %n, %k
         for %i in %z..%h step %k {
           %q = map add %i, %p
           %d = map mul %q, %two
           %u = map mul %i, %n
           %v = map div_floor %i, %k
           %w = map rem_floor %n, %k
           %y = map and %n, %k
           %s = map shl %i, %two
           yield
         }",
        None,
        &["p", "i", "q", "d", "u", "v", "w", "y", "s"],
        expect![[r#"
            p ~ 64*n + 0 [] div 64
            i = 1*i + 0 [] div 64 in 0..=960
            q ~ 64*n + 1*i + 0 [] div 64
            d ~ 128*n + 2*i + 0 [] div 128
            u = 1*u + 0 [] div 64 in -2147483648..=2147483647
            v = 1*v + 0 [] div 1 in 0..=15
            w = 1*w + 0 [] div 1 in 0..=63
            y = 1*y + 0 [] div 64 in 0..=64
            s = 4*i + 0 [] div 256 in 0..=3840
        "#]],
    );
}

fn elements(data: &Data) -> Vec<i128> {
    match data {
        Data::U64(v) => v.iter().map(|&x| x.into()).collect(),
        _ => data.to_i64().unwrap_or_default().into_iter().map(i128::from).collect(),
    }
}

/// Whether two integers are equal, as such or modulo two to the width of a kind.
fn equal(a: i128, b: i128, exact: bool, elem: Elem) -> bool {
    a == b || (!exact && (a - b) % (1 << elem.bits()) == 0)
}

/// The elements of a value, its facts, and the scalars so far.
struct Sample<'a> {
    facts: &'a Facts,
    elem: Elem,
    shape: &'a [u32],
    found: Vec<i128>,
    scalars: &'a [Option<i128>],
}

impl Sample<'_> {
    fn base(&self, base: &Base) -> i128 {
        base.terms
            .iter()
            .fold(base.constant.into(), |sum, &(v, c)| sum + i128::from(c) * self.scalars[v.index()].unwrap())
    }

    /// The index along each axis, and the position of the neighbour before it along each.
    fn index(&self, mut position: usize) -> Vec<(usize, usize)> {
        let mut stride = 1;
        let mut index = Vec::new();
        for &extent in self.shape.iter().rev() {
            index.push((position % extent as usize, stride));
            position /= extent as usize;
            stride *= extent as usize;
        }
        index.reverse();
        index
    }

    fn check(&self) -> Result<(), String> {
        let Sample { facts, elem, found, .. } = self;
        if let Some(out) = found.iter().find(|&&x| !facts.interval.contains(x)) {
            return Err(format!("{out} is out of range"));
        }
        match facts.divisible_by {
            0 if found[0] != 0 => return Err(format!("{} is not 0", found[0])),
            d if d > 0 && found[0] % i128::from(d) != 0 => {
                return Err(format!("{} is not divisible", found[0]));
            }
            _ => {}
        }
        if let Some(base) = &facts.base
            && !equal(self.base(base), found[0], facts.exact, *elem)
        {
            return Err(format!("the base gives {}, not {}", self.base(base), found[0]));
        }
        for (position, &x) in found.iter().enumerate() {
            for ((i, step), stride) in self.index(position).into_iter().zip(&facts.strides) {
                let Some(stride) = stride.filter(|_| i > 0) else { continue };
                let before = found[position - step] + i128::from(stride);
                if !equal(before, x, facts.exact, *elem) {
                    return Err(format!("at {position} the stride gives {before}, not {x}"));
                }
            }
            let index = self.index(position);
            let holds =
                |p: &super::Prefix| index[p.axis].0 as i128 * i128::from(p.stride) < self.base(&p.limit);
            if !facts.prefixes.is_empty() && facts.prefixes.iter().all(holds) != (x != 0) {
                return Err(format!("at {position} the prefixes do not give {x}"));
            }
        }
        Ok(())
    }
}

/// Runs a case and compares everything that it computes with the facts.
fn check_case(case: &random::Case) -> usize {
    let program = &case.program;
    let affine = Affine::for_grid(program, case.grid);
    let mut scalars = vec![None; program.values.len()];
    let mut linear = 0;
    let mut observe = |value: Value, data: &Data| {
        let Some(facts) = affine.get(value) else { return };
        let ty = program.ty(value);
        let found = elements(data);
        if ty.rank() == 0 {
            scalars[value.index()] = Some(found[0]);
        }
        let sample = Sample { facts, elem: data.elem(), shape: &ty.shape, found, scalars: &scalars };
        linear += usize::from(ty.rank() > 0 && facts.base.is_some());
        if let Err(error) = sample.check() {
            panic!("value {}: {error}, by {facts:?}\n{program}", value.0);
        }
    };
    run_observed(program, &mut case.args.clone(), case.grid, &Options::default(), &mut observe).unwrap();
    linear
}

#[test]
fn facts_hold_in_random_programs() {
    let linear: usize = (0..400).map(|seed| check_case(&random_case(seed))).sum();
    assert!(linear > 5000, "only {linear} tiles have a linear form");
}

#[test]
fn facts_hold_for_index_arithmetic() {
    for seed in 0..300 {
        check_case(&random::index_case(&mut Choices::from_seed(seed)));
    }
}
