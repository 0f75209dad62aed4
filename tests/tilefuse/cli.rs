//! The program: bad input ends with one clear line and status 2.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tch::{CModule, Device, Kind, Tensor};

fn run(args: &[&str]) -> Output {
    Command::new(crate::common::program()).args(args).output().unwrap()
}

fn rejected(args: &[&str], expected: &str) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(said.contains(expected), "{args:?}: {said}");
    assert!(!said.contains("panicked") && !said.contains("stack backtrace"), "{args:?}: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{args:?}: {said}");
}

#[test]
fn bad_input_is_named_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt");
    std::fs::write(&file, "PK\u{3}\u{4} this is no archive").unwrap();
    let file = file.to_str().unwrap();
    rejected(&["compare", "no-such-model"], "there is no model and no file");
    rejected(&["compare", file, "--input", "f32[2]"], "is not a TorchScript file");
    rejected(&["compare", file], "is not a TorchScript file");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "f32[1,2", "--seconds", "0"], "there is no ]");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "f32[3,7]", "--seconds", "0"], "the model failed");
    rejected(&["compare", "mlp8x1024-tiny", "--input", "i64[3]{0..9}", "--seconds", "0"], "the model failed");
    rejected(
        &["compare", "kernel:softmax", "--input", "f32[2]", "--input", "f32[2]", "--seconds", "0"],
        "takes",
    );
    for (inputs, error) in [
        ("no-such-file", "cannot read no-such-file: No such file or directory (os error 2)"),
        (folder.path().to_str().unwrap(), "Is a directory (os error 21)"),
        (file, "model.pt: it is not a safetensors file: "),
    ] {
        rejected(&["compare", "mlp8x1024-tiny", "--inputs", inputs], error);
    }
    rejected(&["compare", "mlp8x1024-tiny", "--device", "abacus"], "is none of cpu, cuda, cuda:N");
    rejected(&["compare", "mlp8x1024-tiny", "--dtype", "f33"], "is none of f32");
    let out = folder.path().to_str().unwrap();
    for args in [&["compare", "--zoo"][..], &["dump-ptx", "--target", "sm_90a", "--out", out, "--prefix"]] {
        rejected(&[args, &["gtp2"]].concat(), "no model's name starts with \"gtp2\"; did you mean \"gpt2\"?");
        rejected(&[args, &["zzz"]].concat(), "no model's name starts with \"zzz\"; known models: ");
    }
    if tilefuse::torch::cuda_devices().is_err() {
        rejected(&["compare", "mlp8x1024-tiny", "--device", "cuda"], "CUDA is not available");
    }
}

