//! The code of kernels: block program, LLVM IR, and assembly or PTX, line by line with the operators that they compute.

use std::sync::Arc;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tilefuse_block::{Loc, Program};
use tilefuse_codegen::host::{HostKernel, HostOptions};
use tilefuse_codegen::ptx::{self, PtxOptions};
use tilefuse_codegen::{Line, Listing};
use tilefuse_fusion::plan::Plan;

use super::Explanation;
use crate::Error;
use crate::engine::{AbsentTarget, Target, listing};

/// The code of a distinct kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeReport {
    /// The captured operators that its lines name; of a kernel that several steps launch, those of the first.
    pub operators: Vec<String>,
    /// The block program.
    pub block: Vec<LineReport>,
    /// LLVM IR behind LLVM's passes.
    pub llvm: Vec<LineReport>,
    /// What the processor's code is written in: `assembly`, or `PTX` on a GPU.
    pub language: String,
    /// The processor's code.
    pub machine: Vec<LineReport>,
}

/// A line of code, and the position of the operator that it computes a part of; none of what is of no operator alone, such as
/// loops and what instances are numbered by.
pub type LineReport = (String, Option<usize>);

/// What the code of a plan is made of.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The distinct programs.
    programs: Arc<[Program]>,
    /// By program: what the locations in it are.
    origins: Vec<Vec<(Loc, String)>>,
    target: CodeTarget,
}

/// What the code is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum CodeTarget {
    /// Something that is here.
    Here(Target),
    /// What need not be here.
    Absent(AbsentTarget),
}

impl CodeTarget {
    fn language(self) -> &'static str {
        match self {
            CodeTarget::Here(Target::Host) | CodeTarget::Absent(AbsentTarget::Host(_)) => "assembly",
            CodeTarget::Here(Target::Cuda(_)) | CodeTarget::Absent(AbsentTarget::Gpu(_)) => "PTX",
        }
    }

    fn listing(self, program: &Program) -> Result<Listing, Error> {
        match self {
            CodeTarget::Here(target) => listing(program, target),
            CodeTarget::Absent(AbsentTarget::Gpu(target)) => {
                Ok(ptx::listing(program, target, &PtxOptions::default())?)
            }
            CodeTarget::Absent(AbsentTarget::Host(isa)) => {
                Ok(HostKernel::listing(program, &HostOptions { isa })?)
            }
        }
    }
}

impl Source {
    pub(super) fn of(plan: &Plan, target: CodeTarget) -> Source {
        let origins = plan.programs.iter().map(|program| origins(plan, program)).collect();
        Source { programs: plan.programs.as_slice().into(), origins, target }
    }
}

/// The locations of a program with what they are, in the order of the program.
fn origins(plan: &Plan, program: &Program) -> Vec<(Loc, String)> {
    let mut found: Vec<(Loc, String)> = Vec::new();
    program.walk(&mut |op| {
        let is_new = !found.iter().any(|(loc, _)| loc.number() == op.loc.number());
        if is_new && let Some(origin) = plan.graph.located(op.loc) {
            found.push((op.loc, origin.to_owned()));
        }
    });
    found
}

impl Explanation {
    /// The same with the code of each distinct kernel, which is compiled again for that.
    ///
    /// # Errors
    /// [`Error::NoCode`] for a plan that was read back; else as compiling it.
    pub fn with_code(self) -> Result<Explanation, Error> {
        let source = self.source.as_ref().ok_or(Error::NoCode)?;
        let _span = tracing::info_span!("list code", kernels = source.programs.len()).entered();
        let all = source.programs.par_iter().zip(&source.origins);
        let code =
            all.map(|(program, origins)| code(program, origins, source.target)).collect::<Result<_, _>>()?;
        Ok(Explanation { code, ..self })
    }
}

impl CodeReport {
    /// The code with the operators beside the lines; `name` is the kernel's.
    pub(super) fn text(&self, name: &str) -> String {
        let mut text = String::new();
        let parts = [
            ("block program", &self.block),
            ("LLVM IR", &self.llvm),
            (self.language.as_str(), &self.machine),
        ];
        for (what, lines) in parts {
            text.push_str(&format!("\n{name}: {what}\n"));
            for (line, operator) in lines {
                match operator.and_then(|at| self.operators.get(at)) {
                    Some(operator) => text.push_str(&format!("{line:<WIDTH$}  // {operator}\n")),
                    None => text.push_str(&format!("{line}\n")),
                }
            }
        }
        text
    }
}

/// The columns that a line has before its operator, at least.
const WIDTH: usize = 64;

fn code(program: &Program, origins: &[(Loc, String)], target: CodeTarget) -> Result<CodeReport, Error> {
    let operator = |number: Option<u32>| {
        number.and_then(|number| origins.iter().position(|(loc, _)| loc.number() == Some(number)))
    };
    let lines = |lines: Vec<Line>| lines.into_iter().map(|line| (line.text, operator(line.loc))).collect();
    let listing = target.listing(program)?;
    let block = program.located_lines().into_iter();
    Ok(CodeReport {
        operators: origins.iter().map(|(_, name)| name.clone()).collect(),
        block: block.map(|(text, loc)| (text, operator(loc.number()))).collect(),
        llvm: lines(listing.llvm),
        language: target.language().to_owned(),
        machine: lines(listing.code),
    })
}
