//! Products of four warps, which read both operands from shared memory.

use std::fmt::Write;

use super::{THREAD, together};

/// An operand in shared memory, as a descriptor says.
struct Operand {
    base: u64,
    start: u64,
    leading: u64,
    stride: u64,
    /// Bytes of a piece of a run.
    width: u64,
    /// Whether neighbours along the common axis are far apart.
    turned: bool,
}

impl Operand {
    fn new(base: u64, descriptor: u64, turned: bool) -> Operand {
        let width = match descriptor >> 62 {
            1 => 128,
            2 => 64,
            3 => 32,
            _ => panic!("operands without an exchange of parts"),
        };
        let field = |bit: u32| (descriptor >> bit & 0x3fff) << 4;
        Operand { base, start: field(0), leading: field(16), stride: field(32), width, turned }
    }

    /// The bits of the element at a line and a place along the common axis, from the descriptor's beginning.
    fn at(&self, line: u64, common: u64) -> u16 {
        let per_piece = self.width / 2;
        let place = match self.turned {
            false => {
                assert!(self.start % self.width + common * 2 < self.width, "a step within one piece");
                line / 8 * self.stride + line % 8 * self.width + common * 2
            }
            true => {
                let (panel, inside) = (line / per_piece, line % per_piece);
                panel * self.leading + common / 8 * self.stride + common % 8 * self.width + inside * 2
            }
        };
        let place = self.start + place;
        let exchanged = place ^ (place >> 3 & (self.width - 16));
        let address = self.base + (exchanged.wrapping_sub(self.base) & 0x3ffff);
        // SAFETY: the descriptor names the block's shared memory, which nobody writes between two barriers.
        unsafe { (address as *const u16).read() }
    }
}

/// Adds this thread's part of a product of 64 rows to the `count` sums at `sums`. `how` has 1 for `bf16`, 2 where the
/// left operand is turned, 4 where the right one is, 8 where the sums count, and 16 where the left operand is not in
/// shared memory but in the four words at `words` of each thread.
pub(super) extern "C" fn multiply(
    base: u64,
    left: u64,
    right: u64,
    how: u32,
    count: u32,
    words: *const u32,
    sums: *mut f32,
) {
    assert!(base.is_multiple_of(1024), "shared memory at {base:x}");
    let number = |bits: u16| match how & 1 {
        0 => half::f16::from_bits(bits).to_f64(),
        _ => half::bf16::from_bits(bits).to_f64(),
    };
    let thread = u64::from(THREAD.get() % 128);
    let held = (how & 16 != 0).then(|| {
        // SAFETY: there are four words.
        let mine: Vec<u64> = (0..4).map(|i| unsafe { words.add(i).read() }.into()).collect();
        together(&mine)
    });
    let left = held.is_none().then(|| Operand::new(base, left, how & 2 != 0));
    let right = Operand::new(base, right, how & 4 != 0);
    let left = |row: u64, k: u64| match (&left, &held) {
        (Some(left), _) => left.at(row, k),
        (None, Some(held)) => {
            let (lane, word) = (row % 8 * 4 + k % 8 / 2, row / 8 % 2 + k / 8 * 2);
            (held[lane as usize][word as usize] >> (16 * (k % 2))) as u16
        }
        (None, None) => unreachable!(),
    };
    for r in 0..u64::from(count) {
        let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (r >> 1 & 1);
        let col = r / 4 * 8 + thread % 4 * 2 + (r & 1);
        let product: f64 = (0..16).map(|k| number(left(row, k)) * number(right.at(col, k))).sum();
        // SAFETY: there are so many sums.
        unsafe {
            let at = sums.add(r as usize);
            let before = if how & 8 != 0 { f64::from(at.read()) } else { 0.0 };
            at.write((before + product) as f32);
        }
    }
}

/// The lanes of a warp wait for products together.
pub(super) extern "C" fn wait(_: u64) {
    together(&[]);
}

/// The function that stands for a product in inline assembly.
pub(super) fn product(text: &str) -> Option<(String, String)> {
    let instruction = text.strip_prefix("wgmma.mma_async.sync.aligned.")?.split(' ').next()?;
    let groups: Vec<&str> = text.split('{').skip(1).filter_map(|g| g.split('}').next()).collect();
    let sums = groups.first()?.split(", ").count();
    let held = groups.len() == 2;
    let last: Vec<u32> = text.trim_end_matches(';').rsplit(", ").map_while(|n| n.parse().ok()).collect();
    let (right, left) = (*last.first()?, if held { 0 } else { *last.get(1)? });
    let how = u32::from(instruction.ends_with("bf16")) + 2 * left + 4 * right + 16 * u32::from(held);
    let name = format!("emulated_wgmma_{}_{how}", instruction.replace('.', "_"));
    let (params, words, a) = match held {
        true => (
            ", i32 %w0, i32 %w1, i32 %w2, i32 %w3",
            (0..4)
                .map(|i| {
                    format!(
                        "  %pw{i} = getelementptr i32, ptr %words, i64 {i}\n  store i32 %w{i}, ptr %pw{i}\n"
                    )
                })
                .collect(),
            "0",
        ),
        false => (", i64 %a", String::new(), "%a"),
    };
    let call = format!(
        "  %words = alloca [4 x i32]\n{words}  %some = select i1 %adds, i32 8, i32 0\n  %how = or i32 %some, {how}\n  \
         %base = ptrtoint ptr addrspace(3) @tilefuse_convert to i64\n  \
         call void @emulated_warpgroups(i64 %base, i64 {a}, i64 %b, i32 %how, i32 {sums}, ptr %words, ptr %sums)\n"
    );
    Some((name.clone(), function(&name, sums, "float", &format!("{params}, i64 %b, i1 %adds"), &call)))
}

/// The function that stands for inline assembly that only holds numbers in place.
pub(super) fn identity(rest: &str) -> Option<(String, String)> {
    let outputs = rest.strip_prefix("sideeffect \"\", \"")?.split('"').next()?;
    let (count, t) = (outputs.matches('=').count(), if outputs.contains("=f") { "float" } else { "i32" });
    let name = format!("emulated_pin_{t}_{count}");
    Some((name.clone(), function(&name, count, t, "", "")))
}

/// A function that takes numbers and gives those that `body` leaves at `%sums`.
fn function(name: &str, sums: usize, t: &str, more: &str, body: &str) -> String {
    let result = format!("{{ {} }}", vec![t; sums].join(", "));
    let params = (0..sums).map(|i| format!("{t} %s{i}")).collect::<Vec<_>>().join(", ");
    let mut text =
        format!("define internal {result} @{name}({params}{more}) {{\n  %sums = alloca [{sums} x {t}]\n");
    for i in 0..sums {
        let _ =
            writeln!(text, "  %p{i} = getelementptr {t}, ptr %sums, i64 {i}\n  store {t} %s{i}, ptr %p{i}");
    }
    let _ = write!(text, "{body}  %r = load {result}, ptr %sums\n  ret {result} %r\n}}\n");
    text
}
