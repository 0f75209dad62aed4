//! Reports of plans as data: their schema, and what is different between two.

use std::path::Path;
use std::process::{Command, Output};

use tilefuse::Explanation;

fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    // What measurements choose is not the same from run to run.
    let mut command = Command::new(crate::common::program());
    command.current_dir(folder).args(args).env("TILEFUSE_PRODUCTS", "generated").env("OMP_NUM_THREADS", "2");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

/// `tilefuse explain --format schema -o docs/plan.schema.json` writes it.
#[test]
fn the_schema_in_the_documentation_is_that_of_reports() {
    let path = crate::common::files().join("docs/plan.schema.json");
    assert!(std::fs::read_to_string(path).unwrap() == Explanation::schema(), "the schema is out of date");
}

/// `tilefuse explain --diff any --format schema -o docs/diff.schema.json` writes it.
#[test]
fn the_schema_in_the_documentation_is_that_of_differences() {
    let path = crate::common::files().join("docs/diff.schema.json");
    let schema = std::fs::read_to_string(path).unwrap();
    assert!(schema == tilefuse::PlanDiff::schema(), "the schema is out of date");
}

#[test]
fn reports_are_as_their_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let schema = serde_json::from_str(&Explanation::schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for model in ["mlp8x1024-tiny", "gpt2-tiny", "resnet18-tiny", "llama-tiny", "kernel:cross_entropy"] {
        let code = if model.starts_with("kernel") { &["--code"][..] } else { &[] };
        let args = [&["explain", model, "--format", "json"], code].concat();
        let (status, report, said) = run(folder.path(), &args);
        assert_eq!(status, Some(0), "{said}");
        let value: serde_json::Value = serde_json::from_str(&report).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{model}: {errors:?}");
        // What is read is what was written.
        let read = Explanation::from_json(&report).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), value, "{model}");
    }
    let mut wrong: serde_json::Value =
        serde_json::from_str(&run(folder.path(), &["explain", "mlp8x1024-tiny", "--format", "json"]).1)
            .unwrap();
    wrong["ops_captured"] = "many".into();
    assert!(!validator.is_valid(&wrong));
}

#[test]
fn plans_are_compared_and_regressions_fail() {
    let folder = tempfile::tempdir().unwrap();
    let explain = |args: &[&str]| run(folder.path(), &[&["explain", "mlp8x1024-tiny"], args].concat());
    assert_eq!(explain(&["--format", "json", "-o", "old.json"]).0, Some(0));
    let (status, same, _) = explain(&["--diff", "old.json", "--fail-on-regression", "0"]);
    assert_eq!((status, same.as_str()), (Some(0), "the plans are the same\n"));
    let separate =
        ["--hint", "separate=aten::gelu", "--hint", "separate=aten::layer_norm", "--diff", "old.json"];
    let (status, text, _) = explain(&separate);
    assert_eq!(status, Some(0));
    assert!(text.contains("kernels ") && text.contains("\ngone\n") && text.contains("\nnew\n"), "{text}");
    let (status, _, said) = explain(&[&separate[..], &["--fail-on-regression", "5%"]].concat());
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("worse by more than 5%: "), "{said}");
    let (status, data, _) = explain(&[&separate[..], &["--format", "json"]].concat());
    let data: serde_json::Value = serde_json::from_str(&data).unwrap();
    assert_eq!(status, Some(0));
    assert!(data["new"].as_array().unwrap().len() > 1);
    let schema = serde_json::from_str(&tilefuse::PlanDiff::schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&data).map(|error| error.to_string()).collect();
    assert!(errors.is_empty() && data["version"].as_u64().is_some_and(|version| version > 0), "{errors:?}");
    for (args, error) in [
        (["--diff", "no-such.json"], "no-such.json: "),
        (["--diff", "old.json/x"], "old.json/x: "),
        (["--fail-on-regression", "5%"], "--diff"),
        (["--diff=old.json", "--format=dot"], "--diff is written with --format text, json or html"),
        (["--print-after=lower", "--format=json"], "write text, in no other --format"),
    ] {
        let (status, _, said) = explain(&args);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(error), "{said}");
    }
    std::fs::write(folder.path().join("bad.json"), "{\"version\":99}").unwrap();
    let (status, _, said) = explain(&["--diff", "bad.json"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("version 99"), "{said}");
}

