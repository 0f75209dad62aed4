//! A report as text, and as a graph for Graphviz.

use indexmap::IndexMap;

use super::operators::module_of;
use super::style::{Order, Style};
use super::{EdgeReport, Explanation, PlanDiff, StepReport, limits, page, summary};

impl Explanation {
    /// The same for calls that run the model itself for this reason.
    pub(crate) fn with_note(self, reason: &str) -> Explanation {
        Explanation { note: Some(String::from(reason)), ..self }
    }

    /// The plan on a screen: what repeats once, the time of each part, and the cuts over which most bytes go. This is what is
    /// displayed.
    pub fn summary(&self) -> String {
        self.summary_in(Style::PLAIN)
    }

    /// The same, as it is read there.
    pub(crate) fn summary_in(&self, style: Style) -> String {
        let mut text: String = self.head().split_inclusive('\n').map(|line| style.wrapped(line, 2)).collect();
        if self.steps.is_empty() {
            text.push_str("no steps: what a call returns is given to it or has no elements\n");
            text.push_str(&self.updates_text());
            return text;
        }
        text.push_str(&match style.order {
            Order::Calls => summary::steps(self, style),
            Order::Time => summary::by_time(self, style),
        });
        text.push_str(&style.wrapped(&format!("time: {}\n", limits::where_time_goes(self)), 6));
        for line in [limits::limits_text(self), self.prediction_text(), self.call_text()]
            .iter()
            .filter(|line| !line.is_empty())
        {
            text.push_str(&style.wrapped(line, 6));
            text.push('\n');
        }
        text.push_str(&self.updates_text());
        for line in summary::hinted(self) {
            text.push_str(&style.wrapped(&format!("{line}\n"), 6));
        }
        text.push('\n');
        text.push_str(&summary::cuts(self, style));
        text
    }

    /// The plan as text with every step and every cut; `programs` adds the block program of each distinct kernel,
    /// [`Explanation::with_code`] the code.
    pub fn text(&self, programs: bool) -> String {
        self.text_in(programs, Style { width: usize::MAX, ..Style::PLAIN })
    }

    /// The same, as it is read there.
    pub(crate) fn text_in(&self, programs: bool, style: Style) -> String {
        let mut text: String =
            self.listing().split_inclusive('\n').map(|line| style.wrapped(line, 10)).collect();
        if programs {
            for program in &self.programs {
                text.push('\n');
                text.push_str(program);
            }
        }
        for (at, code) in self.code.iter().enumerate() {
            let named = |step: &StepReport| match step {
                StepReport::Kernel { name, program, .. } if *program == at => Some(name.clone()),
                _ => None,
            };
            text.push_str(&code.text(&self.steps.iter().find_map(named).unwrap_or_default()));
        }
        text
    }

    /// Every step and every cut, without code.
    fn listing(&self) -> String {
        let mut text = self.head();
        for (position, step) in self.steps.iter().enumerate() {
            text.push_str(&step_text(position, step));
            text.push_str(&self.share_text(step));
        }
        text.push_str(&self.updates_text());
        summary::hinted(self).iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text.push_str("\nedges that were not fused\n");
        for edge in self.edges.iter().filter(|e| !e.fused) {
            text.push_str(&format!("  {} -> {}: {}\n", edge.producer, edge.consumer, edge.verdict));
            text.push_str(&format!("      {}\n", self.edge_text(edge)));
            if let Some(remedy) = &edge.remedy {
                text.push_str(&format!("      what would change it: {remedy}\n"));
            }
        }
        for line in [self.prediction_text(), self.call_text()].iter().filter(|line| !line.is_empty()) {
            text.push_str(&format!("\n{line}"));
        }
        text.push_str(&self.compile_text());
        text
    }

    /// The part of a call's time that a step takes, and what the machine's limits ask of that, in a line.
    fn share_text(&self, step: &StepReport) -> String {
        let all = self.known_us();
        let share = step.us().filter(|_| all > 0.0);
        let share =
            share.map(|us| format!("{}{:.1} % of the time of all steps", step.about(), 100.0 * us / all));
        let limit = limits::of_limit(self, step).map(|of| limits::limit_sentence(self, of));
        let said: Vec<String> = share.into_iter().chain(limit).collect();
        if said.is_empty() { String::new() } else { format!("        {}\n", said.join("; ")) }
    }

    /// What a cut costs, and between which modules it is.
    fn edge_text(&self, edge: &EdgeReport) -> String {
        let cost = edge.cost_us.map_or_else(String::new, |us| format!("at most {}, ", summary::time(us)));
        let [from, to] = [&edge.producer, &edge.consumer].map(|end| module_of(&self.operators, end));
        let modules = summary::between(&from, &to);
        let modules = if modules.is_empty() { modules } else { format!("; {modules}") };
        format!("{cost}{}{modules}", bytes(edge.bytes))
    }

