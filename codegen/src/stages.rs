//! Looking at what a kernel becomes, stage by stage, and replacing a stage by an edited one.
//!
//! With a folder to dump to, every kernel that is compiled leaves `STEM.tile`, `STEM.TARGET.ll` and, for GPUs,
//! `STEM.TARGET.ptx` there, for the host `STEM.host.s`. The stem is the kernel's name and a digest of the block program that
//! was made, as in `add-5f0c9a31`: kernels of one name that differ have files of their own. With a folder of replacements, a
//! stage is read from the file of that name where there is one, but for assembly. The cache is not used then.

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

    /// Those of one kernel.
    pub(crate) fn of(&self, program: &Program) -> KernelStages<'_> {
        let stem = if self.is_active() { stem(program) } else { String::new() };
        KernelStages { stages: self, stem }
    }
}

/// What the names of a kernel's files begin with.
fn stem(program: &Program) -> String {
    let digest = blake3::hash(program.to_string().as_bytes()).to_hex();
    format!("{}-{}", program.name, &digest[..8])
}

/// The files of one kernel.
pub(crate) struct KernelStages<'s> {
    stages: &'s Stages,
    stem: String,
}

impl KernelStages<'_> {
    /// Whether anything is written or read.
    pub(crate) fn is_active(&self) -> bool {
        self.stages.is_active()
    }

    /// The program, or the one in its place.
    pub(crate) fn program(&self, program: &Program) -> Result<Option<Program>> {
        if !self.is_active() {
            return Ok(None);
        }
        let file = self.file("tile");
        self.write(&file, &program.to_string())?;
        let Some(text) = self.read(&file)? else { return Ok(None) };
        let wrong = |e: tilefuse_block::ParseError| failed(&file, e.to_string());
        parse_valid(&text).map(Some).map_err(wrong)
    }

    /// Writes the text of a stage that none can be put in the place of.
    pub(crate) fn last(&self, form: &str, text: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
        match self.stages.dump {
            Some(_) => self.write(&self.file(form), &String::from_utf8_lossy(&text()?)),
            None => Ok(()),
        }
    }

    /// Writes the text of a later stage; the text in its place, if there is one.
    pub(crate) fn text(&self, form: &str, text: &str) -> Result<Option<String>> {
        let file = self.file(form);
        self.write(&file, text)?;
        self.read(&file)
    }

    fn file(&self, form: &str) -> String {
        format!("{}.{form}", self.stem)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let Some(folder) = &self.stages.dump else { return Ok(()) };
        let write = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(file), text));
        write.map_err(|e| failed(file, e.to_string()))
    }

    fn read(&self, file: &str) -> Result<Option<String>> {
        let Some(path) = self.stages.replace.as_deref().map(|folder: &Path| folder.join(file)) else {
            return Ok(None);
        };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(file, error.to_string())),
        }
    }
}

fn failed(file: &str, message: String) -> Error {
    Error::Stage { file: file.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> Program {
        text.parse().unwrap()
    }

    #[test]
    fn stages_are_written_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let program = program("kernel @f(%p: ptr<i32>) { %i = range 0 8 store %p, %i, %i }");
        let stages = Stages { dump: path("out"), replace: path("in") };
        let kernel = stages.of(&program);
        let file = |folder_name: &str, form: &str| folder.path().join(folder_name).join(kernel.file(form));
        assert_eq!(kernel.program(&program).unwrap(), None);
        let written = std::fs::read_to_string(file("out", "tile")).unwrap();
        assert_eq!(written, program.to_string());
        std::fs::create_dir(folder.path().join("in")).unwrap();
        std::fs::write(file("in", "tile"), written.replace("range 0 8", "range 0 4")).unwrap();
        let replaced = kernel.program(&program).unwrap().unwrap();
        assert!(replaced.to_string().contains("range 0 4"));
        std::fs::write(file("in", "host.ll"), "edited").unwrap();
        assert_eq!(kernel.text("host.ll", "made").unwrap().as_deref(), Some("edited"));
        std::fs::write(file("in", "tile"), "kernel @f( {").unwrap();
        let error = kernel.program(&program).unwrap_err().to_string();
        assert_eq!(error, format!("{}: line 1, column 12: expected a value", kernel.file("tile")));
    }

    #[test]
    fn kernels_of_one_name_that_differ_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let stages = Stages { dump: Some(folder.path().to_owned()), replace: None };
        for extent in [8, 4, 8] {
            let text = format!("kernel @f(%p: ptr<i32>) {{ %i = range 0 {extent} store %p, %i, %i }}");
            let program = program(&text);
            assert_eq!(stages.of(&program).program(&program).unwrap(), None);
        }
        let files = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(files.iter().all(|name| name.starts_with("f-") && name.ends_with(".tile")), "{files:?}");
    }
}
