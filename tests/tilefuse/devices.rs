//! The tests of this program on GPUs. Each module has a process of its own, because an error on a device ends what a
//! process can do there.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Output};
use std::sync::Mutex;

use crate::common::{DEVICE_VARIABLE, has_gpu, on_cpu};

/// Modules about processors, files or the program's output, whose tests run on the CPU alone. Those of the others ask
/// [`crate::common::device`].
const ON_THE_CPU: [&str; 19] = [
    // An index out of range in a kernel of libtorch's ends what a process can do on a GPU.
    "bounds",
    "browser",
    "cli",
    "conv",
    "conv_packed",
    "conv_transposed",
    "devices",
    "errors",
    "hand",
    "kernels",
    "lowered",
    "packing",
    "page",
    "processors",
    "products",
    "ranges",
    "schedules",
    "sdpa",
    "threads",
];

/// The modules whose tests run on a GPU too.
fn modules() -> BTreeSet<String> {
    let listed = run(&["--list"], None);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let modules = listed.lines().filter_map(|line| line.strip_suffix(": test")?.split_once("::"));
    let modules = modules.map(|(module, _)| module.to_owned());
    modules.filter(|module| !ON_THE_CPU.contains(&module.as_str())).collect()
}

fn run(args: &[&str], device: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(args).envs(device.map(|device| (DEVICE_VARIABLE, device)));
    command.output().unwrap()
}

/// Shows what a process printed that belongs to its result; not by a macro, whose output the harness keeps to itself.
fn show(name: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    let result = said.lines().rfind(|line| line.starts_with("test result: "));
    let mut text = format!("\non a GPU: {name}\n");
    if output.status.success() {
        let skipped = wrong.lines().filter(|line| line.starts_with("skipped, "));
        skipped.chain(result).for_each(|line| text += &format!("{line}\n"));
    } else {
        text += &format!("{said}\n{wrong}\n{}\n", output.status);
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[test]
fn tests_pass_on_every_gpu() {
    if !on_cpu() || !has_gpu() {
        return;
    }
    let all = modules().into_iter();
    let devices = tilefuse::torch::cuda_devices().unwrap();
    let of_all = all.flat_map(|module| (0..devices).map(move |ordinal| (module.clone(), ordinal)));
    let modules = Mutex::new(of_all);
    let failed = Mutex::new(Vec::new());
    let processes = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).min(8);
    std::thread::scope(|scope| {
        for _ in 0..processes {
            scope.spawn(|| {
                loop {
                    let Some((module, ordinal)) = modules.lock().unwrap().next() else { break };
                    let output = run(&[&format!("{module}::")], Some(&format!("cuda:{ordinal}")));
                    let name = format!("{module} (cuda:{ordinal})");
                    show(&name, &output);
                    if !output.status.success() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "on a GPU: {failed:?}");
}
