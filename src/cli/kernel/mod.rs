//! `tilefuse kernel`: what a block program in a file becomes, stage by stage, and what it computes.

mod passes;
mod run;

use std::path::PathBuf;

use ariadne::{Config, Label, Report, ReportKind, Source};
use clap::ValueEnum;
use tilefuse_block::{ParseError, Program, parse_valid};
use tilefuse_codegen::host::{HostKernel, HostOptions};
use tilefuse_codegen::ptx::{self, PtxOptions, compile_ptx, emit_llvm};
use tilefuse_codegen::stages::Stages;

use super::{Failure, report};

/// Options of `tilefuse kernel`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A block program as text.
    file: PathBuf,
    /// What to compile for, or to run on.
    #[arg(long, value_enum, default_value_t = Target::Host)]
    target: Target,
    /// The stage to print; the block program after its passes unless --run or --dump is given.
    #[arg(long, value_enum)]
    emit: Option<Stage>,
    /// Run it on random data and print what it leaves in the tensors that it writes. What host or CUDA compute is
    /// compared with the interpreter.
    #[arg(long)]
    run: bool,
    /// An argument, in order: a tensor such as f32[1024] or i32[64]{0..10}, or a number such as 1024i64, 0.5f32, true.
    #[arg(long = "arg", value_name = "SPEC", requires = "run", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Instances along up to three axes.
    #[arg(
        long,
        value_name = "N[,N[,N]]",
        value_delimiter = ',',
        num_args = 1,
        requires = "run",
        default_value = "1"
    )]
    grid: Vec<i64>,
    /// What the random data is drawn from.
    #[arg(long, default_value_t = 0, requires = "run")]
    seed: i64,
    /// Print the program after this pass, or after each pass for `all`, on standard error; can be given again.
    #[arg(long, value_name = "PASS", long_help = print_after_help())]
    print_after: Vec<String>,
    /// Write each stage of what is compiled to files in this folder: STEM.tile, STEM.TARGET.ll, and STEM.host.s or STEM.TARGET.ptx,
    /// where STEM is the name of the kernel and a digest of it. In other programs the variable TILEFUSE_DUMP does.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Compile from the stages that are in this folder, named as --dump names them, in place of those that are made; assembly
    /// cannot be replaced. In other programs the variable TILEFUSE_OVERRIDE does.
    #[arg(long = "override", value_name = "DIR", requires = "run")]
    replace: Option<PathBuf>,
    /// Leave out the passes behind this one; behind a pass of the target, print the program and what was decided.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
}

fn print_after_help() -> String {
    format!(
        "Print the program after this pass, or after each pass for `all`, on standard error; can be given again.\n\n\
         The passes are {}. Those of a target decide rather than rewrite: what they and the ones before decided \
         stands beside the lines.",
        passes::known()
    )
}

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    Interpret,
    Host,
    #[value(name = "sm_80")]
    Sm80,
    #[value(name = "sm_90a")]
    Sm90a,
    #[value(name = "sm_100a")]
    Sm100a,
}

impl Target {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned())
    }

    fn ptx(self) -> Option<ptx::Target> {
        match self {
            Target::Interpret | Target::Host => None,
            Target::Sm80 => Some(ptx::Target::Sm80),
            Target::Sm90a => Some(ptx::Target::Sm90a),
            Target::Sm100a => Some(ptx::Target::Sm100a),
        }
    }
}

/// A form of a program on its way to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The block program after its passes.
    Block,
    /// LLVM IR, before LLVM's passes.
    Llvm,
    /// PTX, for GPUs.
    Ptx,
    /// Assembly, for the host.
    Asm,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.dump.is_some() || args.replace.is_some() {
        if args.target == Target::Interpret {
            return Err(Failure::usage("--dump, --override: target interpret compiles nothing".to_owned()));
        }
        Stages { dump: args.dump.clone(), replace: args.replace.clone() }.install();
    }
    let Some(program) = passes::run(read(args)?, args)? else { return Ok(()) };
    let shows_block = !args.run && args.dump.is_none();
    if let Some(stage) = args.emit.or(shows_block.then_some(Stage::Block)) {
        report::print(&emitted(&program, args.target, stage)?);
    }
    if args.dump.is_some() && !args.run {
        // Whatever is compiled is written.
        let last = if args.target == Target::Host { Stage::Asm } else { Stage::Ptx };
        emitted(&program, args.target, last)?;
    }
    if args.run { run::run(program, args) } else { Ok(()) }
}

fn read(args: &Args) -> Result<Program, Failure> {
    let path = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| Failure::usage(format!("cannot read {path}: {e}")))?;
    parse_valid(&text).map_err(|error| Failure::usage(located(&path.to_string(), &text, &error)))
}

/// The error with its place, and the lines around it with the place marked.
fn located(path: &str, text: &str, error: &ParseError) -> String {
    let head = format!("{path}:{}:{}: {}", error.line, error.column, error.message);
    let before = text.split('\n').take(error.line.saturating_sub(1)).map(|line| line.chars().count() + 1);
    let at = before.sum::<usize>() + error.column.saturating_sub(1);
    let token =
        text.chars().skip(at).take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '%')).count();
    let span = (path, at..at + token.max(1));
    let mut shown = Vec::new();
    let report = Report::build(ReportKind::Error, span.clone())
        .with_config(Config::new().with_color(false))
        .with_message("not a valid block program")
        .with_label(Label::new(span).with_message(&error.message))
        .finish()
        .write((path, Source::from(text)), &mut shown);
    match report {
        Ok(()) => format!("{head}\n{}", String::from_utf8_lossy(&shown).trim_end()),
        Err(_) => head,
    }
}

fn emitted(program: &Program, target: Target, stage: Stage) -> Result<String, Failure> {
    let host = HostOptions::default();
    let text = match (stage, target, target.ptx()) {
        (Stage::Block, ..) => Ok(program.to_string()),
        (Stage::Llvm, Target::Host, _) => HostKernel::llvm_ir(program, &host),
        (Stage::Asm, Target::Host, _) => HostKernel::assembly(program, &host),
        (Stage::Llvm, _, Some(gpu)) => emit_llvm(program, gpu),
        (Stage::Ptx, _, Some(gpu)) => compile_ptx(program, gpu, &PtxOptions::default()).map(|ptx| ptx.text),
        _ => return Err(Failure::usage(nothing(target, stage))),
    };
    text.map_err(|e| Failure::from(crate::Error::from(e)))
}

fn nothing(target: Target, stage: Stage) -> String {
    let stages = match target {
        Target::Interpret => "block",
        Target::Host => "block, llvm and asm",
        Target::Sm80 | Target::Sm90a | Target::Sm100a => "block, llvm and ptx",
    };
    let target = target.name();
    let stage = stage.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
    format!("--emit {stage}: target {target} has {stages}")
}
