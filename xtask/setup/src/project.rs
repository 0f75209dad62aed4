//! A project's `.cargo/config.toml`: where cargo finds libtorch and LLVM, and where its programs find libtorch when they
//! run.
//!
//! Build scripts read the variables of `[env]`. The run path of a program can come from its own package or from the
//! configuration alone, as cargo hands no linker argument on from a dependency; so it is one of the `rustflags`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

use crate::NeedsUser;
use crate::process::output;

/// The run path is searched after `LD_LIBRARY_PATH`, so that a program also runs where libtorch lies elsewhere.
const RUN_PATH: &str = "link-arg=-Wl,--enable-new-dtags,-rpath,";

/// Where flags for every crate stand in a configuration where none are there yet.
const TARGET: &str = r#"cfg(target_os = "linux")"#;

/// The variables that build scripts read.
const LIBTORCH: &str = "LIBTORCH";
const LLVM: &str = "LLVM_SYS_221_PREFIX";

/// Which of the two places cargo reads flags from: it does not read `build.rustflags` where a target has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flags {
    Build,
    Target,
}

/// The configuration of a project.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    text: String,
    document: DocumentMut,
    /// The other files that cargo reads in the project.
    others: Vec<DocumentMut>,
}

impl Config {
    /// The configuration of the workspace that a folder belongs to.
    pub fn of(folder: &Path) -> Result<Config> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["locate-project", "--workspace", "--message-format=plain"]).current_dir(folder);
        let Some(manifest) = output(&mut command) else {
            let place = folder.display();
            let what = format!("{place} belongs to no cargo project; `cargo new` makes one");
            return Err(NeedsUser(what).into());
        };
        let root = Path::new(&manifest).parent().context("a manifest without a folder")?;
        Config::in_root(root, cargo_home())
    }

    /// The configuration of the workspace with this root; `home` is cargo's own folder.
    fn in_root(root: &Path, home: Option<PathBuf>) -> Result<Config> {
        let path = file_in(&root.join(".cargo"));
        let text = if path.exists() { read(&path)? } else { String::new() };
        let above = root.ancestors().skip(1).map(|folder| folder.join(".cargo"));
        let others = above.chain(home).map(|folder| file_in(&folder)).filter(|file| file.exists());
        let others = others.map(|file| parse(&file, &read(&file)?)).collect::<Result<_>>()?;
        Ok(Config { document: parse(&path, &text)?, path, text, others })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it says that libtorch is.
    pub fn libtorch(&self) -> Option<PathBuf> {
        self.variable(LIBTORCH)
    }

    /// Where it says that LLVM is.
    pub fn llvm(&self) -> Option<PathBuf> {
        self.variable(LLVM)
    }

    /// Writes the folders of libtorch and LLVM into the file, where it says something else; whether it did. All else
    /// stays as it is.
    pub fn write(&mut self, libtorch: &Path, llvm: &Path) -> Result<bool> {
        self.point(libtorch, llvm)?;
        let text = self.document.to_string();
        if text == self.text {
            return Ok(false);
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        std::fs::write(&self.path, &text).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.text = text;
        Ok(true)
    }

    fn point(&mut self, libtorch: &Path, llvm: &Path) -> Result<()> {
        for (name, folder) in [(LIBTORCH, libtorch), (LLVM, llvm)] {
            if self.variable(name).as_deref() != Some(folder) {
                set_variable(table(self.document.as_table_mut(), "env")?, name, text_of(folder)?);
            }
        }
        let run_path = format!("{RUN_PATH}{}", text_of(&libtorch.join("lib"))?);
        // The linker takes a comma for the end of the path.
        if run_path.matches(',').count() > RUN_PATH.matches(',').count() {
            bail!("{} has a comma in its name, which no run path may have", libtorch.display());
        }
        set_flag(self.flags()?, &run_path)
    }

    /// What a variable of `[env]` is set to.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let item = self.document.get("env")?.get(name)?;
        let fields = item.as_table_like();
        let text = fields.map_or(Some(item), |fields| fields.get("value"))?.as_str()?;
        let relative = fields.and_then(|fields| fields.get("relative")).and_then(Item::as_bool);
        // Relative to the folder that `.cargo` lies in.
        let root = self.path.parent()?.parent()?;
        Some(if relative == Some(true) { root.join(text) } else { PathBuf::from(text) })
    }

    /// The flags that cargo gives to every crate of the project.
    fn flags(&mut self) -> Result<&mut Item> {
        let mut all = std::iter::once(&self.document).chain(&self.others);
        let place = match all.clone().any(has_target_flags) || !all.any(has_build_flags) {
            true => Flags::Target,
            false => Flags::Build,
        };
        let root = self.document.as_table_mut();
        let owner = match place {
            Flags::Build => table(root, "build")?,
            Flags::Target => {
                let targets = table(root, "target")?;
                if let Some(targets) = targets.as_table_mut().filter(|targets| targets.is_empty()) {
                    targets.set_implicit(true);
                }
                let targets = targets.as_table_like_mut().context("`target` is no table")?;
                table(targets, TARGET)?
            }
        };
        let owner = owner.as_table_like_mut().context("no table for rustflags")?;
        Ok(owner.entry("rustflags").or_insert(value(Array::new())))
    }
}

fn has_build_flags(document: &DocumentMut) -> bool {
    document.get("build").and_then(|build| build.get("rustflags")).is_some()
}

fn has_target_flags(document: &DocumentMut) -> bool {
    let targets = document.get("target").and_then(Item::as_table_like);
    targets.is_some_and(|targets| targets.iter().any(|(_, target)| target.get("rustflags").is_some()))
}

