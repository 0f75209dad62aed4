//! What all tests share.

use std::sync::{Once, RwLock};

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

/// Held for writing by tests that change libtorch's number of threads, on which plans depend, and for reading by those
/// that count plans.
pub(crate) static THREADS: RwLock<()> = RwLock::new(());
