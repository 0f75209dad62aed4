//! Conversion lowering: how a tile comes from the layout that it is held in to the one that an operation wants.
//!
//! Where every thread has what it needs, it takes that from its registers; where its warp has it, and bits of the lane's number
//! change places with bits of the register's, lanes exchange it. Else all go through shared memory: neighbours together where
//! threads have or want some ([`super::vector_convert`]), or element by element.
//!
//! ```text
//! kernel @transpose(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(4)) warps(4) {
//!   %r = range 0 32
//!   %rows = expand_dims %r axis 1
//!   %cols = expand_dims %r axis 0
//!   %long = const 32 : tile<32x1xi32>
//!   %wide = const 32 : tile<1x32xi32>
//!   %down = map mul %rows, %long
//!   %right = map mul %cols, %wide
//!   %a = broadcast %down [32, 32]
//!   %b = broadcast %cols [32, 32]
//!   %from = map add %a, %b
//!   %v = load %x, %from
//!   %c = broadcast %rows [32, 32]
//!   %d = broadcast %right [32, 32]
//!   %to = map add %c, %d
//!   store %y, %to, %v
//!   %s = reduce sum %v axis 1
//!   %i = range 0 32
//!   %o = load %z, %i
//!   %t = map add %s, %o
//!   store %z, %i, %t
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 24 registers a thread
//! kernel @transpose(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %z: ptr<f32> align(4)) warps(4) {
//!   %r = range 0 32
//!   %rows = expand_dims %r axis 1
//!   %cols = expand_dims %r axis 0
//!   %0 = const 32 : tile<32xi32>
//!   %1 = map mul %r, %0
//!   %down = expand_dims %1 axis 1
//!   %right = expand_dims %1 axis 0
//!   %a = broadcast %down [32, 32]
//!   %b = broadcast %cols [32, 32]
//!   %from = map add %a, %b
//!   %v = load %x, %from
//!   %c = broadcast %rows [32, 32]
//!   %d = broadcast %right [32, 32]
//!   %to = map add %c, %d
//!   store %y, %to, %v  // convert: %v: [4 lanes, 4 warps, 2 regs] x [4 regs, 8 lanes] -> [4 regs, 8 lanes] x [4 lanes, 4 warps, 2 regs], through shared memory, written by 4 and read by 1
//!   %s = reduce sum %v axis 1
//!   %o = load %z, %r
//!   %t = map add %s, %o
//!   store %z, %r, %t
//! }
//! ```

use tilefuse_block::{Elem, Op, Value};

use super::barrier::BarrierReason;
use super::decisions::counted;
use super::ir::{Val, memory_ty, ty};
use super::lower::Lower;
use super::passes::Seen;
use super::vector_convert::{self, Vectors};
use super::warp_specialize::ping_pong;
use crate::error::{Error, Result};
use crate::layout::Layout;

/// How elements change layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Within each thread.
    Registers(Picks),
    /// Within each warp.
    Shuffles(Exchanges),
    /// Through shared memory, neighbours together.
    Vectors(Vectors),
    /// Through shared memory, element by element.
    Elements,
}

/// By register that is wanted: those that it may come from, and the bits of the thread's number that say from which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picks {
    sources: Vec<Vec<usize>>,
    bits: Vec<u32>,
}

/// Bits of the lane's number that change places with bits of the register's, and by register that is wanted, which it is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchanges {
    steps: Vec<(usize, usize)>,
    sources: Vec<usize>,
}

/// A value's change of layout for an operation.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    pub(crate) value: Value,
    pub(crate) from: Layout,
    pub(crate) to: Layout,
    pub(crate) way: Way,
}

impl Way {
    /// The cheapest way from one layout to another.
    pub(crate) fn of(from: &Layout, to: &Layout, elem: Elem) -> Way {
        let vectors = || vector_convert::between(from, to, elem).map(Way::Vectors);
        let shuffles = || exchanges(from, to, elem).map(Way::Shuffles);
        picks(from, to).map(Way::Registers).or_else(shuffles).or_else(vectors).unwrap_or(Way::Elements)
    }
}

/// The most exchanges that are not slower than shared memory.
const MAX_EXCHANGES: usize = 2;

/// Exchanges between the lanes of each warp, of whole words.
fn exchanges(from: &Layout, to: &Layout, elem: Elem) -> Option<Exchanges> {
    let (steps, left) = from.exchanges(to)?;
    let whole = match elem.bytes() {
        4 => true,
        2 => !from.regs().is_empty() && steps.iter().all(|&(_, reg)| reg > 0),
        _ => false,
    };
    if steps.len() > MAX_EXCHANGES || !whole {
        return None;
    }
    let sources =
        (0..to.num_regs()).map(|r| left.reg_at(to.reg_offset(r))).collect::<Option<Vec<usize>>>()?;
    Some(Exchanges { steps, sources })
}

