//! Defects of `ptxas`, and what is written in place of what it translates wrongly.
//!
//! Seen in its release 13.0, which is also the driver's of branch 580, by its machine code and by results on an H200:
//!
//! - The larger or the smaller of three `s32` or `s16` becomes one instruction (`VIMNMX3`), and a `neg` that gives its
//!   second operand is lost: `min(a, min(-b, c))` gives `min(a, min(b, c))`. A negation is written as its two's
//!   complement, which is not folded into operands.
//! - An ordered comparison of `f32` is taken to hold where the ranges of its operands say so, although one may be NaN:
//!   `|x| > -1`, `x * x >= 0`, `sin(x) < 2`. No unordered one is. A comparison is written as the negation of the unordered
//!   one that is its opposite, which costs no instruction.
//! - A value that one instruction computes from the thread's index may be computed again where it is used, from the
//!   register that held the index, behind the last use of the index (12.9 too, not 12.8). Seen in kernels with barriers
//!   alone. Where such a value outlives the index in one, the index is used once more at the end.
//! - A comparison that tells whether the larger or the smaller of a 16-bit integer and a constant is that constant
//!   (`max(x, 1) == 1`) becomes the predicate of an instruction for two such integers, of which the second, that of an
//!   upper half which nobody uses, overwrites the first. Such a maximum is taken in 32 bits.
//! - The negation of the absolute value of an `s64` is taken to lie in a range in which it does not lie:
//!   `max(-|x|, -3)` gives `-3`. An absolute value is the larger one of a number and its negation, which takes as many
//!   instructions.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The comparisons of which `ptxas` may be wrong, and the opposites.
const OPPOSITES: [(&str, &str); 4] = [
    ("setp.lt.f32", "setp.geu.f32"),
    ("setp.le.f32", "setp.gtu.f32"),
    ("setp.gt.f32", "setp.leu.f32"),
    ("setp.ge.f32", "setp.ltu.f32"),
];

/// The same code without what `ptxas` translates wrongly.
pub(crate) fn avoid(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    // Each function has registers of its own, of the same names.
    text.split_inclusive("\n}\n").for_each(|function| avoid_in(function, &mut out));
    out
}

fn avoid_in(text: &str, out: &mut String) {
    let three = text.contains("min.s") || text.contains("max.s");
    let outlived = outlived_index(text);
    let compared = compared_constants(text);
    for line in text.lines() {
        if let (Some(index), "ret;") = (outlived, line.trim()) {
            // Nothing waits, be the comparison true or not.
            let _ = writeln!(
                out,
                "\t{{\n\t.reg .pred \t%last;\n\t.reg .b32 \t%grid;\n\tmov.u32 \t%grid, %nctaid.x;\n\t\
                 setp.eq.u32 \t%last, {index}, %grid;\n\t@%last nanosleep.u32 \t0;\n\t}}"
            );
        }
        let avoided = three && negation(line, out)
            || comparison(line, out)
            || bounded(line, &compared, out)
            || absolute(line, out);
        if !avoided {
            out.push_str(line);
            out.push('\n');
        }
    }
}

/// An instruction's name and operands. LLVM guards none but branches, and writes one in a line.
fn parts(line: &str) -> Option<(&str, Vec<&str>)> {
    let (name, operands) = line.trim_start().split_once(char::is_whitespace)?;
    let (operands, rest) = operands.split_once(';')?;
    // More in a line is none of LLVM's, and is left as it is.
    let alone = rest.trim().is_empty() || rest.trim_start().starts_with("//");
    alone.then(|| (name, operands.split(',').map(str::trim).collect()))
}

/// The register of the thread's index, if a value that one instruction computes from it alone is used behind its last
/// use, in a kernel with barriers.
fn outlived_index(text: &str) -> Option<&str> {
    if !text.contains("bar.sync") {
        return None;
    }
    let index = text.lines().find_map(|line| {
        let (name, operands) = parts(line)?;
        (name == "mov.u32" && operands.get(1) == Some(&"%tid.x")).then(|| operands[0])
    })?;
    let mut last = 0;
    let mut derived: HashMap<&str, usize> = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        for register in registers(line) {
            if register == index {
                last = at;
            } else if let Some(used) = derived.get_mut(register) {
                *used = at;
            }
        }
        if let Some((_, operands)) = parts(line)
            && let [to, from @ ..] = &operands[..]
            && from.contains(&index)
            && from.iter().all(|operand| *operand == index || !operand.starts_with('%'))
        {
            derived.insert(to, at);
        }
    }
    derived.values().any(|used| *used > last).then_some(index)
}

