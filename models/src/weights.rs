//! Reads safetensors checkpoints under Hugging Face names into the variables of a `VarStore`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tch::{Kind, TchError, Tensor, nn};

use crate::Error;

/// How the names and shapes of a checkpoint relate to the variables of a model.
pub(crate) struct Layout {
    /// What a name in the file, or a variable, may or may not begin with; stripped on both sides.
    pub(crate) prefix: &'static str,
    /// Variables that are computed and not read.
    pub(crate) buffers: &'static [&'static str],
    /// Entries that are passed over unless the model has a variable of that name: an entry begins with one of
    /// these that ends with a dot, or ends with one of the others.
    pub(crate) ignored: &'static [&'static str],
    /// Endings of the names that are stored `[in, out]`.
    pub(crate) transposed: &'static [&'static str],
    /// Endings of old names, and what they are now.
    pub(crate) renamed: &'static [(&'static str, &'static str)],
    /// Variables that may be missing from the file, and the one whose value they then take.
    pub(crate) shared: &'static [(&'static str, &'static str)],
}

impl Layout {
    fn key<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(self.prefix).unwrap_or(name)
    }

    fn renamed(&self, name: &str) -> String {
        let key = self.key(name);
        let new = self.renamed.iter().find_map(|(old, new)| Some(format!("{}{new}", key.strip_suffix(old)?)));
        new.unwrap_or_else(|| key.to_string())
    }

    fn is_ignored(&self, key: &str) -> bool {
        let matches =
            |part: &&str| if part.ends_with('.') { key.starts_with(*part) } else { key.ends_with(*part) };
        self.ignored.iter().any(matches)
    }

    fn is_transposed(&self, name: &str) -> bool {
        self.transposed.iter().any(|end| name.ends_with(end))
    }

    fn source(&self, name: &str) -> Option<&str> {
        self.shared.iter().find(|(variable, _)| *variable == name).map(|(_, source)| *source)
    }
}

/// Copies the tensors at `path`, a file or a folder of files, into `vs`. Everything is checked before
/// anything is copied.
pub(crate) fn load(vs: &mut nn::VarStore, path: &Path, layout: &Layout) -> Result<(), Error> {
    let files = read_files(path)?;
    let parsed = files.iter().map(|(path, bytes)| parse(path, bytes)).collect::<Result<Vec<_>, _>>()?;
    let mut entries = index(path, &parsed, layout)?;
    let variables: BTreeMap<String, Tensor> = vs.variables().into_iter().collect();
    let mut copies = Vec::new();
    for (name, variable) in &variables {
        if layout.buffers.contains(&name.as_str()) {
            entries.remove(layout.key(name));
            continue;
        }
        copies.push((variable, value(path, name, variable, &entries, layout)?));
    }
    for name in variables.keys() {
        entries.remove(layout.key(name));
    }
    if let Some((_, entry)) = entries.iter().find(|(key, _)| !layout.is_ignored(key)) {
        return Err(Error::UnexpectedTensor { path: path.to_path_buf(), name: entry.name.clone() });
    }
    tch::no_grad(|| copies.into_iter().try_for_each(|(variable, value)| copy(variable, &value)))
}

fn copy(variable: &Tensor, value: &Tensor) -> Result<(), Error> {
    variable.shallow_clone().f_copy_(value)?;
    Ok(())
}

fn read_files(path: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let fail = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Read { path, source }
    };
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(fail(path))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        files = entries.collect::<Result<_, _>>().map_err(fail(path))?;
        files.retain(|file| file.extension().is_some_and(|end| end == "safetensors"));
        files.sort();
    }
    if files.is_empty() {
        return Err(Error::NoWeights { path: path.to_path_buf() });
    }
    let read = |file: PathBuf| std::fs::read(&file).map_err(fail(&file)).map(|bytes| (file, bytes));
    files.into_iter().map(read).collect()
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, Error> {
    SafeTensors::deserialize(bytes).map_err(|source| Error::Format { path: path.to_path_buf(), source })
}

/// A tensor of the file under its own name.
struct Entry<'a> {
    name: String,
    view: TensorView<'a>,
}

fn index<'a>(
    path: &Path,
    files: &'a [SafeTensors<'a>],
    layout: &Layout,
) -> Result<BTreeMap<String, Entry<'a>>, Error> {
    let mut entries = BTreeMap::new();
    for (name, view) in files.iter().flat_map(|file| file.tensors()) {
        let key = layout.renamed(&name);
        if entries.insert(key, Entry { name: name.clone(), view }).is_some() {
            return Err(Error::DuplicateTensor { path: path.to_path_buf(), name });
        }
    }
    Ok(entries)
}

/// What the file has for a variable, in the variable's shape.
fn value(
    path: &Path,
    name: &str,
    variable: &Tensor,
    entries: &BTreeMap<String, Entry>,
    layout: &Layout,
) -> Result<Tensor, Error> {
    let shared = || entries.get(layout.key(layout.source(name)?));
    let missing = || Error::MissingTensor { path: path.to_path_buf(), name: name.to_string() };
    let entry = entries.get(layout.key(name)).or_else(shared).ok_or_else(missing)?;
    let transposed = layout.is_transposed(name);
    let mut expected = variable.size();
    if transposed {
        expected.reverse();
    }
    let found: Vec<i64> = entry.view.shape().iter().map(|&size| size as i64).collect();
    if found != expected {
        return Err(Error::Shape { name: entry.name.clone(), expected, found });
    }
    let value = tensor(&entry.view, &found)?;
    Ok(if transposed { value.f_tr()? } else { value })
}

fn tensor(view: &TensorView, shape: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_from_data_size(view.data(), shape, kind(view.dtype())?)
}

fn kind(dtype: Dtype) -> Result<Kind, TchError> {
    Ok(match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        other => return Err(TchError::Kind(format!("weights of type {other:?} cannot be read"))),
    })
}
