//! libtorch's global state, and CUDA, which is loaded when it is asked for.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

use super::ffi::{self, RawGlobal, check, make_tensor, raw};
use super::{DeviceId, Meta};
use crate::Error;

/// The modes that change what operators do on the calling thread. Two equal states behave alike. One from before libtorch's
/// CUDA part is loaded equals none from after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GlobalState(RawGlobal);

impl GlobalState {
    /// The state of this thread.
    pub fn now() -> Result<Self, Error> {
        let mut out = RawGlobal::default();
        // SAFETY: `out` has room for the answer.
        check(unsafe { ffi::tf_global(&raw mut out) })?;
        Ok(Self(out))
    }

    /// Whether gradients are recorded.
    pub fn grad(&self) -> bool {
        self.0.grad != 0
    }

    /// The same state but for whether gradients are recorded.
    pub fn without_grad(mut self) -> Self {
        self.0.grad = 0;
        self
    }

    /// Whether new tensors are inference tensors.
    pub fn inference(&self) -> bool {
        self.0.inference != 0
    }

    /// Whether operators cast their arguments on some device.
    pub fn autocast(&self) -> bool {
        self.0.autocast_cpu != 0 || self.0.autocast_cuda != 0
    }

    /// Whether operators must be deterministic.
    pub fn deterministic(&self) -> bool {
        self.0.deterministic != 0
    }

    /// Whether matrix products on CUDA may round their f32 operands to TF32.
    pub fn tf32_matmul(&self) -> bool {
        self.0.tf32_matmul == 2
    }

    /// The dtype of new floating-point tensors, as `c10::ScalarType`.
    pub fn default_dtype(&self) -> i8 {
        self.0.default_dtype as i8
    }

    /// The first mode, but for whether gradients are recorded, in which another state differs: what it is, and both values.
    pub fn difference(&self, other: Self) -> Option<(&'static str, String, String)> {
        let (a, b) = (self.0, other.0);
        let modes: [(&'static str, u64, u64); 12] = [
            ("threads of libtorch", a.threads as u64, b.threads as u64),
            ("inference mode", a.inference.into(), b.inference.into()),
            ("autocast on the CPU", a.autocast_cpu.into(), b.autocast_cpu.into()),
            ("autocast on CUDA", a.autocast_cuda.into(), b.autocast_cuda.into()),
            ("autocast's dtype on the CPU", a.autocast_cpu_dtype.into(), b.autocast_cpu_dtype.into()),
            ("autocast's dtype on CUDA", a.autocast_cuda_dtype.into(), b.autocast_cuda_dtype.into()),
            ("deterministic algorithms", a.deterministic.into(), b.deterministic.into()),
            ("TF32 in products", a.tf32_matmul.into(), b.tf32_matmul.into()),
            ("TF32 in convolutions", a.tf32_conv.into(), b.tf32_conv.into()),
            ("default dtype", a.default_dtype.into(), b.default_dtype.into()),
            ("filling of new memory", a.fill_uninitialized.into(), b.fill_uninitialized.into()),
            ("included dispatch keys", a.included, b.included),
        ];
        let excluded = [("excluded dispatch keys", a.excluded, b.excluded)];
        let (what, old, new) = modes.into_iter().chain(excluded).find(|(_, a, b)| a != b)?;
        Some((what, format!("{old:#x}"), format!("{new:#x}")))
    }

    /// How many threads libtorch uses within an operator.
    pub fn threads(&self) -> usize {
        usize::try_from(self.0.threads).unwrap_or(1).max(1)
    }
}

/// The state of a device's default generator of random numbers at one time.
#[derive(Debug)]
pub struct GeneratorState {
    device: DeviceId,
    state: tch::Tensor,
}

impl GeneratorState {
    /// The present state. CUDA must be available for the state of a CUDA device.
    pub fn of(device: DeviceId) -> Result<Self, Error> {
        // SAFETY: the answer is a new tensor.
        let state = make_tensor(|out| unsafe { ffi::tf_generator_state(device.kind, device.index, out) })?;
        Ok(Self { device, state })
    }

    /// Takes the present state of the same generator.
    pub fn renew(&mut self) -> Result<(), Error> {
        *self = Self::of(self.device)?;
        Ok(())
    }

    /// Whether the generator was seeded since it was in this state. Numbers that others drew meanwhile are nothing that tells.
    pub fn is_reseeded(&self) -> Result<bool, Error> {
        let (was, is) = (seed_of(&self.state)?, seed_of(&Self::of(self.device)?.state)?);
        Ok(was.number != is.number || is.is_fresh && !was.is_fresh)
    }

