//! What the cost model predicts of each kernel of a model, beside what a profile measures of it.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::results::{Machine, Results, Row};

/// All launches of a kernel in a call, in microseconds.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Kernel {
    kernel: String,
    operators: String,
    launches: u64,
    predicted_us: f64,
    measured_us: f64,
}

/// The newest row of each of these models, as a table each.
pub(super) fn predictions(
    results: &Results,
    shown: &[(&Machine, &'static str, &'static str, &str)],
) -> Result<String> {
    let mut text = String::new();
    for (machine, name, dtype, title) in shown {
        let rows = results.newest(machine, ("prediction", dtype), (name, ""));
        let row = rows.last().with_context(|| format!("no prediction of `{name}` on {}", machine.short))?;
        text += &format!("{}### {title}, {}\n\n", if text.is_empty() { "" } else { "\n" }, machine.short);
        table(row, &mut text).with_context(|| String::from(*name))?;
    }
    Ok(text)
}

fn table(row: &Row, text: &mut String) -> Result<()> {
    let number = |pointer: &str| row.number(pointer).with_context(|| format!("no {pointer}"));
    let kernels = row.kernels()?;
    let launches: u64 = kernels.iter().map(|kernel| kernel.launches).sum();
    let steps: f64 = kernels.iter().map(|kernel| kernel.measured_us).sum();
    let (call, correlation) = (number("/call_us")?, number("/rank_correlation")?);
    let _ = writeln!(
        text,
        "{}, {}: {launches} launches of {} kernels take {steps:.0} us of a call of {call:.0} us. The rank correlation of \
         predicted and measured time over the launches of kernels is {correlation:.2}.\n\n| kernel | operators | launches | predicted, us | \
         measured, us | predicted / measured |\n| --- | --- | --- | --- | --- | --- |",
        row.dtype,
        row.date,
        kernels.len(),
    );
    for Kernel { kernel, operators, launches, predicted_us, measured_us } in kernels {
        let ratio = predicted_us / measured_us;
        let _ = writeln!(
            text,
            "| `{kernel}` | {operators} | {launches} | {predicted_us:.1} | {measured_us:.1} | {ratio:.2} |"
        );
    }
    Ok(())
}
