//! Printing and assertions.

use tilefuse_block::{Elem, Op, OpKind};

use super::ir::{Val, ty};
use super::lower::Lower;
use crate::error::Result;
use crate::layout::{Layout, axis_bits};

/// The most numbers that one line has: the instance, an index and a value.
const MAX_NUMBERS: usize = 9;

impl<'a> Lower<'a> {
    /// Prints every element once, by the thread that owns it, as the interpreter does; floats with as many digits as
    /// tell them apart.
    pub(crate) fn print(&mut self, op: &'a Op, prefix: &str, hex: bool) -> Result<()> {
        let prefix = prefix.replace('%', "%%");
        let room = self.ir.entry_def(format_args!("alloca [{MAX_NUMBERS} x i64], align 8"));
        let instance: Vec<Val> = (0..3).map(|axis| self.instance_number(axis)).collect();
        if op.args.is_empty() {
            let everyone = Layout::scalar(self.plan.warps).replicated_threads();
            let first = self.threads_zero(everyone);
            let line = format!("pid (%lld, %lld, %lld) {prefix}\n");
            self.where_true(&first, |lower| lower.print_line(&line, &room, &instance));
        }
        for &value in &op.args {
            let layout = self.plan.home(value);
            let elem = self.elem(value)?;
            let regs = self.get(value, &layout)?;
            let index = vec!["%lld"; layout.shape().len()].join(", ");
            let form = form(elem, hex);
            let line = format!("pid (%lld, %lld, %lld) idx ({index}) {prefix}: {form}\n");
            let owner = self.threads_zero(layout.replicated_threads());
            let thread = self.thread_part(&layout);
            self.where_true(&owner, |lower| {
                for (r, value) in regs.iter().enumerate() {
                    let mut numbers = instance.clone();
                    numbers.extend(lower.coordinates(&layout, &thread, r));
                    numbers.push(lower.printed(elem, value, hex));
                    lower.print_line(&line, &room, &numbers);
                }
            });
        }
        Ok(())
    }

    fn instance_number(&mut self, axis: usize) -> Val {
        let axis = ["x", "y", "z"][axis];
        let id = self.ir.intrinsic(&format!("llvm.nvvm.read.ptx.sreg.ctaid.{axis}"), "i32", &[]);
        self.ir.def(format_args!("zext i32 {id} to i64"))
    }

    /// The index of the element in a register.
    fn coordinates(&mut self, layout: &Layout, thread: &Val, r: usize) -> Vec<Val> {
        let number = self.ir.def(format_args!("or i32 {thread}, {}", layout.reg_offset(r)));
        let coordinate = |axis: usize| {
            let bits = axis_bits(layout.shape(), axis);
            if bits.is_empty() {
                return "0".into();
            }
            let moved = self.ir.def(format_args!("lshr i32 {number}, {}", bits.start));
            let index = self.ir.def(format_args!("and i32 {moved}, {}", (1u64 << bits.len()) - 1));
            self.ir.def(format_args!("zext i32 {index} to i64"))
        };
        (0..layout.shape().len()).map(coordinate).collect()
    }

    /// An element as 64 bits that `vprintf` takes.
    fn printed(&mut self, elem: Elem, value: &Val, hex: bool) -> Val {
        let t = ty(elem);
        if elem == Elem::Bool {
            let [yes, no] = ["true", "false"].map(|word| self.text(word));
            let word = self.ir.def(format_args!("select i1 {value}, ptr {yes}, ptr {no}"));
            return self.ir.def(format_args!("ptrtoint ptr {word} to i64"));
        }
        if elem.is_float() {
            let wide = match elem {
                Elem::F64 => value.clone(),
                _ => self.ir.def(format_args!("fpext {t} {value} to double")),
            };
            return self.ir.def(format_args!("bitcast double {wide} to i64"));
        }
        let extension = if elem.is_signed_int() && !hex { "sext" } else { "zext" };
        if elem.bits() == 64 {
            return value.clone();
        }
        self.ir.def(format_args!("{extension} {t} {value} to i64"))
    }

    fn print_line(&mut self, line: &str, room: &Val, numbers: &[Val]) {
        for (i, number) in numbers.iter().enumerate() {
            let place = self.ir.def(format_args!("getelementptr i64, ptr {room}, i64 {i}"));
            self.ir.raw(format_args!("store i64 {number}, ptr {place}, align 8"));
        }
        let text = self.text(line);
        self.ir.declare("i32 @vprintf(ptr, ptr)");
        self.ir.def(format_args!("call i32 @vprintf(ptr {text}, ptr {room})"));
    }

    /// A text in memory.
    fn text(&mut self, text: &str) -> Val {
        let bytes = text.bytes().chain([0]);
        let spelled: String = bytes
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("\\{b:02X}") })
            .collect();
        let name = self.ir.constant(&format!("[{} x i8] c\"{spelled}\"", text.len() + 1));
        format!("addrspacecast (ptr addrspace(1) {name} to ptr)").into()
    }

    /// Code that only threads run in which the condition holds.
    fn where_true(&mut self, condition: &Val, inside: impl FnOnce(&mut Self)) {
        let n = self.ir.label();
        let (go, end) = (format!("go{n}"), format!("end{n}"));
        self.ir.raw(format_args!("br i1 {condition}, label %{go}, label %{end}"));
        self.ir.begin(&go);
        inside(self);
        self.ir.raw(format_args!("br label %{end}"));
        self.ir.begin(&end);
    }

    /// Ends the launch where an element is false.
    pub(crate) fn assert(&mut self, op: &'a Op, message: &str) -> Result<()> {
        let layout = self.plan.home(op.args[0]);
        let holds = self.get(op.args[0], &layout)?;
        let mask = match op.kind {
            OpKind::Assert { masked: true, .. } => Some(self.get(op.args[1], &layout)?),
            _ => None,
        };
        let mut wrong: Val = "false".into();
        for (r, holds) in holds.iter().enumerate() {
            let mut fails = self.ir.def(format_args!("xor i1 {holds}, true"));
            if let Some(mask) = &mask {
                fails = self.ir.def(format_args!("and i1 {fails}, {}", mask[r]));
            }
            wrong = self.ir.def(format_args!("or i1 {wrong}, {fails}"));
        }
        let (message, name) = (self.text(message), self.text(&self.program().name));
        self.ir.declare("void @__assertfail(ptr, ptr, i32, ptr, i64)");
        self.where_true(&wrong, |lower| {
            lower.ir.raw(format_args!(
                "call void @__assertfail(ptr {message}, ptr {name}, i32 0, ptr {name}, i64 1)"
            ));
        });
        Ok(())
    }
}

/// How `vprintf` writes an element of a kind.
fn form(elem: Elem, hex: bool) -> &'static str {
    match elem {
        Elem::Bool => "%s",
        Elem::F64 => "%.17g",
        _ if elem.is_float() => "%.9g",
        _ if hex => "0x%llx",
        Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64 => "%llu",
        _ => "%lld",
    }
}