/// The table of this name in another one, made where it is missing.
fn table<'a>(owner: &'a mut dyn TableLike, name: &str) -> Result<&'a mut Item> {
    let item = owner.entry(name).or_insert(Item::Table(Table::new()));
    if !item.is_table_like() {
        bail!("`{name}` is no table in the configuration");
    }
    Ok(item)
}

/// Sets a variable; whether it wins over the environment's (`force`) stays as it is.
fn set_variable(variables: &mut Item, name: &str, folder: &str) {
    match variables.get_mut(name).and_then(Item::as_table_like_mut) {
        Some(fields) => {
            fields.insert("value", value(folder));
            fields.remove("relative");
        }
        None => variables[name] = value(folder),
    }
}

/// Puts the run path in the place of an earlier one, or at the end.
fn set_flag(flags: &mut Item, run_path: &str) -> Result<()> {
    if let Some(words) = flags.as_str() {
        let words: Array = words.split_whitespace().collect();
        *flags = value(words);
    }
    let flags = flags.as_array_mut().context("`rustflags` is neither a list nor text")?;
    let is_ours = |flag: &Value| flag.as_str().is_some_and(|flag| flag.starts_with(RUN_PATH));
    let at = flags.iter().position(is_ours);
    match at {
        Some(at) if flags.get(at).and_then(Value::as_str) == Some(run_path) => {}
        Some(at) => {
            flags.replace(at, run_path);
        }
        None => flags.extend(["-C", run_path]),
    }
    Ok(())
}

/// Whether a variable of the environment makes cargo pass over all flags in files.
pub fn overriding_variable() -> Option<&'static str> {
    ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"].into_iter().find(|name| std::env::var_os(name).is_some())
}

/// Cargo reads the file without an ending where both are there.
fn file_in(folder: &Path) -> PathBuf {
    let old = folder.join("config");
    if old.is_file() { old } else { folder.join("config.toml") }
}

fn cargo_home() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn parse(file: &Path, text: &str) -> Result<DocumentMut> {
    text.parse().with_context(|| format!("{} is not TOML", file.display()))
}

fn text_of(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8, which a configuration must be", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the file of a project becomes, with another file of cargo's own folder.
    fn written(text: &str, home: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (root, home_folder) = (folder.path().join("app"), folder.path().join("home"));
        std::fs::create_dir_all(root.join(".cargo")).unwrap();
        std::fs::create_dir_all(&home_folder).unwrap();
        std::fs::write(root.join(".cargo/config.toml"), text).unwrap();
        std::fs::write(home_folder.join("config.toml"), home).unwrap();
        let read = || Config::in_root(&root, Some(home_folder.clone())).unwrap();
        assert!(read().write(Path::new("/torch"), Path::new("/llvm")).unwrap());
        let mut again = read();
        assert_eq!(again.libtorch().as_deref(), Some(Path::new("/torch")));
        assert!(
            !again.write(Path::new("/torch"), Path::new("/llvm")).unwrap(),
            "the second time changes nothing"
        );
        again.text
    }

    #[test]
    fn an_empty_project_gets_variables_and_a_run_path() {
        assert_eq!(
            written("", ""),
            r#"[env]
LIBTORCH = "/torch"
LLVM_SYS_221_PREFIX = "/llvm"

[target.'cfg(target_os = "linux")']
rustflags = ["-C", "link-arg=-Wl,--enable-new-dtags,-rpath,/torch/lib"]
"#
        );
    }

    #[test]
    fn what_a_user_wrote_stays() {
        let text = r#"# ours
[alias]
t = "test" # short

[env]
LIBTORCH = { value = "vendor/torch", relative = true, force = true }
OTHER = "1"

[build]
rustflags = "-C target-cpu=native"
"#;
        assert_eq!(
            written(text, ""),
            r#"# ours
[alias]
t = "test" # short

[env]
LIBTORCH = { value = "/torch", force = true }
OTHER = "1"
LLVM_SYS_221_PREFIX = "/llvm"

[build]
rustflags = ["-C", "target-cpu=native", "-C", "link-arg=-Wl,--enable-new-dtags,-rpath,/torch/lib"]
"#
        );
    }

    #[test]
    fn an_earlier_run_path_is_replaced() {
        let earlier = written("", "").replace("/torch", "/old");
        assert_eq!(written(&earlier, ""), written("", ""));
    }

    /// Cargo reads `build.rustflags` only where no file has flags of a target.
    #[test]
    fn flags_of_other_files_stay_in_force() {
        let place = |text: &str, home: &str| {
            let after: DocumentMut = written(text, home).parse().unwrap();
            if has_target_flags(&after) { Flags::Target } else { Flags::Build }
        };
        let (build, target) = (
            "build.rustflags = ['-Dwarnings']",
            "[target.x86_64-unknown-linux-gnu]\nrustflags = ['-Clink-arg=-fuse-ld=mold']",
        );
        assert_eq!(place("", build), Flags::Build);
        assert_eq!(place(build, ""), Flags::Build);
        assert_eq!(place("", target), Flags::Target);
        assert_eq!(place(build, target), Flags::Target);
    }

    #[test]
    fn what_cannot_be_merged_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(".cargo/config.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        for text in ["env = 1", "target = []", "[build]\nrustflags = 3"] {
            std::fs::write(&file, text).unwrap();
            let mut config = Config::in_root(folder.path(), None).unwrap();
            assert!(config.write(Path::new("/torch"), Path::new("/llvm")).is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        std::fs::write(&file, "[env").unwrap();
        assert!(format!("{:#}", Config::in_root(folder.path(), None).unwrap_err()).contains("config.toml"));
        std::fs::write(&file, "").unwrap();
        let mut config = Config::in_root(folder.path(), None).unwrap();
        assert!(config.write(Path::new("/a,b"), Path::new("/llvm")).is_err());
    }
}
