//! Edge values: every scalar function and reduction in every type that eager takes, on the values that go wrong in
//! compilers, fused beside eager. The tables are in `table.rs`, the values in `values.rs`.

mod judge;
mod table;
mod values;

use std::collections::{BTreeSet, HashMap};

use tch::{Kind, Tensor};
use tilefuse::random::{Mode, OpCall, Program};

use crate::common::device;
use judge::Judge;
use table::Row;
use values::KINDS;

/// The call of a row as the only one of a program; its operands are `%0`, `%1` and `%2`.
fn call_of(row: &Row) -> OpCall {
    let names = (0..row.results).map(|r| format!("%{}", 100 + r)).collect::<Vec<_>>().join(" ");
    let text = format!("{names} = {}\nreturn {names}", row.call);
    text.parse::<Program>().unwrap_or_else(|e| panic!("{text}: {e}")).ops.remove(0)
}

/// The operators that the tables have.
pub(crate) fn operators() -> BTreeSet<String> {
    let norms = table::norms(8).into_iter().flatten();
    let rows = table::one().chain(table::two()).chain(table::three()).chain(table::reductions()).cloned();
    let name = |row: Row| row.call.split(['.', '(']).next().unwrap_or_default().to_owned();
    rows.chain(norms).map(name).collect()
}

/// Runs a row's call by itself, eager. `None` where eager rejects it.
fn eager(row: &Row, operands: &[Tensor], mode: Mode<'_>) -> Option<Vec<Tensor>> {
    let env: HashMap<u32, Tensor> =
        operands.iter().enumerate().map(|(at, t)| (at as u32, t.shallow_clone())).collect();
    call_of(row).run(&env, mode).ok()
}

/// The operands at twice the distance in memory: eager takes its scalar path, whose results may be other ones.
fn spaced(operands: &[Tensor]) -> Vec<Tensor> {
    let space = |t: &Tensor| match t.dim() {
        0 => t.shallow_clone(),
        _ => Tensor::stack(&[t, t], -1).select(-1, 0),
    };
    operands.iter().map(space).collect()
}

fn wide(operands: &[Tensor]) -> Vec<Tensor> {
    let widen = |t: &Tensor| if t.is_floating_point() { t.to_kind(Kind::Double) } else { t.shallow_clone() };
    operands.iter().map(widen).collect()
}

/// Rows of one compiled program: enough for few compilations, few enough that none is large.
const ROWS: usize = 16;

/// What a sweep found.
#[derive(Default)]
struct Found {
    cases: usize,
    elements: i64,
    externs: usize,
    differences: Vec<String>,
}

/// Checks rows on operands: captures on `others`, which have the same types and shapes, and judges on `operands`.
fn check(rows: &[&Row], what: &str, operands: &[Tensor], others: &[Tensor], found: &mut Found) {
    let _no_grad = tch::no_grad_guard();
    let moved = |all: &[Tensor]| all.iter().map(|t| t.to_device(device())).collect::<Vec<_>>();
    let (operands, others) = (&moved(operands)[..], &moved(others)[..]);
    let runs = |row: &&&Row| eager(row, operands, Mode::Native).is_some();
    let rows: Vec<&Row> = rows.iter().filter(runs).copied().collect();
    for rows in rows.chunks(ROWS) {
        let calls: Vec<OpCall> = rows.iter().map(|row| call_of(row)).collect();
        let fused = tilefuse::fuse(move |given: &[Tensor]| {
            let env: HashMap<u32, Tensor> =
                given.iter().enumerate().map(|(at, t)| (at as u32, t.shallow_clone())).collect();
            calls.iter().flat_map(|c| c.run(&env, Mode::Native).unwrap()).collect::<Vec<_>>()
        });
        fused.call(others).unwrap();
        let results = match fused.call(operands) {
            Ok(results) => results,
            Err(error) => {
                found.differences.push(format!("{what}: {error}"));
                continue;
            }
        };
        let stats = fused.stats();
        assert_eq!((stats.captures, stats.fused_calls), (1, 1), "{what}: {:?}", stats.eager_calls);
        found.externs += fused.explain_with(operands, |m, x| m(x)).unwrap().extern_ops;
        let mut results = results.into_iter();
        for row in rows {
            for at in 0..row.results {
                let ours = results.next().unwrap();
                let pick = |all: Option<Vec<Tensor>>| all.and_then(|mut all| all.drain(..).nth(at));
                let judge = Judge {
                    row,
                    what,
                    operands,
                    eager: pick(eager(row, operands, Mode::Native)).unwrap(),
                    scalar: pick(eager(row, &spaced(operands), Mode::Native)),
                    double: pick(eager(row, &wide(operands), Mode::Double(&HashMap::new()))),
                };
                found.cases += 1;
                found.elements += ours.numel() as i64;
                found.differences.extend(judge.differences(&ours));
            }
        }
    }
}

