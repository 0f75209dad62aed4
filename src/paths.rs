//! Paths of modules, and patterns of them.

use indexmap::IndexMap;

/// What a pattern covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Covered {
    /// An operator by its name or number.
    Operator,
    /// A module, with this path.
    Module(String),
}

/// The name of an operator, or a path of a module with those within it, `*` for any one part.
pub(crate) struct Pattern<'a> {
    text: &'a str,
    /// What all modules lie in, which a pattern may leave out.
    common: String,
}

impl<'a> Pattern<'a> {
    /// A pattern in a model of these modules; empty ones are none.
    pub(crate) fn new<'m>(text: &'a str, modules: impl IntoIterator<Item = &'m str>) -> Pattern<'a> {
        Pattern { text, common: common_prefix(modules) }
    }

    /// By what the pattern covers an operator, if it does. `operator` is a name with a position, "aten::linear #23", "#23".
    pub(crate) fn covered(&self, operator: &str, module: &str) -> Option<Covered> {
        let name = operator.split(' ').next().unwrap_or_default();
        let number = operator.split(' ').nth(1);
        if self.text == "*"
            || number == Some(self.text)
            || self.text == operator
            || self.text == name
            || name.strip_prefix("aten::") == Some(self.text)
        {
            return Some(Covered::Operator);
        }
        let within = module.strip_prefix(&self.common).filter(|_| !self.common.is_empty());
        let path = self.path(module).or_else(|| Some(self.common.clone() + &self.path(within?)?))?;
        Some(Covered::Module(path))
    }

    /// The parts of a path that the pattern stands for, from its beginning.
    fn path(&self, module: &str) -> Option<String> {
        let mut path = module.split('.').filter(|part| !part.is_empty());
        let parts = self.text.split('.').map(|part| path.next().filter(|&own| part == "*" || part == own));
        Some(parts.collect::<Option<Vec<_>>>()?.join("."))
    }
}

/// A path with `*` in the place of numbers, as those of repeated layers.
pub(crate) fn of_any_layer(path: &str) -> String {
    path.split('.').map(any_number).collect::<Vec<_>>().join(".")
}

/// `*` for a number.
pub(crate) fn any_number(part: &str) -> &str {
    if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part }
}

/// One path for several that have the same number of parts, `*` where these differ. Where nothing would be left but `*`, or numbers of parts
/// differ, one for each that differs in more than numbers, some of many.
pub(crate) fn folded<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let paths: Vec<&str> = paths.into_iter().collect();
    let is_named = |path: &str| path.split('.').any(|part| part != "*");
    if let Some(path) = alike(&paths).filter(|path| is_named(path)) {
        return path;
    }
    let mut shapes: IndexMap<String, Vec<&str>> = IndexMap::new();
    for &path in paths.iter().filter(|path| !path.is_empty()) {
        let shape = Some(of_any_layer(path)).filter(|shape| is_named(shape));
        shapes.entry(shape.unwrap_or_else(|| path.to_owned())).or_default().push(path);
    }
    let shapes: Vec<String> = shapes.values().filter_map(|paths| alike(paths)).collect();
    match &shapes[..] {
        [first, second, .., last] if shapes.len() > MAX_SHAPES => format!("{first}, {second} .. {last}"),
        _ => shapes.join(", "),
    }
}

/// Paths that [`folded`] names one by one.
const MAX_SHAPES: usize = 3;

/// One path for several that have the same number of parts: `*` where these differ.
fn alike(paths: &[&str]) -> Option<String> {
    let mut paths = paths.iter().map(|path| path.split('.').collect::<Vec<_>>());
    let mut all = paths.next()?;
    for path in paths {
        if path.len() != all.len() {
            return None;
        }
        for (part, other) in all.iter_mut().zip(path) {
            if *part != other {
                *part = "*";
            }
        }
    }
    Some(all.join("."))
}

