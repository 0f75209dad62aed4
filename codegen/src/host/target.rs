//! The processor that code is made for.

use std::sync::OnceLock;

use inkwell::OptimizationLevel;
use inkwell::attributes::AttributeLoc;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple};
use inkwell::values::FunctionValue;

use tilefuse_block::math::eval_with_exponents;
use tilefuse_block::{Elem, ScalarFn};

use super::emit::ir::llvm;
use super::family::Family;
use super::plan::Registers;
use crate::{Error, Result};

/// Which instructions generated code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Isa {
    /// Everything that this machine has, or what the variable `TILEFUSE_HOST_CPU` names of it: one of [`Isa::NAMED`], or `native`.
    #[default]
    Native,
    /// Everything that this machine has but its matrix unit.
    Vectors,
    /// AVX-512 with the parts for short vectors and for 32 and 64 bits. On a processor of another family as [`Isa::Baseline`].
    Avx512,
    /// AVX2, FMA and F16C, with vectors of 256 bits. On a processor of another family as [`Isa::Baseline`].
    Avx2,
    /// What every 64-bit processor of this machine's family has: x86 with SSE2, or Arm with NEON. Vectors of 128 bits.
    Baseline,
}

impl Isa {
    /// The levels of this machine's family by LLVM's names, whether or not this machine has them.
    pub const NAMED: &[(&str, Isa)] = match Family::NATIVE {
        Some(Family::X86) => &[(AVX512, Isa::Avx512), (AVX2, Isa::Avx2), (BASELINE, Isa::Baseline)],
        Some(Family::Aarch64) => &[(ARM, Isa::Baseline)],
        None => &[],
    };

    /// The level that a name is of.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::NAMED.iter().find(|(known, _)| *known == name).map(|&(_, isa)| isa)
    }

    /// The name of a level.
    pub fn name(self) -> &'static str {
        Isa::NAMED.iter().find(|&&(_, isa)| isa == self).map_or("native", |(name, _)| name)
    }
}

/// A processor as LLVM knows it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    family: Family,
    cpu: String,
    /// The processor whose times LLVM orders instructions by, where that is another one.
    tune: String,
    features: String,
    /// Bits of a vector.
    pub(super) vector: u32,
    /// Registers that hold vectors.
    pub(super) count: u32,
    /// Whether there are instructions that convert `f16`.
    pub(super) f16c: bool,
    /// Whether there are instructions that multiply and add.
    pub(super) fma: bool,
    /// What adds up products of neighbouring `bf16`.
    pub(super) vnni2: Option<Unit>,
    /// What adds up products of four neighbouring 8-bit integers.
    pub(super) vnni4: Option<Unit>,
}

/// Instructions that multiply neighbours along the common axis of a product and add them to sums of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of vectors of 512 bits: AVX-512 BF16 and VNNI.
    Vectors,
    /// Of tiles of 16 rows of 64 bytes: AMX. Where these do not fit, there are those of vectors.
    Tiles,
}

