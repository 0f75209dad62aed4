//! What all tests share.

use std::sync::Once;

/// Gives the process a kernel cache of its own. To be called first in every test that compiles.
pub(crate) fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = std::env::temp_dir().join(format!("tilefuse-test-{}", std::process::id()));
        // SAFETY: the tests that read the environment wait here.
        unsafe { std::env::set_var("TILEFUSE_CACHE", &folder) };
    });
}
