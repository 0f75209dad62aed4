//! What all tests share.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{LazyLock, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tch::{Device, Kind};

/// The variable that names the device of tests which ask [`device`], as in `cuda:0`.
pub(crate) const DEVICE_VARIABLE: &str = "TILEFUSE_TEST_DEVICE";

static DEVICE: LazyLock<Device> = LazyLock::new(|| {
    let name = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
    let Some(ordinal) = name.strip_prefix("cuda:") else { return Device::Cpu };
    // libtorch looks for CUDA once, and only after its CUDA part is loaded.
    tilefuse::torch::cuda_devices().unwrap();
    Device::Cuda(ordinal.parse().unwrap())
});

/// The device that the tests run on: the CPU, and in the processes of `devices.rs` a GPU.
pub(crate) fn device() -> Device {
    *DEVICE
}

/// Whether the tests run on the CPU, for what only plans for the CPU have.
pub(crate) fn on_cpu() -> bool {
    device() == Device::Cpu
}

/// `f32` on the device of the tests.
pub(crate) static F32: LazyLock<(Kind, Device)> = LazyLock::new(|| (Kind::Float, device()));

/// Loads libtorch's CUDA part before anything else: libtorch looks for CUDA once, when a test seeds its generators, for one.
extern "C" fn load_cuda() {
    let _ = tilefuse::torch::cuda_devices();
}

// SAFETY: the loader calls the functions of this section before `main`, when the libraries that the program is linked
// with are ready.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD_CUDA: extern "C" fn() = load_cuda;

/// Why there is no GPU; that libtorch was asked too early is no reason.
fn no_gpu() -> Option<String> {
    let error = tilefuse::torch::cuda_available().err()?.to_string();
    assert!(!error.contains("looked for CUDA before"), "{error}");
    Some(error)
}

/// Whether there is a GPU; if not, says that a test has not run.
pub(crate) fn has_gpu() -> bool {
    no_gpu().map(|error| skipped(&format!("no device: {error}"))).is_none()
}

/// The devices of this machine, of which tests that run on the CPU use another if there is one.
pub(crate) fn devices() -> Vec<Device> {
    std::iter::once(Device::Cpu).chain(no_gpu().is_none().then_some(Device::Cuda(0))).collect()
}

/// What rows of the operands of attention at these positions are set to: queries, keys, values and the mask.
pub(crate) const NOT_FINITE: [(usize, f64); 6] =
    [(0, f64::NAN), (1, f64::NAN), (2, f64::NAN), (3, f64::NAN), (0, f64::INFINITY), (1, f64::INFINITY)];

/// Says that a test has not run; not by a macro, whose output the harness keeps to itself.
pub(crate) fn skipped(why: &str) {
    let _ = std::io::stderr().write_all(format!("skipped, {why}\n").as_bytes());
}

/// The folder of the package, or a copy of its files where the tests run on another machine.
pub(crate) fn files() -> PathBuf {
    std::env::var_os("TILEFUSE_TEST_FILES").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// The program, which lies elsewhere where the tests run on another machine.
pub(crate) fn program() -> PathBuf {
    let moved = std::env::var_os("TILEFUSE_TEST_PROGRAM");
    moved.map_or_else(|| env!("CARGO_BIN_EXE_tilefuse").into(), PathBuf::from)
}

/// Gives the process a kernel cache of its own, leaves products to libtorch, and has all calls but the first run plans. To be
/// called first in every test that compiles.
pub(crate) fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = std::env::temp_dir().join(format!("tilefuse-test-{}", std::process::id()));
        // SAFETY: the tests that read the environment wait here.
        unsafe { std::env::set_var("TILEFUSE_CACHE", &folder) };
        // Plans must not depend on measurements. SAFETY: as above.
        unsafe { std::env::set_var("TILEFUSE_PRODUCTS", "library") };
        // SAFETY: as above.
        unsafe { std::env::set_var("TILEFUSE_AUDIT", "never") };
    });
}

/// Whether this is a process for the named test alone, without others that draw random numbers or use memory meanwhile. If
/// not, runs the test in one.
#[track_caller]
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TILEFUSE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    // What the process of its own inherits.
    setup();
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    let output = own.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    false
}

/// A lock among tests. One that panics with it has failed, and no other does for that.
pub(crate) struct TestLock(RwLock<()>);

impl TestLock {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held for writing by tests that change libtorch's number of threads, on which plans depend, and for reading by those
/// that count plans.
pub(crate) static THREADS: TestLock = TestLock(RwLock::new(()));
