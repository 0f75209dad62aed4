//! What this machine has of the things that a build needs, and what follows from that.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{NeedsUser, Request, browser, llvm, ptxas, python, torch};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The C++20 compiler's name.
    pub(crate) compiler: Option<String>,
    pub(crate) llvm: Option<llvm::Llvm>,
    /// System libraries that the LLVM found here links to and that are missing, such as `zstd`.
    pub(crate) missing_libraries: Vec<String>,
    pub(crate) torch: Option<torch::Torch>,
    pub(crate) ptxas: Option<ptxas::Ptxas>,
    /// Whether `ptxas` is looked for at all.
    wants_ptxas: bool,
    pub(crate) browser: Option<browser::Browser>,
    /// Whether a browser is looked for at all.
    wants_browser: bool,
    /// Looked up only where something has to be installed with pip.
    pub(crate) python: Option<python::Python>,
    /// Candidates that were refused, each with the reason.
    pub(crate) refused: Vec<String>,
}

impl Facts {
    /// Looks everything up. A location that the user named and that does not serve is an error.
    pub(crate) fn probe(request: &Request) -> Result<Self> {
        let mut facts = Self { compiler: compiler(), wants_ptxas: request.ptxas, ..Self::default() };
        facts.llvm = match named("LLVM_SYS_221_PREFIX", request.llvm.as_deref()) {
            Some(prefix) => {
                Some(llvm::inspect(&prefix).map_err(|why| unusable("LLVM_SYS_221_PREFIX", &why))?)
            }
            None => facts.first(llvm::candidates(request.llvm.as_deref()), llvm::inspect),
        };
        if let Some(llvm) = &facts.llvm {
            facts.missing_libraries = llvm::missing_libraries(&llvm.prefix);
        }
        facts.torch = match named("LIBTORCH", request.libtorch.as_deref()) {
            Some(root) => Some(torch::inspect(&root).map_err(|why| unusable("LIBTORCH", &why))?),
            None => facts.find_torch(request),
        };
        if request.ptxas {
            let site = facts.torch.as_ref().map(|torch| torch.root.clone());
            let candidates = ptxas::candidates(request, site.as_deref());
            facts.ptxas = facts.first(candidates, ptxas::inspect);
        }
        if request.browser {
            facts.wants_browser = true;
            facts.browser = facts.first(browser::candidates(), browser::inspect);
        }
        if facts.lacks_wheels() {
            facts.python = python::probe();
        }
        Ok(facts)
    }

    /// Whether pip has something to install.
    fn lacks_wheels(&self) -> bool {
        self.torch.is_none() || self.lacks_ptxas()
    }

    /// Whether an assembler is asked for and missing.
    pub(crate) fn lacks_ptxas(&self) -> bool {
        self.wants_ptxas && self.ptxas.is_none()
    }

    /// Whether a browser is asked for and missing; a build can do without.
    pub(crate) fn lacks_browser(&self) -> bool {
        self.wants_browser && self.browser.is_none()
    }

    /// Whether there is nothing to install.
    pub(crate) fn has_all(&self) -> bool {
        self.is_complete() && !self.lacks_browser()
    }

    /// Whether a build can start.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    /// The Python that installs wheels.
    pub(crate) fn python(&self) -> Result<&python::Python> {
        self.python.as_ref().context("python3 is missing")
    }

    /// The Debian packages that provide what is missing, or that are needed to install it.
    pub(crate) fn missing_packages(&self) -> Vec<&'static str> {
        let mut packages = Vec::new();
        if self.compiler.is_none() {
            packages.push("g++");
        }
        match &self.llvm {
            None => packages.extend(llvm::PACKAGES),
            Some(_) => packages.extend(self.missing_libraries.iter().map(|name| llvm::package_of(name))),
        }
        if self.lacks_wheels() {
            packages.extend(python::missing_packages(self.python.as_ref()));
        }
        packages
    }

    /// One line for each thing that is missing, and for each candidate that was refused.
    pub(crate) fn missing_summary(&self) -> String {
        let refused = self.refused.iter().map(|why| format!("passed over: {why}"));
        self.missing().into_iter().chain(refused).map(|line| format!("  {line}\n")).collect()
    }

    /// One line for each thing that was found.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, version: &str, place: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name:<9} {version:<13} {place}");
        };
        if let Some(torch) = &self.torch {
            line("libtorch", &torch.version, &torch.root.display());
        }
        if let Some(llvm) = &self.llvm {
            line("LLVM", &llvm.version, &llvm.prefix.display());
        }
        if let Some(ptxas) = &self.ptxas {
            line("ptxas", &ptxas.version, &ptxas.program.display());
        }
        if let Some(browser) = &self.browser {
            line("browser", &browser.version, &browser.program.display());
        }
        if let Some(compiler) = &self.compiler {
            line("C++20", "", compiler);
        }
        text
    }

    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        let mut need = |present: bool, what: &str| {
            if !present {
                missing.push(what.to_owned());
            }
        };
        need(self.compiler.is_some(), "a C++20 compiler (c++, or the one that CXX names)");
        need(self.llvm.is_some(), "LLVM 22.1 with its static libraries");
        need(self.torch.is_some(), "libtorch 2.11");
        need(!self.lacks_ptxas(), "ptxas 12.8 or later");
        missing.extend(self.missing_libraries.iter().map(|name| format!("lib{name}, to which LLVM links")));
        missing
    }

    fn find_torch(&mut self, request: &Request) -> Option<torch::Torch> {
        let own = torch::own_candidates(request);
        let known = request.libtorch.clone().into_iter().collect();
        // Starting Python to ask it for torch is the slow part, so it comes after what is known already.
        self.first(known, torch::inspect)
            .or_else(|| {
                self.first(python::probe().and_then(|p| p.torch).into_iter().collect(), torch::inspect)
            })
            .or_else(|| self.first(own, torch::inspect))
    }

    /// The first candidate that serves; why the others that exist do not is kept.
    fn first<T>(&mut self, places: Vec<PathBuf>, inspect: impl Fn(&Path) -> Result<T, String>) -> Option<T> {
        let mut seen = HashSet::new();
        let mut resolved = places.into_iter().filter_map(|place| place.canonicalize().ok());
        resolved.find_map(|place| match seen.insert(place.clone()).then(|| inspect(&place))? {
            Ok(found) => Some(found),
            Err(why) => {
                self.refused.push(why);
                None
            }
        })
    }
}

