//! Pages of made-up plans in a real browser, where there is one.

use super::devtools::{Browser, installed};
use super::page;
use super::tests::{chain, layers_of_two};
use crate::explain::{CandidateReport, CodeReport, Explanation, StepReport};

/// What the scripts of a page can call.
const HELPERS: &str = "
    window.all = query => [...document.querySelectorAll(query)];
    window.one = query => document.querySelector(query);
    window.tap = query => {
      one(query).dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }));
      one(query).dispatchEvent(new PointerEvent('pointerup', { bubbles: true }));
    };
    window.press = key => document.dispatchEvent(new KeyboardEvent('keydown', { key }));
    window.look = text => { one('#search').value = text; one('#search').dispatchEvent(new Event('input')); };
";

/// What the lines of a script say after the page has loaded; `None` where there is no browser.
fn tried(plan: &Explanation, script: &str) -> Option<String> {
    let program = installed()?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.html");
    std::fs::write(&file, page(plan, "a model", None)).unwrap();
    let mut browser = Browser::start(&program);
    browser.open(&file);
    let script = format!("{HELPERS} (() => {{ const said = []; {script} return said.join('; '); }})()");
    let said = browser.value(&script);
    assert_eq!(browser.complaints(), [""; 0]);
    Some(said.as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_click_and_a_search_show_what_is_there() {
    let script = "
        said.push(all('.step').length + ' steps');
        tap('.step[data-step=\"2\"]');
        said.push(one('#details h2').textContent, one('#details pre').textContent);
        press('ArrowDown');
        said.push(one('#details h2').textContent);
        tap('[data-edge=\"s2-s3\"]');
        said.push(one('#details b').textContent);
        tap('[data-group=\"3\"] .head');
        said.push(all('.step').length + ' steps with a box closed');
        look('h.1.mlp');
        said.push(one('#found').textContent, all('#kernels tbody tr:not([hidden])').length + ' rows');
        press('c');
        said.push(all('.step').length + ' steps with all closed', all('.group.hit').length + ' found within');
        press('2');
        said.push(one('#kernels').hidden ? 'no table' : 'table');
    ";
    let Some(saw) = tried(&layers_of_two(), script) else { return };
    assert_eq!(
        saw,
        "8 steps; fused_2; kernel @k(); fused_3; cut: predicted 9.0 us in one kernel, 4.0 us in two; 6 steps with a box closed; \
         2 of 8 steps; 2 rows; 2 steps with all closed; 1 found within; table"
    );
}

#[test]
fn a_click_on_a_line_shows_what_became_of_its_operator() {
    let script = "
        press('5');
        said.push(one('#code').textContent);
        press('1');
        tap('.step[data-step=\"1\"]');
        press('5');
        said.push(all('#code pre').length + ' columns of ' + all('#code pre span').length + ' lines', one('#code section:last-child h3').textContent, one('.chip').textContent);
        one('#code pre span[data-operator]').click();
        said.push(all('#code pre .on').length + ' lines of it');
        one('.chip').click();
        said.push(all('#code .on').length + ' behind a click on its name');
        press('ArrowDown');
        said.push(one('.chip').textContent);
    ";
    let mut plan = layers_of_two();
    let line = |text: &str, operator| (text.to_owned(), operator);
    plan.code = (0..plan.programs.len())
        .map(|at| CodeReport {
            operators: vec![format!("aten::relu #{at}")],
            block: vec![line("kernel @k() {", None), line("  %1 = map max %0, %0", Some(0)), line("}", None)],
            llvm: vec![line("  ret void", Some(0))],
            language: String::from("assembly"),
            machine: vec![line("  retq", Some(0))],
        })
        .collect();
    let Some(saw) = tried(&plan, script) else { return };
    assert_eq!(
        saw,
        "Choose a kernel, in the graph or the table.; 3 columns of 5 lines; Assembly, 1 line; aten::relu #1; 3 lines of it; \
         0 behind a click on its name; aten::relu #2"
    );
}

#[test]
fn a_click_on_a_product_shows_what_it_was_compared_with() {
    let script = "
        tap('.step[data-step=\"2\"]');
        said.push(...all('#details table:last-of-type tr').map(row => [...row.children].map(cell => cell.textContent).join(' | ')));
        said.push(all('#details tr.chosen').length + ' chosen');
        tap('.step[data-step=\"3\"]');
        said.push(all('#details tr.chosen').length + ' chosen');
    ";
    let mut plan = layers_of_two();
    let candidate = |schedule: Option<&str>, predicted_us, measured_us| CandidateReport {
        operator: String::from("aten::linear #1"),
        schedule: schedule.map(String::from),
        predicted_us,
        measured_us,
        chosen: schedule.is_none(),
    };
    if let StepReport::Kernel { candidates, .. } = &mut plan.steps[2] {
        *candidates = vec![candidate(None, 3.0, Some(2.0)), candidate(Some("few rows"), 1.0, None)];
    }
    let Some(saw) = tried(&plan, script) else { return };
    let expected = " | predicted | measured; libtorch’s call, taken | 3.0 µs | 2.0 µs; few rows | 1.0 µs | ; 1 chosen; 0 chosen";
    assert_eq!(saw, expected);
}

#[test]
fn two_thousand_operators_are_shown_in_two_seconds() {
    let script = "
        const start = performance.now();
        press('e');
        look('fused_1999');
        press('ArrowDown');
        said.push(all('.step').length + ' steps', one('#found').textContent);
        const ms = performance.now() - start;
        said.push(ms < 2000 ? 'in time' : ms + ' ms');
    ";
    let Some(saw) = tried(&chain(2000), script) else { return };
    assert_eq!(saw, "2000 steps; 1 of 2000 steps; in time");
}