/// Names of the processors of [`Isa::Avx512`], [`Isa::Avx2`] and [`Isa::Baseline`]: LLVM's for x86.
const AVX512: &str = "x86-64-v4";
const AVX2: &str = "x86-64-v3";
const BASELINE: &str = "x86-64";
const ARM: &str = "armv8-a";

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
            _ if Family::NATIVE == Some(Family::Aarch64) => Target::neon(),
            Isa::Avx512 => Target::wide(),
            Isa::Avx2 => Target { vector: 256, f16c: true, fma: true, ..Target::x86(AVX2) },
            Isa::Baseline => Target::x86(BASELINE),
        }
    }

    /// An x86 processor with vectors of 128 bits.
    fn x86(cpu: &str) -> Target {
        Target {
            family: Family::X86,
            cpu: cpu.to_owned(),
            tune: String::new(),
            features: String::new(),
            vector: 128,
            count: 16,
            f16c: false,
            fma: false,
            vnni2: None,
            vnni4: None,
        }
    }

    /// One with AVX-512, whether or not this machine is one.
    pub(super) fn wide() -> Target {
        Target { vector: 512, count: 32, f16c: true, fma: true, ..Target::x86(AVX512) }
    }

    /// What every 64-bit Arm processor has.
    pub(super) fn neon() -> Target {
        let features = "+fp-armv8,+neon".to_owned();
        let x86 = Target::x86("generic");
        Target { family: Family::Aarch64, features, count: 32, f16c: true, fma: true, ..x86 }
    }

    /// This machine's processor, or the part of it that the environment names.
    fn limited() -> Target {
        let native = Target::native();
        let name = std::env::var("TILEFUSE_HOST_CPU").unwrap_or_default();
        if matches!(name.as_str(), "" | "native") {
            return native;
        }
        let Some(isa) = Isa::from_name(&name) else {
            let names: Vec<&str> = Isa::NAMED.iter().map(|named| named.0).collect();
            tracing::warn!("TILEFUSE_HOST_CPU: `{name}` is none of native, {}", names.join(", "));
            return native;
        };
        let part = Target::new(isa);
        let has_v3 = || V3.into_iter().all(|name| native.has(name));
        if part.vector > native.vector || (matches!(isa, Isa::Avx512 | Isa::Avx2) && !has_v3()) {
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
        match Family::NATIVE {
            Some(Family::Aarch64) => Target::native_arm(cpu, &features),
            _ => Target::native_x86(cpu, features),
        }
    }

    fn native_x86(cpu: String, features: String) -> Target {
        let native = Target { cpu, features, ..Target::x86(BASELINE) };
        let wide = ["avx512f", "avx512bw", "avx512dq", "avx512vl"].into_iter().all(|name| native.has(name));
        let (vector, count) = match wide {
            true => (512, 32),
            false if native.has("avx2") => (256, 16),
            false => (128, 16),
        };
        let (f16c, fma) = (native.has("f16c"), native.has("fma"));
        let tiles = native.has("amx-tile") && tiles::are_allowed();
        let unit = |vectors: &str, of_tiles: &str| match wide && native.has(vectors) {
            true if tiles && native.has(of_tiles) => Some(Unit::Tiles),
            true => Some(Unit::Vectors),
            false => None,
        };
        let (vnni2, vnni4) = (unit("avx512bf16", "amx-bf16"), unit("avx512vnni", "amx-int8"));
        Target { vector, count, f16c, fma, vnni2, vnni4, ..native }
    }

    /// A 64-bit Arm processor with what the system says that it has, beyond what all have. A processor's name says how long
    /// its instructions take; what LLVM knows it to have the system may not let programs use.
    pub(super) fn native_arm(tune: String, found: &str) -> Target {
        let all = Target::neon();
        let more = found.split(',').filter(|feature| feature.starts_with('+') && !all.has(&feature[1..]));
        let features = std::iter::once(all.features.as_str()).chain(more).collect::<Vec<_>>().join(",");
        Target { tune, features, ..all }
    }

    fn without_tiles(self) -> Target {
        let (vnni2, vnni4) = (self.vnni2.map(|_| Unit::Vectors), self.vnni4.map(|_| Unit::Vectors));
        Target { vnni2, vnni4, ..self }
    }

    /// What adds up products of neighbours of a kind.
    pub(super) fn unit(&self, elem: Elem) -> Option<Unit> {
        match elem {
            Elem::Bf16 => self.vnni2,
            Elem::I8 => self.vnni4,
            _ => None,
        }
    }

    /// Whether a mathematical function stays one, since instructions for exponents make it shorter than what it is
    /// expanded to: those of AVX-512.
    pub(super) fn computes(&self, function: ScalarFn, elem: Option<Elem>) -> bool {
        self.has_avx512() && elem == Some(Elem::F32) && eval_with_exponents(function, 1.0).is_some()
    }

    /// Whether vectors are of AVX-512, with the parts for short ones and for 32 and 64 bits.
    pub(super) fn has_avx512(&self) -> bool {
        self.family == Family::X86 && self.vector == 512
    }

    /// Whether masks of accesses are signs of a vector's lanes, as with AVX2.
    pub(super) fn has_masks_in_vectors(&self) -> bool {
        self.family == Family::X86 && self.vector == 256
    }

    /// What plans ask of a processor.
    pub(super) fn registers(&self) -> Registers {
        let (vnni2, vnni4) = (self.vnni2.is_some(), self.vnni4.is_some());
        Registers { width: self.width(), count: self.count, vnni2, vnni4 }
    }

    /// Logarithm of the number of 32-bit lanes of a vector.
    pub(super) fn width(&self) -> u32 {
        (self.vector / 32).trailing_zeros()
    }

    /// What code for this processor depends on, in one line.
    pub(super) fn describe(&self) -> String {
        let Target { family, cpu, vector, tune, features, vnni2, vnni4, .. } = self;
        match family {
            Family::X86 => format!("{cpu} {vector} {features} {vnni2:?} {vnni4:?}"),
            Family::Aarch64 => format!("{ARM} {vector} {features} {tune} {vnni2:?} {vnni4:?}"),
        }
    }

    /// What a reader wants to know of this processor: its name, and the instructions that decide how quick kernels are.
    pub(super) fn summary(&self) -> String {
        const MATTER: [&str; 8] =
            ["avx2", "fma", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "amx-int8", "amx-bf16"];
        let has =
            |name: &&&str| self.features.split(',').any(|feature| feature.strip_prefix('+') == Some(**name));
        let found: Vec<&str> = MATTER.iter().filter(has).copied().collect();
        let name = match self.family {
            Family::X86 => &self.cpu,
            Family::Aarch64 => ARM,
        };
        let features = if found.is_empty() { String::new() } else { format!("; {}", found.join(", ")) };
        format!("{name}, vectors of {} bits{features}", self.vector)
    }

    /// Tells LLVM which instructions a function may use.
    pub(super) fn mark(&self, cx: &Context, function: FunctionValue<'_>) {
        let width = self.vector.to_string();
        let texts = [
            ("target-cpu", self.cpu.as_str()),
            ("tune-cpu", self.tune.as_str()),
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
        self.family.start()?;
        let triple = TargetTriple::create(self.family.triple());
        let target = LlvmTarget::from_triple(&triple).map_err(llvm)?;
        let (level, position) = (OptimizationLevel::Default, RelocMode::PIC);
        target
            .create_target_machine(&triple, &self.cpu, &self.features, level, position, CodeModel::Small)
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
