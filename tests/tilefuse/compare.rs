//! `tilefuse compare`: sweeps, pages, hints, and cases that are saved.

use std::path::Path;
use std::process::{Command, Output};

fn run(folder: Option<&Path>, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(crate::common::program());
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let Output { status, stdout, stderr } = command.args(args).output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

fn objects(text: &str) -> Vec<serde_json::Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_sweep_is_timed_for_each_batch_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let args = ["compare", "mlp8x1024-tiny", "--batch", "1,8", "--seconds", "0.01", "--json", "--html"];
    let (status, said) = run(None, &[&args[..], &[page.to_str().unwrap()]].concat());
    assert_eq!(status, Some(0), "{said}");
    let rows = objects(&said);
    let batches: Vec<i64> = rows.iter().map(|row| row["batch"].as_i64().unwrap()).collect();
    assert_eq!(batches, [1, 8]);
    for row in &rows {
        let throughput = &row["throughput"];
        assert_eq!(throughput["per_call"], row["batch"]);
        assert!(row["peers"]["torchscript"]["us"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["launches_eager"], row["kernels_eager"]);
        let [launches, kernels, calls] =
            ["launches_fused", "kernels_fused", "extern_ops"].map(|count| row[count].as_u64().unwrap());
        assert!(launches > 0 && launches <= kernels + calls, "{row}");
        assert!(throughput["fused"].as_f64().unwrap() > 0.0);
        let [low, high] = [0, 1].map(|at| row["fused_quartiles_us"][at].as_f64().unwrap());
        let middle = row["fused_us"].as_f64().unwrap();
        assert!(low <= middle && middle <= high);
        for of in ["fused", "eager"] {
            let held = row["memory"][of].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap());
            assert!(held.max().unwrap() <= row[format!("peak_bytes_{of}")].as_u64().unwrap());
        }
        let ulp = row["outputs"][0]["fused_ulp"].as_array().unwrap();
        assert!(ulp.iter().map(|count| count.as_i64().unwrap()).sum::<i64>() > 0);
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("samples/s against batch") && page.contains("2 of 2 agree with eager"));
    for line in ["fused", "eager", "torchscript"] {
        assert_eq!(page.matches(&format!("<title>{line}, batch ")).count(), 2, "{line}");
    }
    assert!(page.contains("<th>launches</th>"));
    assert!(page.contains("<small>0.5</small>") && page.contains("title=\"fused, up to 0.5 ulp: "));
    // What would take part is said once, not for each batch.
    assert_eq!(said.matches("peers: TorchScript alone; --python python3 adds").count(), 1, "{said}");
    assert_eq!(page.matches("aria-label=\"Bytes held over a call, fused and eager\"").count(), 2);
    assert!(!page.contains("http://") && !page.contains("https://"));
}

/// With a stand-in for Python.
#[test]
#[cfg(unix)]
fn peers_are_timed_where_a_python_has_them() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("peer");
    std::fs::write(&peer, crate::cli::PEER).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let args =
        ["compare", "mlp8x1024-tiny", "--seconds", "0.01", "--python", "./peer", "--html", "report.html"];
    let (status, said) = run(Some(folder.path()), &args);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("inductor: torch 9") && said.contains("time of inductor"), "{said}");
    assert!(said.contains("throughput of inductor"), "{said}");
    assert!(said.contains("xla is not timed: it is <too> old") && said.contains("launches"), "{said}");
    let page = || std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page().contains("inductor 6.0") && page().contains("it is &#60;too&#62; old"));
    let (status, said) = run(Some(folder.path()), &[&args[..], &["--batch", "1,8"]].concat());
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(page().matches("<title>inductor, batch ").count(), 2);
    assert!([1, 8].iter().all(|batch| said.contains(&format!("mlp8x1024-tiny x {batch} on "))), "{said}");
    assert_eq!(said.matches("xla is not timed").count(), 1, "{said}");
}