fn report(name: &str, found: &Found) {
    println!(
        "{name}: {} results with {} elements, {} calls of libtorch, {} differences",
        found.cases,
        found.elements,
        found.externs,
        found.differences.len()
    );
    let text = found.differences.iter().take(400).cloned().collect::<Vec<_>>().join("\n");
    assert!(found.differences.is_empty(), "{text}");
}

#[test]
fn functions_of_one_value() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in KINDS {
        let rows = table::one().filter(|row| row.takes(kind)).collect::<Vec<_>>();
        let x = values::column(kind);
        check(&rows, name, &[x.shallow_clone()], &[values::ordinary(&x)], &mut found);
    }
    report("one value", &found);
}

#[test]
fn functions_of_two_values() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in KINDS {
        let rows = table::two().filter(|row| row.takes(kind)).collect::<Vec<_>>();
        let (x, y) = values::pairs(kind);
        let others = [values::ordinary(&x), values::ordinary(&y)];
        check(&rows, name, &[x, y], &others, &mut found);
    }
    report("two values", &found);
}

#[test]
fn functions_of_three_values() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in KINDS {
        let rows = table::three().filter(|row| row.takes(kind)).collect::<Vec<_>>();
        let operands = values::triples(kind);
        let others: Vec<Tensor> = operands.iter().map(values::ordinary).collect();
        check(&rows, name, &operands, &others, &mut found);
    }
    report("three values", &found);
}

#[test]
fn conversions_between_all_types() {
    crate::common::setup();
    let mut found = Found::default();
    let rows: Vec<Row> = KINDS.iter().map(|(to, kind)| Row::cast(to, *kind)).collect();
    for &(name, from) in KINDS {
        for row in &rows {
            let x = values::column(from);
            let x = values::convertible(&x, row.target());
            check(&[row], name, &[x.shallow_clone()], &[values::ordinary(&x)], &mut found);
        }
    }
    report("conversions", &found);
}

#[test]
fn reductions() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in KINDS {
        for length in [1, 7, 8, 33, 1025] {
            let rows = table::reductions().filter(|row| row.takes(kind)).collect::<Vec<_>>();
            let x = values::rows(kind, length);
            let what = format!("{name} rows of {length}");
            check(&rows, &what, &[x.shallow_clone()], &[values::ordinary(&x)], &mut found);
        }
    }
    report("reductions", &found);
}

#[test]
fn reductions_of_nothing_and_of_one_number() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in KINDS {
        let rows = table::reductions().filter(|row| row.takes(kind)).collect::<Vec<_>>();
        for shape in [&[3i64, 0][..], &[0, 3], &[0, 0]] {
            let x = Tensor::zeros(shape, (kind, tch::Device::Cpu));
            check(&rows, &format!("{name} {shape:?}"), &[x.shallow_clone()], &[x], &mut found);
        }
        let x = Tensor::ones([1, 1], (kind, tch::Device::Cpu));
        check(&rows, &format!("{name} [1, 1]"), &[x.zeros_like()], &[x], &mut found);
    }
    report("empty reductions", &found);
}

#[test]
fn sums_that_need_more_than_the_type_of_their_elements() {
    crate::common::setup();
    let mut found = Found::default();
    let rows = table::large().collect::<Vec<_>>();
    for &(name, kind) in KINDS {
        let twos = Tensor::ones([1, 70_000], (kind, tch::Device::Cpu)) * 2;
        check(
            &rows,
            &format!("{name} 70000 twos"),
            &[twos.shallow_clone()],
            &[twos.zeros_like()],
            &mut found,
        );
    }
    report("large reductions", &found);
}

#[test]
fn moments_of_every_magnitude() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in &KINDS[..4] {
        for length in [1, 2, 7, 33, 1025] {
            let rows = table::reductions().filter(|row| row.accuracy == table::Accuracy::Moments);
            let rows = rows.filter(|row| !row.call.contains("[0]")).collect::<Vec<_>>();
            let x = values::magnitudes(kind, length);
            let what = format!("{name} rows of {length}");
            check(&rows, &what, &[x.shallow_clone()], &[values::ordinary(&x)], &mut found);
        }
    }
    report("moments of every magnitude", &found);
}

#[test]
fn norms_of_every_magnitude() {
    crate::common::setup();
    let mut found = Found::default();
    for &(name, kind) in &KINDS[..4] {
        for length in [2, 7, 33, 1025] {
            let all = Tensor::cat(&[values::magnitudes(kind, length), values::rows(kind, length)], 0);
            for (rows, x) in table::norms(length).iter().zip([all.shallow_clone(), all.unsqueeze(1)]) {
                let rows: Vec<&Row> = rows.iter().collect();
                let what = format!("{name} rows of {length}");
                check(&rows, &what, &[x.shallow_clone()], &[values::ordinary(&x)], &mut found);
            }
        }
    }
    report("norms of every magnitude", &found);
}
