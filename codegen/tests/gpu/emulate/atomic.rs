//! Atomic instructions.

/// The function that stands for an atomic instruction in inline assembly.
pub(super) fn helper(text: &str) -> Option<(String, String)> {
    let instruction = text.split(' ').nth(1)?.strip_prefix("atom.")?;
    let mut parts = instruction.split('.').skip(2);
    assert_eq!(parts.next(), Some("global"), "{text}");
    let (what, kind) = (parts.next()?, parts.last()?);
    let word = format!("i{}", &kind[if kind.starts_with("bf") { 2 } else { 1 }..]);
    let name = format!("emulated_{}", instruction.replace('.', "_"));
    let float = match kind {
        "f16" => Some("half"),
        "bf16" => Some("bfloat"),
        "f32" => Some("float"),
        "f64" => Some("double"),
        _ => None,
    };
    let function = match (what, &kind[..1]) {
        ("exch", _) => "xchg".to_owned(),
        ("max" | "min", "u") => format!("u{what}"),
        _ => what.to_owned(),
    };
    let pointer = "ptr addrspace(1) %p";
    let (second, body) = match (what, float) {
        ("cas", _) => (
            format!("{word} %w, "),
            format!(
                "  %pair = cmpxchg {pointer}, {word} %v, {word} %w seq_cst seq_cst\n  %old = extractvalue {{ {word}, i1 }} %pair, 0\n"
            ),
        ),
        (_, Some(float)) => (
            String::new(),
            format!(
                "  %x = bitcast {word} %v to {float}\n  %y = atomicrmw fadd {pointer}, {float} %x seq_cst\n  %old = bitcast {float} %y to {word}\n"
            ),
        ),
        _ => (String::new(), format!("  %old = atomicrmw {function} {pointer}, {word} %v seq_cst\n")),
    };
    let text = format!(
        "define internal {word} @{name}({pointer}, {word} %v, {second}i1 %m, {word} %other) {{\n  \
         br i1 %m, label %go, label %not\ngo:\n{body}  ret {word} %old\nnot:\n  ret {word} %other\n}}\n"
    );
    Some((name, text))
}