/// With `--products predicted`, a plan is the same whatever measurements are remembered.
#[test]
fn products_that_are_not_measured_make_the_same_plan_with_every_cache() {
    let folder = tempfile::tempdir().unwrap();
    let explain = |cache: &str, args: &[&str]| {
        let mut command = Command::new(crate::common::program());
        command.current_dir(folder.path()).env("TILEFUSE_CACHE", cache).env("OMP_NUM_THREADS", "2");
        let output =
            command.args(["explain", "gpt2-tiny", "--products", "predicted"]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(explain("first", &["--format", "json", "-o", "old.json"]).0, Some(0));
    let same = explain("second", &["--diff", "old.json", "--fail-on-regression", "0"]);
    assert_eq!(same, (Some(0), String::from("the plans are the same\n")));
    let (_, _, said) = run(folder.path(), &["explain", "gpt2-tiny", "--products", "all"]);
    assert!(said.contains("`all` is none of measured, predicted, generated and library"), "{said}");
}

/// Types that are not the same are said before what follows from them.
#[test]
fn other_types_are_a_difference_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let explain = |args: &[&str]| run(folder.path(), &[&["explain", "mlp8x1024-tiny"], args].concat());
    assert_eq!(explain(&["--format", "json", "-o", "old.json"]).0, Some(0));
    let (_, text, _) = explain(&["--dtype", "bf16", "--diff", "old.json"]);
    assert!(text.starts_with("input 0: f32["), "{text}");
    let regression = ["--dtype", "f64", "--diff", "old.json", "--fail-on-regression", "5%"];
    let (status, _, said) = explain(&regression);
    assert!(status == Some(1) && said.contains("\n  input 0: f32["), "{said}");
    assert!(text.contains("] -> bf16[") && text.contains(" tensors of the model: f32 -> bf16\n"), "{text}");
}

/// Each line of code says which operator it computes a part of, from the block program to the processor's instructions.
#[test]
fn operators_are_followed_into_the_code_of_kernels() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let x = tch::Tensor::randn([64, 96], *crate::common::F32);
    let fused = tilefuse::fuse(|x: &tch::Tensor| (x * 2.0).gelu("none").softmax(-1, tch::Kind::Float));
    let plan = fused.explain(&x).unwrap();
    assert!(plan.code.is_empty());
    let plan = plan.with_code().unwrap();
    assert_eq!(plan.code.len(), plan.programs.len());
    let [code] = &plan.code[..] else { panic!("{} kernels", plan.code.len()) };
    let text: Vec<&str> = code.block.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(text.join("\n") + "\n", plan.programs[0]);
    let at = |name: &str| code.operators.iter().position(|operator| operator.starts_with(name)).unwrap();
    let [gelu, softmax] = ["aten::gelu", "aten::softmax"].map(at);
    let of = |word: &str| {
        let line = code.block.iter().find(|(text, _)| text.contains(word));
        line.unwrap_or_else(|| panic!("no {word}:\n{}", text.join("\n"))).1
    };
    assert_eq!((of("map erf"), of("reduce sum"), of("store ")), (Some(gelu), Some(softmax), Some(softmax)));
    for lines in [&code.llvm, &code.machine] {
        for operator in [gelu, softmax] {
            let count = lines.iter().filter(|(_, of)| *of == Some(operator)).count();
            assert!(count > 10, "{count} lines of {}", code.operators[operator]);
        }
    }
    let read = Explanation::from_json(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(read.code, plan.code);
    assert!(matches!(read.with_code(), Err(tilefuse::Error::NoCode)));
}

/// Times are measured in runs of their own, which leave what calls compute and count as it was.
#[test]
fn a_profile_has_a_time_for_each_step_and_operator() {
    // Other tests draw from the generator whose numbers this one compares.
    if !crate::common::is_alone("report::a_profile_has_a_time_for_each_step_and_operator") {
        return;
    }
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = crate::common::THREADS.read();
    let x = tch::Tensor::randn([64, 512], *crate::common::F32);
    let model = |x: &tch::Tensor| {
        let noise = x.rand_like();
        (x.exp() * noise).softmax(-1, None).sort(-1, false).0
    };
    let fused = tilefuse::fuse(model);
    tch::manual_seed(5);
    let first: tch::Tensor = fused.call(&x).unwrap();
    let drawn = |f: &dyn Fn()| {
        tch::manual_seed(9);
        f();
        f64::try_from(tch::Tensor::rand([1], *crate::common::F32)).unwrap()
    };
    let profiled = drawn(&|| drop(fused.profile(&x).unwrap()));
    assert_eq!(profiled, drawn(&|| ()), "a profile leaves the random numbers as they were");
    let plan = fused.profile(&x).unwrap();
    assert!(plan.is_measured());
    assert!(plan.steps.iter().all(|step| step.measured_us().is_some()), "{plan}");
    let timed = plan.steps.iter().filter(|step| step.us() > Some(0.0)).count();
    assert!(timed >= 2, "{plan}");
    assert_eq!(plan.eager.len(), plan.ops_captured);
    let sort = plan.eager.iter().find(|operator| operator.operator.starts_with("aten::sort #"));
    assert!(sort.is_some_and(|operator| operator.us > 0.0), "{:?}", plan.eager);
    assert!(plan.summary().contains("as measured; eager's"), "{plan}");
    let found = plan.prediction().unwrap();
    let (call, steps) = (found.call_us.unwrap(), plan.totals().measured_us.unwrap());
    assert!(call > 0.0 && found.unexplained == Some(1.0 - steps / call), "{found:?}");
    assert!(plan.summary().contains("\ncall: "), "{plan}");
    let unmeasured = fused.explain(&x).unwrap();
    assert!(!unmeasured.is_measured() && unmeasured.call_us.is_none());
    tch::manual_seed(5);
    let again: tch::Tensor = fused.call(&x).unwrap();
    assert!(again.allclose(&first, 1e-5, 1e-6, false));
    assert!(fused.stats().eager_calls.is_empty());
    let reads = |x: &tch::Tensor| x * x.sum(tch::Kind::Float).double_value(&[]);
    assert!(matches!(tilefuse::fuse(reads).profile(&x), Err(tilefuse::Error::RunsEager(_))));
}

/// What a program prints on a terminal of 80 columns; none where there is no `script` that makes one.
fn on_a_terminal(variables: &[(&str, &str)]) -> Option<String> {
    let program = crate::common::program();
    let command = format!("stty cols 80 rows 50; exec '{}' explain gpt2-tiny", program.display());
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .env("TILEFUSE_PRODUCTS", "generated")
        .envs(variables.iter().copied());
    let output = script.stdin(std::process::Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert!(output.status.success(), "{text}");
    Some(text)
}

/// The layers of GPT-2 are one entry, of however many there are.
#[test]
fn a_plan_fits_on_a_screen() {
    let Some(plan) = on_a_terminal(&[("NO_COLOR", "1")]) else {
        return crate::common::skipped("there is no `script`, which makes terminals");
    };
    assert!(plan.contains("modules within transformer"), "{plan}");
    assert!(plan.lines().all(|line| line.chars().count() <= 80), "{plan}");
    assert!(plan.lines().count() <= 50, "{plan}");
    // What is being done is said, and nothing is drawn.
    assert!(plan.starts_with("compiling gpt2-tiny\n") && !plan.contains('\u{1b}'), "{plan}");
    assert!(on_a_terminal(&[]).unwrap().contains("\u{1b}[1m"));
}

/// A plan without what depends on a machine: times, shares of them, and which kernels take most.
fn without_times(plan: &str) -> String {
    let words = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_timed =
            |at: usize| words.get(at + 1).is_some_and(|unit| ["%", "us", "us,", "ms", "ms,"].contains(unit));
        let kept = (0..words.len()).filter(|&at| !is_timed(at)).map(|at| words[at]);
        kept.collect::<Vec<_>>().join(" ")
    };
    plan.trim_end()
        .lines()
        .filter(|line| !line.starts_with("time: ") && !line.starts_with("limits: "))
        .map(words)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The plan in the README is what the program prints; `UPDATE_EXPECT=1` writes it anew.
#[test]
fn the_plan_in_the_readme_is_that_of_the_program() {
    if !tilefuse::Prepack::Tracked.is_possible() {
        return crate::common::skipped("this system does not track writes: weights are not prepacked");
    }
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("avx512f") {
        return crate::common::skipped("blocks of other vectors have other plans");
    }
    const BEGIN: &str = "\n```text\n";
    let folder = tempfile::tempdir().unwrap();
    let (status, plan, said) = run(folder.path(), &["explain", "gpt2-tiny"]);
    assert_eq!(status, Some(0), "{said}");
    let path = crate::common::files().join("README.md");
    let Ok(page) = std::fs::read_to_string(&path) else {
        return crate::common::skipped("the README is not among the files of the tests");
    };
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once("\n```\n").unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let written = format!("{before}{BEGIN}{}\n```\n{after}", plan.trim_end());
        std::fs::write(&path, written).unwrap();
        return;
    }
    assert_eq!(
        without_times(shown),
        without_times(&plan),
        "README.md is out of date; UPDATE_EXPECT=1 writes it"
    );
}