/// The module that all paths are or lie in, with a dot behind it; where all are the same, what that lies in. Empty paths are none.
pub(crate) fn common_prefix<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let mut paths = paths.into_iter().filter(|path| !path.is_empty());
    let Some(first) = paths.next() else { return String::new() };
    let mut common: Vec<&str> = first.split('.').collect();
    let mut longest = common.len();
    for path in paths {
        let alike = common.iter().zip(path.split('.')).take_while(|(a, b)| *a == b).count();
        common.truncate(alike);
        longest = longest.max(path.split('.').count());
    }
    common.truncate(longest - 1);
    common.iter().flat_map(|part| [part, "."]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_part_by_part() {
        assert_eq!(folded(["h.0.mlp", "h.1.mlp", "h.10.mlp"]), "h.*.mlp");
        assert_eq!(folded(["a.b", "a"]), "a.b, a");
        assert_eq!(folded(["ln_f"]), "ln_f");
        assert_eq!(folded(["h.1.ln_1", "h.2.ln_1", "ln_f"]), "h.*.ln_1, ln_f");
        assert_eq!(folded(["h.0.ln_1", "ln_f", "ln_f"]), "h.0.ln_1, ln_f");
        assert_eq!(folded(["layer1.0.conv1", "layer2.1.conv1"]), "*.*.conv1");
        assert_eq!(folded(["0", "3"]), "0, 3");
        assert_eq!(folded(["0", "3", "6", "9", "12"]), "0, 3 .. 12");
        assert_eq!(folded(["", "head"]) + &folded(["", ""]), "head");
    }

    #[test]
    fn what_all_modules_lie_in_is_no_path_of_all() {
        assert_eq!(common_prefix(["a.h.0.mlp", "", "a.h.1", "a.wte"]), "a.");
        assert_eq!(common_prefix(["a.b.c", "a.b.d.e"]), "a.b.");
        assert_eq!(common_prefix(["a.b", "a.bc"]), "a.");
        assert_eq!(common_prefix(["a", "a.b", "a"]), "a.");
        assert_eq!(common_prefix(["a.b", "a.b"]), "a.");
        assert_eq!(common_prefix(["a"]), "");
        assert_eq!(common_prefix(["a.b", "c"]), "");
        assert_eq!(common_prefix([]), "");
    }

    #[test]
    fn patterns_are_operators_or_modules_with_what_is_within() {
        let covered = |of: &str, operator: &str, module: &str| Pattern::new(of, []).covered(operator, module);
        let is = |of: &str| covered(of, "aten::linear #23", "h.3.mlp.c_fc").is_some();
        assert!(
            ["aten::linear", "linear", "aten::linear #23", "h.3", "h.*.mlp", "h.3.mlp.c_fc", "*"]
                .iter()
                .all(|p| is(p))
        );
        assert!(!["aten::lin", "h.4", "h.30", "mlp", "h.*.attn", "h.3.mlp.c_fc.x", ""].iter().any(|p| is(p)));
        assert_eq!(covered("h", "aten::gelu #2", ""), None);
        let module = |path: &str| Some(Covered::Module(path.to_owned()));
        assert_eq!(covered("h.*", "aten::gelu #2", "h.3.mlp"), module("h.3"));
        assert_eq!(covered("gelu", "aten::gelu #2", "h.3.mlp"), Some(Covered::Operator));
    }

    #[test]
    fn patterns_may_leave_out_what_all_modules_lie_in() {
        let modules = ["gpt.transformer.h.0.mlp", "gpt.transformer.h.1.mlp", "", "gpt.transformer.wte"];
        let covered = |of: &str| Pattern::new(of, modules).covered("aten::gelu #2", modules[1]);
        let whole = Some(Covered::Module(String::from("gpt.transformer.h.1")));
        assert_eq!(covered("h.1"), whole);
        assert_eq!(covered("gpt.transformer.h.*"), whole);
        assert_eq!(covered("gpt"), Some(Covered::Module(String::from("gpt"))));
        assert_eq!(covered("transformer.h"), None);
    }
}
