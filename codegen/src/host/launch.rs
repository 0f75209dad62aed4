//! What compiled code tells about a launch while it runs: lines to print, and the first assertion that does not hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use tilefuse_block::{Data, Elem, Literal, Type};

use crate::{Error, Result};

/// Name of the function that prints tiles.
pub(super) const PRINT: &str = "tilefuse_print";
/// Name of the function that notes an assertion that does not hold.
pub(super) const ASSERT: &str = "tilefuse_assert";

/// A launch that is running.
pub(super) struct Launch {
    grid: [u32; 3],
    print: fn(&str),
    failure: OnceLock<Error>,
}

impl Launch {
    pub(super) fn new(grid: [u32; 3], print: fn(&str)) -> Launch {
        Launch { grid, print, failure: OnceLock::new() }
    }

    /// Whether an assertion has failed, so that nothing more need run.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// # Errors
    /// The first assertion that did not hold.
    pub(super) fn result(self) -> Result<()> {
        self.failure.into_inner().map_or(Ok(()), Err)
    }

    fn instance(&self, linear: i64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(|extent| u64::from(extent.max(1)));
        let linear = linear as u64;
        [linear % x, linear / x % y, linear / x / y].map(|index| index as u32)
    }
}

/// What a call from compiled code is about. Its bytes are part of the code.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Note {
    /// The program.
    pub(super) program: String,
    /// The prefix or message.
    pub(super) text: String,
    /// Integers in hexadecimal.
    pub(super) hex: bool,
    /// Types of the tiles.
    pub(super) types: Vec<Type>,
}

impl Note {
    /// The note, for [`Note::read`].
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.hex)];
        let mut word = |bytes: &[u8]| {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        };
        word(self.program.as_bytes());
        word(self.text.as_bytes());
        for ty in &self.types {
            word(ty.elem().map_or("", Elem::name).as_bytes());
            word(&ty.shape.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<u8>>());
        }
        out
    }

    fn read(bytes: &[u8]) -> Option<Note> {
        let (&hex, mut rest) = bytes.split_first()?;
        let mut word = || {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let (word, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = after;
            Some(word)
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (program, message) = (text(word()?), text(word()?));
        let mut types = Vec::new();
        while let Some(name) = word() {
            let elem = Elem::ALL.into_iter().find(|e| e.name().as_bytes() == name)?;
            let (dims, _) = word()?.as_chunks::<4>();
            let shape: Vec<u32> = dims.iter().map(|d| u32::from_le_bytes(*d)).collect();
            types.push(Type::tile(elem, &shape));
        }
        Some(Note { program, text: message, hex: hex != 0, types })
    }
}

/// What compiled code hands over.
struct Call<'a> {
    launch: &'a Launch,
    instance: [u32; 3],
    note: Note,
    tiles: &'a [*const u8],
}

/// # Safety
/// As [`tilefuse_print`].
unsafe fn call<'a>(
    launch: *const Launch,
    instance: i64,
    note: *const u8,
    length: i64,
    tiles: *const *const u8,
) -> Option<Call<'a>> {
    // SAFETY: the launch outlives the run, and the note is a constant of the code of this length.
    let (launch, bytes) = unsafe { (launch.as_ref()?, std::slice::from_raw_parts(note, length as usize)) };
    let note = Note::read(bytes)?;
    // SAFETY: there is an address for each type of the note.
    let tiles = unsafe { std::slice::from_raw_parts(tiles, note.types.len()) };
    Some(Call { launch, instance: launch.instance(instance), note, tiles })
}

/// Prints a line for each element of some tiles.
///
/// # Safety
/// Compiled code calls it, with the launch that it was given, and with tiles of the types of the note.
pub(super) unsafe extern "C" fn tilefuse_print(
    launch: *const Launch,
    instance: i64,
    note: *const u8,
    length: i64,
    tiles: *const *const u8,
) {
    let print = AssertUnwindSafe(|| {
        // SAFETY: as the caller promises.
        let Some(call) = (unsafe { call(launch, instance, note, length, tiles) }) else { return };
        let [x, y, z] = call.instance;
        let print = call.launch.print;
        if call.note.types.is_empty() {
            print(&format!("pid ({x}, {y}, {z}) {}", call.note.text));
        }
        for (ty, &tile) in call.note.types.iter().zip(call.tiles) {
            // SAFETY: the tile has this type.
            let elements = unsafe { elements(ty, tile) };
            for (position, literal) in elements.into_iter().enumerate() {
                print(&line(&call, ty, position, literal));
            }
        }
    });
    // A panic of what the caller prints with must not cross compiled code.
    drop(catch_unwind(print));
}

/// Notes that an assertion does not hold: the first element of the condition that is false and not masked off.
///
/// # Safety
/// As [`tilefuse_print`]; the tiles are the condition and, if there is one, the mask.
pub(super) unsafe extern "C" fn tilefuse_assert(
    launch: *const Launch,
    instance: i64,
    note: *const u8,
    length: i64,
    tiles: *const *const u8,
) {
    let fail = AssertUnwindSafe(|| {
        // SAFETY: as the caller promises.
        let Some(call) = (unsafe { call(launch, instance, note, length, tiles) }) else { return };
        let tiles: Vec<Vec<Literal>> =
            // SAFETY: the tiles have these types.
            call.note.types.iter().zip(call.tiles).map(|(ty, &tile)| unsafe { elements(ty, tile) }).collect();
        let holds = |tile: usize, element: usize| {
            tiles.get(tile).and_then(|t| t.get(element)).is_none_or(|literal| literal.bits != 0)
        };
        let count = tiles.first().map_or(0, Vec::len);
        let element = (0..count).find(|&e| !holds(0, e) && holds(1, e)).unwrap_or(0);
        let Note { program, text: message, .. } = call.note;
        // Another one was first.
        let _ =
            call.launch.failure.set(Error::Assertion { program, message, instance: call.instance, element });
    });
    drop(catch_unwind(fail));
}

/// The elements of a tile as it lies in a slot: truth values as bytes, narrow floats as `f32`.
///
/// # Safety
/// There must be a tile of this type.
unsafe fn elements(ty: &Type, tile: *const u8) -> Vec<Literal> {
    let elem = ty.elem().unwrap_or(Elem::U8);
    let stored = if matches!(elem, Elem::F16 | Elem::Bf16) { Elem::F32 } else { elem };
    let bytes = ty.numel() as usize * stored.bytes() as usize;
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(tile, bytes) };
    let literals = Data::from_bytes(stored, bytes).literals().into_iter();
    match stored == elem {
        true => literals.collect(),
        false => literals.map(|l| Literal::float(elem, l.as_f64())).collect(),
    }
}

fn line(call: &Call<'_>, ty: &Type, position: usize, literal: Literal) -> String {
    let mut rest = position;
    let mut index: Vec<String> = Vec::new();
    for &extent in ty.shape.iter().rev() {
        index.insert(0, (rest % extent as usize).to_string());
        rest /= extent as usize;
    }
    let ([x, y, z], index, prefix) = (call.instance, index.join(", "), &call.note.text);
    let value = match call.note.hex && literal.elem.is_int() {
        true => format!("0x{:x}", literal.bits & (u64::MAX >> (64 - literal.elem.bits()))),
        false => literal.to_string(),
    };
    format!("pid ({x}, {y}, {z}) idx ({index}) {prefix}: {value}")
}

/// Writes a line to standard output, as well as that goes.
pub(super) fn to_stdout(line: &str) {
    use std::io::Write;
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // There is nobody to tell that standard output is closed.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
