//! Compiles the C++ part, and links the programs and tests of this package so that they find libtorch without
//! `LD_LIBRARY_PATH`. Those of other packages have their run path from `.cargo/config.toml`, where `tilefuse-setup` puts
//! it: cargo hands on no linker argument of a dependency.

fn main() {
    // Documentation is made where there is no libtorch.
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    if std::env::var_os("DOCS_RS").is_none() && std::env::var_os("CARGO_FEATURE_DOC_ONLY").is_none() {
        compile_shim();
        link_libtorch();
    }
}

/// Compiles the C++ part of `tilefuse::torch` against libtorch's headers.
fn compile_shim() {
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo:rerun-if-changed=src/torch/shim");
    let Some(root) = std::env::var_os("LIBTORCH_INCLUDE").or_else(|| std::env::var_os("LIBTORCH")) else {
        println!(
            "cargo::error=LIBTORCH does not say where libtorch 2.11 is: `tilefuse-setup` finds or installs it"
        );
        return;
    };
    let include = std::path::Path::new(&root).join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .flag("-isystem")
        .flag(include.as_os_str())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").as_os_str())
        .flag_if_supported("-Wno-unused-parameter")
        // CUDA's headers, where a wheel brought them: they lie beside libtorch.
        .flag("-isystem")
        .flag(std::path::Path::new(&root).join("../nvidia/cu13/include"))
        .files(
            ["call", "graph", "memory", "operator", "ranges", "record", "tensor"]
                .map(|part| format!("src/torch/shim/{part}.cpp")),
        )
        .compile("tilefuse_shim");
}

/// Records libtorch's folder in the run path. `LD_LIBRARY_PATH` is searched before a run path, so a program
/// that was built here also runs on a machine whose libtorch lies elsewhere.
fn link_libtorch() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=LIBTORCH_LIB");
    let Some(root) = std::env::var_os("LIBTORCH_LIB").or_else(|| std::env::var_os("LIBTORCH")) else {
        return;
    };
    // libtorch finds its own neighbours relative to where it was opened, which must not be a symlink.
    let Ok(lib) = std::path::Path::new(&root).join("lib").canonicalize() else { return };
    println!("cargo:rerun-if-changed={}", lib.display());
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}
