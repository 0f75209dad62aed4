//! Reports of plans for a GPU or a processor that is not there.

use tch::Tensor;

use super::Explanation;
use super::code::CodeTarget;
use super::modules::Parameters;
use super::report::Planned;
use crate::engine::{AbsentPlan, AbsentTarget, absent_plan};
use crate::{Error, Options};

impl Explanation {
    /// The plan that a model would have on a target, as a run on the host tells.
    pub(crate) fn for_absent(
        inputs: &[Tensor],
        forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
        names: &[(String, Tensor)],
        target: AbsentTarget,
        options: &Options,
    ) -> Result<Explanation, Error> {
        let absent = absent_plan(inputs, names, forward, target, options)?;
        let AbsentPlan { plan, params, packed, modules, flow, eager, rewrites, pass_times, .. } = &absent;
        let explanation = Explanation::planned(&Planned {
            plan,
            params: Parameters::new(
                &plan.graph,
                params,
                names,
                (absent.consts, packed.iter().map(|packed| packed.panels.param).collect()),
            ),
            modules,
            operators: flow,
            sites: &absent.sites,
            ops_captured: absent.ops_captured,
            eager,
            rewrites,
            pass_times,
            compile: absent.report,
            profile: Some((absent.profile, false)),
            target: CodeTarget::Absent(target),
        });
        let (machine, _) = target.typical();
        let figures = format!("planned by the typical figures of {machine}: no time is measured");
        let planned_for = match (target, absent.assembled) {
            (AbsentTarget::Gpu(gpu), true) => {
                format!("{} that is not here, {figures}, and ptxas has assembled its kernels", gpu.name())
            }
            (AbsentTarget::Gpu(gpu), false) => {
                let assembler = "there is no ptxas that could assemble its kernels";
                format!("{} that is not here, {figures}, and {assembler}", gpu.name())
            }
            (AbsentTarget::Host(isa), _) => format!("{} that need not be here, {figures}", isa.name()),
        };
        let packed_bytes = packed.iter().map(|packed| packed.ty.bytes()).sum();
        let (tolerances, unmatched) = (absent.tolerances.clone(), absent.unmatched.clone());
        Ok(Explanation { planned_for: Some(planned_for), packed_bytes, tolerances, unmatched, ..explanation })
    }
}