/// What no operator is meant by is an error, behind the plan.
#[test]
fn hints_name_what_is_in_the_model() {
    for asked in [["--hint", "eager=no.such"], ["--hint", "together=h.9.mlp"], ["--strict", "mlp"]] {
        let output = run(&[&["explain", "gpt2-tiny"][..], &asked].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let [option, pattern] = asked;
        let expected = format!(
            "{option} {pattern}: no operator has this name, and none is of such a module; modules are transformer,"
        );
        assert!(said.contains(&expected) && !output.stdout.is_empty(), "{said}");
    }
    let meant = ["transformer.h.*.attn", "h.*.attn", "gelu", "#23"].map(|of| format!("eager={of}"));
    for asked in meant.iter().map(|hint| ["--hint", hint]) {
        let output = run(&[&["explain", "gpt2-tiny"][..], &asked].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The stages of a kernel are written, and an edited one is compiled in their place: here subtraction for addition,
/// which the comparison with the interpreter tells.
#[test]
fn stages_are_dumped_and_overridden() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let add = &example("vector_add");
    let mut args = vec!["kernel", add, "--run", "--grid", "4", "--arg", "1000i64"];
    for _ in 0..3 {
        args.splice(3..3, ["--arg", "f32[1000]"]);
    }
    let dumped = run(&[&args[..], &["--dump", path]].concat());
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let written = |end: &str| {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path());
        let named = |f: &PathBuf| f.file_name().unwrap().to_str().unwrap().starts_with("vector_add-");
        files.filter(named).find(|f| f.to_str().unwrap().ends_with(end))
    };
    let module = written(".host.ll").unwrap();
    let text = std::fs::read_to_string(&module).unwrap();
    assert!(written(".tile").is_some() && text.contains(" fadd "));
    let assembly = std::fs::read_to_string(written(".host.s").unwrap()).unwrap();
    assert!(assembly.contains("\t.text"), "{assembly}");
    std::fs::write(&module, text.replace(" fadd ", " fsub ")).unwrap();
    let overridden = run(&[&args[..], &["--override", path]].concat());
    assert_eq!(overridden.status.code(), Some(1));
    let said = String::from_utf8_lossy(&overridden.stdout).into_owned();
    assert!(said.contains("DIFFERS from the interpreter"), "{said}");
    // What is not run is dumped as well.
    let gpu = run(&["kernel", add, "--target", "sm_90a", "--dump", path]);
    assert!(gpu.status.success() && gpu.stdout.is_empty());
    assert!(written(".sm_90a.ptx").is_some());
    rejected(&["kernel", add, "--target", "interpret", "--dump", path], "interpret compiles nothing");
}

/// A model that holds less than a tenth of a megabyte says how much.
#[test]
fn sizes_have_the_unit_that_suits_them() {
    let output = run(&["compare", "mlp8x1024-tiny", "--seconds", "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let peak = said.lines().find(|line| line.contains("intermediates at peak")).unwrap();
    assert!(peak.contains(" B ") || peak.contains(" kB "), "{said}");
    assert!(!said.contains(" 0.0 MB"), "{said}");
}

/// As wide as other text that is not for a terminal.
#[test]
fn what_doctor_says_goes_on_below_itself() {
    let output = run(&["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.starts_with("tilefuse      "), "{said}");
    let missing = |line: &&str| line.starts_with("cuda          none: ");
    assert!(said.lines().find(missing).is_none_or(|line| line.chars().count() <= 120), "{said}");
}

/// What a hint keeps in libtorch is left there, as `--strict` says.
#[test]
fn a_plan_that_is_not_fused_as_asked_is_shown_and_fails() {
    let explain = |args: &[&str]| run(&[&["explain", "mlp8x1024-tiny"], args].concat());
    for (strict, status) in [("aten::gelu", 1), ("aten::layer_norm", 0)] {
        let output = explain(&["--hint", "eager=aten::gelu", "--strict", strict]);
        assert_eq!(output.status.code(), Some(status));
        assert!(String::from_utf8_lossy(&output.stdout).contains("operators captured"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.contains("left to libtorch:\n  "), status == 1, "{said}");
        assert_eq!(said.contains("aten::gelu"), status == 1, "{said}");
        // A line for each reason, of which there is one.
        assert!(said.lines().count() <= 2, "{said}");
    }
    rejected(&["explain", "mlp8x1024-tiny", "--strict", "*", "--stop-after", "lower"], "--strict asks");
}

/// Nobody reads what is printed, or only the first line of more than a pipe holds.
#[test]
fn a_closed_pipe_changes_no_status() {
    let closed = |args: &[&str], reads_a_line: bool| {
        let mut command = Command::new(crate::common::program());
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        if reads_a_line {
            printed.read_line(&mut line).unwrap();
        }
        drop(printed);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{args:?}: {said}");
        (output.status.code(), line)
    };
    let explain = ["explain", "mlp8x1024-tiny"];
    assert_eq!(closed(&explain, false).0, Some(0));
    let strict = ["--hint", "eager=aten::gelu", "--strict", "aten::gelu"];
    assert_eq!(closed(&[&explain[..], &strict].concat(), false).0, Some(1));
    assert_eq!(closed(&["compare", "mlp8x1024-tiny", "--seconds", "0"], false).0, Some(0));
    let page = closed(&[&explain[..], &["--format", "html"]].concat(), true);
    assert!(page.0 == Some(0) && page.1.starts_with("<!doctype html>"), "{page:?}");
}

fn example(name: &str) -> String {
    crate::common::files().join(format!("kernels/{name}.tile")).display().to_string()
}

#[test]
fn bad_kernels_and_arguments_are_named_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.tile");
    let path = file.to_str().unwrap();
    rejected(&["kernel", path], "cannot read");
    std::fs::write(&file, b"kernel \xff").unwrap();
    rejected(&["kernel", path], "cannot read");
    std::fs::write(&file, "kernel @f(%x: ptr<f32>) {\n  %v = load %x, %i\n}").unwrap();
    let said = String::from_utf8_lossy(&run(&["kernel", path]).stderr).into_owned();
    assert!(said.contains("bad.tile:2:17: %i is not defined"), "{said}");
    // The line itself, with the place marked.
    assert!(said.contains("2 │   %v = load %x, %i") && said.contains("─┬"), "{said}");
    std::fs::write(&file, "kernel @f() {\n  yield\n}").unwrap();
    let said = String::from_utf8_lossy(&run(&["kernel", path]).stderr).into_owned();
    assert!(said.contains("bad.tile:2:3: a yield"), "{said}");
    let add = &example("vector_add");
    rejected(&["kernel", add, "--stop-after", "magic"], "there are canonicalize, cse");
    rejected(&["kernel", add, "--print-after", "magic"], "target host has no pass \"magic\"");
    rejected(&["kernel", add, "--print-after", "vectorize"], "target host has no pass \"vectorize\"");
    rejected(
        &["kernel", add, "--target", "sm_80", "--stop-after", "layout", "--emit", "ptx"],
        "behind it there is nothing to emit or run",
    );
    rejected(&["kernel", add, "--emit", "ptx"], "target host has block, llvm and asm");
    rejected(&["kernel", add, "--emit", "asm", "--target", "sm_80"], "target sm_80 has block, llvm and ptx");
    rejected(&["kernel", add, "--emit", "llvm", "--target", "interpret"], "target interpret has block");
    rejected(&["kernel", add, "--run"], "kernel @vector_add: 4 arguments are needed, 0 were given");
    rejected(&["kernel", add, "--run", "--arg", "f32[1"], "there is no ]");
    rejected(&["kernel", add, "--run", "--arg", "300u8"], "is no argument");
    rejected(&["kernel", add, "--run", "--grid", "1,2,3,4"], "a grid has up to three");
    let tensors = ["--arg", "f32[8]", "--arg", "f32[8]", "--arg", "f32[8]"];
    let run = |more: &[&str], expected| {
        let all: Vec<&str> = ["kernel", add, "--run"].iter().chain(&tensors).chain(more).copied().collect();
        rejected(&all, expected);
    };
    run(&["--arg", "8i32"], "%n is i64, the argument is 8 of kind i32");
    run(&["--arg", "9i64"], "is out of range for %x of 8 elements");
    run(&["--arg", "8i64", "--grid", "70000,70000"], "cannot be launched");
    if tilefuse::torch::cuda_devices().is_err() {
        run(&["--arg", "8i64", "--target", "sm_90a"], "CUDA is not available");
    }
}

#[test]
fn kernels_are_shown_stage_by_stage() {
    let add = &example("vector_add");
    for (target, stage, expected) in [
        ("interpret", "block", "kernel @vector_add("),
        ("host", "llvm", "define"),
        ("host", "asm", ".text"),
        ("sm_80", "llvm", "ptx_kernel void @tf_vector_add"),
        ("sm_80", "ptx", ".target sm_80"),
        ("sm_90a", "ptx", ".target sm_90a"),
        ("sm_100a", "ptx", ".target sm_100a"),
    ] {
        let output = run(&["kernel", add, "--target", target, "--emit", stage]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{target} {stage}");
        assert!(said.contains(expected), "{target} {stage}: {said}");
    }
}

#[test]
fn passes_are_watched_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("twice.tile");
    let text = "kernel @twice(%n: i32, %y: ptr<i32>) {\n  %a = map add %n, %n\n  %b = map add %n, %n\n  \
                %c = map mul %a, %b\n  store %y, %n, %c\n}\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let lines = |args: &[&str]| {
        let output = run(&[&["kernel", path], args].concat());
        let count = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().count();
        (count(&output.stdout), count(&output.stderr))
    };
    let (first, _) = lines(&["--stop-after", "canonicalize"]);
    let (second, printed) = lines(&["--stop-after", "cse", "--print-after", "canonicalize"]);
    assert_eq!((first, second, printed), (6, 5, 7));
    assert_eq!(lines(&["--target", "interpret", "--print-after", "all"]), (5, 67));
}

#[test]
fn passes_of_a_target_show_what_they_decide() {
    let add = &example("vector_add");
    let of_gpu = |more: &[&str]| {
        let output = run(&[&["kernel", add, "--target", "sm_90a"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let [shown, watched] = of_gpu(&["--stop-after", "vectorize", "--print-after", "layout"]);
    let mut beside = shown.lines().skip_while(|line| !line.contains("%a = load"));
    for note in ["layout: [32 lanes, 4 warps, 8 regs]", "coalesce: runs of 1024", "vectorize: 1 x f32"] {
        let line = beside.next().unwrap();
        assert!(line.contains(&format!("// {note}")), "{shown}");
    }
    assert!(
        watched.starts_with("// after layout\n// sm_90a: 4 warps") && !watched.contains("vectorize"),
        "{watched}"
    );
    let [_, all] = of_gpu(&["--print-after", "all"]);
    let first =
        ["canonicalize", "raise-to-dot", "renumber", "expand", "facts", "layout", "coalesce", "vectorize"];
    for pass in first.into_iter().chain(["pipeline", "convert", "shared", "barriers"]) {
        assert!(all.contains(&format!("// after {pass}\n")), "{pass}: {all}");
    }
    let output = run(&["kernel", add, "--stop-after", "slots"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.starts_with("// host: vectors of ") && shown.contains("// lanes: region 0"), "{shown}");
    let help = String::from_utf8_lossy(&run(&["kernel", "--help"]).stdout).into_owned();
    assert!(help.contains("vectorize") && help.contains("guards"), "{help}");
}

/// Layers that repeat are one entry of a plan, which fits a screen; `--full` shows each step and cut.
#[test]
fn a_plan_shows_what_repeats_once() {
    let explain = |args: &[&str]| {
        // What measurements choose is not the same from run to run.
        let mut command = Command::new(crate::common::program());
        command.args(["explain", "bert-sdpa-tiny"]).args(args).env("TILEFUSE_PRODUCTS", "generated");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (short, full) = (explain(&[]), explain(&["--full"]));
    assert!(short.lines().count() < 40 && short.contains("\n2 x 7 steps, 2 to 15: "), "{short}");
    assert!(short.contains("  encoder.layer.*.intermediate.dense: linear, gelu\n"), "{short}");
    assert!(short.contains("  encoder.layer.*.attention: scaled_dot_product_a...\n"), "{short}");
    assert!(short.contains(" in   2 edges  scaled_dot_product_attention -> linear"), "{short}");
    assert!(full.contains("\n  16  kernel ") && full.matches("aten::linear #").count() > 20, "{full}");
}

#[test]
fn a_plan_is_a_page_with_every_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.html");
    let mut command = Command::new(crate::common::program());
    command.args(["explain", "gpt2-tiny", "--format", "html", "-o", path.to_str().unwrap()]);
    // What measurements choose is not the same from run to run.
    let output = command.env("TILEFUSE_PRODUCTS", "generated").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for at in 0..12 {
        assert!(page.contains(&format!("<tr data-step=\"{at}\">")), "step {at}");
    }
    assert!(page.contains("<td>h.0.mlp.c_fc</td><td>linear, gelu</td>"));
}

#[test]
fn kernels_run_on_random_data() {
    let softmax = &example("softmax");
    for (target, verdict) in [("interpret", 0), ("host", 1)] {
        let output = run(&[
            "kernel",
            softmax,
            "--target",
            target,
            "--run",
            "--grid",
            "8",
            "--arg",
            "f32[8,1000]",
            "--arg",
            "f32[8,1000]",
            "--arg",
            "1000i64",
            "--arg",
            "1000i32",
        ]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.starts_with("%y f32[8,1000]: min 0.0") && said.contains("mean 0.001000"), "{said}");
        assert_eq!(said.matches("agrees with the interpreter").count(), verdict, "{said}");
    }
}

#[test]
fn a_manifest_goes_on_after_a_bad_case() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.jsonl");
    let lines = r#"{"name":"good","model":"mlp8x1024-tiny"}
{"name":"bad","model":"no-such-model"}

{"modle":"gpt2"}
{"name":"empty","model":"kernel:softmax","inputs":["f32[0,4]"]}
"#;
    std::fs::write(&path, lines).unwrap();
    let args = ["compare", "--manifest", path.to_str().unwrap(), "--seconds", "0"];
    let output = run(&args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let counts = "2 passed, 2 failed, 0 skipped";
    assert!(said.trim().ends_with(counts), "{said}");
    let typo = format!("{}:4", path.display());
    let row =
        |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{said}"));
    assert!(row("case ").ends_with("kernels  libtorch  result"), "{said}");
    assert!(row("good ").contains("  ok; compiled in ") && row("empty ").contains("  ok"), "{said}");
    assert!(row("bad ").contains("failed: there is no model and no file"), "{said}");
    assert!(row(&typo).contains("failed: unknown field `modle`, expected one of `name`, `model`"), "{said}");
    let output = run(&[&args[..], &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names = rows.iter().map(|row| (row["name"].as_str().unwrap(), row["ok"].as_bool().unwrap()));
    let expected = [("good", true), ("bad", false), (&*typo, false), ("empty", true)];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    assert!(String::from_utf8_lossy(&output.stderr).trim().ends_with(counts));
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "\n").unwrap();
    rejected(&["compare", "--manifest", empty.to_str().unwrap()], "empty.jsonl has no cases");
}

/// The JSON object of a comparison of a model in a file.
fn compared(args: &[&str]) -> serde_json::Value {
    let output = run(&[&["compare"], args, &["--seconds", "0", "--json"]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&said).unwrap()
}

/// A function as a TorchScript file in a folder, traced on an input.
fn traced(folder: &std::path::Path, x: &Tensor, model: impl Fn(&Tensor) -> Vec<Tensor>) -> String {
    let _no_grad = tch::no_grad_guard();
    let mut forward = |x: &[Tensor]| model(&x[0]);
    let module = CModule::create_by_tracing("Traced", "forward", &[x.shallow_clone()], &mut forward).unwrap();
    let file = folder.join("model.pt");
    module.save(&file).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn models_that_draw_random_numbers_draw_the_same_fused() {
    let folder = tempfile::tempdir().unwrap();
    let x = Tensor::rand([4, 32], (Kind::Float, Device::Cpu));
    let file = traced(folder.path(), &x, |x| {
        let noise = x.randint_like(9) + x.rand_like();
        let picked = (x.softmax(-1, None) + 0.1).multinomial(5, true);
        let dropped = x.dropout(0.5, true) * 3.0;
        let options = (Kind::Float, Device::Cpu);
        // As Python's `fractional_max_pool2d` and `svd_lowrank` draw.
        let pooled = x.view([1i64, 1, 4, 32]).fractional_max_pool2d(
            [2, 2],
            [2, 16],
            &Tensor::rand([1, 1, 2], options),
        );
        let (projected, _) = Tensor::linalg_qr(&x.matmul(&Tensor::randn([32, 3], options)), "reduced");
        vec![Tensor::cat(
            &[
                noise * 2.0,
                picked.to_kind(Kind::Float),
                dropped,
                x.sigmoid().bernoulli().neg(),
                pooled.0.view([4i64, 8]) + 1.0,
                projected.exp(),
            ],
            1,
        )]
    });
    let outcome = compared(&[&file, "--input", "f32[4,32]"]);
    assert_eq!(outcome["ok"], true, "{outcome}");
    // The reference has the same numbers too.
    assert!(outcome["err_vs_f64_eager"].as_f64().unwrap() < 1e-4, "{outcome}");
}

/// Draws in several types, and in place.
fn drawing(x: &Tensor) -> Vec<Tensor> {
    let noise = x.randint_like(9) + x.rand_like();
    let leaky = (x - 0.5).alpha_dropout(0.3, true) * 2.0;
    let dropped = x.dropout(0.5, true) * 3.0;
    let negated = x.sigmoid().bernoulli().neg();
    let in_place = (x * 2.0).normal_(1.0, 2.0) + x;
    vec![Tensor::cat(&[noise * 2.0, leaky.tanh(), dropped, negated, in_place], 1)]
}

#[test]
fn models_that_draw_in_place_draw_the_same_fused_on_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let x = Tensor::rand([4, 32], (Kind::Float, Device::Cpu));
    let file = traced(folder.path(), &x, drawing);
    for device in crate::common::devices().iter().map(|device| if device.is_cuda() { "cuda" } else { "cpu" })
    {
        for input in ["f32[4,32]", "f32[64,100]"] {
            let outcome = compared(&[&file, "--input", input, "--device", device]);
            assert_eq!((&outcome["ok"], &outcome["device"]), (&true.into(), &device.into()), "{outcome}");
            for who in ["err_vs_f64_eager", "err_vs_f64_fused"] {
                assert!(outcome[who].as_f64().unwrap() < 1e-4, "{outcome}");
            }
            assert!(outcome["runs_eager"].is_null(), "{outcome}");
        }
    }
}

#[test]
fn traced_models_with_constants_are_judged_in_f64() {
    let folder = tempfile::tempdir().unwrap();
    let options = (Kind::Float, Device::Cpu);
    let (weight, x) = (Tensor::randn([64, 64], options), Tensor::randn([8, 64], options));
    let file = traced(folder.path(), &x, |x| {
        // A converted module still has this weight and this cast.
        let h = x.matmul(&weight).to_kind(Kind::Float).softmax(-1, Kind::Float);
        let mask = Tensor::ones([8, 64], options).tril(0);
        let sum = (h * mask).matmul(&weight);
        let _ = sum.narrow(0, 0, 4).g_add_scalar_(0.1);
        vec![sum]
    });
    let outcome = compared(&[&file, "--input", "f32[8,64]"]);
    let error = |who: &str| outcome[who].as_f64().unwrap();
    for who in ["err_vs_f64_eager", "err_vs_f64_fused"] {
        assert!((1e-9..1e-4).contains(&error(who)), "{outcome}");
    }
}

#[test]
fn inputs_from_a_file_take_the_type_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("inputs.safetensors");
    let entry = tilefuse_models::find("mlp8x1024-tiny").unwrap();
    let x = entry.inputs()[0].sample(Kind::Float, Device::Cpu);
    Tensor::write_safetensors(&[("0", &x)], &file).unwrap();
    let outcome = compared(&["mlp8x1024-tiny", "--dtype", "bf16", "--inputs", file.to_str().unwrap()]);
    assert_eq!((&outcome["ok"], &outcome["dtype"]), (&true.into(), &"bf16".into()));
    assert!(outcome["kernels_fused"].as_u64().unwrap() > 0, "{outcome}");
}

/// Indices in bf16 would pick nothing, and a mask in bf16 would mask nothing: both are errors of libtorch's.
#[test]
fn only_floating_point_tensors_of_a_file_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("masks.pt");
    // `masks.py` writes it.
    std::fs::write(&file, include_bytes!("masks.pt")).unwrap();
    let file = file.to_str().unwrap();
    for dtype in ["bf16", "f64"] {
        let outcome = compared(&[file, "--input", &format!("{dtype}[4,8]"), "--dtype", dtype]);
        assert_eq!((&outcome["ok"], &outcome["dtype"]), (&true.into(), &dtype.into()), "{outcome}");
        assert!(outcome["kernels_fused"].as_u64().unwrap() > 0, "{outcome}");
    }
}

#[test]
fn manifests_give_strides() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.jsonl");
    let lines = r#"{"model":"kernel:softmax","inputs":["f32[8,16]"],"strides":[[1,8]]}
{"model":"kernel:softmax","inputs":["f32[8,16](40,2)"]}
{"model":"kernel:softmax","inputs":["f32[8,16]"],"strides":[null]}
{"model":"kernel:softmax","inputs":["f32[8,16]"],"strides":[[1]]}
"#;
    std::fs::write(&path, lines).unwrap();
    let output = run(&["compare", "--manifest", path.to_str().unwrap(), "--seconds", "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("strides of input 0: 1 strides for 2 dimensions"), "{said}");
    assert!(said.trim().ends_with("3 passed, 1 failed, 0 skipped"), "{said}");
}

#[test]
fn an_unwritable_cache_is_a_warning() {
    let output = Command::new(crate::common::program())
        .args(["compare", "mlp8x1024-tiny", "--seconds", "0", "--json"])
        .env("TILEFUSE_CACHE", "/proc/no/such/folder")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What answers as the peers' program does.
pub(crate) const PEER: &str = "#!/bin/sh\nwhile read -r line; do case \"$line\" in\n\
    *who*) echo '{\"peers\":[\"inductor\",\"xla\"],\"versions\":{\"inductor\":\"torch 9\"}}';;\n\
    *prepare*) echo '{\"ready\":[\"inductor\"],\"failed\":{\"xla\":\"it is <too> old\"}}';;\n\
    *) echo '{\"us\":[5.0,6.0,7.0]}';;\nesac; done\n";

/// A run of `bench` with a stand-in for Python that answers as the peers' program does.
#[test]
#[cfg(unix)]
fn bench_measures_everyone_in_one_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let peer = PEER;
    std::fs::write(at("peer"), peer).unwrap();
    std::fs::set_permissions(at("peer"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let common = ["bench", "kernels", "--dtype", "f32", "--only", "vector_add", "--seconds", "0"];
    let (json, html) = (at("rows.json"), at("page.html"));
    let output = run(&[&common[..], &["--python", &at("peer"), "--json", &json, "--html", &html]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let rows = read["rows"].as_array().unwrap();
    assert!(rows.len() > 1 && read["copy_gbps"].as_f64().unwrap() > 0.0);
    for row in rows {
        assert_eq!(row["times"]["inductor"]["us"], 6.0);
        assert_eq!(row["failed"]["xla"], "it is <too> old");
        for name in ["tilefuse", "eager", "torchscript", "copy"] {
            assert!(row["times"][name]["us"].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
        assert!(row["ok"].as_bool().unwrap() && row["of_copy"]["tilefuse"].as_f64().unwrap() > 0.0);
    }
    let of = |peers: &str| {
        run(&[&common[..], &["--python", &at("peer"), "--peers", peers, "--json", &json]].concat())
    };
    let unknown = of("inductor,ginger");
    assert_eq!(unknown.status.code(), Some(2));
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(said.contains("--peers \"ginger\" is none of inductor"), "{said}");
    assert!(of("inductor").status.success());
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && !page.contains("http") && !page.contains("<too>"));
    // One that ends at the first row: the second has another.
    let once =
        peer.replace("*prepare*)", &format!("*prepare*) [ -e {0} ] || {{ touch {0}; exit; }};", at("ended")));
    std::fs::write(at("peer"), once).unwrap();
    let output = run(&[&common[..], &["--python", &at("peer"), "--json", &json]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(read["rows"][0]["failed"]["python"], "Python: it ended");
    assert_eq!(read["rows"][1]["times"]["inductor"]["us"], 6.0);
    let alone = run(&[&common[..], &["--python", &at("no such program")]].concat());
    assert!(alone.status.success());
    assert!(String::from_utf8_lossy(&alone.stdout).contains("python: none: "));
    rejected(&["bench", "kernels", "--only", "no-such-row"], "no row starts with");
}

/// Records of `jit-PID.dump`: a name and code.
fn jitdump(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!((u32_at(0), u32_at(8)), (0x4A69_5444, 40));
    let (mut at, mut found) = (40, Vec::new());
    while at < bytes.len() {
        assert_eq!(u32_at(at), 0, "code that was loaded");
        let end = at + u32_at(at + 4);
        let code = end - u64_at(at + 40);
        assert_eq!(bytes[code - 1], 0);
        let name = String::from_utf8(bytes[at + 56..code - 1].to_vec()).unwrap();
        found.push((name, bytes[code..end].to_vec()));
        at = end;
    }
    found
}

#[test]
fn kernels_on_the_host_are_records_of_a_jitdump() {
    let folder = tempfile::tempdir().unwrap();
    let program = || {
        let mut command = Command::new(crate::common::program());
        command.args(["explain", "mlp8x1024-tiny"]).env("JITDUMPDIR", folder.path());
        command
    };
    let written =
        || std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    assert!(program().output().unwrap().status.success());
    assert!(written().is_empty());
    assert!(program().env("TILEFUSE_PERF", "jitdump").output().unwrap().status.success());
    let files = written();
    assert_eq!(files.len(), 1, "{files:?}");
    let name = files[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("jit-") && name.ends_with(".dump"), "{name}");
    let records = jitdump(&std::fs::read(&files[0]).unwrap());
    assert!(!records.is_empty());
    for (name, code) in records {
        assert!(name.starts_with("tilefuse::") && code.iter().any(|&byte| byte != 0), "{name}");
    }
}

#[test]
fn a_plan_for_a_gpu_that_is_not_here_has_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let file = path.to_str().unwrap();
    let output =
        run(&["explain", "mlp8x1024-tiny", "--target", "sm_90a", "--code", "--format", "json", "-o", file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan = tilefuse::Explanation::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let gpu = plan.planned_for.as_deref().unwrap();
    assert!(
        gpu.starts_with(
            "sm_90a that is not here, planned by the typical figures of an H200: no time is measured"
        ),
        "{gpu}"
    );
    assert!(plan.kernels_fused > 0 && plan.code.len() == plan.distinct_kernels && !plan.is_measured());
    let is_ptx = |code: &tilefuse::CodeReport| {
        code.language == "PTX" && code.machine.iter().any(|(line, _)| line.contains("ld.global"))
    };
    assert!(plan.code.iter().all(is_ptx));
    let of_module = |step: &tilefuse::StepReport| match step {
        tilefuse::StepReport::Kernel { modules, .. } | tilefuse::StepReport::Extern { modules, .. } => {
            !modules.is_empty()
        }
    };
    assert!(plan.steps.iter().any(of_module), "parameters have names");
    let shown = run(&["explain", "mlp8x1024-tiny", "--target", "sm_90a", "--hint", "tolerance:1e-3=*"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("for sm_90a that is not here"), "{shown}");
    assert!(shown.contains("nothing is compared in a plan for `--target`"), "{shown}");
    let unknown = run(&["explain", "mlp8x1024-tiny", "--target", "sm_12"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("is none of sm_80, sm_90a, sm_100a"));
}

#[test]
fn a_plan_for_a_processor_has_its_code() {
    if cfg!(not(target_arch = "x86_64")) {
        return crate::common::skipped("plans for processors are for those of this machine's family");
    }
    for (target, vector) in [("x86-64-v4", "zmm"), ("x86-64-v3", "ymm"), ("x86-64", "xmm")] {
        let output = run(&["explain", "mlp8x1024-tiny", "--target", target, "--code", "--format", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan = tilefuse::Explanation::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let of = plan.planned_for.as_deref().unwrap();
        assert!(of.starts_with(&format!("{target} that need not be here, planned by the typical")), "{of}");
        assert!(plan.kernels_fused > 0 && plan.code.len() == plan.distinct_kernels && !plan.is_measured());
        let lines = || plan.code.iter().flat_map(|code| &code.machine).map(|(line, _)| line);
        let widest = ["zmm", "ymm", "xmm"].into_iter().find(|name| lines().any(|line| line.contains(name)));
        assert_eq!(widest, Some(vector), "{target}");
        assert!(plan.code.iter().all(|code| code.language == "assembly"));
    }
}

#[test]
fn plans_for_a_gpu_hold_no_more_than_eager() {
    for model in ["unet-sdpa", "mobilenet_v2", "gpt2-loss", "bert-sdpa"] {
        let output = run(&["explain", model, "--target", "sm_90a", "--dtype", "bf16", "--format", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan = tilefuse::Explanation::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let (ours, eager) = (plan.peak_bytes_fused, plan.peak_bytes_eager);
        assert!(ours <= eager, "{model}: {ours} bytes, {eager} eager");
    }
}