/// Each thread has what it needs where the thread's bits have the same bases in both layouts, or have none in `from`,
/// which then holds the elements of both values of the bit in registers.
fn picks(from: &Layout, to: &Layout) -> Option<Picks> {
    let (have, want) = (from.threads(), to.threads());
    let picks: Vec<(usize, u32)> =
        (0..have.len()).filter(|&i| have[i] != want[i]).map(|i| (i, want[i])).collect();
    if picks.len() > 3 || picks.iter().any(|&(i, basis)| have[i] != 0 || from.reg_at(basis).is_none()) {
        return None;
    }
    let sources = |r: usize| {
        let source = |set: usize| {
            let chosen = picks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
            from.reg_at(chosen.fold(to.reg_offset(r), |sum, (_, (_, basis))| sum ^ basis))
        };
        (0..1usize << picks.len()).map(source).collect::<Option<Vec<usize>>>()
    };
    let sources = (0..to.num_regs()).map(sources).collect::<Option<Vec<Vec<usize>>>>()?;
    Some(Picks { sources, bits: picks.iter().map(|(bit, _)| 1 << bit).collect() })
}

impl Lower<'_> {
    /// The elements of a value that `from` holds in `regs`, in the layout `to`.
    pub(crate) fn convert(
        &mut self,
        value: Value,
        (from, regs): (&Layout, &[Val]),
        to: &Layout,
    ) -> Result<Vec<Val>> {
        let elem = self.elem(value)?;
        let way = Way::of(from, to, elem);
        let conversion = Conversion { value, from: from.clone(), to: to.clone(), way: way.clone() };
        self.decisions.convert(conversion);
        match way {
            Way::Registers(picks) => Ok(self.pick(&picks, regs, elem)),
            Way::Shuffles(exchanges) => Ok(self.by_shuffles(&exchanges, regs, elem)),
            _ if self.plan.cluster > 0 => Err(Error::TileTooLarge {
                program: self.program().name.clone(),
                resource: "elements in the shared memory of one block",
                needed: 1 << from.shape().iter().sum::<u32>(),
                limit: 0,
            }),
            Way::Vectors(vectors) => Ok(self.by_vectors(vectors, (from, regs), to, elem)),
            Way::Elements => self.through_shared(from, regs, to, elem),
        }
    }

    fn pick(&mut self, picks: &Picks, regs: &[Val], elem: Elem) -> Vec<Val> {
        let choices = |from: &Vec<usize>| from.iter().map(|&r| regs[r].clone()).collect();
        picks.sources.iter().map(|from| self.choose(choices(from), &picks.bits, elem)).collect()
    }

    /// Lanes that differ in a bit keep half of their registers, and send the other half to each other.
    fn by_shuffles(&mut self, exchanges: &Exchanges, regs: &[Val], elem: Elem) -> Vec<Val> {
        let (t, each) = (ty(elem), 4 / elem.bytes() as usize);
        let word = |lower: &mut Self, parts: &[Val]| match parts {
            [one] => lower.ir.def(format_args!("bitcast {t} {one} to i32")),
            _ => {
                let vector = parts.iter().enumerate().fold(Val::from("poison"), |vector, (at, part)| {
                    lower.ir.def(format_args!("insertelement <{each} x {t}> {vector}, {t} {part}, i32 {at}"))
                });
                lower.ir.def(format_args!("bitcast <{each} x {t}> {vector} to i32"))
            }
        };
        let mut words: Vec<Val> = regs.chunks(each).map(|parts| word(self, parts)).collect();
        for &(lane, reg) in &exchanges.steps {
            let zero = self.threads_zero(1 << lane);
            let other = (1usize << reg) / each;
            for low in (0..words.len()).filter(|word| word & other == 0) {
                let high = low | other;
                let pick = |lower: &mut Self, a: &Val, b: &Val| {
                    lower.ir.def(format_args!("select i1 {zero}, i32 {a}, i32 {b}"))
                };
                let sent = pick(self, &words[high], &words[low]);
                let got = self.shuffle("bfly", &sent, &(1 << lane).to_string());
                words[low] = pick(self, &words[low], &got);
                words[high] = pick(self, &got, &words[high]);
            }
        }
        let mut out = Vec::with_capacity(regs.len());
        for word in &words {
            if each == 1 {
                out.push(self.ir.def(format_args!("bitcast i32 {word} to {t}")));
                continue;
            }
            let vector = self.ir.def(format_args!("bitcast i32 {word} to <{each} x {t}>"));
            out.extend(
                (0..each)
                    .map(|at| self.ir.def(format_args!("extractelement <{each} x {t}> {vector}, i32 {at}"))),
            );
        }
        exchanges.sources.iter().map(|&source| out[source].clone()).collect()
    }

    /// Picks one of `2^n` values by `n` bits of the thread's number.
    fn choose(&mut self, mut choices: Vec<Val>, bits: &[u32], elem: Elem) -> Val {
        let t = ty(elem);
        for &bit in bits {
            let zero = self.threads_zero(bit);
            choices = choices
                .chunks_exact(2)
                .map(|pair| self.ir.def(format_args!("select i1 {zero}, {t} {}, {t} {}", pair[0], pair[1])))
                .collect();
        }
        choices.swap_remove(0)
    }

    /// Writes every element by its number, waits, and reads what is wanted.
    fn through_shared(&mut self, from: &Layout, regs: &[Val], to: &Layout, elem: Elem) -> Result<Vec<Val>> {
        self.publish(from, regs, elem);
        let mut out = Vec::with_capacity(to.num_regs());
        for r in 0..to.num_regs() {
            let address = self.slot(to, r, elem);
            out.push(self.shared_load(&address, elem));
        }
        Ok(out)
    }

    /// Writes every element of a tile by its number to shared memory, and waits.
    pub(crate) fn publish(&mut self, from: &Layout, regs: &[Val], elem: Elem) {
        let count = 1u64 << from.shape().iter().sum::<u32>();
        let bytes = u64::from(elem.bytes());
        self.reserve(padded(count * bytes));
        let copies = from.replicated_threads();
        let writes = self.threads_zero(copies);
        for (r, value) in regs.iter().enumerate() {
            let address = self.slot(from, r, elem);
            let value = self.pack_memory(elem, value);
            self.shared_store(&address, elem, &value, &writes);
        }
        self.barrier(BarrierReason::Filled);
    }

    /// Reads one element of shared memory.
    pub(crate) fn shared_load(&mut self, address: &Val, elem: Elem) -> Val {
        let (e, bytes) = (memory_ty(elem), elem.bytes());
        let value = self.ir.def(format_args!("load {e}, ptr addrspace(3) {address}, align {bytes}"));
        self.unpack_memory(elem, value)
    }

    /// The address in shared memory of the element in register `r`. One word is left free after every 32, so that
    /// strides that are powers of two do not meet in one bank.
    pub(crate) fn slot(&mut self, layout: &Layout, r: usize, elem: Elem) -> Val {
        let thread = self.thread_part(layout);
        let number = match layout.reg_offset(r) {
            0 => thread,
            offset => self.ir.def(format_args!("or disjoint i32 {thread}, {offset}")),
        };
        self.slot_of(&number, elem)
    }

    /// [`Lower::slot`] of the element of number `number`.
    pub(crate) fn slot_of(&mut self, number: &Val, elem: Elem) -> Val {
        let byte = self.ir.def(format_args!("mul nuw nsw i32 {number}, {}", elem.bytes()));
        let row = self.ir.def(format_args!("lshr i32 {byte}, 7"));
        let pad = self.ir.def(format_args!("shl nuw nsw i32 {row}, {}", pad_bits(elem)));
        let place = self.ir.def(format_args!("add nuw nsw i32 {byte}, {pad}"));
        self.scratch(&place)
    }

    /// The address of a byte of the shared memory for changes of layout.
    pub(crate) fn scratch(&mut self, byte: &Val) -> Val {
        let wide = self.ir.def(format_args!("zext i32 {byte} to i64"));
        let start = match self.shared.scratch_start() {
            _ if self.shared.groups > 1 => ping_pong::SCRATCH.to_owned(),
            0 => "@tilefuse_convert".to_owned(),
            bytes => format!("getelementptr (i8, ptr addrspace(3) @tilefuse_convert, i64 {bytes})"),
        };
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) {start}, i64 {wide}"))
    }
}

/// The free bytes after every 128, as a power of two; not less than an element, which must stay aligned.
fn pad_bits(elem: Elem) -> u32 {
    if elem.bytes() == 8 { 3 } else { 2 }
}

/// The bytes that `bytes` bytes of elements take.
fn padded(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(128) * 8
}

/// The changes of layout that an operation's operands go through.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let note = |conversion: &Conversion| {
        let Conversion { value, from, to, way } = conversion;
        let way = match way {
            Way::Registers(picks) if picks.bits.is_empty() => "within each thread".to_owned(),
            Way::Registers(_) => "within each thread, by its number".to_owned(),
            Way::Shuffles(Exchanges { steps, .. }) => {
                format!(
                    "within each warp, by {} exchange{}",
                    steps.len(),
                    if steps.len() == 1 { "" } else { "s" }
                )
            }
            Way::Vectors(Vectors { have, want }) => {
                format!("through shared memory, written by {have} and read by {want}")
            }
            Way::Elements => "through shared memory, element by element".to_owned(),
        };
        format!("%{}: {from} -> {to}, {way}", seen.name(*value))
    };
    let conversions = seen.decisions().into_iter().flat_map(|decisions| decisions.conversions.of(op));
    counted(conversions.map(note))
}
