//! The processor that code is made for.

use std::sync::{Once, OnceLock};

use inkwell::OptimizationLevel;
use inkwell::attributes::AttributeLoc;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple,
};
use inkwell::values::FunctionValue;

use tilefuse_block::Elem;

use super::emit::ir::llvm;
use super::plan::Registers;
use crate::{Error, Result};

/// Which instructions generated code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Isa {
    /// Everything that this machine has, or what the variable `TILEFUSE_HOST_CPU` names of it: `x86-64-v3` or `x86-64`, as
    /// [`Isa::Avx2`] and [`Isa::Baseline`], or `native`.
    #[default]
    Native,
    /// Everything that this machine has but its matrix unit.
    Vectors,
    /// AVX2, FMA and F16C, with vectors of 256 bits.
    Avx2,
    /// What every 64-bit x86 processor has, with vectors of 128 bits.
    Baseline,
}

/// A processor as LLVM knows it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    cpu: String,
    features: String,
    /// Bits of a vector.
    pub(super) vector: u32,
    /// Whether there are instructions that convert `f16`.
    pub(super) f16c: bool,
    /// Whether there are instructions that multiply and add.
    pub(super) fma: bool,
    /// What adds up products of neighbouring `bf16`.
    pub(super) pairs: Option<Unit>,
    /// What adds up products of four neighbouring 8-bit integers.
    pub(super) quads: Option<Unit>,
}

/// Instructions that multiply neighbours along the common axis of a product and add them to sums of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of vectors of 512 bits: AVX-512 BF16 and VNNI.
    Vectors,
    /// Of tiles of 16 rows of 64 bytes: AMX. Where these do not fit, there are those of vectors.
    Tiles,
}

/// LLVM's names of the processors of [`Isa::Avx2`] and [`Isa::Baseline`].
const AVX2: &str = "x86-64-v3";
const BASELINE: &str = "x86-64";

/// What the first one has beyond the second.
const V3: [&str; 8] = ["avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"];

/// Optimisations that pay: vectors and hoisting are there already.
const PASSES: &str = "function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg)";

impl Target {
    /// The processor that `isa` names.
    pub(super) fn new(isa: Isa) -> Target {
        match isa {
            Isa::Native => {
                static NATIVE: OnceLock<Target> = OnceLock::new();
                NATIVE.get_or_init(Target::limited).clone()
            }
            Isa::Vectors => Target::new(Isa::Native).without_tiles(),
            Isa::Avx2 => {
                let (cpu, features) = (AVX2.to_owned(), String::new());
                Target { cpu, features, vector: 256, f16c: true, fma: true, pairs: None, quads: None }
            }
            Isa::Baseline => {
                let (cpu, features) = (BASELINE.to_owned(), String::new());
                Target { cpu, features, vector: 128, f16c: false, fma: false, pairs: None, quads: None }
            }
        }
    }

    /// This machine's processor, or the part of it that the environment names.
    fn limited() -> Target {
        let native = Target::native();
        let name = std::env::var("TILEFUSE_HOST_CPU").unwrap_or_default();
        let part = match name.as_str() {
            "" | "native" => return native,
            AVX2 => Target::new(Isa::Avx2),
            BASELINE => Target::new(Isa::Baseline),
            other => {
                tracing::warn!("TILEFUSE_HOST_CPU: `{other}` is none of native, {AVX2} and {BASELINE}");
                return native;
            }
        };
        if part.vector > native.vector || (part.fma && !V3.into_iter().all(|name| native.has(name))) {
            tracing::warn!("TILEFUSE_HOST_CPU: this machine is no {name}");
            return native;
        }
        part
    }

    fn has(&self, name: &str) -> bool {
        self.features.split(',').any(|feature| feature.strip_prefix('+') == Some(name))
    }

    fn native() -> Target {
        let cpu = TargetMachine::get_host_cpu_name().to_string();
        let features = TargetMachine::get_host_cpu_features().to_string();
        let native = Target { cpu, features, vector: 128, f16c: false, fma: false, pairs: None, quads: None };
        let wide = ["avx512f", "avx512bw", "avx512dq", "avx512vl"].into_iter().all(|name| native.has(name));
        let vector = if wide {
            512
        } else if native.has("avx2") {
            256
        } else {
            128
        };
        let (f16c, fma) = (native.has("f16c"), native.has("fma"));
        let tiles = native.has("amx-tile") && tiles::are_allowed();
        let unit = |vectors: &str, of_tiles: &str| match wide && native.has(vectors) {
            true if tiles && native.has(of_tiles) => Some(Unit::Tiles),
            true => Some(Unit::Vectors),
            false => None,
        };
        let (pairs, quads) = (unit("avx512bf16", "amx-bf16"), unit("avx512vnni", "amx-int8"));
        Target { vector, f16c, fma, pairs, quads, ..native }
    }

