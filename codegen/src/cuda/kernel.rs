//! Loading and launching kernels.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult, CUstream,
};
use smallvec::SmallVec;

use super::device::Device;
use super::driver::{check, describe};
use crate::error::{Error, Result};
use crate::ptx::tensor_map::{Extent, Im2Col, TensorMap};
use crate::ptx::{Ptx, PtxVersion};
use crate::timing::{Stage, timed};

/// Bytes for the log of the driver's compiler.
const LOG_BYTES: usize = 8192;

/// The largest extents of a grid.
const MAX_GRID: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];

/// What a launch of a kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The name of the function.
    pub(super) name: String,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Blocks of a cluster.
    pub(super) cluster: u32,
    /// Dynamic shared memory of a block in bytes.
    pub(super) shared_bytes: u32,
    /// Whether it waits for the work before it itself.
    pub(super) early: bool,
    /// Parameters behind those of the program.
    pub(super) tensor_maps: Vec<TensorMap>,
    /// Whether a block computes one instance after another.
    pub(super) persistent: bool,
}

impl Shape {
    pub(super) fn of(ptx: &Ptx) -> Shape {
        Shape {
            name: ptx.name.clone(),
            threads: ptx.threads,
            cluster: ptx.cluster,
            shared_bytes: ptx.shared_bytes,
            early: ptx.waits_for_predecessor(),
            tensor_maps: ptx.tensor_maps.clone(),
            persistent: ptx.persistent,
        }
    }
}

/// A kernel that a device can run.
#[derive(Debug)]
pub struct Kernel {
    device: Arc<Device>,
    module: usize,
    function: usize,
    threads: u32,
    cluster: u32,
    early: bool,
    shared_bytes: u32,
    registers: u32,
    local_bytes: u32,
    tensor_maps: Vec<TensorMap>,
    /// Where a block computes one instance after another: how many blocks run at the same time.
    concurrent: Option<u64>,
}

impl Kernel {
    /// Compiles PTX with the driver's compiler and loads it.
    pub fn load(device: &Arc<Device>, ptx: &Ptx) -> Result<Kernel> {
        let text =
            CString::new(ptx.text.as_str()).map_err(|_| Error::Llvm("PTX with a zero byte".to_owned()))?;
        let mut log = Log::new();
        let module = device.with(|| {
            load_module(text.as_bytes_with_nul(), &mut log)
                .map_err(|result| refused("cuModuleLoadDataEx", result, device, ptx, &log))
        })?;
        Kernel::of_module(device, module, &Shape::of(ptx))
    }

    /// Loads machine code, a whole file in ELF format.
    pub(super) fn load_image(device: &Arc<Device>, image: &[u8], shape: &Shape) -> Result<Kernel> {
        let module = device.with(|| {
            load_module(image, &mut Log::new()).map_err(|result| Error::Cuda {
                call: "cuModuleLoadDataEx",
                code: result as u32,
                message: describe(result),
            })
        })?;
        Kernel::of_module(device, module, shape)
    }

