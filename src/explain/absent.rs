//! Reports of plans for a GPU that is not there.

use tch::Tensor;
use tilefuse_codegen::ptx::Target;

use super::Explanation;
use super::code::CodeTarget;
use super::modules::Parameters;
use super::report::Planned;
use crate::engine::{AbsentPlan, absent_plan, typical};
use crate::{Error, Options};

impl Explanation {
    /// The plan that a model would have on a GPU with a target, as a run on the host tells.
    pub(crate) fn for_absent(
        inputs: &[Tensor],
        forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
        names: &[(String, Tensor)],
        target: Target,
        options: &Options,
    ) -> Result<Explanation, Error> {
        let absent = absent_plan(inputs, names, forward, target, options)?;
        let AbsentPlan { plan, params, modules, flow, eager, rewrites, pass_times, .. } = &absent;
        let explanation = Explanation::planned(&Planned {
            plan,
            params: Parameters::new(&plan.graph, params, names, (0, Vec::new())),
            modules,
            operators: flow,
            sites: &absent.sites,
            ops_captured: absent.ops_captured,
            eager,
            rewrites,
            pass_times,
            compile: absent.report,
            profile: Some((absent.profile, false)),
            target: CodeTarget::Ptx(target),
        });
        let assembled = match absent.assembled {
            true => "ptxas has assembled its kernels",
            false => "there is no ptxas that could assemble its kernels",
        };
        let planned_for = format!(
            "{} that is not here, planned by the typical figures of an {}: no time is measured, and {assembled}",
            target.name(),
            typical(target).0,
        );
        let (tolerances, unmatched) = (absent.tolerances.clone(), absent.unmatched.clone());
        Ok(Explanation { planned_for: Some(planned_for), tolerances, unmatched, ..explanation })
    }
}
