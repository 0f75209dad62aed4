//! libtorch 2.11: where it may be, whether it serves, and how its wheels are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::output;
use crate::{Request, cache, python::Python};

/// A libtorch that Tilefuse links to.
#[derive(Debug)]
pub(crate) struct Torch {
    /// The folder that holds `include` and `lib`.
    pub(crate) root: PathBuf,
    pub(crate) version: String,
}

/// The wheels in one cache folder.
struct Wheels {
    folder: &'static str,
    requirements: &'static [&'static str],
    with_dependencies: bool,
}

/// Enough for the CPU: the CUDA libraries that `libtorch_cpu.so` itself is linked to, and no others. CUDA's headers, which
/// CUDA graphs need, are in two of the wheels.
const CPU: Wheels = Wheels {
    folder: "torch-2.11.0",
    requirements: &[
        "torch==2.11.0",
        "nvidia-cuda-runtime==13.0.*",
        "nvidia-cuda-cupti==13.0.*",
        "nvidia-cuda-crt==13.0.*",
    ],
    with_dependencies: false,
};

/// Everything that torch needs on a GPU.
const CUDA: Wheels = Wheels {
    folder: "torch-2.11.0-cuda",
    requirements: &["torch==2.11.0", "nvidia-cuda-crt==13.0.*"],
    with_dependencies: true,
};

/// The folders in the cache that an earlier set-up may have made, best first.
pub(crate) fn own_candidates(request: &Request) -> Vec<PathBuf> {
    let wheels: &[Wheels] = if has_gpu() { &[CUDA] } else { &[CPU, CUDA] };
    wheels.iter().map(|wheels| request.cache.join(wheels.folder).join("torch")).collect()
}

/// Checks headers, version and whether the library loads; an error is a sentence that names what does not serve.
pub(crate) fn inspect(root: &Path) -> Result<Torch, String> {
    let place = root.display();
    let library = root.join("lib/libtorch_cpu.so");
    for file in [&root.join("include/ATen/ATen.h"), &library] {
        if !file.exists() {
            return Err(format!("{place} holds no libtorch: {} is missing", file.display()));
        }
    }
    let version =
        version(root).ok_or_else(|| format!("the libtorch in {place} does not tell its version"))?;
    if !is_supported(&version) && std::env::var_os("LIBTORCH_BYPASS_VERSION_CHECK").is_none() {
        return Err(format!("{place} holds libtorch {version}, and 2.11 is needed"));
    }
    let root = root.canonicalize().map_err(|error| format!("{place} cannot be resolved: {error}"))?;
    if let Some(missing) = unresolved(&root.join("lib/libtorch_cpu.so")) {
        return Err(format!("the libtorch in {place} does not load: {missing} is missing"));
    }
    Ok(Torch { root, version })
}

/// Installs the wheels into the cache.
pub(crate) fn install(request: &Request, python: &Python) -> Result<()> {
    let wheels = if has_gpu() { CUDA } else { CPU };
    let arguments = pip_arguments(&wheels, python.version);
    cache::install_wheels(request, python, wheels.folder, "libtorch 2.11.0", &arguments)
}

/// The machines that a wheel is for.
const PLATFORM: &str = if cfg!(target_arch = "aarch64") {
    "--platform=manylinux_2_28_aarch64"
} else {
    "--platform=manylinux_2_28_x86_64"
};

/// The options and requirements of `pip install`, without its target folder.
fn pip_arguments(wheels: &Wheels, python: (u32, u32)) -> Vec<&'static str> {
    let mut arguments = Vec::new();
    if !wheels.with_dependencies {
        arguments.push("--no-deps");
    }
    // Only libraries and headers are used of the wheel, so one for another Python serves as well.
    if !((3, 10)..=(3, 14)).contains(&python) {
        arguments.extend(["--only-binary=:all:", "--implementation=cp", "--python-version=3.12"]);
        arguments.push(PLATFORM);
    }
    arguments.extend(wheels.requirements);
    arguments
}

fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists()
}

/// The wheel says its version in `version.py`, the archive for C++ in `build-version`.
fn version(root: &Path) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    read("build-version").map(|text| text.trim().to_owned()).or_else(|| python_version(&read("version.py")?))
}

fn python_version(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
    Some(value.trim().trim_matches(['\'', '"']).to_owned())
}

fn is_supported(version: &str) -> bool {
    version == "2.11" || version.starts_with("2.11.")
}

/// The first shared library that the loader would not find.
fn unresolved(library: &Path) -> Option<String> {
    first_unresolved(&output(Command::new("ldd").arg(library).env_remove("LD_LIBRARY_PATH"))?)
}

fn first_unresolved(ldd: &str) -> Option<String> {
    let line = ldd.lines().find(|line| line.contains("=> not found"))?;
    line.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_without_python() {
        let text = "from typing import Optional\n\n__version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(python_version(text).as_deref(), Some("2.11.0+cu130"));
        assert_eq!(python_version("debug = False"), None);
    }

    #[test]
    fn only_2_11_is_supported() {
        assert!(is_supported("2.11.0+cu130") && is_supported("2.11.1"));
        for other in ["2.10.0", "2.1.1", "2.110.0", "3.11.0"] {
            assert!(!is_supported(other), "{other}");
        }
    }

    #[test]
    fn a_library_that_does_not_load_is_named() {
        let ldd = "\tlibc10.so => /torch/lib/libc10.so (0x1)\n\tlibcupti.so.13 => not found\n";
        assert_eq!(first_unresolved(ldd).as_deref(), Some("libcupti.so.13"));
        assert_eq!(first_unresolved("\tlibm.so.6 => /lib/libm.so.6 (0x1)\n"), None);
    }

    #[test]
    fn a_python_without_its_own_wheel_takes_anothers() {
        let own = pip_arguments(&CPU, (3, 11));
        assert_eq!(own[..2], ["--no-deps", "torch==2.11.0"]);
        let foreign = pip_arguments(&CPU, (3, 8));
        assert!(foreign.contains(&"--python-version=3.12"));
        assert!(!pip_arguments(&CUDA, (3, 12)).contains(&"--no-deps"));
    }

    #[test]
    fn an_incomplete_folder_is_refused() {
        let why = inspect(Path::new("/nonexistent")).unwrap_err();
        assert!(why.contains("ATen.h is missing"), "{why}");
    }
}
