//! Running a kernel on random data.

use tch::{Device, Kind, Tensor};
use tilefuse_block::{Elem, Literal, Program};

use super::{Args, Failure, Target, report};
use crate::cli::inputs::Spec;
use crate::judge::judge;
use crate::kernel::name;
use crate::{Arg, Grid, Kernel};

/// An argument of the program, drawn.
enum Drawn {
    Tensor(Tensor),
    Scalar(Literal),
}

/// Runs a program in the interpreter, and then on the target, and prints what it wrote.
pub(super) fn run(program: Program, args: &Args) -> Result<(), Failure> {
    let device = device(args.target)?;
    let grid = grid(&args.grid)?;
    tch::manual_seed(args.seed);
    let drawn = args.args.iter().map(|text| draw(text)).collect::<Result<Vec<_>, _>>()?;
    let kernel = Kernel::as_is(program);
    let _no_grad = tch::no_grad_guard();
    let interpreted: Vec<Drawn> = drawn.iter().map(|d| d.copy(Device::Cpu)).collect();
    kernel.interpret(grid, &arguments(&interpreted))?;
    let Some(device) = device else {
        summaries(&kernel, &interpreted);
        return Ok(());
    };
    let launched: Vec<Drawn> = drawn.iter().map(|d| d.copy(device)).collect();
    // SAFETY: the interpreter ran the same call and found every address in range and no race; no two arguments share
    // memory.
    unsafe { kernel.launch_unchecked(grid, &arguments(&launched))? };
    let launched: Vec<Drawn> = launched.iter().map(|d| d.copy(Device::Cpu)).collect();
    summaries(&kernel, &launched);
    compare(&kernel, &interpreted, &launched)
}

/// Where a target runs; `None` for the interpreter.
fn device(target: Target) -> Result<Option<Device>, Failure> {
    let wanted = match target.ptx() {
        Some(wanted) => wanted,
        None => return Ok((target == Target::Host).then_some(Device::Cpu)),
    };
    crate::cli::args::device("cuda")?;
    let found =
        tilefuse_codegen::cuda::Device::get(0).and_then(|d| d.target()).map_err(crate::Error::from)?;
    if found != wanted {
        return Err(Failure::usage(format!("cuda:0 runs {found}, not {wanted}")));
    }
    Ok(Some(Device::Cuda(0)))
}

fn grid(extents: &[i64]) -> Result<Grid, Failure> {
    match *extents {
        [x] => Ok(Grid::from(x)),
        [x, y] => Ok(Grid::from([x, y])),
        [x, y, z] => Ok(Grid::from([x, y, z])),
        _ => Err(Failure::usage(format!("--grid: {} axes, a grid has up to three", extents.len()))),
    }
}

/// An argument from its text: a tensor has brackets, a number ends in its kind.
fn draw(text: &str) -> Result<Drawn, Failure> {
    if text.contains('[') {
        let spec: Spec = text.parse().map_err(|e| Failure::usage(format!("--arg: {e}")))?;
        return Ok(Drawn::Tensor(spec.draw(Device::Cpu)));
    }
    match literal(text.trim()) {
        Some(literal) => Ok(Drawn::Scalar(literal)),
        None => Err(Failure::usage(format!(
            "--arg {text:?} is no argument; write a tensor like f32[1024] or a number like 1024i64, 0.5f32, true"
        ))),
    }
}

/// The number that `text` spells, with its kind behind it.
fn literal(text: &str) -> Option<Literal> {
    if let Ok(truth) = text.parse::<bool>() {
        return Some(Literal::int(Elem::Bool, truth.into()));
    }
    let suffixed = |elem: Elem| text.strip_suffix(elem.name()).map(|number| (elem, number));
    // The longest suffix: `1bf16` ends in `f16` as well.
    let (elem, number) = Elem::ALL.into_iter().filter_map(suffixed).min_by_key(|(_, number)| number.len())?;
    if elem.is_float() {
        return number.parse::<f64>().ok().map(|x| Literal::float(elem, x));
    }
    if elem == Elem::U64 {
        return number.parse::<u64>().ok().map(|bits| Literal { elem, bits });
    }
    let value = number.parse::<i64>().ok()?;
    let literal = Literal::int(elem, value);
    (elem != Elem::Bool && literal.as_i64() == Some(value)).then_some(literal)
}

impl Drawn {
    fn copy(&self, device: Device) -> Drawn {
        match self {
            Drawn::Tensor(tensor) => Drawn::Tensor(tensor.to_device(device).copy()),
            Drawn::Scalar(literal) => Drawn::Scalar(*literal),
        }
    }

    fn argument(&self) -> Arg<'_> {
        match self {
            Drawn::Tensor(tensor) => Arg::Tensor(tensor),
            Drawn::Scalar(literal) => Arg::Scalar(*literal),
        }
    }
}

fn arguments(drawn: &[Drawn]) -> Vec<Arg<'_>> {
    drawn.iter().map(Drawn::argument).collect()
}

/// The tensors that a kernel writes, with the names of their parameters.
fn outputs<'a>(kernel: &Kernel, drawn: &'a [Drawn]) -> Vec<(String, &'a Tensor)> {
    let output = |(index, drawn): (usize, &'a Drawn)| match drawn {
        Drawn::Tensor(tensor) if kernel.writes(index) => Some((name(kernel.program(), index), tensor)),
        _ => None,
    };
    drawn.iter().enumerate().filter_map(output).collect()
}

fn summaries(kernel: &Kernel, drawn: &[Drawn]) {
    for (name, tensor) in outputs(kernel, drawn) {
        report::print(&summary(&name, tensor));
    }
}

/// Type, range, mean and first elements of a tensor, in one line.
fn summary(name: &str, tensor: &Tensor) -> String {
    let kind = crate::cli::inputs::kind_name(tensor.kind());
    let sizes: Vec<String> = tensor.size().iter().map(ToString::to_string).collect();
    let head = format!("%{name} {kind}[{}]", sizes.join(","));
    if tensor.numel() == 0 {
        return head;
    }
    let wide = tensor.to_kind(Kind::Double).flatten(0, -1);
    let number = |t: Tensor| t.double_value(&[]);
    let nans = number(wide.isnan().sum(Kind::Double));
    let first: Vec<String> =
        (0..wide.size1().unwrap_or(0).min(4)).map(|i| format!("{:.6}", wide.double_value(&[i]))).collect();
    let more = if tensor.numel() > 4 { ", .." } else { "" };
    format!(
        "{head}: min {:.6}, max {:.6}, mean {:.6}, {nans} NaN; [{}{more}]",
        number(wide.min()),
        number(wide.max()),
        number(wide.mean(Kind::Double)),
        first.join(", "),
    )
}

/// Compares what a target wrote with what the interpreter did. A difference is status 1.
fn compare(kernel: &Kernel, interpreted: &[Drawn], launched: &[Drawn]) -> Result<(), Failure> {
    let mut differs = false;
    for ((name, expected), (_, found)) in outputs(kernel, interpreted).iter().zip(outputs(kernel, launched)) {
        let verdict = judge(std::slice::from_ref(*expected), std::slice::from_ref(found), None);
        differs |= verdict.difference.is_some();
        report::print(&match verdict.difference {
            Some(difference) => format!("%{name} DIFFERS from the interpreter: {difference}"),
            None => {
                format!("%{name} agrees with the interpreter: largest difference {:.3e}", verdict.max_abs)
            }
        });
    }
    if differs { Err(Failure { message: String::new(), status: 1 }) } else { Ok(()) }
}