    fn without_tiles(self) -> Target {
        let (pairs, quads) = (self.pairs.map(|_| Unit::Vectors), self.quads.map(|_| Unit::Vectors));
        Target { pairs, quads, ..self }
    }

    /// What adds up products of neighbours of a kind.
    pub(super) fn unit(&self, elem: Elem) -> Option<Unit> {
        match elem {
            Elem::Bf16 => self.pairs,
            Elem::I8 => self.quads,
            _ => None,
        }
    }

    /// What plans ask of a processor.
    pub(super) fn registers(&self) -> Registers {
        Registers { width: self.width(), pairs: self.pairs.is_some(), quads: self.quads.is_some() }
    }

    /// Logarithm of the number of 32-bit lanes of a vector.
    pub(super) fn width(&self) -> u32 {
        (self.vector / 32).trailing_zeros()
    }

    /// What code for this processor depends on, in one line.
    pub(super) fn describe(&self) -> String {
        format!("{} {} {} {:?} {:?}", self.cpu, self.vector, self.features, self.pairs, self.quads)
    }

    /// Tells LLVM which instructions a function may use.
    pub(super) fn mark(&self, cx: &Context, function: FunctionValue<'_>) {
        let width = self.vector.to_string();
        let texts = [
            ("target-cpu", self.cpu.as_str()),
            ("target-features", self.features.as_str()),
            ("prefer-vector-width", width.as_str()),
            ("min-legal-vector-width", width.as_str()),
            ("no-builtins", ""),
        ];
        for (key, value) in texts {
            if !value.is_empty() || key == "no-builtins" {
                function.add_attribute(AttributeLoc::Function, cx.create_string_attribute(key, value));
            }
        }
        let nounwind = inkwell::attributes::Attribute::get_named_enum_kind_id("nounwind");
        function.add_attribute(AttributeLoc::Function, cx.create_enum_attribute(nounwind, 0));
    }

    fn machine(&self) -> Result<TargetMachine> {
        static START: Once = Once::new();
        crate::llvm::start();
        START.call_once(|| LlvmTarget::initialize_x86(&InitializationConfig::default()));
        let triple = TargetTriple::create("x86_64-unknown-linux-gnu");
        let target = LlvmTarget::from_triple(&triple).map_err(llvm)?;
        let level = OptimizationLevel::Default;
        target
            .create_target_machine(
                &triple,
                &self.cpu,
                &self.features,
                level,
                RelocMode::PIC,
                CodeModel::Small,
            )
            .ok_or_else(|| Error::Llvm(format!("no target machine for {}", self.cpu)))
    }

    /// Optimises a module and makes an object or a listing of it.
    pub(super) fn finish(&self, module: &Module<'_>, kind: FileType) -> Result<Vec<u8>> {
        let machine = self.machine()?;
        module.set_triple(&machine.get_triple());
        module.set_data_layout(&machine.get_target_data().get_data_layout());
        if cfg!(debug_assertions) {
            module.verify().map_err(llvm)?;
        }
        let options = PassBuilderOptions::create();
        module.run_passes(PASSES, &machine, options).map_err(llvm)?;
        let buffer = machine.write_to_memory_buffer(module, kind).map_err(llvm)?;
        Ok(buffer.as_slice().to_vec())
    }
}

mod tiles {
    //! The registers of the matrix unit, which a process asks for before it uses them.

    /// Whether this process may use them; asks for them.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(super) fn are_allowed() -> bool {
        /// `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` of Linux.
        const REQUEST: [libc::c_long; 2] = [0x1023, 18];
        // SAFETY: the call takes numbers, and changes nothing but which registers the threads of this process may use.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST[0], REQUEST[1]) == 0 }
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    pub(super) fn are_allowed() -> bool {
        false
    }
}

/// The module that a text of LLVM IR is.
pub(super) fn parse<'c>(cx: &'c Context, text: &str) -> Result<Module<'c>> {
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "kernel");
    let module = cx.create_module_from_ir(buffer).map_err(llvm)?;
    module.verify().map_err(llvm)?;
    Ok(module)
}
