//! The reasons of whole models: all that a plan says of its edges is known, and was read.

use std::collections::BTreeMap;
use std::process::Command;

use tilefuse::Explanation;

/// Models with an input, of which `T` is the type.
const MODELS: [(&str, &str); 3] =
    [("gpt2", "i64[1,512]{0..50257}"), ("resnet50", "T[2,3,224,224]"), ("swin_t", "T[1,3,224,224]")];

/// A reason without its numbers and operators, which are of one edge.
fn without_numbers(verdict: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in verdict.split(' ') {
        let is_name = |word: &String| word.trim_start_matches('(').starts_with("aten::");
        let is_operator = word.starts_with('#') && words.last().is_some_and(is_name);
        if is_operator {
            words.pop();
            if words.last().is_none_or(|last| last != "OPERATORS") {
                words.push(String::from("OPERATORS"));
            }
            continue;
        }
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        words.push(if is_number { format!("N{}", word.trim_start_matches(digits)) } else { word.to_owned() });
    }
    words.join(" ")
}

/// Compares the reasons of plans for a target with those in a file. Such plans are made by typical figures, so that no measurement and
/// no processor decides.
///
/// `UPDATE_EXPECT=1` writes the file anew.
fn models_have_the_reasons_in(file: &str, target: &str, dtype: &str) {
    let mut text = String::new();
    for (model, input) in MODELS {
        let input = input.replace('T', dtype);
        let mut explain = Command::new(crate::common::program());
        explain.args(["explain", model, "--input", &input, "--dtype", dtype, "--format", "json"]);
        // Other tests leave products to libtorch. Plans for a processor are for the threads of this one.
        explain.args(["--target", target, "--products", "predicted"]).env("OMP_NUM_THREADS", "2");
        let output = explain.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan = Explanation::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for edge in &plan.edges {
            *reasons.entry(without_numbers(&edge.verdict)).or_default() += 1;
        }
        text.push_str(&format!("{model} {input}\n"));
        reasons.iter().for_each(|(reason, count)| text.push_str(&format!("{count:6} {reason}\n")));
    }
    let file = crate::common::files().join(file);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return std::fs::write(file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    assert!(
        text == expected,
        "{} is out of date; UPDATE_EXPECT=1 writes it, and each reason in it is true:\n{text}",
        file.display()
    );
}

#[test]
fn whole_models_have_these_reasons_on_a_gpu() {
    models_have_the_reasons_in("tests/tilefuse/reasons.txt", "sm_90a", "bf16");
}

#[test]
fn whole_models_have_these_reasons_on_a_processor() {
    if cfg!(not(target_arch = "x86_64")) {
        return crate::common::skipped("plans for processors are for those of this machine's family");
    }
    models_have_the_reasons_in("tests/tilefuse/reasons_of_host.txt", "x86-64-v4", "f32");
}
