//! Looking at what a kernel becomes, stage by stage, and replacing a stage by an edited one.
//!
//! With a folder to dump to, every kernel that is compiled leaves `NAME.tile`, `NAME.TARGET.ll` and, for GPUs,
//! `NAME.TARGET.ptx` there, for the host `NAME.host.s`. With a folder of replacements, a stage is read from the file of that
//! name where there is one, but for assembly. The cache is not used then.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tilefuse_block::{Program, parse_valid};

use crate::error::{Error, Result};

/// Where stages are written to and read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The folder that every stage is written to.
    pub dump: Option<PathBuf>,
    /// The folder that stages are read from where they are there.
    pub replace: Option<PathBuf>,
}

static STAGES: OnceLock<Stages> = OnceLock::new();

impl Stages {
    /// What the variables `TILEFUSE_DUMP` and `TILEFUSE_OVERRIDE` name.
    pub fn from_env() -> Stages {
        let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Stages { dump: folder("TILEFUSE_DUMP"), replace: folder("TILEFUSE_OVERRIDE") }
    }

    /// Uses these for the rest of the process, in place of those of the environment. Whether that was still possible:
    /// not after a kernel was compiled.
    pub fn install(self) -> bool {
        STAGES.set(self).is_ok()
    }

    /// Those in use.
    pub fn get() -> &'static Stages {
        STAGES.get_or_init(Stages::from_env)
    }

    /// Whether anything is written or read, so that compiled kernels must not come from the cache.
    pub fn is_active(&self) -> bool {
        self.dump.is_some() || self.replace.is_some()
    }

    /// The program, or the one in its place.
    pub(crate) fn program(&self, program: &Program) -> Result<Option<Program>> {
        if !self.is_active() {
            return Ok(None);
        }
        let file = format!("{}.tile", program.name);
        self.write(&file, &program.to_string())?;
        let Some(text) = self.read(&file)? else { return Ok(None) };
        let wrong = |e: tilefuse_block::ParseError| self.failed(&file, e.to_string());
        parse_valid(&text).map(Some).map_err(wrong)
    }

    /// Writes the text of a stage that none can be put in the place of.
    pub(crate) fn last(&self, file: &str, text: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
        match self.dump {
            Some(_) => self.write(file, &String::from_utf8_lossy(&text()?)),
            None => Ok(()),
        }
    }

    /// Writes the text of a later stage; the text in its place, if there is one.
    pub(crate) fn text(&self, file: &str, text: &str) -> Result<Option<String>> {
        self.write(file, text)?;
        self.read(file)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let Some(folder) = &self.dump else { return Ok(()) };
        let write = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(file), text));
        write.map_err(|e| self.failed(file, e.to_string()))
    }

    fn read(&self, file: &str) -> Result<Option<String>> {
        let Some(path) = self.replace.as_deref().map(|folder: &Path| folder.join(file)) else {
            return Ok(None);
        };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(file, error.to_string())),
        }
    }

    fn failed(&self, file: &str, message: String) -> Error {
        Error::Stage { file: file.to_owned(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_written_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let program: Program = "kernel @f(%p: ptr<i32>) { %i = range 0 8 store %p, %i, %i }".parse().unwrap();
        let stages = Stages { dump: path("out"), replace: path("in") };
        assert_eq!(stages.program(&program).unwrap(), None);
        let written = std::fs::read_to_string(folder.path().join("out/f.tile")).unwrap();
        assert_eq!(written, program.to_string());
        std::fs::create_dir(folder.path().join("in")).unwrap();
        std::fs::write(folder.path().join("in/f.tile"), written.replace("range 0 8", "range 0 4")).unwrap();
        let replaced = stages.program(&program).unwrap().unwrap();
        assert!(replaced.to_string().contains("range 0 4"));
        std::fs::write(folder.path().join("in/f.host.ll"), "edited").unwrap();
        assert_eq!(stages.text("f.host.ll", "made").unwrap().as_deref(), Some("edited"));
        std::fs::write(folder.path().join("in/f.tile"), "kernel @f( {").unwrap();
        let error = stages.program(&program).unwrap_err().to_string();
        assert_eq!(error, "f.tile: line 1, column 12: expected a value");
    }
}
