//! Values of other lanes of the warp.

use tilefuse_block::Elem;

use super::ir::{Val, ty};
use super::lower::Lower;

impl Lower<'_> {
    /// The value of the lane whose number differs by `lanes`.
    pub(crate) fn exchange(&mut self, elem: Elem, value: &Val, lanes: u32) -> Val {
        self.through_words(elem, value, &mut |lower, word| lower.shuffle("bfly", word, &lanes.to_string()))
    }

    /// The value of the lane of number `lane`.
    pub(crate) fn value_of_lane(&mut self, elem: Elem, value: &Val, lane: &Val) -> Val {
        self.through_words(elem, value, &mut |lower, word| lower.shuffle("idx", word, lane))
    }

    /// Moves a value as 32-bit integers.
    fn through_words(&mut self, elem: Elem, value: &Val, go: &mut dyn FnMut(&mut Self, &Val) -> Val) -> Val {
        let t = ty(elem);
        let bits = elem.bits();
        let as_int = match elem {
            Elem::F64 => self.ir.def(format_args!("bitcast double {value} to i64")),
            Elem::F32 => self.ir.def(format_args!("bitcast float {value} to i32")),
            Elem::F16 | Elem::Bf16 => {
                let narrow = self.ir.def(format_args!("bitcast {t} {value} to i16"));
                self.ir.def(format_args!("zext i16 {narrow} to i32"))
            }
            _ if bits < 32 => self.ir.def(format_args!("zext {t} {value} to i32")),
            _ => value.clone(),
        };
        let moved = if bits == 64 {
            let low = self.ir.def(format_args!("trunc i64 {as_int} to i32"));
            let shifted = self.ir.def(format_args!("lshr i64 {as_int}, 32"));
            let high = self.ir.def(format_args!("trunc i64 {shifted} to i32"));
            let (low, high) = (go(self, &low), go(self, &high));
            let low = self.ir.def(format_args!("zext i32 {low} to i64"));
            let high = self.ir.def(format_args!("zext i32 {high} to i64"));
            let high = self.ir.def(format_args!("shl i64 {high}, 32"));
            self.ir.def(format_args!("or disjoint i64 {high}, {low}"))
        } else {
            go(self, &as_int)
        };
        match elem {
            Elem::F64 => self.ir.def(format_args!("bitcast i64 {moved} to double")),
            Elem::F32 => self.ir.def(format_args!("bitcast i32 {moved} to float")),
            Elem::F16 | Elem::Bf16 => {
                let narrow = self.ir.def(format_args!("trunc i32 {moved} to i16"));
                self.ir.def(format_args!("bitcast i16 {narrow} to {t}"))
            }
            _ if bits < 32 => self.ir.def(format_args!("trunc i32 {moved} to {t}")),
            _ => moved,
        }
    }

    pub(crate) fn shuffle(&mut self, how: &str, value: &Val, lanes: &str) -> Val {
        self.ir
            .declare(&format!("i32 @llvm.nvvm.shfl.sync.{how}.i32(i32, i32, i32, i32) convergent nounwind"));
        self.ir.def(format_args!(
            "call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 -1, i32 {value}, i32 {lanes}, i32 31)"
        ))
    }
}