    /// Sets the generator back to this state: it draws the same numbers again.
    pub fn restore(&self) -> Result<(), Error> {
        // SAFETY: the state is a live tensor.
        check(unsafe { ffi::tf_set_generator_state(self.device.kind, self.device.index, raw(&self.state)) })
    }
}

/// What a generator was seeded with.
struct Seed {
    number: u64,
    /// Whether no number was drawn since.
    is_fresh: bool,
}

/// The seed in a state as libtorch lays it out: that of the host is the seed, two `int`s, the position of the next number, and more; that of
/// a CUDA device is the seed and the count of numbers.
fn seed_of(state: &tch::Tensor) -> Result<Seed, Error> {
    let meta = Meta::of(state)?;
    // SAFETY: a state is bytes on the host without gaps, and the tensor is alive.
    let bytes = unsafe { std::slice::from_raw_parts(meta.address()? as *const u8, meta.numel as usize) };
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |&word| u64::from_ne_bytes(word));
    let drawn = word(if words.len() > 2 { 2 } else { 1 });
    Ok(Seed { number: word(0), is_fresh: drawn == 0 })
}

/// Loads libtorch's CUDA part, once in a process.
fn load_cuda() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(|| open_beside_libtorch("libtorch_cuda.so")).clone()
}

/// Opens a library for the whole process: the one that lies where the running libtorch lies, else whatever the
/// loader finds. It is never closed.
fn open_beside_libtorch(name: &str) -> Result<(), String> {
    let path = libtorch_folder().map(|dir| format!("{dir}/{name}"));
    let mut error = String::new();
    for candidate in path.iter().map(String::as_str).chain([name]) {
        let Ok(text) = CString::new(candidate) else { continue };
        // SAFETY: loading libtorch_cuda runs its initialisers, which register its operators.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if !handle.is_null() {
            return Ok(());
        }
        if error.is_empty() {
            // SAFETY: after a failed `dlopen` this is a NUL-terminated string, valid until the next call.
            error = unsafe { CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned() };
        }
    }
    Err(format!("cannot load {name}: {error}"))
}

/// The folder that libc10.so was loaded from.
fn libtorch_folder() -> Option<String> {
    // SAFETY: a query by name; the name is a C++ function that every libc10 exports.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN3c108GradMode10is_enabledEv".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` has room for the answer; its name, where set, is a NUL-terminated string of the loader.
    let path = unsafe {
        if libc::dladdr(symbol, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())?
    };
    Some(path.rsplit_once('/')?.0.to_owned())
}

/// The libtorch that this program runs with: its version, where its folder tells that, and the folder of its libraries.
pub(crate) fn libtorch() -> (Option<String>, Option<String>) {
    let folder = libtorch_folder();
    let root = folder.as_deref().and_then(|folder| std::path::Path::new(folder).parent());
    let read = |name: &str| std::fs::read_to_string(root?.join(name)).ok();
    // An archive for C++ says it in `build-version`, a wheel in `version.py`.
    let wheel = |text: String| {
        let value = text.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
        Some(value.trim().trim_matches(['\'', '"']).to_owned())
    };
    let version = read("build-version").map(|text| text.trim().to_owned());
    (version.or_else(|| wheel(read("version.py")?)), folder)
}

/// How many CUDA devices can be used, at least one; otherwise one line that says what is missing.
///
/// The first call loads libtorch's CUDA part, unless the program is linked with it. libtorch looks for CUDA once, when it is
/// first asked (by `tch::manual_seed`, for one): ask here before.
pub fn cuda_devices() -> Result<usize, Error> {
    load_cuda().map_err(Error::NoCuda)?;
    let mut n = 0;
    // SAFETY: `n` has room for the answer.
    check(unsafe { ffi::tf_cuda_devices(&raw mut n) }).map_err(|e| Error::NoCuda(e.to_string()))?;
    match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::NoCuda("there is no driver or no visible device".into())),
    }
}

/// Whether CUDA can be used, and if not one line that says what is missing.
pub fn cuda_available() -> Result<(), Error> {
    cuda_devices().map(|_| ())
}

/// The stream that libtorch's operators use now on this thread and device, as `cudaStream_t` (null is the default
/// stream). CUDA must be available.
pub fn cuda_stream(device: i8) -> Result<*mut c_void, Error> {
    let mut out = std::ptr::null_mut();
    // SAFETY: `out` has room for the answer.
    check(unsafe { ffi::tf_cuda_stream(device, &raw mut out) })?;
    Ok(out)
}
