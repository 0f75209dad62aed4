//! Buffers with their checks.

use super::{Arg, Buffer, Conflict, Fault};
use crate::data::{Data, Element, with_elements, with_type};
use crate::print::value_name;
use crate::program::{Param, Program, Value};
use crate::types::Literal;

/// Who touched an element: instances are counted from 1.
#[derive(Clone, Copy, Default)]
struct Shadow {
    /// The last instance that wrote it, 0 for none.
    writer: u32,
    /// The instance that read it, 0 for none, `MANY` for several.
    reader: u32,
    /// The last store that wrote it, counted from 1.
    store: u32,
}

const MANY: u32 = u32::MAX;

enum Slot<'a> {
    Scalar(Literal),
    Buffer(Checked<'a>),
}

/// A buffer that a pointer argument points to.
struct Checked<'a> {
    program: &'a Program,
    pointer: Value,
    buffer: &'a mut Buffer,
    /// Elements that may be addressed.
    len: usize,
    shadow: Option<Vec<Shadow>>,
}

/// The buffers of a run, by position among the arguments.
pub(super) struct Memory<'a> {
    slots: Vec<Slot<'a>>,
    stores: u32,
}

/// Which elements a load or store touches.
pub(super) struct Access<'a> {
    /// Position of the buffer among the arguments.
    pub(super) buffer: usize,
    /// Offsets in elements.
    pub(super) offsets: &'a [i64],
    /// Which of them take part.
    pub(super) mask: Option<&'a [bool]>,
    /// The instance, counted from 1.
    pub(super) instance: u32,
}

impl<'a> Memory<'a> {
    pub(super) fn new(program: &'a Program, args: &'a mut [Arg], races: bool) -> Memory<'a> {
        let slots = args.iter_mut().zip(&program.params).map(|(arg, param)| match arg {
            Arg::Scalar(literal) => Slot::Scalar(*literal),
            Arg::Buffer(buffer) => Slot::Buffer(Checked::new(program, param, buffer, races)),
        });
        Memory { slots: slots.collect(), stores: 0 }
    }

    /// The scalar argument at this position, if it is one.
    pub(super) fn scalar(&self, index: usize) -> Option<Literal> {
        match self.slots.get(index) {
            Some(Slot::Scalar(literal)) => Some(*literal),
            _ => None,
        }
    }

    fn buffer(&mut self, index: usize) -> Result<&mut Checked<'a>, Fault> {
        match self.slots.get_mut(index) {
            Some(Slot::Buffer(buffer)) => Ok(buffer),
            _ => Err(Fault::Malformed),
        }
    }

    /// Reads elements into a copy of `other`, whose masked-off elements stay.
    pub(super) fn load(&mut self, access: &Access<'_>, other: Data) -> Result<Data, Fault> {
        let slot = self.buffer(access.buffer)?;
        with_type!(slot.buffer.elem, T => slot.load::<T>(access, other))
    }

    /// Writes elements.
    pub(super) fn store(&mut self, access: &Access<'_>, values: &Data) -> Result<(), Fault> {
        self.stores = self.stores.wrapping_add(1).max(1);
        let store = self.stores;
        let slot = self.buffer(access.buffer)?;
        if values.elem() != slot.buffer.elem {
            return Err(Fault::Malformed);
        }
        with_elements!(values, v => slot.store(access, v, store))
    }
}

impl<'a> Checked<'a> {
    fn new(program: &'a Program, param: &Param, buffer: &'a mut Buffer, races: bool) -> Checked<'a> {
        let limit = param.len.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let len = buffer.len().min(limit);
        let shadow = races.then(|| vec![Shadow::default(); len]);
        Checked { program, pointer: param.value, buffer, len, shadow }
    }

    fn load<T: Element>(&mut self, access: &Access<'_>, other: Data) -> Result<Data, Fault> {
        let mut out = T::into_vec(other).ok_or(Fault::Malformed)?;
        let size = size_of::<T>();
        for (element, out) in out.iter_mut().enumerate() {
            let Some(index) = self.index(access, element)? else { continue };
            if self.buffer.written.as_ref().is_some_and(|w| w.get(index) != Some(&true)) {
                let offset = index as i64;
                return Err(Fault::Uninitialized { pointer: self.name(), offset, element });
            }
            self.mark_read(access, index, element)?;
            let bytes = self.buffer.bytes.get(index * size..(index + 1) * size).ok_or(Fault::Malformed)?;
            *out = T::read_le(bytes).ok_or(Fault::Malformed)?;
        }
        Ok(T::wrap(out))
    }

    fn store<T: Element>(&mut self, access: &Access<'_>, values: &[T], store: u32) -> Result<(), Fault> {
        let size = size_of::<T>();
        for (element, value) in values.iter().enumerate() {
            let Some(index) = self.index(access, element)? else { continue };
            let bits = value.to_bits64().to_le_bytes();
            let range = index * size..(index + 1) * size;
            let old = self.buffer.bytes.get(range.clone()).ok_or(Fault::Malformed)?;
            let same = old == &bits[..size];
            self.mark_write(access, index, element, store, same)?;
            self.buffer.bytes[range].copy_from_slice(&bits[..size]);
            if let Some(written) = self.buffer.written.as_mut().and_then(|w| w.get_mut(index)) {
                *written = true;
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        value_name(self.program, self.pointer)
    }

    /// The index that an element of the tile addresses, `None` where it is masked off.
    fn index(&self, access: &Access<'_>, element: usize) -> Result<Option<usize>, Fault> {
        if access.mask.is_some_and(|m| m.get(element) != Some(&true)) {
            return Ok(None);
        }
        let offset = *access.offsets.get(element).ok_or(Fault::Malformed)?;
        match usize::try_from(offset) {
            Ok(index) if index < self.len => Ok(Some(index)),
            _ => Err(Fault::OutOfBounds { pointer: self.name(), offset, element, len: self.len }),
        }
    }

    fn mark_read(&mut self, access: &Access<'_>, index: usize, element: usize) -> Result<(), Fault> {
        let Some(shadow) = self.shadow.as_mut().and_then(|s| s.get_mut(index)) else { return Ok(()) };
        if shadow.writer != 0 && shadow.writer != access.instance {
            return Err(self.race(index, element, Conflict::ReadOfWritten));
        }
        let first = shadow.reader == 0 || shadow.reader == access.instance;
        shadow.reader = if first { access.instance } else { MANY };
        Ok(())
    }

    fn mark_write(
        &mut self,
        access: &Access<'_>,
        index: usize,
        element: usize,
        store: u32,
        same: bool,
    ) -> Result<(), Fault> {
        let Some(shadow) = self.shadow.as_mut().and_then(|s| s.get_mut(index)) else { return Ok(()) };
        let other_writer = shadow.writer != 0 && shadow.writer != access.instance;
        let other_reader = shadow.reader != 0 && shadow.reader != access.instance;
        let same_store = shadow.store == store;
        *shadow = Shadow { writer: access.instance, store, ..*shadow };
        match () {
            () if other_reader => Err(self.race(index, element, Conflict::WriteOfRead)),
            () if other_writer && !same => Err(self.race(index, element, Conflict::WriteOfWritten)),
            () if same_store && !same => Err(self.race(index, element, Conflict::SameStore)),
            () => Ok(()),
        }
    }

    fn race(&self, index: usize, element: usize, conflict: Conflict) -> Fault {
        Fault::Race { pointer: self.name(), offset: index as i64, element, conflict }
    }
}
