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
    kernels.iter().for_each(|kernel| *text += &kernel.row());
    Ok(())
}

impl Kernel {
    /// It as a row of a table. A dash stands for what was not predicted or not measured, and for their ratio then.
    fn row(&self) -> String {
        let Kernel { kernel, operators, launches, predicted_us, measured_us } = self;
        let shown = |known: bool, number: f64, digits: usize| {
            if known { format!("{number:.digits$}") } else { String::from("–") }
        };
        let [predicted, measured] = [*predicted_us, *measured_us].map(|us| us > 0.0);
        let ratio = shown(predicted && measured, predicted_us / measured_us, 2);
        let times = [shown(predicted, *predicted_us, 1), shown(measured, *measured_us, 1)].join(" | ");
        format!("| `{kernel}` | {operators} | {launches} | {times} | {ratio} |\n")
    }
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    #[test]
    fn what_was_not_measured_or_not_predicted_is_a_dash() {
        let row = |predicted_us: f64, measured_us: f64| {
            let (kernel, operators) = (String::from("fused_relu"), String::from("relu"));
            Kernel { kernel, operators, launches: 2, predicted_us, measured_us }.row()
        };
        assert_eq!(row(3.0, 2.0), "| `fused_relu` | relu | 2 | 3.0 | 2.0 | 1.50 |\n");
        assert_eq!(row(3.0, 0.0), "| `fused_relu` | relu | 2 | 3.0 | – | – |\n");
        assert_eq!(row(0.0, 2.0), "| `fused_relu` | relu | 2 | – | 2.0 | – |\n");
    }
}