    /// The one function of a module, which is unloaded with it.
    fn of_module(device: &Arc<Device>, module: CUmodule, shape: &Shape) -> Result<Kernel> {
        let mut kernel = Kernel {
            device: device.clone(),
            module: module as usize,
            function: 0,
            threads: shape.threads,
            cluster: shape.cluster,
            early: shape.early,
            shared_bytes: shape.shared_bytes,
            registers: 0,
            local_bytes: 0,
            tensor_maps: shape.tensor_maps.clone(),
            concurrent: None,
        };
        device.with(|| {
            let function = find(module, &shape.name)?;
            kernel.function = function as usize;
            kernel.registers = attribute(function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
            kernel.local_bytes =
                attribute(function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
            if shape.shared_bytes > 0 {
                allow_shared(function, shape.shared_bytes)?;
            }
            if shape.persistent {
                let each = blocks_each(function, shape)?;
                kernel.concurrent = Some(u64::from(each * device.properties().multiprocessors));
            }
            Ok(())
        })?;
        Ok(kernel)
    }

    /// Registers of a thread.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Memory of a thread that registers had no room for, in bytes.
    pub fn local_bytes(&self) -> u32 {
        self.local_bytes
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Queues `grid` instances on a stream (null is the device's default stream). Each argument is 64 bits: an
    /// address, or a number in the low bits. Nothing is launched for an empty grid.
    ///
    /// # Safety
    /// `stream` is a stream of this kernel's device. There are as many arguments as the program has parameters, and
    /// the addresses are valid on the device for all that the program reads and writes, until it has ended.
    pub unsafe fn launch(&self, stream: *mut c_void, grid: u64, args: &[u64]) -> Result<()> {
        // SAFETY: what this function asks for.
        unsafe { self.launch_grid(stream, [grid, 1, 1], args) }
    }

    /// [`Kernel::launch`] for a grid of three axes, of which the last two may have up to 65,535 instances.
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    pub unsafe fn launch_grid(&self, stream: *mut c_void, grid: [u64; 3], args: &[u64]) -> Result<()> {
        // SAFETY: what this function asks for.
        unsafe { self.launch_with(stream, grid, args, self.early) }
    }

    /// [`Kernel::launch_grid`] after all that was queued before has ended, even for a program that may start early: what
    /// this reads ahead may have been written there.
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    pub unsafe fn launch_in_order(&self, stream: *mut c_void, grid: [u64; 3], args: &[u64]) -> Result<()> {
        // SAFETY: what this function asks for.
        unsafe { self.launch_with(stream, grid, args, false) }
    }

    /// # Safety
    /// As for [`Kernel::launch`].
    unsafe fn launch_with(
        &self,
        stream: *mut c_void,
        grid: [u64; 3],
        args: &[u64],
        early: bool,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let extents = grid;
        let (instances, grid) = match self.concurrent {
            Some(concurrent) => {
                let all = grid.iter().fold(1u64, |all, &n| all.saturating_mul(n));
                (all, [all.min(concurrent), 1, 1])
            }
            None => (grid[0], [grid[0].saturating_mul(u64::from(self.cluster)), grid[1], grid[2]]),
        };
        if instances > MAX_GRID[0] || grid.iter().zip(MAX_GRID).any(|(&n, most)| n > most) {
            let message = format!("a grid of {grid:?} blocks, at most {MAX_GRID:?} can be launched");
            return Err(Error::Unsupported { target: self.device.properties().name.clone(), message });
        }
        let maps = self.device.with(|| self.encoded_maps(args))?;
        let extents = extents.map(|n| n as u32);
        let mut pointers = self.pointers(args, &maps, &extents);
        let mut start = early_start();
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0] as u32,
            gridDimY: grid[1] as u32,
            gridDimZ: grid[2] as u32,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream as CUstream,
            attrs: &mut start,
            numAttrs: u32::from(early),
        };
        self.device.with(|| {
            // SAFETY: the function is loaded; the driver copies the configuration, with as many attributes as it says, and
            // the arguments, of which the caller promises the right number, before it returns.
            check("cuLaunchKernelEx", unsafe {
                sys::cuLaunchKernelEx(
                    &config,
                    self.function as CUfunction,
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            })
        })
    }
}

/// What addresses of tensors of maps are multiples of.
const MAP_ALIGN: u64 = 16;

/// The maps of one launch.
type Maps = SmallVec<[sys::CUtensorMap; 4]>;

/// Where something is that the driver reads.
fn address<T>(of: &T) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

impl Kernel {
    /// Where the arguments of a launch are.
    fn pointers(&self, args: &[u64], maps: &Maps, extents: &[u32; 3]) -> SmallVec<[*mut c_void; 32]> {
        let last = extents.iter().filter(|_| self.concurrent.is_some()).map(address);
        args.iter().map(address).chain(maps.iter().map(address)).chain(last).collect()
    }

    /// The maps for the addresses that a launch has.
    fn encoded_maps(&self, args: &[u64]) -> Result<Maps> {
        let encode = |map: &TensorMap| {
            let missing = || Error::Unsupported {
                target: self.device.properties().name.clone(),
                message: format!("{} arguments for a kernel that takes more", args.len()),
            };
            let base = args.get(map.param).copied().ok_or_else(missing)?;
            let broken = || Error::Unsupported {
                target: self.device.properties().name.clone(),
                message: format!("an argument is no size of the tensor {map}, which the kernel promises"),
            };
            let known = |extents: &[Extent]| {
                extents.iter().map(|extent| extent.of(args)).collect::<Option<Extents>>().ok_or_else(broken)
            };
            let extents = (&known(&map.sizes)?, &known(&map.strides)?);
            // A loop that never runs may have a null pointer, which the driver does not take.
            encode_map(map, extents, base.wrapping_add_signed(map.offset).max(MAP_ALIGN))
        };
        self.tensor_maps.iter().map(encode).collect()
    }
}

/// The sizes or strides of a map in a launch.
type Extents = SmallVec<[u64; 5]>;

/// A map of a tensor at an address, as a kernel takes it.
fn encode_map(
    map: &TensorMap,
    (sizes, strides): (&Extents, &Extents),
    address: u64,
) -> Result<sys::CUtensorMap> {
    let swizzle = match map.swizzle {
        128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
    };
    if let Some(im2col) = &map.im2col {
        return encode_im2col((map, im2col), (sizes, strides), address, swizzle);
    }
    let steps: SmallVec<[u32; 5]> = SmallVec::from_elem(1, map.sizes.len());
    // SAFETY: all bits zero is a value of this structure of numbers.
    let mut encoded: sys::CUtensorMap = unsafe { std::mem::zeroed() };
    // SAFETY: the lists have as many elements as the rank says, or one less, which reading a map checks as well; the driver
    // writes one map, and does not access the memory that it is of.
    check("cuTensorMapEncodeTiled", unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut encoded,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            map.sizes.len() as u32,
            address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            map.tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    })?;
    Ok(encoded)
}

/// A map of images at an address.
fn encode_im2col(
    (map, im2col): (&TensorMap, &Im2Col),
    (sizes, strides): (&Extents, &Extents),
    address: u64,
    swizzle: sys::CUtensorMapSwizzle,
) -> Result<sys::CUtensorMap> {
    let steps: SmallVec<[u32; 5]> = [1].into_iter().chain(im2col.steps.iter().copied()).chain([1]).collect();
    let [channels, pixels, ..] = map.tile[..] else {
        let message = format!("the map {map} of images without pixels");
        return Err(Error::Llvm(message));
    };
    // SAFETY: all bits zero is a value of this structure of numbers.
    let mut encoded: sys::CUtensorMap = unsafe { std::mem::zeroed() };
    // SAFETY: as of other maps; corners have two elements fewer than there are dimensions.
    check("cuTensorMapEncodeIm2col", unsafe {
        sys::cuTensorMapEncodeIm2col(
            &mut encoded,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            map.sizes.len() as u32,
            address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            im2col.lower.as_ptr(),
            im2col.upper.as_ptr(),
            channels,
            pixels,
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    })?;
    Ok(encoded)
}

/// A launch of a kernel in a captured graph.
#[derive(Clone, Copy, Debug)]
pub struct Node(usize);

impl Node {
    /// The last work that was captured on a stream.
    ///
    /// # Safety
    /// `stream` is a live stream of the device that is being captured by this thread.
    pub unsafe fn last_on(device: &Device, stream: *mut c_void) -> Result<Node> {
        if device.properties().driver_version < 12030 {
            let message = "changing captured launches needs a driver of CUDA 12.3 or later".to_owned();
            return Err(Error::Unsupported { target: device.properties().name.clone(), message });
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        let nothing = std::ptr::null_mut::<c_void>();
        device.with(|| {
            // SAFETY: the caller vouches for the stream; the driver writes what it is given places for.
            check("cuStreamGetCaptureInfo", unsafe {
                sys::cuStreamGetCaptureInfo_v3(
                    stream as CUstream,
                    &mut status,
                    nothing.cast(),
                    nothing.cast(),
                    &mut nodes,
                    &mut edges,
                    &mut count,
                )
            })
        })?;
        if count != 1 || nodes.is_null() {
            return Err(Error::Unsupported {
                target: device.properties().name.clone(),
                message: format!("a stream with {count} pieces of last work"),
            });
        }
        // SAFETY: the driver gave the address of one handle, which is valid until the stream is used again.
        Ok(Node(unsafe { *nodes } as usize))
    }
}

impl Kernel {
    /// Gives a launch in a graph other arguments, for launches of the graph from now on.
    ///
    /// # Safety
    /// `exec` is a live graph that was made of the capture with this node, which is a launch of this kernel with the
    /// same grid and was not destroyed. For the arguments as in [`Kernel::launch`].
    pub unsafe fn set_arguments(&self, exec: *mut c_void, node: Node, grid: u32, args: &[u64]) -> Result<()> {
        let maps = self.device.with(|| self.encoded_maps(args))?;
        let extents = [grid, 1, 1];
        let mut pointers = self.pointers(args, &maps, &extents);
        let blocks = self.concurrent.map_or(grid, |concurrent| u64::from(grid).min(concurrent) as u32);
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function as CUfunction,
            gridDimX: blocks * self.cluster,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        self.device.with(|| {
            // SAFETY: the caller vouches for the graph and its node; the driver copies the arguments before it returns.
            check("cuGraphExecKernelNodeSetParams", unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(
                    exec as sys::CUgraphExec,
                    node.0 as sys::CUgraphNode,
                    &params,
                )
            })
        })
    }
}

/// Lets a kernel start before its predecessor on the stream has ended: it waits for it itself.
fn early_start() -> sys::CUlaunchAttribute {
    // SAFETY: all bits zero is a value of this structure of numbers and a union of numbers and null pointers.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the module was loaded by this value alone. What fails here has been reported by an earlier call.
        let unload = || unsafe { sys::cuModuleUnload(self.module as CUmodule) };
        let _ = self.device.with(|| check("cuModuleUnload", unload()));
    }
}

/// What the driver's compiler says.
pub(super) struct Log(Vec<u8>);

impl Log {
    /// The options that name it, with [`values`](Log::values).
    pub(super) const OPTIONS: [CUjit_option; 2] =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];

    pub(super) fn new() -> Log {
        Log(vec![0; LOG_BYTES])
    }

    pub(super) fn values(&mut self) -> [*mut c_void; 2] {
        [self.0.as_mut_ptr().cast(), LOG_BYTES as *mut c_void]
    }

    fn text(&self) -> String {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).trim().to_owned()
    }
}