    /// What is said before the steps.
    fn head(&self) -> String {
        let mut text = self.note.as_ref().map_or_else(String::new, |reason| {
            format!("such calls run the model itself: {reason}\nwithout that they would run this plan:\n\n")
        });
        if let Some(gpu) = &self.planned_for {
            text.push_str(&format!("for {gpu}\n\n"));
        }
        text.push_str(&format!(
            "{} captured; a call runs {} ({} distinct) and {}; {}\n\n",
            counted(self.ops_captured as u64, "operator"),
            counted(self.kernels_fused as u64, "kernel"),
            self.distinct_kernels,
            counted(self.extern_ops as u64, "libtorch operator"),
            match self.arena_bytes {
                0 if self.hands_over() => String::from("no arena: intermediates have tensors of their own"),
                0 => String::from("no arena: no intermediates"),
                arena => format!("arena of intermediates {}", bytes(arena)),
            }
        ));
        if self.packed_bytes > 0 {
            text.push_str(&format!("prepacked weights: {}\n\n", bytes(self.packed_bytes)));
        }
        if let Some(state) = &self.cuda_graph {
            text.push_str(&format!("CUDA graph: {state}\n\n"));
        }
        for tolerance in &self.tolerances {
            text.push_str(&format!("{}\n", tolerance.reason));
        }
        if !self.tolerances.is_empty() {
            text.push('\n');
        }
        text
    }

    /// Whether steps read what kernels write.
    fn hands_over(&self) -> bool {
        let is_kernel = |at: usize| self.steps.get(at).is_some_and(|step| !step.is_extern());
        let reads = self.steps.iter().flat_map(|step| match step {
            StepReport::Kernel { reads, .. } | StepReport::Extern { reads, .. } => reads,
        });
        reads.filter_map(|read| read.step).any(is_kernel)
    }

    /// Where the time of compiling went.
    fn compile_text(&self) -> String {
        let mut text = format!("\n{}\n", self.compile);
        let passes: Vec<String> =
            self.passes.iter().map(|pass| format!("{} {:.1} ms", pass.name, pass.ms)).collect();
        if !passes.is_empty() {
            text.push_str(&format!("passes over the graph and the plan: {}\n", passes.join(", ")));
        }
        text
    }

    /// How many tensors kernels write in place, and which are copied.
    fn updates_text(&self) -> String {
        if self.updates.is_empty() {
            return String::new();
        }
        let in_place = self.updates.iter().filter(|update| update.copied.is_none()).count();
        let mut text = format!("\n{in_place} of {} updated tensors written by kernels\n", self.updates.len());
        for update in &self.updates {
            if let Some(reason) = &update.copied {
                text.push_str(&format!("  {} copied: {reason}\n", update.target));
            }
        }
        text
    }

    /// The plan as a page for a browser, in one file that needs nothing from elsewhere: a graph that folds by modules, what each
    /// step computes and why, the cuts, a table of kernels, and plots. `title` is the model's name.
    pub fn html(&self, title: &str) -> String {
        page::page(self, title, None)
    }

    /// The same with one view more: what is different from an older plan.
    pub fn html_with_changes(&self, title: &str, changes: &PlanDiff) -> String {
        page::page(self, title, Some(changes))
    }

    /// The plan as a Graphviz graph: one box for each step, in a cluster for its module, and one arrow for each edge between steps.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph plan {\n  node [shape=box, fontname=monospace];\n");
        let mut modules: IndexMap<&str, Vec<usize>> = IndexMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let (StepReport::Kernel { modules: of, .. } | StepReport::Extern { modules: of, .. }) = step;
            modules.entry(of.first().map_or("", String::as_str)).or_default().push(at);
        }
        for (number, (module, steps)) in modules.iter().enumerate() {
            let indent = if module.is_empty() { "  " } else { "    " };
            if !module.is_empty() {
                text.push_str(&format!("  subgraph cluster_{number} {{\n    label={};\n", quoted(module)));
            }
            for &at in steps {
                text.push_str(&format!("{indent}{}\n", self.dot_step(at)));
            }
            if !module.is_empty() {
                text.push_str("  }\n");
            }
        }
        let mut drawn = std::collections::BTreeSet::new();
        for edge in &self.edges {
            if let (Some(from), Some(to)) = (edge.producer_step, edge.consumer_step)
                && from != to
                && drawn.insert((from, to))
            {
                text.push_str(&format!("  s{from} -> s{to} [tooltip={}];\n", quoted(&edge.verdict)));
            }
        }
        text.push_str("}\n");
        text
    }

    fn dot_step(&self, at: usize) -> String {
        let step = &self.steps[at];
        let (name, style) = match step {
            StepReport::Kernel { name, .. } => (name, "filled"),
            StepReport::Extern { operator, .. } => (operator, "dashed"),
        };
        let time = step.us().map_or_else(String::new, |us| format!("\n{}{us:.1} us", step.about()));
        format!("s{at} [label={}, style={style}];", quoted(&format!("{name}{time}")))
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.summary())
    }
}

/// A text as Graphviz reads it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The lines of source of a step.
fn source(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("        at {}\n", lines.join(", ")) }
}

/// A line with the modules that operators are of, where there are any.
fn within(modules: &[String]) -> String {
    if modules.is_empty() { String::new() } else { format!("        of {}\n", modules.join(", ")) }
}