/// The registers that a line names.
fn registers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '%').filter(|word| word.starts_with("%r"))
}

fn negation(line: &str, out: &mut String) -> bool {
    let Some((name, operands)) = parts(line) else { return false };
    let bits = match name {
        "neg.s32" => 32,
        "neg.s16" => 16,
        _ => return false,
    };
    let [to, from] = operands[..] else { return false };
    let _ = writeln!(out, "\tnot.b{bits} \t{to}, {from};\n\tadd.s{bits} \t{to}, {to}, 1;");
    true
}

/// The low 16 bits of the constants that integers are compared with for equality.
fn compared_constants(text: &str) -> HashSet<u16> {
    let constants = text.lines().filter_map(|line| {
        let (name, operands) = parts(line)?;
        let equality = ["setp.eq.", "setp.ne."].iter().any(|of| name.starts_with(of));
        constant(operands.get(2).filter(|_| equality)?)
    });
    constants.collect()
}

fn constant(operand: &str) -> Option<u16> {
    operand.parse::<i64>().ok().map(|constant| constant as u16)
}

/// The larger or the smaller of a 16-bit integer and one of the constants, in 32 bits.
fn bounded(line: &str, compared: &HashSet<u16>, out: &mut String) -> bool {
    let Some((name, operands)) = parts(line) else { return false };
    let [to, a, b] = operands[..] else { return false };
    let (function, sign) = match name {
        "max.u16" => ("max", 'u'),
        "min.u16" => ("min", 'u'),
        "max.s16" => ("max", 's'),
        "min.s16" => ("min", 's'),
        _ => return false,
    };
    if !constant(b).is_some_and(|b| compared.contains(&b)) {
        return false;
    }
    let _ = writeln!(
        out,
        "\t{{\n\t.reg .b32 \t%wide;\n\tcvt.{sign}32.{sign}16 \t%wide, {a};\n\t\
         {function}.{sign}32 \t%wide, %wide, {b};\n\tcvt.u16.u32 \t{to}, %wide;\n\t}}"
    );
    true
}

fn comparison(line: &str, out: &mut String) -> bool {
    let Some((name, operands)) = parts(line) else { return false };
    let Some((_, opposite)) = OPPOSITES.iter().find(|(of, _)| *of == name) else { return false };
    let [to, a, b] = operands[..] else { return false };
    let _ = writeln!(out, "\t{opposite} \t{to}, {a}, {b};\n\tnot.pred \t{to}, {to};");
    true
}

/// The absolute value of a 64-bit integer.
fn absolute(line: &str, out: &mut String) -> bool {
    let Some(("abs.s64", operands)) = parts(line) else { return false };
    let [to, a] = operands[..] else { return false };
    let _ = writeln!(
        out,
        "\t{{\n\t.reg .b64 \t%negated;\n\tneg.s64 \t%negated, {a};\n\tmax.s64 \t{to}, {a}, %negated;\n\t}}"
    );
    true
}

#[cfg(test)]
mod tests {
    use super::avoid;

    #[test]
    fn absolute_values_of_64_bits_are_maxima() {
        let expected = "\t{\n\t.reg .b64 \t%negated;\n\tneg.s64 \t%negated, %rd7;\n\tmax.s64 \t%rd8, %rd7, %negated;\n\t}\n\
                        \tabs.s32 \t%r2, %r1;\n";
        assert_eq!(avoid("\tabs.s64 \t%rd8, %rd7;\n\tabs.s32 \t%r2, %r1;\n"), expected);
    }

