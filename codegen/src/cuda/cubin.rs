//! Machine code of kernels: made of PTX once, and kept by whoever has a place for it, so that another process needs
//! neither assembler nor the driver's own cache.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUjit_option, CUjitInputType, CUlinkState, CUresult};

use super::device::Device;
use super::driver::check;
use super::kernel::{Kernel, Log, Shape, refused};
use super::ptxas;
use crate::error::{Error, Result};
use crate::ptx::{Ptx, Target, tensor_map};
use crate::timing::{Stage, timed};

/// The machine code of a kernel for a device, with what a launch of it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    code: Vec<u8>,
    shape: Shape,
}

impl Cubin {
    /// Compiles PTX: with `ptxas` where that is installed, else with the driver's linker. Threads that call this compile at
    /// the same time, the latter as far as the driver lets them.
    pub fn compile(device: &Arc<Device>, ptx: &Ptx) -> Result<Cubin> {
        timed(Stage::Load, || {
            let exact = is_exactly(ptx.target, device.properties().capability);
            let assembled = if exact { ptxas::assemble(ptx) } else { None };
            let code = match assembled {
                Some(code) => code,
                None if ptx.changes_registers() => return Err(unlinked(ptx)),
                None => device.with(|| link(device, ptx))?,
            };
            Ok(Cubin { code, shape: Shape::of(ptx) })
        })
    }

    /// Bytes to keep: what a launch takes in the first line, then the code.
    pub fn encode(&self) -> Vec<u8> {
        let Shape { name, threads, cluster, shared_bytes, early, tensor_maps, persistent } = &self.shape;
        let maps = tensor_map::encode(tensor_maps);
        let head = format!("{threads} {cluster} {shared_bytes} {early} {persistent} {maps} {name}\n");
        [head.as_bytes(), &self.code].concat()
    }

    /// What [`encode`](Cubin::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Option<Cubin> {
        let end = bytes.iter().position(|&b| b == b'\n')?;
        let (head, code) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
        let mut head = head.splitn(7, ' ');
        let mut number = || head.next()?.parse().ok();
        let (threads, cluster, shared_bytes) = (number()?, number()?, number()?);
        let mut flag = || head.next()?.parse().ok();
        let (early, persistent) = (flag()?, flag()?);
        let tensor_maps = tensor_map::decode(head.next()?)?;
        let name = head.next()?.to_owned();
        let shape = Shape { name, threads, cluster, shared_bytes, early, tensor_maps, persistent };
        Some(Cubin { code: code.to_vec(), shape })
    }
}

impl Kernel {
    /// Loads machine code. Where the device does not take what an assembler made, the driver makes it from now on.
    pub fn load_cubin(device: &Arc<Device>, cubin: &Cubin) -> Result<Kernel> {
        // The driver reads a whole file in ELF format, and says so where it is none.
        if !cubin.code.starts_with(b"\x7fELF") {
            return Err(Error::Llvm("machine code that is no ELF file".to_owned()));
        }
        let loaded = Kernel::load_image(device, &cubin.code, &cubin.shape);
        if loaded.is_err() {
            ptxas::give_up();
        }
        loaded
    }
}

/// Whether code for a target is for a device of this capability alone.
fn is_exactly(target: Target, capability: (u32, u32)) -> bool {
    let digits = format!("sm_{}{}", capability.0, capability.1);
    target.name().trim_end_matches('a') == digits
}

/// The driver's linker gives all threads of a kernel as many registers, as its loader of PTX does not.
fn unlinked(ptx: &Ptx) -> Error {
    let message = "machine code without ptxas of a kernel whose threads have different registers".to_owned();
    Error::Unsupported { target: ptx.target.name().to_owned(), message }
}

/// A linker, destroyed with this value.
struct Linker(CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: the linker was made by this value alone. Nothing is lost where that fails.
        let _ = unsafe { sys::cuLinkDestroy(self.0) };
    }
}

/// Compiles PTX with the driver's linker; the device's context is current.
fn link(device: &Device, ptx: &Ptx) -> Result<Vec<u8>> {
    let text = CString::new(ptx.text.as_str()).map_err(|_| Error::Llvm("PTX with a zero byte".to_owned()))?;
    let mut log = Log::new();
    let mut options: [CUjit_option; 2] = Log::OPTIONS;
    let mut values = log.values();
    let mut state = std::ptr::null_mut();
    // SAFETY: the options describe a buffer that outlives the linker; writes one handle.
    let created = unsafe { sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) };
    check("cuLinkCreate", created)?;
    let linker = Linker(state);
    let bytes = text.as_bytes_with_nul();
    let name = c"kernel.ptx";
    // SAFETY: the linker is alive; the text has as many bytes, the last of which is zero, and the driver does not write it.
    let added = unsafe {
        sys::cuLinkAddData_v2(
            linker.0,
            CUjitInputType::CU_JIT_INPUT_PTX,
            bytes.as_ptr().cast_mut().cast(),
            bytes.len(),
            name.as_ptr(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if added != CUresult::CUDA_SUCCESS {
        return Err(refused("cuLinkAddData", added, device, ptx, &log));
    }
    let (mut code, mut length) = (std::ptr::null_mut::<c_void>(), 0);
    // SAFETY: the linker is alive; writes an address and a length.
    let completed = unsafe { sys::cuLinkComplete(linker.0, &mut code, &mut length) };
    if completed != CUresult::CUDA_SUCCESS || code.is_null() {
        return Err(refused("cuLinkComplete", completed, device, ptx, &log));
    }
    // SAFETY: the driver gave as many bytes, which live as long as the linker.
    Ok(unsafe { std::slice::from_raw_parts(code.cast::<u8>(), length) }.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::tensor_map::{Extent, TensorMap};

    #[test]
    fn what_is_kept_comes_back() {
        let map = TensorMap {
            param: 1,
            offset: 0,
            sizes: vec![Extent::Number(64), Extent::Number(8)],
            strides: vec![Extent::Number(128)],
            tile: vec![64, 8],
            swizzle: 128,
            im2col: None,
        };
        let shape = Shape {
            name: "a b".to_owned(),
            threads: 128,
            cluster: 2,
            shared_bytes: 4096,
            early: true,
            tensor_maps: vec![map],
            persistent: true,
        };
        let cubin = Cubin { code: b"\x7fELF\n\0rest\n".to_vec(), shape };
        assert_eq!(Cubin::decode(&cubin.encode()), Some(cubin));
        assert_eq!(Cubin::decode(b""), None);
        assert_eq!(Cubin::decode(b"128 2 4096 maybe false - name\ncode"), None);
        assert_eq!(Cubin::decode(b"128 2 4096 true - name\ncode"), None);
        assert_eq!(Cubin::decode(b"128 2 4096 true false name\ncode"), None);
        assert_eq!(Cubin::decode(b"128 2 4096 true false -\ncode"), None);
    }

    #[test]
    fn an_assembler_is_for_the_very_device() {
        assert!(is_exactly(Target::Sm90a, (9, 0)) && is_exactly(Target::Sm80, (8, 0)));
        assert!(!is_exactly(Target::Sm80, (8, 6)) && !is_exactly(Target::Sm90a, (10, 0)));
        assert!(is_exactly(Target::Sm100a, (10, 0)));
    }
}
