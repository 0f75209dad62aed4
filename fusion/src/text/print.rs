//! Printing of graphs and recordings.

use std::collections::HashMap;
use std::fmt::{self, Display, Write};

use tilefuse_block::{Elem, Literal};

use super::form;
use super::syntax::{axes_text, float_text};
use crate::contraction::Window;
use crate::graph::{AliasTarget, AtenCall, Graph, NodeId, Op, ValueRef, View};
use crate::recording::{Arg, Call, Recording, Source, TensorId};
use crate::types::join;

impl Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = self.topological().unwrap_or_else(|| self.ids().collect());
        let mut numbers = HashMap::new();
        for &id in &order {
            for value in self.results(id) {
                numbers.insert(value, numbers.len());
            }
        }
        let value = |v: ValueRef| numbers.get(&v).map_or("%?".to_string(), |n| format!("%{n}"));
        f.write_str("graph {\n")?;
        for (i, origin) in self.origins.iter().enumerate() {
            writeln!(f, "  origin {i} {}", quoted(origin))?;
        }
        for &id in &order {
            writeln!(f, "  {}", node_text(self, id, &value))?;
        }
        if !self.outputs.is_empty() {
            writeln!(f, "  outputs {}", commas(self.outputs.iter().map(|&v| value(v))))?;
        }
        for buffer in &self.buffers {
            writeln!(f, "  buffer {buffer}")?;
        }
        for &node in &self.offsets {
            writeln!(f, "  offset {}", value(node.into()))?;
        }
        for update in &self.updates {
            writeln!(f, "  update {} <- {}", value(update.target.into()), value(update.value))?;
        }
        for (i, alias) in self.aliases.iter().enumerate() {
            let Some(alias) = alias else { continue };
            let target = match alias.target {
                AliasTarget::Node(node) => value(node.into()),
                AliasTarget::Output(n) => format!("output {n}"),
            };
            writeln!(f, "  alias {i} = {target} + {} : {}", alias.offset, alias.ty)?;
        }
        f.write_str("}\n")
    }
}

fn node_text(graph: &Graph, id: NodeId, value: &dyn Fn(ValueRef) -> String) -> String {
    let node = graph.node(id);
    let operands = graph.operands(id);
    let list = || commas(operands.iter().map(|&v| value(v)));
    let mut text = commas(graph.results(id).map(value));
    text.push_str(if node.outs.is_empty() { "_ = " } else { " = " });
    text.push_str(&match &node.op {
        Op::Input(n) => format!("input {n}"),
        Op::Param(n) => format!("param {n}"),
        Op::Const(n) => format!("const {n}{}", value_text(graph.literals.get(n))),
        Op::Scalar(literal) => format!("scalar {}", literal_text(*literal)),
        Op::Aten(call) => {
            aten_text(call, &|p| operands.get(usize::from(p)).map_or("%?".into(), |&v| value(v)))
        }
        Op::Kernel(kind) => format!("kernel {}({})", kind.name(), list()),
        Op::Map(function) => format!("map {}({})", function.name(), list()),
        Op::Cast => format!("cast({})", list()),
        Op::Iota { dim } => format!("iota {dim}"),
        Op::View(view) => format!("view {}({})", view_text(view), list()),
        Op::Concat { dim } => format!("concat {dim}({})", list()),
        Op::Reduce { combine, dims } => format!("reduce {}{}({})", combine.name(), axes_text(dims), list()),
        Op::Contract(pairs) => format!("contract{}({})", form::pairs_text(pairs), list()),
        Op::Gather { dim } => format!("gather {dim}({})", list()),
    });
    if !node.outs.is_empty() {
        let _ = write!(text, " : {}", commas(node.outs.iter().map(ToString::to_string)));
    }
    if let Some(origin) = node.origin {
        let _ = write!(text, " @{origin}");
    }
    text
}

fn aten_text(call: &AtenCall, value: &dyn Fn(u16) -> String) -> String {
    let mut text = format!("{}({})", call.full_name(), args_text(&call.args, &mut |_, &p| value(p)));
    text.push_str(&call.form.as_ref().map_or_else(String::new, form::text));
    if call.random {
        text.push_str(" !random");
    }
    if !call.writes.is_empty() {
        let _ = write!(text, " !writes[{}]", commas(call.writes.iter().map(ToString::to_string)));
    }
    if let Some(handle) = call.replay {
        let _ = write!(text, " !replay {handle}");
    }
    text
}

fn view_text(view: &View) -> String {
    match view {
        View::Reshape => "reshape".into(),
        View::Permute(perm) => format!("permute{}", axes_text(perm)),
        View::Expand => "expand".into(),
        View::Slice { dim, start, step } => format!("slice[{dim},{start},{step}]"),
        View::Flip(dims) => format!("flip{}", axes_text(dims)),
        View::Pad { low, interior, fill } => {
            let between = match interior.iter().any(|&n| n != 0) {
                true => format!(" interior[{}]", join(interior)),
                false => String::new(),
            };
            format!("pad[{}]{between}={}", join(low), literal_text(*fill))
        }
        View::Window(windows) => {
            let list = |name: &str, of: fn(&Window) -> i64| {
                format!("{name}[{}]", join(&windows.iter().map(of).collect::<Vec<_>>()))
            };
            let lists = [
                list("window", |w| i64::from(w.dim)),
                list("kernel", |w| w.kernel),
                list("stride", |w| w.stride),
                list("dilation", |w| w.dilation),
            ];
            lists.join(" ")
        }
    }
}