fn step_text(position: usize, step: &StepReport) -> String {
    match step {
        StepReport::Kernel {
            name,
            shape,
            operators,
            modules,
            lines,
            grid,
            bytes_read,
            bytes_written,
            bytes_non_temporal,
            predicted_us,
            measured_us,
            program,
            parts,
            reason,
            schedule,
            outer_loop,
            horizontal_refusal,
            ..
        } => format!(
            "{position:4}  kernel {name} ({shape}, {}program {program}, {}): reads {}, writes {}{}, {predicted_us:.1} us {}{}\n        {}\n{}{}{}{}{}{}",
            if *parts > 1 { format!("{parts} kernels in one launch, ") } else { String::new() },
            counted(*grid, "instance"),
            bytes(*bytes_read),
            bytes(*bytes_written),
            if *bytes_non_temporal > 0 {
                format!(" ({} by non-temporal stores)", bytes(*bytes_non_temporal))
            } else {
                String::new()
            },
            step.prediction_source().text(),
            measured(*measured_us),
            operators.join(", "),
            within(modules),
            source(lines),
            schedule.as_ref().map_or_else(String::new, |schedule| format!("        {}\n", schedule.text())),
            reason.as_ref().map_or_else(String::new, |reason| format!("        {reason}\n")),
            outer_loop.as_ref().map_or_else(String::new, |outer_loop| format!("        {outer_loop}\n")),
            horizontal_refusal
                .as_ref()
                .map_or_else(String::new, |why| format!("        a launch of its own: {why}\n"))
        ),
        StepReport::Extern { operator, modules, lines, result, reason, .. } => {
            let time = step.time();
            let time =
                time.map_or_else(String::new, |(us, source)| format!(", {us:.1} us {}", source.text()));
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!("\n        {reason}"));
            let (place, source) = (within(modules), source(lines));
            format!("{position:4}  libtorch {operator} : {result}{time}{reason}\n{place}{source}")
        }
    }
}

/// What a step took in a profile.
fn measured(us: Option<f64>) -> String {
    us.map_or_else(String::new, |us| format!(", {us:.1} us measured"))
}

/// So many of what has this name.
pub(crate) fn counted(count: u64, name: &str) -> String {
    if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") }
}

/// A number of bytes in the unit that suits it.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;
    use crate::explain::OperatorReport;
    use crate::explain::page::tests::layers_of_two;

    #[test]
    fn texts_end_nothing_in_a_graph() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
    }

    #[test]
    fn what_there_is_one_of_is_no_plural() {
        let mut plan = layers_of_two();
        assert!(plan.text(false).starts_with(
            "8 operators captured; a call runs 8 kernels (8 distinct) and 0 libtorch operators; "
        ));
        (plan.ops_captured, plan.kernels_fused, plan.distinct_kernels, plan.extern_ops) = (1, 1, 1, 1);
        let text = plan.text(false);
        let head = "1 operator captured; a call runs 1 kernel (1 distinct) and 1 libtorch operator; ";
        assert!(text.starts_with(head) && text.contains("program 0, 1 instance): reads"), "{text}");
    }

    #[test]
    fn a_plan_without_an_arena_says_why() {
        let mut plan = layers_of_two();
        let why = "; no arena: intermediates have tensors of their own\n";
        assert!(plan.text(false).contains(why) && plan.summary().contains("; no arena: intermediates "));
        let mut one = plan.clone();
        one.steps.truncate(1);
        assert!(one.text(false).contains("; no arena: no intermediates\n"));
        plan.arena_bytes = 18_432;
        assert!(plan.text(false).contains("; arena of intermediates 18.4 kB\n"));
    }

    #[test]
    fn the_full_text_has_shares_limits_and_what_cuts_cost() {
        let mut plan = layers_of_two();
        let text = plan.text(false);
        let share =
            "\n        12.5 % of the time of all steps; 1 % of the time is what memory bandwidth asks for\n";
        assert_eq!(text.matches(share).count(), 8, "{text}");
        let cut = ": cut: predicted 9.0 us in one kernel, 4.0 us in two\n      at most 1.5 us, 128 B\n";
        assert!(text.contains(cut), "{text}");
        for (at, module) in ["", "h.0.mlp.up", "h.0.mlp.down"].into_iter().enumerate() {
            let operator = format!("aten::linear #{at}");
            plan.operators.push(OperatorReport {
                operator,
                module: module.into(),
                step: None,
                left_out: None,
            });
        }
        plan.edges[0].cost_us = None;
        let text = plan.text(false);
        assert!(text.contains("\n      128 B; h.0.mlp.up -> h.0.mlp.down\n"), "{text}");
    }

    #[test]
    fn a_graph_has_every_step_in_its_module() {
        let plan = layers_of_two();
        let text = plan.dot();
        for at in 0..plan.steps.len() {
            assert_eq!(text.matches(&format!(" s{at} [label=")).count(), 1, "{text}");
        }
        assert!(text.contains("subgraph cluster_") && text.contains(" -> "), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
