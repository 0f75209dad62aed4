//! The page of a plan, as someone uses it who sees it for the first time: questions are answered by clicks and typing alone, and the
//! answers are those of the plan as data.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::browser::{Browser, installed};
use crate::common::{files, program};

/// What the program writes of a model.
fn explain(folder: &Path, model: &str, file: &str, args: &[&str]) {
    let mut command = Command::new(program());
    // Lines of the model are named from where the program runs, and a model in a file as it is given.
    let from = if folder.join(model).exists() { folder } else { &files() };
    command.current_dir(from).args(["explain", model, "-o"]).arg(folder.join(file)).args(args);
    // What measurements choose is not the same from run to run.
    let output = command.env("TILEFUSE_PRODUCTS", "generated").env("OMP_NUM_THREADS", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Bytes of a picture in `docs`.
const MAX_PICTURE: usize = 450_000;

fn is_updating() -> bool {
    std::env::var_os("UPDATE_EXPECT").is_some()
}

/// Keeps a picture of what is on the screen in `docs`, where `UPDATE_EXPECT` asks for it.
fn keep(browser: &mut Browser, name: &str) {
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{name}: an empty picture");
    if is_updating() {
        assert!(picture.len() < MAX_PICTURE, "{name}: {} bytes", picture.len());
        std::fs::write(files().join(format!("docs/{name}.png")), picture).unwrap();
    }
}

/// The cells of the rows that a table shows.
fn rows(browser: &mut Browser, table: &str) -> Vec<Vec<String>> {
    let rows = browser.texts(&format!("{table} tbody tr"));
    rows.iter().map(|row| row.split('\t').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn a_new_user_finds_what_takes_time_what_is_not_fused_and_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |file: &str| folder.path().join(file);
    let Some(browser) = installed() else { return };
    explain(folder.path(), "gpt2", "plan.json", &["--format", "json"]);
    explain(folder.path(), "gpt2", "plan.html", &["--format", "html"]);
    let plan = at("plan.json");
    let in_bf16 = ["--dtype", "bf16", "--diff", plan.to_str().unwrap(), "--format"];
    explain(folder.path(), "gpt2", "bf16.json", &[&in_bf16[..], &["json"]].concat());
    explain(folder.path(), "gpt2", "bf16.html", &[&in_bf16[..], &["html"]].concat());

    let mut browser = Browser::start(&browser);
    browser.open(&at("plan.html"));
    keep(&mut browser, "plan-graph");
    kernel_that_takes_most_time(&mut browser, &read(&at("plan.json")));
    edge_that_is_not_fused(&mut browser, &read(&at("plan.json")));
    browser.open(&at("bf16.html"));
    what_changed(&mut browser, &read(&at("bf16.json")));
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Which kernel takes most time? A click on the head of the column of times sorts the table by them.
fn kernel_that_takes_most_time(browser: &mut Browser, plan: &Value) {
    browser.click("[role=tab]", "Kernels");
    browser.click("#kernels th", "us");
    let first = rows(browser, "#kernels").remove(0);
    let steps = plan["steps"].as_array().unwrap();
    let us = |step: &Value| step["predicted_us"].as_f64().unwrap_or(0.0);
    let (most, step) = steps.iter().enumerate().max_by(|a, b| us(a.1).total_cmp(&us(b.1))).unwrap();
    let all: f64 = steps.iter().map(us).sum();
    let share = format!("{:.1} %", 100.0 * us(step) / all);
    let expected = [&most.to_string(), step["name"].as_str().unwrap(), step["modules"][0].as_str().unwrap()];
    assert_eq!(first[..2], expected[..2]);
    // Without what all modules lie in.
    assert!(!first[2].is_empty() && expected[2].ends_with(&first[2]), "{first:?}");
    assert_eq!((first[3].as_str(), &first[5]), ("linear", &share));
    browser.click("#kernels tbody tr", "");
    assert_eq!(browser.texts("#details h2"), [step["name"].as_str().unwrap()]);
    let details = browser.texts("#details").remove(0);
    assert!(details.contains(&format!("{share} of all steps")) && details.contains("kernel @"), "{details}");
    keep(browser, "plan-kernels");
}

/// Why is `layer_norm -> linear` not fused? Typing the two leaves its rows of the table of cuts, and a click on one goes to the edge.
fn edge_that_is_not_fused(browser: &mut Browser, plan: &Value) {
    let edges = plan["edges"].as_array().unwrap();
    let is_asked_for = |edge: &&Value| {
        let end = |end: &str, operator: &str| edge[end].as_str().unwrap().starts_with(operator);
        edge["fused"] == false && end("producer", "aten::layer_norm #") && end("consumer", "aten::linear #")
    };
    let asked: Vec<&Value> = edges.iter().filter(is_asked_for).collect();
    // Edges of other sizes have other numbers.
    let mut reasons: BTreeMap<[String; 2], usize> = BTreeMap::new();
    for edge in &asked {
        let [why, remedy] = ["verdict", "remedy"].map(|key| edge[key].as_str().unwrap().replace('`', ""));
        *reasons.entry([why, remedy]).or_default() += 1;
    }
    browser.click("[role=tab]", "Cuts");
    browser.click("#search", "");
    browser.write("layer_norm linear");
    let found = rows(browser, "#cuts");
    assert_eq!(browser.texts("#found"), [format!("0 of 86 steps, {} cuts", reasons.len())]);
    assert_eq!(found.len(), reasons.len(), "{found:?}");
    for row in &found {
        let [_, _, count, from, to, why, remedy] = &row[..] else { panic!("{row:?}") };
        let first_lines = [from, to].map(|end| end.split_whitespace().next());
        assert_eq!(first_lines, [Some("layer_norm"), Some("linear")]);
        assert!([from, to].iter().all(|end| end.contains("h.*.")) || row[2] == "1", "{row:?}");
        assert_eq!(*count, reasons[&[why.clone(), remedy.clone()]].to_string());
    }
    let (why, remedy) = (&found[0][5], &found[0][6]);
    browser.click("#cuts tbody tr", "");
    assert_eq!(browser.texts("[role=tab][aria-selected=true]"), ["Graph"]);
    assert_eq!(browser.texts("#details b"), [why.as_str()]);
    let details = browser.texts("#details").remove(0);
    assert!(details.contains(&format!("What would change it: {remedy}.")), "{details}");
    assert!(details.contains(" us by the cost model"), "{details}");
    keep(browser, "plan-cut");
}

/// What changed after `--dtype bf16`? The page of a plan beside an older one has a view more.
fn what_changed(browser: &mut Browser, changes: &Value) {
    browser.click("[role=tab]", "Changes");
    let found = rows(browser, "#changes table:first-of-type");
    let totals = changes["totals"].as_array().unwrap();
    assert_eq!(found.len(), totals.len());
    for (row, total) in found.iter().zip(totals) {
        let [old, new] = ["old", "new"].map(|key| total[key].as_f64().unwrap());
        let name = total["name"].as_str().unwrap();
        let number = |value: f64| match value {
            _ if name.starts_with("bytes") => format!("{:.1} MB", value / 1e6),
            _ if name == "operations" => format!("{:.1} Gflop", value / 1e9),
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        };
        assert_eq!(row[..3], [name, &number(old), &number(new)]);
        let percent = if old == new { 0.0 } else { 100.0 * (new - old) / old };
        assert_eq!(row[3], format!("{percent:+.1} %"));
    }
    let written = found.iter().find(|row| row[0] == "bytes written by kernels").unwrap();
    assert!(written[3].starts_with('-'), "{written:?}");
    let changed = rows(browser, "#changes .sortable");
    assert!(changed.iter().any(|row| row[1] == "12" && row[2].contains(".h.*.")), "{changed:?}");
    keep(browser, "plan-changes");
}

/// Where does the time go, and what did eager take? The view of time of a plan that was profiled has both, one above the other.
#[test]
fn a_profiled_call_is_shown_beside_eager_s() {
    let folder = tempfile::tempdir().unwrap();
    let at = |file: &str| folder.path().join(file);
    let Some(browser) = installed() else { return };
    let model = if is_updating() { "gpt2" } else { "gpt2-tiny" };
    explain(folder.path(), model, "plan.html", &["--profile", "--format", "html"]);
    explain(folder.path(), model, "plan.json", &["--format", "json"]);
    let plan = read(&at("plan.json"));
    let mut browser = Browser::start(&browser);
    browser.open(&at("plan.html"));
    browser.click("[role=tab]", "Time");
    keep(&mut browser, "plan-time");
    let steps = plan["steps"].as_array().unwrap().len();
    let operators = plan["operators"].as_array().unwrap().len();
    let titles = browser
        .value("[...document.querySelectorAll('#time .timeline title')].map(title => title.textContent)");
    let titles: Vec<String> = serde_json::from_value(titles).unwrap();
    assert!(titles.len() > steps && titles.len() <= steps + operators, "{} of {operators}", titles.len());
    assert!(titles.iter().any(|title| title.contains("aten::layer_norm") && title.contains(", in step ")));
    assert!(titles.iter().all(|title| title.contains(" us")), "{titles:?}");
    // A point for each distinct kernel that computes, and lines of the memory of both.
    assert!(browser.texts("#time .plot circle").len() > 4);
    let said = browser.texts("#time").remove(0);
    assert!(said.contains("as measured") && said.contains("rank correlation"), "{said}");
    assert!(!said.contains("were not timed"), "{said}");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Pages of other models, of code, and in the dark; small models where no pictures are kept. For the pictures
/// `TILEFUSE_TEST_SWIN` names torchvision's `swin_t`, traced.
#[test]
fn other_models_code_and_dark_surroundings_are_shown() {
    let Some(browser) = installed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let size = if is_updating() { "" } else { "-tiny" };
    for model in ["resnet50", "llama"] {
        let file = format!("plan-{model}.html");
        explain(folder.path(), &format!("{model}{size}"), &file, &["--format", "html"]);
    }
    if is_updating() {
        // The page is named after the file as it is given.
        let traced = std::env::var("TILEFUSE_TEST_SWIN").expect("TILEFUSE_TEST_SWIN names a file");
        std::fs::copy(traced, folder.path().join("swin_t.pt")).unwrap();
        let input = ["--input", "f32[1,3,224,224]", "--format", "html"];
        explain(folder.path(), "swin_t.pt", "plan-swin.html", &input);
    } else {
        explain(folder.path(), "swin_t-tiny", "plan-swin.html", &["--format", "html"]);
    }
    explain(folder.path(), &format!("gpt2{size}"), "plan-code.html", &["--code", "--format", "html"]);
    let mut browser = Browser::start(&browser);
    for name in ["plan-resnet50", "plan-llama", "plan-swin"] {
        browser.open(&folder.path().join(format!("{name}.html")));
        assert!(!browser.texts("#scene .title").is_empty(), "{name}");
        browser.press("0");
        keep(&mut browser, name);
    }
    browser.open(&folder.path().join("plan-code.html"));
    browser.set_scheme("dark");
    keep(&mut browser, "plan-dark");
    browser.press("/");
    browser.write("gelu");
    browser.press("Enter");
    browser.click("[role=tab]", "Code");
    browser.click(".chip", "aten::gelu");
    assert!(browser.texts("#code pre .on").len() > 3);
    browser.set_scheme("light");
    keep(&mut browser, "plan-code");
    assert_eq!(browser.complaints(), [""; 0]);
}
