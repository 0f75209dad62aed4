//! Compiled programs on an emulated 64-bit Arm processor.
//!
//! An executable of our own making holds the loaded kernel, a driver and the buffers, so that neither a linker nor a C
//! library for that processor is needed: the driver runs all instances and writes the buffers to standard output.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::OnceLock;

use tilefuse_block::interp::Arg;
use tilefuse_block::{Data, Program};

use crate::host::object::Image;
use crate::host::target::{self, Target};
use crate::host::{FileType, emit, generate};

/// The emulator, and a processor that has nothing beyond what all have.
const EMULATOR: [&str; 3] = ["qemu-aarch64", "-cpu", "cortex-a53"];

/// What starts, with what kernels may call; `%place` is where [`Task`] lies.
const DRIVER: &str = include_str!("driver.ll");

/// Where things lie.
const DRIVER_AT: u64 = 0x40_0000;
const KERNEL_AT: u64 = 0x80_0000;
const DATA_AT: u64 = 0x1000_0000;

const PAGE: u64 = 4096;

/// What is between buffers, and must be after a run.
const GAP: [u8; 64] = [0xa5; 64];

/// Whether there is an emulator; says once that there is none.
pub(super) fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| {
        let there = Command::new(EMULATOR[0]).arg("--version").output().is_ok();
        if !there {
            let why = format!("skipped, no emulator: there is no {} on this machine\n", EMULATOR[0]);
            let _ = std::io::stderr().write_all(why.as_bytes());
        }
        there
    })
}

/// What a kernel may ask of others: memory functions, remainders, and nothing of what is printed or asserted here.
fn may_be_called(name: &str) -> bool {
    let known = ["memcpy", "memset", "memmove", "fmod", "fmodf", "tilefuse_print", "tilefuse_assert"];
    known.contains(&name)
}

/// A loaded object.
struct Loaded {
    memory: Vec<u8>,
    /// The names that it defines, and their addresses.
    names: Vec<(String, u64)>,
}

impl Loaded {
    fn new(object: &[u8], base: u64, outer: &dyn Fn(&str) -> Option<u64>) -> Loaded {
        let image = Image::read(object).unwrap();
        let mut memory = vec![0; image.size()];
        image.write(&mut memory, base, outer).unwrap();
        let names = image.defined().map(|(name, place)| (name.to_owned(), base + place as u64)).collect();
        Loaded { memory, names }
    }

    fn address(&self, name: &str) -> Option<u64> {
        self.names.iter().find(|(known, _)| known == name).map(|&(_, address)| address)
    }
}

/// The driver, made once.
fn driver() -> &'static Loaded {
    static MADE: OnceLock<Loaded> = OnceLock::new();
    MADE.get_or_init(|| {
        let cx = inkwell::context::Context::create();
        let module = target::parse(&cx, DRIVER).unwrap();
        let object = Target::neon().finish(&module, FileType::Object).unwrap();
        Loaded::new(&object, DRIVER_AT, &|_| None)
    })
}

/// The buffers after a run of all instances; nothing where there is no emulator.
pub(super) fn run(program: &Program, args: &[Arg], grid: [u32; 3]) -> Option<Vec<Data>> {
    if !is_there() {
        return None;
    }
    let (object, head) = generate(program, &Target::neon(), FileType::Object).unwrap();
    let driver = driver();
    let outer = |name: &str| driver.address(name).filter(|_| may_be_called(name));
    let kernel = Loaded::new(&object, KERNEL_AT, &outer);
    let mut data = vec![0; 7 * 8 + 8 * (args.len() + 4)];
    let mut words = Vec::new();
    let mut places = Vec::new();
    for arg in args {
        let bytes = match arg {
            Arg::Buffer(buffer) => &buffer.bytes,
            Arg::Scalar(literal) => {
                let mut word = [0; 8];
                let raw = Data::repeat(*literal, 1).to_bytes();
                word[..raw.len()].copy_from_slice(&raw);
                words.push(u64::from_le_bytes(word));
                continue;
            }
        };
        data.resize(data.len().next_multiple_of(GAP.len()), 0);
        data.extend(GAP);
        words.push(DATA_AT + data.len() as u64);
        places.push(data.len()..data.len() + bytes.len());
        data.extend(bytes);
        data.extend(GAP);
    }
    words.extend(grid.map(u64::from));
    words.push(0);
    let total: u64 = grid.iter().map(|&n| u64::from(n)).product();
    let row = if head.one_axis { u64::from(grid[0]) } else { total };
    let scratch = (DATA_AT + data.len() as u64).next_multiple_of(64);
    let entry = kernel.address(emit::ENTRY).unwrap();
    let task = [entry, DATA_AT + 7 * 8, scratch, row, total, DATA_AT, data.len() as u64];
    for (place, word) in data.chunks_exact_mut(8).zip(task.into_iter().chain(words)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let room = scratch - DATA_AT + head.scratch;
    let segments = [
        (DRIVER_AT, driver.memory.as_slice(), 0),
        (KERNEL_AT, kernel.memory.as_slice(), 0),
        (DATA_AT, data.as_slice(), room),
    ];
    let found = execute(&executable(driver.address("_start").unwrap(), &segments), program);
    assert_eq!(found.len(), data.len(), "what the driver wrote\n{program}");
    let buffers = args.iter().filter_map(|arg| if let Arg::Buffer(b) = arg { Some(b) } else { None });
    let read = |(place, buffer): (&std::ops::Range<usize>, &tilefuse_block::interp::Buffer)| {
        assert_eq!(found[place.start - GAP.len()..place.start], GAP, "before a buffer\n{program}");
        assert_eq!(found[place.end..place.end + GAP.len()], GAP, "behind a buffer\n{program}");
        Data::from_bytes(buffer.elem, &found[place.clone()])
    };
    Some(places.iter().zip(buffers).map(read).collect())
}

/// An ELF executable of segments, each with its address and the least room that it has.
fn executable(entry: u64, segments: &[(u64, &[u8], u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = |value: u64, bytes: usize| out.extend(&value.to_le_bytes()[..bytes]);
    // A 64-bit little-endian executable for AArch64, with its segments' heads behind this one.
    for (value, bytes) in [(0x0001_0102_464c_457f, 8), (0, 8), (2, 2), (183, 2), (1, 4)] {
        number(value, bytes);
    }
    for (value, bytes) in [(entry, 8), (64, 8), (0, 8), (0, 4), (64, 2), (56, 2)] {
        number(value, bytes);
    }
    for value in [segments.len() as u64, 0, 0, 0] {
        number(value, 2);
    }
    let mut offset = PAGE;
    for &(address, bytes, room) in segments {
        let size = bytes.len() as u64;
        // What is loaded, to be read, written and executed.
        number(1, 4);
        number(7, 4);
        for value in [offset, address, address, size, size.max(room), PAGE] {
            number(value, 8);
        }
        offset = (offset + size).next_multiple_of(PAGE);
    }
    for &(_, bytes, _) in segments {
        out.resize(out.len().next_multiple_of(PAGE as usize), 0);
        out.extend(bytes);
    }
    out
}

fn execute(executable: &[u8], program: &Program) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel");
    std::fs::write(&file, executable).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(EMULATOR[0]).args(&EMULATOR[1..]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}\n{program}", output.status);
    output.stdout
}
