//! The rows as a table for a terminal.

use std::collections::BTreeSet;

use comfy_table::presets;

use super::{Outcome, Run};
use crate::cli::report::empty_table;

/// Who was measured beside the copy: ours, eager, and the others by name.
pub(super) fn contenders(run: &Run) -> Vec<&str> {
    let all: BTreeSet<&str> = run.rows.iter().flat_map(|row| row.times.keys()).map(String::as_str).collect();
    let first = ["tilefuse", "eager"];
    let rest = all.iter().copied().filter(|name| !first.contains(name) && *name != "copy");
    first.into_iter().filter(|name| all.contains(name)).chain(rest).collect()
}

/// How weights lay.
pub(super) fn weights(run: &Run) -> &'static str {
    match run.prepack_weights {
        true => "weights on the host are prepacked",
        false => "weights are not prepacked (TILEFUSE_PREPACK=always prepacks them on the host)",
    }
}

/// The run as a table.
pub(super) fn table(run: &Run) -> String {
    let contenders = contenders(run);
    let mut table = empty_table(presets::UTF8_BORDERS_ONLY);
    let mut header = vec![String::from("microseconds"), String::from("type"), String::from("MB")];
    header.extend(contenders.iter().map(|name| name.to_string()));
    header.extend([String::from("copy"), String::from("of copy")]);
    let launch_overhead = run.rows.iter().any(|row| !row.launch_overhead_us.is_empty());
    if launch_overhead {
        header.push(String::from("launch"));
    }
    table.set_header(header);
    for row in &run.rows {
        let mut cells = cells(row, &contenders);
        if launch_overhead {
            cells.push(
                row.launch_overhead_us.get("tilefuse").map_or_else(String::new, |us| format!("{us:.1}")),
            );
        }
        table.add_row(cells);
    }
    table.to_string()
}

/// What is said below it.
pub(super) fn notes(run: &Run) -> String {
    let launch_overhead = run.rows.iter().any(|row| !row.launch_overhead_us.is_empty());
    let mut text = format!("{}; {}\n", run.device, run.timing);
    text.push_str(&format!("{}\n", weights(run)));
    text.push_str(&format!("copy of a large tensor: {:.1} GB/s, read and written\n", run.copy_gbps));
    if let Some(us) = run.empty_launch_us {
        text.push_str(&format!("a kernel that does nothing: {us:.1} us\n"));
    }
    text.push_str("medians, with the distance to the further quartile; of copy: the time of a copy of as many bytes beside ours\n");
    if launch_overhead {
        text.push_str("launch: host launch overhead of a call of ours, on an idle GPU\n");
    }
    for (peer, version) in &run.peers {
        text.push_str(&format!("{peer}: {version}\n"));
    }
    for row in &run.rows {
        for (name, why) in &row.failed {
            text.push_str(&format!("{} {} {}: {name}: {why}\n", row.name, row.shape, row.dtype));
        }
        if !row.ok {
            text.push_str(&format!(
                "{} {} {}: DIFFERENT by {:.1e}\n",
                row.name, row.shape, row.dtype, row.difference
            ));
        }
    }
    text
}

fn cells(row: &Outcome, contenders: &[&str]) -> Vec<String> {
    let mut cells = vec![
        format!("{} {}", row.name, row.shape),
        row.dtype.clone(),
        format!("{:.1}", row.bytes as f64 / 1e6),
    ];
    let time = |name: &&str| match row.times.get(*name) {
        Some(time) => format!("{:.1} ±{:.1}", time.us, (time.high - time.us).max(time.us - time.low)),
        None => String::new(),
    };
    cells.extend(contenders.iter().chain(&["copy"]).map(time));
    cells.push(row.of_copy.get("tilefuse").map_or_else(String::new, |part| format!("{part:.2}")));
    cells
}