/// Loads PTX that ends with a zero byte, or machine code; the device's context is current.
fn load_module(image: &[u8], log: &mut Log) -> std::result::Result<CUmodule, CUresult> {
    let (mut options, mut values) = (Log::OPTIONS, log.values());
    let mut module = std::ptr::null_mut();
    // SAFETY: PTX ends with a zero byte, and machine code says its length itself; the two options describe a buffer that
    // outlives the call.
    let load = || unsafe {
        let image = image.as_ptr().cast();
        sys::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    match timed(Stage::Load, load) {
        CUresult::CUDA_SUCCESS => Ok(module),
        other => Err(other),
    }
}

/// Why the driver does not compile PTX.
pub(super) fn refused(call: &'static str, result: CUresult, device: &Device, ptx: &Ptx, log: &Log) -> Error {
    let mut message = describe(result);
    if result == CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION {
        let found = PtxVersion::of_driver(device.properties().driver_version);
        let needed = ptx.text.lines().find_map(|l| l.strip_prefix(".version ")).unwrap_or("another");
        message = format!("the driver takes PTX up to {found}, the kernel is in {needed}");
    }
    let log = log.text();
    if !log.is_empty() {
        message = format!("{message}: {log}");
    }
    Error::Cuda { call, code: result as u32, message }
}

fn find(module: CUmodule, name: &str) -> Result<CUfunction> {
    let name = CString::new(name).map_err(|_| Error::Llvm("a kernel name with a zero byte".to_owned()))?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is loaded, the name ends with a zero byte.
    let get = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    check("cuModuleGetFunction", get)?;
    Ok(function)
}

fn attribute(function: CUfunction, which: CUfunction_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: writes one integer.
    check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut value, which, function) })?;
    Ok(value.unsigned_abs())
}

/// Blocks of a kernel that run on a multiprocessor at the same time.
fn blocks_each(function: CUfunction, shape: &Shape) -> Result<u32> {
    let mut blocks = 0;
    // SAFETY: the function is loaded; writes one integer.
    check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
        sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks,
            function,
            shape.threads as i32,
            shape.shared_bytes as usize,
        )
    })?;
    Ok(blocks.unsigned_abs().max(1))
}

fn allow_shared(function: CUfunction, bytes: u32) -> Result<()> {
    let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is loaded.
    check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function, which, bytes as i32) })
}
