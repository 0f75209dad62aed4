//! Links the programs and tests of the models so that they find libtorch without `LD_LIBRARY_PATH`.

fn main() {
    link_libtorch();
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