    #[test]
    fn ordered_comparisons_become_the_opposites_of_unordered_ones() {
        let text = "\tsetp.gt.f32 \t%p2, %r8, 0fBF800000;\n\tsetp.le.f32 \t%p3, %r1, %r2;\n\tsetp.gt.s32 \t%p4, %r1, 1;\n";
        let expected = "\tsetp.leu.f32 \t%p2, %r8, 0fBF800000;\n\tnot.pred \t%p2, %p2;\n\
                        \tsetp.gtu.f32 \t%p3, %r1, %r2;\n\tnot.pred \t%p3, %p3;\n\
                        \tsetp.gt.s32 \t%p4, %r1, 1;\n";
        assert_eq!(avoid(text), expected);
    }

    #[test]
    fn negations_beside_minima_become_complements() {
        let plain = "\tneg.s32 \t%r2, %r1;\n\tneg.f32 \t%r3, %r1;\n";
        assert_eq!(avoid(plain), plain);
        let expected = "\tnot.b32 \t%r2, %r1;\n\tadd.s32 \t%r2, %r2, 1;\n\tneg.f32 \t%r3, %r1;\n\tmin.s32 \t%r4, %r2, %r1;\n";
        assert_eq!(avoid(&format!("{plain}\tmin.s32 \t%r4, %r2, %r1;\n")), expected);
    }

    #[test]
    fn the_threads_index_lives_as_long_as_what_is_computed_from_it() {
        let head = "\tmov.u32 \t%r1, %tid.x;\n\tand.b32 \t%r2, %r1, 63;\n\tbar.sync \t0;\n";
        let within = format!("{head}\tadd.s32 \t%r3, %r2, %r1;\n\tret;\n");
        assert_eq!(avoid(&within), within);
        let behind = format!("{head}\tadd.s32 \t%r3, %r1, %r1;\n\tshl.b32 \t%r4, %r2, 3;\n\tret;\n");
        assert!(avoid(&behind).contains("setp.eq.u32 \t%last, %r1, %grid;"), "{}", avoid(&behind));
        let of_two = behind.replace("%r1, 63", "%r1, %r9");
        assert_eq!(avoid(&of_two), of_two);
        let without = behind.replace("bar.sync", "bar.warp.sync");
        assert_eq!(avoid(&without), without);
    }

    #[test]
    fn functions_beside_a_kernel_have_registers_of_their_own() {
        let kernel = "\tmov.u32 \t%r7, %tid.x;\n\tand.b32 \t%r8, %r7, 63;\n\tbar.sync \t0;\n\tadd.s32 \t%r3, %r7, %r7;\n\t\
                      shl.b32 \t%r4, %r8, 3;\n\tret;\n}\n";
        let function = "\tadd.s32 \t%r1, %r7, %r8;\n\tret;\n}\n";
        let alone = avoid(kernel);
        assert!(alone.contains("setp.eq.u32 \t%last, %r7, %grid;"), "{alone}");
        assert_eq!(avoid(&format!("{function}{kernel}")), format!("{function}{alone}"));
        assert_eq!(avoid(&format!("{kernel}{function}")), format!("{alone}{function}"));
    }

    #[test]
    fn bounds_that_are_compared_with_are_taken_in_32_bits() {
        let bound = "\tmax.s16 \t%rs2, %rs1, -3;\n";
        let other = format!("{bound}\tsetp.eq.b16 \t%p1, %rs2, 3;\n");
        assert_eq!(avoid(&other), other);
        let own = "\tsetp.eq.b16 \t%p1, %rs2, 65533;\n";
        let wide = "\t{\n\t.reg .b32 \t%wide;\n\tcvt.s32.s16 \t%wide, %rs1;\n\tmax.s32 \t%wide, %wide, -3;\n\t\
                    cvt.u16.u32 \t%rs2, %wide;\n\t}\n";
        assert_eq!(avoid(&format!("{bound}{own}")), format!("{wide}{own}"));
    }

    #[test]
    fn what_is_no_instruction_stays() {
        let text = "// setp.lt.f32\n.visible .entry k(\n\t.param .u64 a\n)\n{\n$L_1:\n\tret;\n}\n";
        assert_eq!(avoid(text), text);
    }
}
