//! Whole paths of the modules of TorchScript files.
//!
//! Its interpreter knows a module by the name that it has in the one around. Lists and dictionaries of modules are called by nobody, so
//! that their names are missing; the names of parameters have them.
//!
//! ```text
//! transformer.0.mlp.act    and parameters    transformer.h.0.mlp.c_fc.weight    is    transformer.h.0.mlp.act
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

/// The modules that have parameters, and those around them.
pub(super) struct ScriptModules<'a> {
    /// Each with its parts.
    known: Vec<(&'a str, Vec<&'a str>)>,
    /// By a scope and what the interpreter says in it: the module that most of its names fit, and how many these are.
    found: FxHashMap<(&'a str, &'a str), Option<(&'a str, usize)>>,
}

impl<'a> ScriptModules<'a> {
    /// Of the modules that parameters belong to.
    pub(super) fn of(owners: impl Iterator<Item = &'a str>) -> ScriptModules<'a> {
        let mut seen = FxHashSet::default();
        let known = owners.flat_map(modules_around).filter(|&path| seen.insert(path));
        ScriptModules {
            known: known.map(|path| (path, path.split('.').collect())).collect(),
            found: FxHashMap::default(),
        }
    }

    /// The path of a module in a scope. It is one around `near`, the modules of calls close by, of which the first is the closest,
    /// where that fits as well as any.
    pub(super) fn path(&mut self, scope: &'a str, script: &'a str, near: &[&str]) -> String {
        let names: Vec<&str> = script.split('.').collect();
        let around = parts(scope);
        let known = &self.known;
        let best = *self.found.entry((scope, script)).or_insert_with(|| best(known, &around, &names));
        let least = best.map_or(1, |(_, count)| count);
        let close = (least..=names.len()).rev().find_map(|count| {
            let fits = |path: &&str| fit(&parts(path), &around, &names[..count]);
            near.iter().find_map(|module| Some((modules_around(module).find(fits)?, count)))
        });
        let (path, count) = close.or(best).unwrap_or((scope, 0));
        let parts = Some(path).into_iter().chain(names[count..].iter().copied());
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }
}

/// The modules that a module is in, from the outermost on, and itself.
fn modules_around(module: &str) -> impl Iterator<Item = &str> {
    let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
    ends.map(|end| &module[..end]).filter(|path| !path.is_empty())
}

fn parts(path: &str) -> Vec<&str> {
    path.split('.').filter(|part| !part.is_empty()).collect()
}

/// The first known module of those with the fewest parts that as many of the names as possible fit.
fn best<'a>(known: &[(&'a str, Vec<&'a str>)], around: &[&str], names: &[&str]) -> Option<(&'a str, usize)> {
    (1..=names.len()).rev().find_map(|count| {
        let fitting = known.iter().filter(|(_, parts)| fit(parts, around, &names[..count]));
        Some((fitting.min_by_key(|(_, parts)| parts.len())?.0, count))
    })
}

/// Whether a path in a scope ends with the last of these names, and has the others before it, in order.
fn fit(path: &[&str], around: &[&str], names: &[&str]) -> bool {
    let Some(inner) = path.strip_prefix(around) else { return false };
    let (mut parts, mut names) = (inner.iter().rev(), names.iter().rev());
    names.next() == parts.next() && names.all(|name| parts.any(|part| part == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules() -> ScriptModules<'static> {
        let owners = ["m.wte", "m.h.0.mlp.c_fc", "m.h.1.mlp.c_fc", "down.0.res.0.conv", "up.0.res.0.conv"];
        ScriptModules::of(owners.into_iter())
    }

    #[test]
    fn lists_of_modules_are_found() {
        let mut modules = modules();
        let mut path = |script| modules.path("", script, &[]);
        assert_eq!(path("m"), "m");
        assert_eq!(path("m.1.mlp.c_fc"), "m.h.1.mlp.c_fc");
        assert_eq!(path("m.0.mlp.act"), "m.h.0.mlp.act");
        assert_eq!(path("m.0.0"), "m.h.0.0");
        assert_eq!(path("n.0"), "n.0");
    }

    #[test]
    fn calls_close_by_decide_between_lists() {
        let mut modules = modules();
        assert_eq!(modules.path("", "0.0.act", &["up.0.res.0.conv", "m.wte"]), "up.0.res.0.act");
        assert_eq!(modules.path("", "0.0.act", &["m.wte", "down.0"]), "down.0.res.0.act");
        assert_eq!(modules.path("", "0.0.act", &[]), "down.0.res.0.act");
    }

    #[test]
    fn the_module_of_a_parameter_is_its_own() {
        let mut modules = ScriptModules::of(["a.b.0.fc", "x.0.fc"].into_iter());
        assert_eq!(modules.path("", "0.fc", &[]), "x.0.fc");
        assert_eq!(modules.path("", "0.fc", &["a.b.0.fc"]), "a.b.0.fc");
        // Of a weight that two modules share, the names say one.
        assert_eq!(modules.path("", "0.fc", &["a.wte"]), "x.0.fc");
        assert_eq!(modules.path("", "head", &["a.wte"]), "head");
    }

    #[test]
    fn a_scope_is_around_a_script() {
        let mut modules = ScriptModules::of(["a.h.0.fc", "b.h.0.fc"].into_iter());
        assert_eq!(modules.path("b", "0.fc", &["a.h.0.fc"]), "b.h.0.fc");
        assert_eq!(modules.path("c", "0.fc", &[]), "c.0.fc");
    }
}
