//! Buffers with their checks.

use super::{Arg, Buffer, Conflict, Fault};
use crate::data::{Data, Element, with_elements, with_type};
use crate::print::value_name;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::program::{MemoryOrder, OpKind, Param, Program, Value};
use crate::types::Literal;

/// Who touched an element: instances are counted from 1.
#[derive(Clone, Copy, Default)]
struct Shadow {
    /// The last instance that wrote it, 0 for none.
    writer: u32,
    /// The last store that wrote it, counted from 1.
    store: u32,
    /// The instance that read it, 0 for none, [`SEVERAL_INSTANCES`] for several.
    reader: u32,
    /// The instance that changed it atomically, 0 for none, [`SEVERAL_INSTANCES`] for several.
    atomic: u32,
}

const SEVERAL_INSTANCES: u32 = u32::MAX;

/// What is done to an element.
#[derive(Clone, Copy)]
enum Touch {
    Read,
    /// By the store of this number; whether it writes the bits that are there.
    Write {
        store: u32,
        same: bool,
    },
    Atomic,
}

/// All that read an element, or changed it atomically, where these are several: elements by index and whether it is
/// about atomic changes. Nothing where no operation of the program orders instances, so that it does not matter who.
type Several = Option<FxHashMap<(usize, bool), Vec<u32>>>;

/// Adds an instance to those that touched an element in one way. Instances come one after the other.
fn add(who: &mut u32, several: &mut Several, key: (usize, bool), now: u32) {
    if *who != SEVERAL_INSTANCES && (*who == 0 || *who == now) {
        *who = now;
        return;
    }
    if let Some(several) = several {
        let all = several.entry(key).or_insert_with(|| vec![*who]);
        if all.last() != Some(&now) {
            all.push(now);
        }
    }
    *who = SEVERAL_INSTANCES;
}

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
    several: Several,
}

/// The buffers of a run, by position among the arguments.
pub(super) struct Memory<'a> {
    slots: Vec<Slot<'a>>,
    stores: u32,
    order: Order,
}

/// What atomic operations order.
#[derive(Default)]
struct Order {
    /// For elements by buffer and index, the instances whose earlier accesses an acquiring one comes after.
    released: FxHashMap<(usize, usize), FxHashSet<u32>>,
    /// The instances whose accesses come before what the present one does.
    before: FxHashSet<u32>,
}

impl Order {
    /// Whether what an instance did may be concurrent with what the present one, `now`, does.
    fn is_concurrent(&self, instance: u32, now: u32) -> bool {
        instance != 0 && instance != now && !self.before.contains(&instance)
    }

    fn pass(&mut self, place: (usize, usize), now: u32, order: MemoryOrder) {
        if matches!(order, MemoryOrder::Acquire | MemoryOrder::AcqRel)
            && let Some(released) = self.released.get(&place)
        {
            self.before.extend(released);
        }
        if matches!(order, MemoryOrder::Release | MemoryOrder::AcqRel) {
            let released = self.released.entry(place).or_default();
            released.extend(&self.before);
            released.insert(now);
        }
    }
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
        let mut ordered = false;
        program.walk(&mut |op| {
            ordered |= match op.kind {
                OpKind::Atomic { order, .. } | OpKind::AtomicCas { order, .. } => {
                    order != MemoryOrder::Relaxed
                }
                _ => false,
            };
        });
        let slots = args.iter_mut().zip(&program.params).map(|(arg, param)| match arg {
            Arg::Scalar(literal) => Slot::Scalar(*literal),
            Arg::Buffer(buffer) => {
                let several = ordered.then(FxHashMap::default);
                Slot::Buffer(Checked::new(program, param, buffer, races, several))
            }
        });
        Memory { slots: slots.collect(), stores: 0, order: Order::default() }
    }

    /// The scalar argument at this position, if it is one.
    pub(super) fn scalar(&self, index: usize) -> Option<Literal> {
        match self.slots.get(index) {
            Some(Slot::Scalar(literal)) => Some(*literal),
            _ => None,
        }
    }

    /// What comes next is another instance's doing.
    pub(super) fn next_instance(&mut self) {
        self.order.before.clear();
    }

    fn buffer(&mut self, index: usize) -> Result<(&mut Checked<'a>, &mut Order), Fault> {
        match self.slots.get_mut(index) {
            Some(Slot::Buffer(buffer)) => Ok((buffer, &mut self.order)),
            _ => Err(Fault::Malformed),
        }
    }

    /// Reads elements into a copy of `other`, whose masked-off elements stay.
    pub(super) fn load(&mut self, access: &Access<'_>, other: Data) -> Result<Data, Fault> {
        let (slot, order) = self.buffer(access.buffer)?;
        with_type!(slot.buffer.elem, T => slot.load::<T>(access, order, other))
    }

    /// Changes elements one after the other: `change` is given what an element is and its position in the tile, and
    /// returns what it becomes, if it changes. Gives what they were, 0 where masked off.
    pub(super) fn atomic(
        &mut self,
        access: &Access<'_>,
        memory_order: MemoryOrder,
        mut change: impl FnMut(&Data, usize) -> Option<Option<Data>>,
    ) -> Result<Data, Fault> {
        let (slot, order) = self.buffer(access.buffer)?;
        let size = slot.buffer.elem.bytes() as usize;
        let mut old = vec![0; access.offsets.len() * size];
        for element in 0..access.offsets.len() {
            let Some(index) = slot.index(access, element)? else { continue };
            slot.check_written(index, element)?;
            slot.mark(access, order, (index, element), Touch::Atomic)?;
            order.pass((access.buffer, index), access.instance, memory_order);
            let place =
                slot.buffer.bytes.get_mut(index * size..(index + 1) * size).ok_or(Fault::Malformed)?;
            old[element * size..(element + 1) * size].copy_from_slice(place);
            let before = Data::from_bytes(slot.buffer.elem, place);
            if let Some(after) = change(&before, element).ok_or(Fault::Malformed)? {
                place.copy_from_slice(&after.to_bytes());
            }
        }
        Ok(Data::from_bytes(slot.buffer.elem, &old))
    }

    /// Writes elements.
    pub(super) fn store(&mut self, access: &Access<'_>, values: &Data) -> Result<(), Fault> {
        self.stores = self.stores.wrapping_add(1).max(1);
        let store = self.stores;
        let (slot, order) = self.buffer(access.buffer)?;
        if values.elem() != slot.buffer.elem {
            return Err(Fault::Malformed);
        }
        with_elements!(values, v => slot.store(access, order, v, store))
    }
}