/// What the user set the variable to; cargo itself sets it to what its configuration says where the user did not.
fn named(variable: &str, configured: Option<&Path>) -> Option<PathBuf> {
    let value = PathBuf::from(std::env::var_os(variable)?);
    (!value.as_os_str().is_empty() && Some(&*value) != configured).then_some(value)
}

fn unusable(variable: &str, why: &str) -> NeedsUser {
    NeedsUser(format!(
        "{variable} is set, but {why}\nSet it to another folder, or unset it to have one found."
    ))
}

/// The C++ compiler, where it accepts C++20 with its standard library.
fn compiler() -> Option<String> {
    const SOURCE: &str = "#include <concepts>\nstatic_assert(std::integral<int>);\n";
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next()?);
    command.args(words).args(["-std=c++20", "-fsyntax-only", "-x", "c++", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let wrote = child.stdin.take().map(|mut input| std::io::Write::write_all(&mut input, SOURCE.as_bytes()));
    let accepted = child.wait().ok()?.success() && wrote?.is_ok();
    accepted.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Facts {
        Facts {
            compiler: Some("c++".into()),
            llvm: Some(llvm::Llvm { prefix: "/llvm".into(), version: "22.1.8".into() }),
            torch: Some(torch::Torch { root: "/torch".into(), version: "2.11.0".into() }),
            wants_ptxas: true,
            ptxas: Some(ptxas::Ptxas { program: "/ptxas".into(), version: "13.0".into() }),
            wants_browser: true,
            browser: Some(browser::Browser { program: "/chromium".into(), version: "140.0".into() }),
            ..Facts::default()
        }
    }

    fn python(pip: bool, ensurepip: bool) -> Option<python::Python> {
        Some(python::Python { version: (3, 11), pip, ensurepip, torch: None })
    }

    #[test]
    fn nothing_is_installed_where_nothing_is_missing() {
        let facts = whole();
        assert!(facts.is_complete() && facts.has_all());
        assert!(facts.missing_packages().is_empty());
    }

    #[test]
    fn a_bare_machine_needs_everything() {
        let facts = Facts { python: python(false, false), ..Facts::default() };
        let packages = facts.missing_packages().join(" ");
        assert_eq!(
            packages,
            "g++ llvm-22-dev libpolly-22-dev libzstd-dev zlib1g-dev libxml2-dev libffi-dev libz3-dev python3-pip"
        );
        assert!(facts.missing_summary().contains("LLVM 22.1"));
    }

    #[test]
    fn a_project_needs_no_assembler() {
        let facts = Facts { ptxas: None, wants_ptxas: false, ..whole() };
        assert!(facts.is_complete() && facts.missing_packages().is_empty());
    }

    #[test]
    fn a_build_does_without_a_browser() {
        let facts = Facts { browser: None, ..whole() };
        assert!(facts.is_complete() && !facts.has_all());
        assert!(Facts { wants_browser: false, ..facts }.has_all());
    }

    #[test]
    fn pip_is_installed_only_where_wheels_are_and_no_other_way_is_left() {
        let without_torch = |python| Facts { torch: None, python, ..whole() };
        assert!(without_torch(python(true, false)).missing_packages().is_empty());
        assert!(without_torch(python(false, true)).missing_packages().is_empty());
        assert_eq!(without_torch(python(false, false)).missing_packages(), ["python3-pip"]);
        assert_eq!(without_torch(None).missing_packages(), ["python3", "python3-pip"]);
    }

    #[test]
    fn a_found_llvm_needs_only_the_libraries_it_links_to() {
        let facts = Facts { missing_libraries: vec!["zstd".into(), "z3".into()], ..whole() };
        assert!(!facts.is_complete());
        assert_eq!(facts.missing_packages(), ["libzstd-dev", "libz3-dev"]);
    }

    #[test]
    fn what_cargo_sets_does_not_count_as_the_users_choice() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(named("PATH", Some(Path::new("/elsewhere"))), Some(path.clone().into()));
        assert_eq!(named("PATH", Some(Path::new(&path))), None);
        assert_eq!(named("A_VARIABLE_THAT_NOBODY_SETS", None), None);
    }
}
