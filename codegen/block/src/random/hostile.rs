//! Hostile inputs: texts that are almost programs, and programs with something wrong. Nothing may panic on them.

use super::{Choices, Options, case};
use crate::interp::{self, Arg};
use crate::passes::optimize;
use crate::program::{Op, Program, Region, Value};
use crate::types::Elem;
use crate::verify::verify;

/// Reads any bytes as a text. What is read has to print and read back as itself, and to survive the passes.
///
/// # Panics
/// Where it does not.
pub fn any_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(program) = text.parse::<Program>() else { return };
    let printed = program.to_string();
    match printed.parse::<Program>() {
        Ok(again) => assert_eq!(again.to_string(), printed, "{text}"),
        Err(error) => panic!("{error}\n{printed}"),
    }
    any_program(&program);
}

/// Takes a program that may be wrong in any way through verifier, printer, passes and, for some steps, interpreter.
///
/// # Panics
/// Where a pass makes an invalid program of a valid one.
pub fn any_program(program: &Program) {
    let _ = program.to_string();
    if verify(program).is_err() {
        return;
    }
    let mut changed = program.clone();
    if let Err(error) = optimize(&mut changed) {
        panic!("{error}\n{program}");
    }
    if let Err(error) = crate::expand_operations(&mut changed) {
        panic!("{error}\n{program}");
    }
    let args = program.params.iter().map(|p| match program.ty(p.value).pointee() {
        Some(elem) => Arg::Buffer(interp::Buffer::zeros(elem, p.len.unwrap_or(64).min(4096) as usize)),
        None => Arg::Scalar(crate::types::Literal::of(program.ty(p.value).elem().unwrap_or(Elem::I32), 3.0)),
    });
    let options = interp::Options { fuel: Some(200_000), print: |_| (), ..interp::Options::default() };
    // Any error is fine: the program is nobody's.
    let _ = interp::run_with(program, &mut args.collect::<Vec<_>>(), [2, 1, 1], &options);
}

/// A text from choices: that of a random program with some of its bytes changed, left out or repeated.
pub fn almost_text(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut text = drawn(choices).to_string().into_bytes();
    for _ in 0..choices.below(6) {
        let at = choices.below(text.len());
        let end = (at + 1 + choices.below(20)).min(text.len());
        match choices.below(4) {
            0 => text[at] = *choices.pick(b"%,()[]{}<>-0189ax :=\"").as_ref().unwrap_or(&b' '),
            1 => drop(text.drain(at..end)),
            2 => {
                let copy = text[at..end].to_vec();
                let to = choices.below(text.len());
                text.splice(to..to, copy);
            }
            _ => text[at] = choices.below(256) as u8,
        }
        if text.is_empty() {
            break;
        }
    }
    text
}

/// A program from choices: a random one with some operands, kinds, results or regions exchanged.
pub fn almost_program(choices: &mut Choices<'_>) -> Program {
    let mut program = drawn(choices);
    for _ in 0..1 + choices.below(3) {
        let mut count = 0;
        program.walk(&mut |_| count += 1);
        let (at, values) = (choices.below(count), program.values.len());
        let donor = nth(&mut program.body, &mut choices.below(count)).map(|op| op.clone());
        let value = Value(choices.below(values + 2) as u32);
        let ty = choices.pick(&(0..values).collect::<Vec<_>>()).map(|i| program.values[i].ty.clone());
        if choices.chance(15) {
            if let (Some(slot), Some(ty)) = (program.values.get_mut(value.index()), ty) {
                slot.ty = ty;
            }
            continue;
        }
        if let (Some(op), Some(donor)) = (nth(&mut program.body, &mut { at }), donor) {
            wrong(choices, op, donor, value);
        }
    }
    program
}

fn drawn(choices: &mut Choices<'_>) -> Program {
    let options =
        Options { language: true, max_ops: 10, max_tile: 64, math: choices.chance(20), ..Options::default() };
    case(choices, &options).program
}

/// The operation at a position in program order.
fn nth<'a>(region: &'a mut Region, left: &mut usize) -> Option<&'a mut Op> {
    for op in &mut region.ops {
        if *left == 0 {
            return Some(op);
        }
        *left -= 1;
        for inner in &mut op.regions {
            if let Some(found) = nth(inner, left) {
                return Some(found);
            }
        }
    }
    None
}

/// Makes something of an operation wrong.
fn wrong(choices: &mut Choices<'_>, op: &mut Op, donor: Op, value: Value) {
    match choices.below(7) {
        0 => op.kind = donor.kind,
        1 => op.args = donor.args,
        2 => op.regions = donor.regions,
        3 => drop(op.results.pop()),
        4 => op.args.push(value),
        5 => drop(op.args.pop()),
        _ => {
            if let Some(arg) = op.args.first_mut() {
                *arg = value;
            }
        }
    }
}