/// A peer that runs some of several models alone is said not to run the others.
#[test]
#[cfg(unix)]
fn a_peer_without_times_names_its_models() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("peer");
    let ready =
        "*prepare*mlp8x1024-tiny*) echo '{\"ready\":[\"inductor\",\"xla\"],\"failed\":{}}';;\n*prepare*)";
    std::fs::write(&peer, crate::cli::PEER.replace("*prepare*)", ready)).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let lines = r#"{"name":"first","model":"kernel:softmax","inputs":["f32[8,16]"]}
{"name":"second","model":"mlp8x1024-tiny"}
{"name":"third","model":"kernel:softmax","inputs":["f32[4,16]"]}
"#;
    std::fs::write(folder.path().join("cases.jsonl"), lines).unwrap();
    let args = ["compare", "--manifest", "cases.jsonl", "--seconds", "0.01", "--python", "./peer"];
    let (status, said) = run(Some(folder.path()), &args);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("xla of first, third is not timed: it is <too> old\n"), "{said}");
    assert_eq!(said.matches(" is not timed").count(), 1, "{said}");
}

/// The file is asked for by its path; inputs that are given are none of theirs.
#[test]
#[cfg(unix)]
fn peers_are_asked_for_a_torchscript_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("peer");
    let asked = crate::cli::PEER.replace("*prepare*)", "*prepare*) printf '%s' \"$line\" > asked;");
    std::fs::write(&peer, asked).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let model = crate::common::files().join("tests/tilefuse/layers.pt");
    let model = model.to_str().unwrap();
    let args = ["compare", model, "--seconds", "0.01", "--json", "--python", "./peer"];
    let (status, said) = run(Some(folder.path()), &[&args[..], &["--input", "f32[4,8]"]].concat());
    assert_eq!(status, Some(0), "{said}");
    let row = objects(&said).remove(0);
    assert_eq!(row["peers"]["inductor"]["us"], 6.0);
    assert!(row["peers"]["torchscript"]["us"].as_f64().unwrap() > 0.0);
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    assert_eq!((&asked["model"], &asked["file"]), (&model.into(), &true.into()));
    assert_eq!(asked["peers"], serde_json::json!(["inductor"]));
    assert_eq!(asked["inputs"][0]["shape"], serde_json::json!([4, 8]));
    let input = tch::Tensor::ones([4, 8], (tch::Kind::Float, tch::Device::Cpu));
    let file = folder.path().join("inputs.safetensors");
    tch::Tensor::write_safetensors(&[("0", input)], &file).unwrap();
    let given = ["--inputs", file.to_str().unwrap()];
    let (status, said) = run(Some(folder.path()), &[&args[..], &given].concat());
    assert_eq!(status, Some(0), "{said}");
    let why = objects(&said).remove(0)["peers_failed"]["inductor"].clone();
    assert_eq!(why, "it draws inputs, which --input describes, and takes none of a file");
}

#[test]
fn a_manifest_makes_one_page_with_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "{\"name\":\"good\",\"model\":\"mlp8x1024-tiny\"}\n{\"name\":\"<bad>\",\"model\":\"no-such-model\"}\n";
    std::fs::write(folder.path().join("cases.jsonl"), lines).unwrap();
    let args = ["compare", "--manifest", "cases.jsonl", "--seconds", "0", "--html", "report.html"];
    let (status, said) = run(Some(folder.path()), &args);
    assert_eq!(status, Some(1), "{said}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("1 of 2 agree with eager") && page.contains("&#60;bad&#62;"));
}

/// As plans say it, in text, in JSON and on the page.
#[test]
fn what_became_of_hints_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["compare", "mlp8x1024-tiny", "--seconds", "0", "--html", "report.html", "--hint", "together=*"];
    let (status, said) = run(Some(folder.path()), &args);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("layer_norm -> linear, not in one kernel as the hint `together` asks, cut: "),
        "{said}"
    );
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("not in one kernel as the hint <code>together</code> asks, cut: "));
    let (status, said) =
        run(Some(folder.path()), &[&args[..], &["--json", "--hint", "eager=no.such"]].concat());
    assert_eq!(status, Some(2), "{said}");
    let hints = objects(&said).remove(0)["hints"].clone();
    let last = hints.as_array().and_then(|lines| lines.last()).cloned();
    assert_eq!(last.unwrap(), "hint eager=no.such: no operator has this name, and none is of such a module");
}

