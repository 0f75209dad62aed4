//! Printing and assertions: calls of functions of this crate, with a note that says what is meant.

use inkwell::AddressSpace;
use inkwell::module::Linkage;
use inkwell::values::{BasicMetadataValueEnum, FunctionValue, InstructionOpcode as Op, PointerValue};
use tilefuse_block::Op as BlockOp;

use super::ir::{V, llvm};
use super::whole::int;
use super::{Emitter, INSTANCE};
use crate::Result;
use crate::host::launch::{ASSERT, Note, PRINT};

/// Where the launch stands among the words after the arguments.
const LAUNCH: usize = 3;

impl<'c> Emitter<'c, '_> {
    pub(super) fn print(&mut self, op: &BlockOp, prefix: &str, hex: bool) -> Result<()> {
        let tiles = self.tiles(&op.args)?;
        let pointer = self.ir.cx.ptr_type(AddressSpace::default());
        let zero: V<'c> = pointer.array_type(tiles.len() as u32).const_zero().into();
        let list = self.variable(zero)?;
        for (index, tile) in tiles.iter().enumerate() {
            let place = self.ir.element(pointer.into(), list, self.ir.i64(index as i64))?;
            self.ir.store(tile.memory.into(), place, 8)?;
        }
        let types = op.args.iter().map(|&v| self.plan.program.ty(v).clone()).collect();
        let note = Note { program: self.plan.program.name.clone(), text: prefix.to_owned(), hex, types };
        self.call_out(PRINT, &note, list)
    }

    pub(super) fn assert(&mut self, op: &BlockOp, message: &str, masked: bool) -> Result<()> {
        let tiles = self.tiles(&op.args)?;
        let Some(&condition) = tiles.first() else { return Err(llvm("no condition")) };
        let mask = tiles.get(1).copied().filter(|_| masked);
        let ty =
            op.args.first().map(|&v| self.plan.program.ty(v).clone()).ok_or_else(|| llvm("no condition"))?;
        let n = self.lanes_for(ty.numel());
        let step = u64::from(n.max(1));
        let pointer = self.ir.cx.ptr_type(AddressSpace::default());
        let zero: V<'c> = pointer.array_type(2).const_zero().into();
        let list = self.variable(zero)?;
        let note = Note {
            program: self.plan.program.name.clone(),
            text: message.to_owned(),
            hex: false,
            types: vec![ty.clone(); tiles.len()],
        };
        self.each(ty.numel() / step, |this, chunk| {
            let at = this.linear(chunk, step, this.ir.i64(0))?;
            let mut bad = this.ir.not(this.get(condition, at, n)?)?;
            if let Some(mask) = mask {
                bad = this.ir.bin(Op::And, bad, this.get(mask, at, n)?)?;
            }
            let failed = this.any(bad)?;
            this.when(failed, |this| {
                for (index, tile) in tiles.iter().enumerate() {
                    let place = this.ir.element(pointer.into(), list, this.ir.i64(index as i64))?;
                    this.ir.store(tile.memory.into(), place, 8)?;
                }
                this.call_out(ASSERT, &note, list)?;
                this.leave()
            })
        })
    }

    /// Ends the function; what is built next at the top level is never reached.
    fn leave(&mut self) -> Result<()> {
        let top = self.top();
        self.ir.b.build_return(None).map_err(llvm)?;
        self.levels[top].block = self.ir.cx.append_basic_block(self.function, "");
        self.at(top);
        Ok(())
    }

    /// Calls a function with the launch, the instance, a note and a list of tiles' addresses.
    fn call_out(&mut self, name: &str, note: &Note, tiles: PointerValue<'c>) -> Result<()> {
        let launch = self.word(LAUNCH)?;
        let instance = self.levels[INSTANCE].counter.ok_or_else(|| llvm("no instance loop"))?;
        let bytes = note.to_bytes();
        let length = self.ir.i64(bytes.len() as i64);
        let note = self.constant_bytes(&bytes);
        let function = self.outer_function(name);
        let top = self.top();
        self.at(top);
        let args: [BasicMetadataValueEnum<'c>; 5] =
            [int(launch)?.into(), instance.into(), note.into(), length.into(), tiles.into()];
        self.ir.b.build_call(function, &args, "").map_err(llvm)?;
        Ok(())
    }

    fn constant_bytes(&self, bytes: &[u8]) -> PointerValue<'c> {
        let text = self.ir.cx.const_string(bytes, false);
        let global = self.ir.module.add_global(text.get_type(), None, "note");
        global.set_initializer(&text);
        global.set_constant(true);
        global.set_linkage(Linkage::Private);
        global.as_pointer_value()
    }

    fn outer_function(&self, name: &str) -> FunctionValue<'c> {
        if let Some(function) = self.ir.module.get_function(name) {
            return function;
        }
        let (word, pointer) = (self.ir.int_type(64), self.ir.cx.ptr_type(AddressSpace::default()));
        let args = [word.into(), word.into(), pointer.into(), word.into(), pointer.into()];
        self.ir.module.add_function(name, self.ir.cx.void_type().fn_type(&args, false), None)
    }
}
