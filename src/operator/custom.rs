//! From what an operator would launch to a kernel for the planner.

use tch::Tensor;
use tilefuse_block::bounds::{Given as Known, prove};
use tilefuse_block::passes::{guard, optimize_for_grid};
use tilefuse_block::{Elem, Literal, Loc, Op, OpKind, Param, Program};
use tilefuse_fusion::{BlockKernel, BlockKernelKind, Tied};

use super::{Definition, Given, Launched};
use crate::torch::{Flags, Meta, empty_strided};

/// The kernel of a call with inputs and outputs that look like these, or why it has none.
pub(crate) fn custom_kernel(
    definition: &Definition,
    inputs: &[Meta],
    outputs: &[Meta],
) -> Result<BlockKernel, String> {
    let dense = |m: &Meta| m.flags.contains(Flags::CONTIGUOUS) && m.flags.is_plain() && m.numel > 0;
    if !inputs.iter().chain(outputs).all(dense) {
        return Err(String::from("a tensor is empty or not plain memory"));
    }
    let tensors = |metas: &[Meta]| metas.iter().map(stand_in).collect::<Result<Vec<_>, _>>();
    let (inputs, outputs) = (tensors(inputs)?, tensors(outputs)?);
    let launched = definition.launched(&inputs, &outputs)?;
    let lengths = |tensors: &[Tensor]| -> Vec<u64> { tensors.iter().map(|t| t.numel() as u64).collect() };
    let kernel = specialise(launched, &lengths(&inputs), &lengths(&outputs))?;
    let writes = |result: usize| kernel.tied.contains(&Tied::Result(result as u16));
    match (0..outputs.len()).find(|&r| !writes(r)) {
        Some(result) => Err(format!("its kernel does not take output {result}")),
        None => Ok(kernel),
    }
}

/// A tensor that looks like one of the call, with no contents to speak of.
fn stand_in(meta: &Meta) -> Result<Tensor, String> {
    empty_strided(meta.sizes(), meta.strides(), meta.dtype, meta.device).map_err(|e| e.to_string())
}

/// The launched program for tensors of these lengths, with its numbers written in and its accesses guarded.
fn specialise(launched: Launched, inputs: &[u64], outputs: &[u64]) -> Result<BlockKernel, String> {
    let Launched { mut program, grid, args, checked } = launched;
    if grid.contains(&0) {
        return Err(String::from("it launches an empty grid"));
    }
    let mut tied = Vec::new();
    let mut numbers = Vec::new();
    let mut pointers = Vec::new();
    for (param, given) in std::mem::take(&mut program.params).into_iter().zip(args) {
        let (length, tie) = match given {
            Given::Scalar(literal) => {
                numbers.push((param, literal));
                continue;
            }
            Given::Input(at) => (inputs.get(usize::from(at)), Tied::Operand(at)),
            Given::Output(at) => (outputs.get(usize::from(at)), Tied::Result(at)),
            Given::Data(_) => (None, Tied::Operand(0)),
        };
        let length = *length.ok_or("its kernel takes a tensor that is no input or output")?;
        pointers.push(Param { len: Some(length), ..param });
        tied.push(tie);
    }
    program.params = pointers;
    write_in(&mut program, numbers);
    let optimise = |program: &mut Program| optimize_for_grid(program, grid).map_err(|e| e.to_string());
    optimise(&mut program)?;
    let mut checks = false;
    if checked {
        let lengths: Vec<Known> =
            program.params.iter().map(|p| Known::Elements(p.len.unwrap_or(0))).collect();
        let proof = prove(&program, grid, &lengths);
        let guards = guard(&mut program, &proof);
        checks = !guards.lengths.is_empty();
        let lengths: Vec<Literal> = guards.lengths.iter().map(|&p| length_of(&program, p)).collect();
        let params = tied.len()..tied.len() + lengths.len();
        let params: Vec<Param> = program.params.drain(params).collect();
        write_in(&mut program, params.into_iter().zip(lengths).collect());
        optimise(&mut program)?;
        checks &= stores_through_last(&program);
        if !checks {
            program.params.truncate(tied.len());
        }
    }
    Ok(BlockKernel {
        kind: BlockKernelKind::Custom,
        program,
        grid,
        tied,
        checks,
        neighbours_do_not_fit: false,
        coordinates: Vec::new(),
        layouts: Vec::new(),
        schedule: String::new(),
        note: None,
        expected_us: 0.0,
    })
}

fn length_of(program: &Program, param: usize) -> Literal {
    let length = program.params.get(param).and_then(|p| p.len).unwrap_or(0);
    Literal::int(Elem::I64, length as i64)
}

/// Whether anything is stored through the last parameter.
fn stores_through_last(program: &Program) -> bool {
    let last = program.params.last().map(|p| p.value);
    let mut found = false;
    program.walk(&mut |op| found |= op.kind.writes() && op.args.first().copied() == last);
    found
}

/// Makes constants of parameters.
fn write_in(program: &mut Program, numbers: Vec<(Param, Literal)>) {
    let constant = |(param, literal): (Param, Literal)| Op {
        kind: OpKind::Const(literal),
        args: Default::default(),
        results: [param.value].into_iter().collect(),
        regions: Vec::new(),
        loc: Loc::UNKNOWN,
    };
    let ops = std::mem::take(&mut program.body.ops);
    program.body.ops = numbers.into_iter().map(constant).chain(ops).collect();
}