impl<'a> Checked<'a> {
    fn new(
        program: &'a Program,
        param: &Param,
        buffer: &'a mut Buffer,
        races: bool,
        several: Several,
    ) -> Checked<'a> {
        let limit = param.len.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let len = buffer.len().min(limit);
        let shadow = races.then(|| vec![Shadow::default(); len]);
        Checked { program, pointer: param.value, buffer, len, shadow, several }
    }

    fn check_written(&self, index: usize, element: usize) -> Result<(), Fault> {
        if self.buffer.written.as_ref().is_none_or(|w| w.get(index) == Some(&true)) {
            return Ok(());
        }
        Err(Fault::Uninitialized { pointer: self.name(), offset: index as i64, element })
    }

    fn load<T: Element>(&mut self, access: &Access<'_>, order: &Order, other: Data) -> Result<Data, Fault> {
        let mut out = T::into_vec(other).ok_or(Fault::Malformed)?;
        let size = size_of::<T>();
        for (element, out) in out.iter_mut().enumerate() {
            let Some(index) = self.index(access, element)? else { continue };
            self.check_written(index, element)?;
            self.mark(access, order, (index, element), Touch::Read)?;
            let bytes = self.buffer.bytes.get(index * size..(index + 1) * size).ok_or(Fault::Malformed)?;
            *out = T::read_le(bytes).ok_or(Fault::Malformed)?;
        }
        Ok(T::wrap(out))
    }

    fn store<T: Element>(
        &mut self,
        access: &Access<'_>,
        order: &Order,
        values: &[T],
        store: u32,
    ) -> Result<(), Fault> {
        let size = size_of::<T>();
        for (element, value) in values.iter().enumerate() {
            let Some(index) = self.index(access, element)? else { continue };
            let bits = value.to_bits64().to_le_bytes();
            let range = index * size..(index + 1) * size;
            let old = self.buffer.bytes.get(range.clone()).ok_or(Fault::Malformed)?;
            let same = old == &bits[..size];
            self.mark(access, order, (index, element), Touch::Write { store, same })?;
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

    /// Notes that an instance touches an element; an error where that may be concurrent with what another one did.
    fn mark(
        &mut self,
        access: &Access<'_>,
        order: &Order,
        (index, element): (usize, usize),
        touch: Touch,
    ) -> Result<(), Fault> {
        let Some(shadow) = self.shadow.as_mut().and_then(|s| s.get_mut(index)) else { return Ok(()) };
        let now = access.instance;
        let concurrent = |who: u32, atomic: bool| match &self.several {
            Some(several) if who == SEVERAL_INSTANCES => several
                .get(&(index, atomic))
                .is_some_and(|all| all.iter().any(|&who| order.is_concurrent(who, now))),
            _ => order.is_concurrent(who, now),
        };
        let writer = order.is_concurrent(shadow.writer, now);
        let (reader, atomic) = (concurrent(shadow.reader, false), concurrent(shadow.atomic, true));
        let conflict = match touch {
            Touch::Read if writer || atomic => Some(Conflict::ReadOfWritten),
            Touch::Write { .. } | Touch::Atomic if reader => Some(Conflict::WriteOfRead),
            Touch::Write { same, .. } if atomic || writer && !same => Some(Conflict::WriteOfWritten),
            Touch::Write { store, same: false } if shadow.store == store => Some(Conflict::SameStore),
            Touch::Atomic if writer => Some(Conflict::WriteOfWritten),
            _ => None,
        };
        match touch {
            Touch::Read => add(&mut shadow.reader, &mut self.several, (index, false), now),
            Touch::Atomic => add(&mut shadow.atomic, &mut self.several, (index, true), now),
            Touch::Write { store, .. } => (shadow.writer, shadow.store) = (now, store),
        }
        conflict.map_or(Ok(()), |conflict| Err(self.race(index, element, conflict)))
    }

    fn race(&self, index: usize, element: usize, conflict: Conflict) -> Fault {
        Fault::Race { pointer: self.name(), offset: index as i64, element, conflict }
    }
}
