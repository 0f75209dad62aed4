//! LLVM 22: where it may be, and whether it serves.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{find_program, output};

/// The Debian packages that hold LLVM 22 with its static libraries and all that these link to.
pub(crate) const PACKAGES: [&str; 7] =
    ["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev", "libxml2-dev", "libffi-dev", "libz3-dev"];

/// LLVM's name of the processors that this machine's is one of.
const PROCESSORS: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "X86" };

/// An LLVM that Tilefuse links to.
#[derive(Debug)]
pub(crate) struct Llvm {
    pub(crate) prefix: PathBuf,
    pub(crate) version: String,
}

/// Where LLVM 22 may be, best first.
pub(crate) fn candidates(known: Option<&Path>) -> Vec<PathBuf> {
    let config = |name: &str| find_program(name).and_then(|p| output(Command::new(p).arg("--prefix")));
    let configured = ["llvm-config-22", "llvm-config"].into_iter().filter_map(config).map(PathBuf::from);
    let usual = Path::new("/usr/lib/llvm-22");
    known.into_iter().chain([usual]).map(Path::to_path_buf).chain(configured).collect()
}

/// Checks version, targets and static libraries; an error is a sentence that names what does not serve.
pub(crate) fn inspect(prefix: &Path) -> Result<Llvm, String> {
    let place = prefix.display();
    let ask = |question: &[&str]| output(Command::new(prefix.join("bin/llvm-config")).args(question));
    let version = ask(&["--version"]).ok_or_else(|| format!("{place} holds no bin/llvm-config that runs"))?;
    if !is_supported(&version) {
        return Err(format!("{place} holds LLVM {version}, and 22.1 is needed"));
    }
    let targets = ask(&["--targets-built"]).unwrap_or_default();
    for target in [PROCESSORS, "NVPTX"] {
        if !targets.split_whitespace().any(|built| built == target) {
            return Err(format!("the LLVM in {place} was built without {target}"));
        }
    }
    // llvm-config fails where an archive of LLVM is missing, and lists Polly's whether they are there or not.
    let archives = ask(&["--link-static", "--libfiles"])
        .ok_or_else(|| format!("the LLVM in {place} lacks its static libraries"))?;
    if let Some(archive) = archives.split_whitespace().find(|archive| !Path::new(archive).exists()) {
        return Err(format!("the LLVM in {place} lacks {archive}"));
    }
    let prefix = prefix.canonicalize().map_err(|error| format!("{place} cannot be resolved: {error}"))?;
    Ok(Llvm { prefix, version })
}

/// The system libraries that a static link to this LLVM asks for and that the linker does not find;
/// none where there is no linker to ask.
pub(crate) fn missing_libraries(prefix: &Path) -> Vec<String> {
    if find_program("cc").is_none() {
        return Vec::new();
    }
    let config = prefix.join("bin/llvm-config");
    let flags = output(Command::new(config).args(["--link-static", "--system-libs"])).unwrap_or_default();
    flags.split_whitespace().filter(|flag| !linker_finds(flag)).map(library_name).collect()
}

/// The Debian package with the library to link to.
pub(crate) fn package_of(library: &str) -> &'static str {
    match library {
        "z" => "zlib1g-dev",
        "zstd" => "libzstd-dev",
        "xml2" => "libxml2-dev",
        "ffi" => "libffi-dev",
        "z3" => "libz3-dev",
        "tinfo" | "ncurses" => "libncurses-dev",
        "edit" => "libedit-dev",
        _ => "libc6-dev",
    }
}

fn is_supported(version: &str) -> bool {
    version == "22.1" || version.starts_with("22.1.")
}

/// Takes `-lz` as well as `/usr/lib/x86_64-linux-gnu/libz3.so`, both of which llvm-config prints.
fn linker_finds(flag: &str) -> bool {
    if flag.starts_with('/') {
        return Path::new(flag).exists();
    }
    let name = library_name(flag);
    ["so", "a"].iter().any(|kind| {
        let question = format!("-print-file-name=lib{name}.{kind}");
        // The compiler answers with a path where it finds the file, and repeats the name where it does not.
        output(Command::new("cc").arg(question)).is_some_and(|answer| answer.contains('/'))
    })
}

fn library_name(flag: &str) -> String {
    let file = flag.rsplit('/').next().unwrap_or(flag);
    let name = file.strip_prefix("-l").or_else(|| file.strip_prefix("lib")).unwrap_or(file);
    name.split(".so").next().unwrap_or(name).trim_end_matches(".a").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_llvm_22_1_is_supported() {
        assert!(is_supported("22.1.8"));
        for other in ["21.1.0", "22.0.1", "22.10.0", "23.1.0", ""] {
            assert!(!is_supported(other), "{other}");
        }
    }

    #[test]
    fn library_names_of_both_spellings() {
        for (flag, name) in [("-lzstd", "zstd"), ("/usr/lib/libz3.so", "z3"), ("/opt/libxml2.a", "xml2")] {
            assert_eq!(library_name(flag), name);
        }
        assert_eq!(package_of(&library_name("-lz")), "zlib1g-dev");
    }

    #[test]
    fn the_linker_finds_libc_and_no_invention() {
        assert!(linker_finds("-lm"));
        assert!(!linker_finds("-lno_such_library_here"));
        assert!(!linker_finds("/usr/lib/libno_such_library_here.so"));
    }

    #[test]
    fn a_folder_without_llvm_is_refused_with_its_name() {
        let why = inspect(Path::new("/nonexistent")).unwrap_err();
        assert!(why.contains("/nonexistent") && why.contains("llvm-config"), "{why}");
    }
}
