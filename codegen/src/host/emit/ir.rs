//! A thin layer over inkwell's builder: operations that take scalars and vectors alike.

use std::cell::Cell;

use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::debug_info::{
    AsDIScope, DIFlags, DIFlagsConstants, DISubprogram, DWARFEmissionKind, DWARFSourceLanguage,
    DebugInfoBuilder,
};
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicTypeEnum, IntType, VectorType};
use inkwell::values::{
    AnyValue, AsValueRef, BasicMetadataValueEnum, BasicValue, BasicValueEnum, FunctionValue,
    InstructionOpcode, IntValue, PointerValue, VectorValue,
};
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::{Elem, Loc};

use crate::{Error, Result, listing};

/// A scalar or a vector.
pub(crate) type V<'c> = BasicValueEnum<'c>;

/// Context, module and builder of one kernel.
pub(crate) struct Ir<'c> {
    pub(crate) cx: &'c Context,
    pub(crate) module: Module<'c>,
    pub(crate) b: Builder<'c>,
    /// What says where instructions come from, where code is written for a listing.
    pub(crate) locations: Option<Locations<'c>>,
}

/// The function as a file of which each line is a location.
pub(crate) struct Locations<'c> {
    debug: DebugInfoBuilder<'c>,
    function: DISubprogram<'c>,
    now: Cell<Loc>,
}

impl<'c> Locations<'c> {
    /// Makes a function one whose instructions have locations.
    pub(crate) fn new(module: &Module<'c>, function: FunctionValue<'c>) -> Locations<'c> {
        let (debug, unit) = module.create_debug_info_builder(
            true,
            DWARFSourceLanguage::C,
            listing::FILE,
            "",
            listing::FILE,
            true,
            "",
            0,
            "",
            DWARFEmissionKind::LineTablesOnly,
            0,
            false,
            false,
            "",
            "",
        );
        let file = unit.get_file();
        let ty = debug.create_subroutine_type(file, None, &[], DIFlags::ZERO);
        let scope = unit.as_debug_info_scope();
        let name = listing::FILE;
        let own = debug.create_function(scope, name, None, file, 0, ty, false, true, 0, DIFlags::ZERO, true);
        function.set_subprogram(own);
        Locations { debug, function: own, now: Cell::new(Loc::UNKNOWN) }
    }

    /// Ends what the module says of locations.
    pub(crate) fn finish(&self) {
        self.debug.finalize();
    }
}

/// An error of inkwell's as ours.
pub(crate) fn llvm(error: impl std::fmt::Display) -> Error {
    Error::Llvm(error.to_string())
}

/// Number of lanes; 0 for a scalar.
pub(crate) fn lanes_of(v: V<'_>) -> u32 {
    if let V::VectorValue(v) = v { v.get_type().get_size() } else { 0 }
}

/// The type of one lane.
pub(crate) fn lane_type<'c>(v: V<'c>) -> BasicTypeEnum<'c> {
    if let V::VectorValue(v) = v { v.get_type().get_element_type() } else { v.get_type() }
}

/// The type of `n` lanes of `ty`; `ty` itself where `n` is 0.
pub(crate) fn widen<'c>(ty: BasicTypeEnum<'c>, n: u32) -> BasicTypeEnum<'c> {
    if n == 0 {
        return ty;
    }
    match ty {
        BasicTypeEnum::IntType(t) => t.vec_type(n).into(),
        BasicTypeEnum::FloatType(t) => t.vec_type(n).into(),
        BasicTypeEnum::PointerType(t) => t.vec_type(n).into(),
        other => other,
    }
}

impl<'c> Ir<'c> {
    /// Sets where the instructions come from that are built next; returns what it was before.
    pub(crate) fn set_loc(&self, loc: Loc) -> Loc {
        let Some(locations) = &self.locations else { return Loc::UNKNOWN };
        let (scope, line) = (locations.function.as_debug_info_scope(), listing::line_of(loc));
        let place = locations.debug.create_debug_location(self.cx, line, 0, scope, None);
        self.b.set_current_debug_location(place);
        locations.now.replace(loc)
    }

