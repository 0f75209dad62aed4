//! What a compiled plan does, for people and for machines.

mod absent;
mod candidates;
mod code;
mod diff;
mod flow;
mod limits;
mod lines;
mod modules;
mod operators;
mod page;
mod prediction;
mod report;
mod style;
mod summary;
mod text;
mod times;
mod totals;
mod work;

pub use self::candidates::CandidateReport;
pub use self::code::{CodeReport, LineReport};
pub use self::diff::{ChoiceChange, CutChange, OneSided, PlanDiff, StepChange, TotalChange};
pub use self::flow::TensorReport;
pub use self::operators::OperatorReport;
pub(crate) use self::page::coded;
#[cfg(test)]
pub(crate) use self::page::tests::{call, layers_of_two};
pub use self::prediction::Prediction;
pub use self::report::{
    EagerReport, EdgeReport, Explanation, MachineReport, MemoryReport, PassReport, REPORT_VERSION,
    ScheduleReport, StepReport, UpdateReport,
};
pub(crate) use self::style::{Order, Style};
pub(crate) use self::summary::hinted;
pub(crate) use self::summary::time;
pub(crate) use self::text::{bytes, counted};
pub use self::times::TimeSource;
pub use self::totals::Totals;
