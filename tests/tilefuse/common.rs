//! What all tests share.

use std::sync::{Once, RwLock};

use tch::Device;

/// The devices that are present.
pub(crate) fn devices() -> Vec<Device> {
    let cuda = tilefuse::torch::cuda_available().is_ok();
    std::iter::once(Device::Cpu).chain(cuda.then_some(Device::Cuda(0))).collect()
}

/// Gives the process a kernel cache of its own, and leaves products to libtorch. To be called first in every test that compiles.
pub(crate) fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = std::env::temp_dir().join(format!("tilefuse-test-{}", std::process::id()));
        // SAFETY: the tests that read the environment wait here.
        unsafe { std::env::set_var("TILEFUSE_CACHE", &folder) };
        // Plans must not depend on measurements. SAFETY: as above.
        unsafe { std::env::set_var("TILEFUSE_PRODUCTS", "library") };
    });
}

/// Whether this process runs no other test: libtorch's generators of random numbers are the process's. Where it runs others,
/// the test of this name runs in a process of its own, and the caller returns.
pub(crate) fn alone(test: &str) -> bool {
    const ALONE: &str = "TILEFUSE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let output =
        std::process::Command::new(program).args([test, "--exact"]).env(ALONE, "1").output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Held for writing by tests that change libtorch's number of threads, on which plans depend, and for reading by those
/// that count plans.
pub(crate) static THREADS: RwLock<()> = RwLock::new(());