    /// Integer type of so many bits.
    pub(crate) fn int_type(&self, bits: u32) -> IntType<'c> {
        match bits {
            1 => self.cx.bool_type(),
            8 => self.cx.i8_type(),
            16 => self.cx.i16_type(),
            32 => self.cx.i32_type(),
            _ => self.cx.i64_type(),
        }
    }

    /// The type of an element in registers: `f16` and `bf16` are held as `f32`.
    pub(crate) fn elem_type(&self, elem: Elem) -> BasicTypeEnum<'c> {
        match elem {
            Elem::F16 | Elem::Bf16 | Elem::F32 => self.cx.f32_type().into(),
            Elem::F64 => self.cx.f64_type().into(),
            other => self.int_type(other.bits()).into(),
        }
    }

    /// The type of an element in memory: narrow floats are 16-bit integers.
    pub(crate) fn memory_type(&self, elem: Elem) -> BasicTypeEnum<'c> {
        match elem {
            Elem::F32 | Elem::F64 => self.elem_type(elem),
            other => self.int_type(other.bytes() * 8).into(),
        }
    }

    /// An integer constant of the type of `like`.
    pub(crate) fn int_like(&self, like: V<'c>, value: i64) -> V<'c> {
        self.int_of(lane_type(like), lanes_of(like), value)
    }

    /// An integer constant with `n` lanes.
    pub(crate) fn int_of(&self, ty: BasicTypeEnum<'c>, n: u32, value: i64) -> V<'c> {
        match ty {
            BasicTypeEnum::IntType(t) => self.splat(t.const_int(value as u64, true).into(), n),
            other => self.splat(other.const_zero(), n),
        }
    }

    /// A floating-point constant of the type of `like`.
    pub(crate) fn float_like(&self, like: V<'c>, value: f64) -> V<'c> {
        match lane_type(like) {
            BasicTypeEnum::FloatType(t) => self.splat(t.const_float(value).into(), lanes_of(like)),
            other => self.splat(other.const_zero(), lanes_of(like)),
        }
    }

    /// An `i64` constant.
    pub(crate) fn i64(&self, value: i64) -> IntValue<'c> {
        self.cx.i64_type().const_int(value as u64, true)
    }

    /// A vector of integer constants.
    pub(crate) fn int_vector(&self, ty: IntType<'c>, values: &[i64]) -> V<'c> {
        let lanes: Vec<IntValue<'c>> = values.iter().map(|&v| ty.const_int(v as u64, true)).collect();
        VectorType::const_vector(&lanes).into()
    }

    /// A scalar repeated `n` times; `v` itself where `n` is 0 or `v` is a vector.
    pub(crate) fn splat(&self, v: V<'c>, n: u32) -> V<'c> {
        if n == 0 || lanes_of(v) > 0 {
            return v;
        }
        match v {
            V::IntValue(x) if x.is_const() => VectorType::const_vector(&vec![x; n as usize]).into(),
            V::FloatValue(x) if x.is_const() => VectorType::const_vector(&vec![x; n as usize]).into(),
            _ => self.splat_at_run_time(v, n),
        }
    }

    fn splat_at_run_time(&self, v: V<'c>, n: u32) -> V<'c> {
        let BasicTypeEnum::VectorType(ty) = widen(v.get_type(), n) else { return v };
        let zero = self.cx.i32_type().const_zero();
        let indices = VectorType::const_vector(&vec![zero; n as usize]);
        let inserted = self.b.build_insert_element(ty.get_poison(), v, zero, "");
        match inserted.and_then(|x| self.b.build_shuffle_vector(x, ty.get_poison(), indices, "")) {
            Ok(x) => x.into(),
            Err(_) => v,
        }
    }

    /// Makes vectors of all where one is a vector.
    pub(crate) fn match_lanes(&self, values: &mut [V<'c>]) {
        let n = values.iter().map(|&v| lanes_of(v)).max().unwrap_or(0);
        for v in values {
            *v = self.splat(*v, n);
        }
    }

    pub(crate) fn bin(&self, op: InstructionOpcode, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let mut args = [a, b];
        self.match_lanes(&mut args);
        self.b.build_binop(op, args[0], args[1], "").map_err(llvm)
    }

    /// A conversion to `to`, lane by lane.
    pub(crate) fn cast(&self, op: InstructionOpcode, v: V<'c>, to: BasicTypeEnum<'c>) -> Result<V<'c>> {
        let ty = widen(to, lanes_of(v));
        if v.get_type() == ty {
            return Ok(v);
        }
        self.b.build_cast(op, v, ty, "").map_err(llvm)
    }

    pub(crate) fn icmp(&self, predicate: IntPredicate, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let mut args = [a, b];
        self.match_lanes(&mut args);
        match args {
            [V::IntValue(a), V::IntValue(b)] => {
                self.b.build_int_compare(predicate, a, b, "").map(Into::into).map_err(llvm)
            }
            [V::VectorValue(a), V::VectorValue(b)] => {
                self.b.build_int_compare(predicate, a, b, "").map(Into::into).map_err(llvm)
            }
            _ => Err(llvm("comparison of something that is no integer")),
        }
    }

    pub(crate) fn fcmp(&self, predicate: FloatPredicate, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let mut args = [a, b];
        self.match_lanes(&mut args);
        match args {
            [V::FloatValue(a), V::FloatValue(b)] => {
                self.b.build_float_compare(predicate, a, b, "").map(Into::into).map_err(llvm)
            }
            [V::VectorValue(a), V::VectorValue(b)] => {
                self.b.build_float_compare(predicate, a, b, "").map(Into::into).map_err(llvm)
            }
            _ => Err(llvm("comparison of something that is no float")),
        }
    }

    pub(crate) fn select(&self, cond: V<'c>, a: V<'c>, b: V<'c>) -> Result<V<'c>> {
        let mut args = [a, b];
        self.match_lanes(&mut args);
        match cond {
            V::IntValue(c) => self.b.build_select(c, args[0], args[1], "").map_err(llvm),
            V::VectorValue(c) => {
                let n = lanes_of(cond);
                self.b.build_select(c, self.splat(args[0], n), self.splat(args[1], n), "").map_err(llvm)
            }
            _ => Err(llvm("selection by something that is no truth value")),
        }
    }

    pub(crate) fn not(&self, v: V<'c>) -> Result<V<'c>> {
        self.bin(InstructionOpcode::Xor, v, self.int_like(v, -1))
    }

    pub(crate) fn fneg(&self, v: V<'c>) -> Result<V<'c>> {
        match v {
            V::FloatValue(x) => self.b.build_float_neg(x, "").map(Into::into).map_err(llvm),
            V::VectorValue(x) => self.b.build_float_neg(x, "").map(Into::into).map_err(llvm),
            other => Ok(other),
        }
    }

    /// Calls an intrinsic that gives a value; operands are made vectors together.
    pub(crate) fn call(&self, name: &str, types: &[BasicTypeEnum<'c>], args: &[V<'c>]) -> Result<V<'c>> {
        let call = self.call_any(name, types, args)?;
        V::try_from(call.as_any_value_enum()).map_err(|()| llvm(format!("{name} gives no value")))
    }

    /// Calls an intrinsic.
    pub(crate) fn call_any(
        &self,
        name: &str,
        types: &[BasicTypeEnum<'c>],
        args: &[V<'c>],
    ) -> Result<inkwell::values::CallSiteValue<'c>> {
        let missing = || llvm(format!("no intrinsic {name}"));
        let intrinsic = Intrinsic::find(name).ok_or_else(missing)?;
        let function = intrinsic.get_declaration(&self.module, types).ok_or_else(missing)?;
        let args: Vec<BasicMetadataValueEnum<'c>> = args.iter().map(|&a| a.into()).collect();
        self.b.build_call(function, &args, "").map_err(llvm)
    }

    /// A vector of at most a register of an x86 processor, in a register: LLVM 22 makes one instruction of narrowing and
    /// storing where there is one, which makes no non-temporal store, and narrows a second time what is needed in a register, too.
    pub(crate) fn in_register(&self, v: V<'c>) -> Result<V<'c>> {
        let same = match v {
            V::VectorValue(v) => v.get_type().fn_type(&[v.get_type().into()], false),
            _ => return Ok(v),
        };
        let (code, constraints) = (String::new(), String::from("=x,0"));
        let identity = self.cx.create_inline_asm(same, code, constraints, false, false, None, false);
        let call = self.b.build_indirect_call(same, identity, &[v.into()], "").map_err(llvm)?;
        call.try_as_basic_value().basic().ok_or_else(|| llvm("no result"))
    }

    /// A vector of truth values that the compiler of LLVM's code knows nothing about.
    ///
    /// LLVM 22 turns a masked store of narrowed integers into a scalar store that is as wide as they were before, if it
    /// sees that the mask has one lane.
    pub(crate) fn opaque_mask(&self, mask: V<'c>) -> Result<V<'c>> {
        let n = std::num::NonZeroU32::new(lanes_of(mask)).ok_or_else(|| llvm("no lanes"))?;
        let (lanes, word) = (self.cx.custom_width_int_type(n).map_err(llvm)?, self.int_type(32));
        let bits = self.b.build_bit_cast(mask, lanes, "").map_err(llvm)?;
        let wide = self.cast(InstructionOpcode::ZExt, bits, word.into())?;
        let same = word.fn_type(&[word.into()], false);
        let (code, constraints) = (String::new(), String::from("=r,0"));
        let identity = self.cx.create_inline_asm(same, code, constraints, false, false, None, false);
        let call = self.b.build_indirect_call(same, identity, &[wide.into()], "").map_err(llvm)?;
        let hidden = call.try_as_basic_value().basic().ok_or_else(|| llvm("no result"))?;
        let bits = self.cast(InstructionOpcode::Trunc, hidden, lanes.into())?;
        self.b.build_bit_cast(bits, mask.get_type(), "").map_err(llvm)
    }

    /// A vector of truth values as the signs of a register's integers of so many bits, which LLVM knows nothing about; a constant as
    /// it is.
    pub(crate) fn opaque_signs(&self, mask: V<'c>, bits: u32) -> Result<V<'c>> {
        if matches!(mask, V::VectorValue(mask) if mask.is_const()) {
            return Ok(mask);
        }
        let ty = self.int_type(bits);
        let signs = self.cast(InstructionOpcode::SExt, mask, ty.into())?;
        let signs = self.in_register(signs)?;
        self.icmp(IntPredicate::SLT, signs, self.splat(ty.const_zero().into(), lanes_of(mask)))
    }

    /// An intrinsic of one overloaded type that all operands have.
    pub(crate) fn call_same(&self, name: &str, args: &[V<'c>]) -> Result<V<'c>> {
        let mut args = args.to_vec();
        self.match_lanes(&mut args);
        let ty = args.first().map(|a| a.get_type()).ok_or_else(|| llvm("no operands"))?;
        self.call(name, &[ty], &args)
    }

    /// Lanes of `a` and `b`, one after the other, chosen by index; `-1` is any.
    pub(crate) fn shuffle(&self, a: V<'c>, b: V<'c>, indices: &[i64]) -> Result<V<'c>> {
        let (V::VectorValue(a), V::VectorValue(b)) = (a, b) else { return Err(llvm("shuffle of scalars")) };
        let i32_type = self.cx.i32_type();
        let lane = |&i: &i64| if i < 0 { i32_type.get_undef() } else { i32_type.const_int(i as u64, false) };
        let mask: Vec<IntValue<'c>> = indices.iter().map(lane).collect();
        self.b.build_shuffle_vector(a, b, VectorType::const_vector(&mask), "").map(Into::into).map_err(llvm)
    }

    /// One lane.
    pub(crate) fn extract(&self, v: V<'c>, lane: u32) -> Result<V<'c>> {
        let index = self.cx.i32_type().const_int(u64::from(lane), false);
        match v {
            V::VectorValue(x) => self.b.build_extract_element(x, index, "").map_err(llvm),
            scalar => Ok(scalar),
        }
    }

    /// The address of element `index` of an array of `ty`.
    pub(crate) fn element(
        &self,
        ty: BasicTypeEnum<'c>,
        ptr: PointerValue<'c>,
        index: IntValue<'c>,
    ) -> Result<PointerValue<'c>> {
        // SAFETY: building the instruction reads only LLVM objects of this context; the index is an integer and the
        // type is sized.
        unsafe { self.b.build_gep(ty, ptr, &[index], "") }.map_err(llvm)
    }

    /// The addresses of the elements at a vector of indices.
    pub(crate) fn elements(
        &self,
        ty: BasicTypeEnum<'c>,
        ptr: PointerValue<'c>,
        indices: V<'c>,
    ) -> Result<V<'c>> {
        // SAFETY: LLVM's instruction takes a vector of integers as it does an integer and gives a vector of pointers;
        // the wrapper types only hold the reference.
        unsafe {
            let index = IntValue::new(indices.as_value_ref());
            let gep = self.b.build_gep(ty, ptr, &[index], "").map_err(llvm)?;
            Ok(VectorValue::new(gep.as_value_ref()).into())
        }
    }

    pub(crate) fn load(&self, ty: BasicTypeEnum<'c>, ptr: PointerValue<'c>, align: u32) -> Result<V<'c>> {
        let value = self.b.build_load(ty, ptr, "").map_err(llvm)?;
        if let Some(instruction) = value.as_instruction_value() {
            instruction.set_alignment(align).map_err(llvm)?;
        }
        Ok(value)
    }

    pub(crate) fn store(&self, value: V<'c>, ptr: PointerValue<'c>, align: u32) -> Result<()> {
        self.b.build_store(ptr, value).map_err(llvm)?.set_alignment(align).map_err(llvm)
    }

    /// A non-temporal store.
    pub(crate) fn store_past(&self, value: V<'c>, ptr: PointerValue<'c>, align: u32) -> Result<()> {
        let store = self.b.build_store(ptr, value).map_err(llvm)?;
        store.set_alignment(align).map_err(llvm)?;
        let one = self.cx.i32_type().const_int(1, false);
        let node = self.cx.metadata_node(&[one.into()]);
        store.set_metadata(node, self.cx.get_kind_id("nontemporal")).map_err(llvm)
    }
}

impl<'c> Ir<'c> {
    /// The type of an element of a slot: as in registers, truth values as bytes.
    pub(crate) fn storage_type(&self, elem: Elem) -> BasicTypeEnum<'c> {
        if elem == Elem::Bool { self.int_type(8).into() } else { self.elem_type(elem) }
    }
}