/// The value of a constant, where it is known.
fn value_text(literal: Option<&Literal>) -> String {
    literal.map_or_else(String::new, |&l| format!(" = {}", literal_text(l)))
}

fn literal_text(literal: Literal) -> String {
    match literal.elem {
        elem if elem.is_float() => float_text(literal.as_f64()),
        Elem::Bool => (literal.bits != 0).to_string(),
        _ => (literal.bits as i64).to_string(),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn commas(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

fn args_text<T>(args: &[(String, Arg<T>)], value: &mut dyn FnMut(usize, &T) -> String) -> String {
    let texts = args
        .iter()
        .enumerate()
        .map(|(i, (name, arg))| format!("{name}={}", arg_text(arg, &mut |v| value(i, v))));
    commas(texts)
}

fn arg_text<T>(arg: &Arg<T>, value: &mut dyn FnMut(&T) -> String) -> String {
    fn list<I>(empty: &str, items: &[I], text: impl FnMut(&I) -> String) -> String {
        let prefix = if items.is_empty() { empty } else { "" };
        format!("{prefix}[{}]", commas(items.iter().map(text)))
    }
    match arg {
        Arg::None => "None".into(),
        Arg::Tensor(v) => value(v),
        Arg::Tensors(items) => {
            let prefix = if matches!(items.first(), Some(Some(_))) { "" } else { "tensors" };
            let texts = items.iter().map(|v| v.as_ref().map_or("None".to_string(), &mut *value));
            format!("{prefix}[{}]", commas(texts))
        }
        Arg::Bool(b) => b.to_string(),
        Arg::Int(n) => n.to_string(),
        Arg::Float(x) => float_text(*x),
        Arg::Str(s) => quoted(s),
        Arg::Ints(items) => list("ints", items, ToString::to_string),
        Arg::Floats(items) => list("floats", items, |&x| float_text(x)),
        Arg::Bools(items) => list("bools", items, ToString::to_string),
        Arg::DType(dtype) => dtype.to_string(),
        Arg::Device(device) => device.to_string(),
        Arg::Other(words) => format!("other {}", quoted(words)),
    }
}

impl Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("recording {\n")?;
        let mut defined = vec![false; self.tensors.len()];
        for (i, tensor) in self.tensors.iter().enumerate() {
            let source = match &tensor.source {
                Source::Input(n) => format!("input {n}"),
                Source::Param(n, name) => format!("param {n} {}", quoted(name)),
                Source::Const(n) => format!("const {n}{}", value_text(self.literals.get(n))),
                Source::Call(_) => continue,
            };
            writeln!(f, "  %{i} = {source} : {}", tensor_text(self, i, &defined))?;
            defined[i] = true;
        }
        for call in &self.calls {
            writeln!(f, "  {}", call_text(self, call, &mut defined))?;
        }
        if !self.outputs.is_empty() {
            writeln!(f, "  outputs {}", commas(self.outputs.iter().map(|t| format!("%{}", t.0))))?;
        }
        f.write_str("}\n")
    }
}

/// Type and storage; the storage is named by the first tensor that has it.
fn tensor_text(recording: &Recording, index: usize, defined: &[bool]) -> String {
    let Some(tensor) = recording.tensors.get(index) else { return "?".into() };
    let mut text = tensor.ty.to_string();
    let owner = recording.tensors.iter().zip(defined).position(|(t, &d)| d && t.storage == tensor.storage);
    match owner {
        Some(owner) => {
            let _ = write!(
                text,
                " in %{owner}+{}",
                tensor.storage_offset.saturating_sub(recording.tensors[owner].storage_offset)
            );
        }
        None if tensor.storage_offset != 0 => {
            let _ = write!(text, " +{}", tensor.storage_offset);
        }
        None => {}
    }
    if !tensor.plain {
        text.push_str(" opaque");
    }
    text
}

fn call_text(recording: &Recording, call: &Call, defined: &mut [bool]) -> String {
    let mut results = Vec::new();
    for result in &call.results {
        results.push(match result {
            None => "_".to_string(),
            Some(TensorId(id)) => match defined.get_mut(*id as usize) {
                Some(seen) if !*seen => {
                    let text = format!("%{id}: {}", tensor_text(recording, *id as usize, defined));
                    defined[*id as usize] = true;
                    text
                }
                _ => format!("%{id}"),
            },
        });
    }
    let name =
        if call.overload.is_empty() { call.op.clone() } else { format!("{}.{}", call.op, call.overload) };
    let args = args_text(&call.args, &mut |position, id: &TensorId| {
        format!("%{}{}", id.0, if call.writes.contains(&position) { "!" } else { "" })
    });
    let left = if results.is_empty() { String::new() } else { format!("{} = ", results.join(", ")) };
    format!("{left}{name}({args}){}", if call.random { " !random" } else { "" })
}