#[test]
fn a_saved_case_is_the_same_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("case");
    let args = [
        "compare",
        "mlp8x1024-tiny",
        "--dtype",
        "bf16",
        "--seconds",
        "0",
        "--json",
        "--bisect",
        "--save-repro",
    ];
    let (status, said) = run(None, &[&args[..], &[saved.to_str().unwrap()]].concat());
    assert_eq!(status, Some(0), "{said}");
    let first = objects(&said).remove(0);
    for name in ["README", "options.txt", "graph.txt", "machine.txt", "outcome.json"] {
        assert!(saved.join(name).exists(), "{name}");
    }
    assert!(std::fs::read_to_string(saved.join("plan.txt")).unwrap().contains("kernel @"));
    let args = ["compare", "--manifest", "case.jsonl", "--seconds", "0", "--json"];
    let (status, said) = run(Some(&saved), &args);
    assert_eq!(status, Some(0), "{said}");
    let again = objects(&said).remove(0);
    for field in ["err_vs_f64_eager", "err_vs_f64_fused", "max_abs_err", "kernels_fused", "dtype"] {
        assert_eq!(again[field], first[field], "{field}");
    }
}

/// The options of the command line are in the case, and count when it runs again.
#[test]
fn a_saved_case_keeps_how_it_was_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("case");
    let args = [
        "--hint",
        "eager=linear",
        "--hint",
        "tolerance:1e-3=gelu",
        "--strict",
        "gelu",
        "--max-rewrites",
        "1000000",
        "--workspace-bytes",
        "65536",
        "--products",
        "generated",
        "--tune",
    ];
    let start =
        ["compare", "mlp8x1024-tiny", "--seconds", "0", "--json", "--save-repro", saved.to_str().unwrap()];
    let (status, said) = run(None, &[&start[..], &args].concat());
    assert_eq!(status, Some(0), "{said}");
    let first = objects(&said).remove(0);
    assert!(first["extern_ops"].as_u64() > Some(0), "{first}");
    let path = saved.join("case.jsonl");
    let line = std::fs::read_to_string(&path).unwrap();
    let case: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(case["hints"], serde_json::json!(["eager=linear", "tolerance:1e-3=gelu"]));
    assert_eq!(
        (&case["strict"][0], &case["max_rewrites"], &case["tune"], &case["products"]),
        (&"gelu".into(), &1_000_000.into(), &true.into(), &"generated".into())
    );
    assert_eq!(case["workspace_bytes"], 65536);
    assert!(std::fs::read_to_string(saved.join("options.txt")).unwrap().contains("workspace_bytes: 65536,"));
    let again = |line: &str| {
        std::fs::write(&path, line).unwrap();
        run(Some(&saved), &["compare", "--manifest", "case.jsonl", "--seconds", "0", "--json"])
    };
    let (status, said) = again(&line);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(objects(&said).remove(0)["extern_ops"], first["extern_ops"]);
    let (status, said) = again(&line.replace("eager=linear", "eager=gelu"));
    assert!(status == Some(1) && said.contains("left to libtorch:") && said.contains("aten::gelu"), "{said}");
    let (status, said) = again(&line.replace("1000000", "0").replace("[\"gelu\"]", "[]"));
    assert_eq!((status, objects(&said).remove(0)["rewrites"].as_u64()), (Some(0), Some(0)), "{said}");
    let (status, said) = again(&line.replace("\"generated\"", "\"all\""));
    assert!(status == Some(1) && said.contains("`all` is none of measured, predicted"), "{said}");
    let (status, said) = again(&line.replace("eager=linear", "near=gelu"));
    assert!(status == Some(1) && said.contains("is none of eager=PATTERN"), "{said}");
}

#[test]
fn hints_and_strictness_are_given_from_the_shell() {
    let compared = |args: &[&str]| {
        run(None, &[&["compare", "mlp8x1024-tiny", "--seconds", "0", "--json"], args].concat())
    };
    let (status, said) = compared(&["--hint", "eager=*"]);
    let outcome = objects(&said).remove(0);
    assert_eq!((status, outcome["kernels_fused"].as_u64()), (Some(0), Some(0)), "{said}");
    let (status, said) = compared(&["--hint", "eager=aten::gelu", "--strict", "aten::gelu"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("left to libtorch:\n  ") && said.contains("aten::gelu"), "{said}");
    let (status, said) = compared(&["--hint", "separate=no.such"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("--hint separate=no.such: no operator has this name"), "{said}");
    let (status, said) = compared(&["--hint", "near=x"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("is none of eager=PATTERN"), "{said}");
}
