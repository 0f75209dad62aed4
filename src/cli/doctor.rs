//! `tilefuse doctor`: what is there and what is missing.

mod host;

use serde::Serialize;

use super::{Failure, report};
use crate::engine::{Measured, kept_profile, measure_profile};

/// Options of `tilefuse doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Measure bandwidth, launches and libtorch's products on every device, and price plans with what is found from now on;
    /// and what calls, threads and functions cost on the processor.
    #[arg(long)]
    profile: bool,
}

/// What is there.
#[derive(Serialize)]
struct Findings {
    version: &'static str,
    libtorch: String,
    /// Where the libtorch that this program runs with lies.
    libtorch_folder: Option<String>,
    llvm: String,
    threads: usize,
    processor: String,
    cuda: Vec<String>,
    cuda_missing: Option<String>,
    targets: Vec<&'static str>,
    /// Whether the system reports writes to memory, which weights are prepacked for by default.
    tracks_writes: bool,
    cache: String,
    cache_state: String,
    /// What was measured of each device, by its name.
    profiles: Vec<(String, Measured)>,
    /// What calls, threads and functions cost on the processor, where that was measured.
    host: Option<host::Figures>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut findings = find();
    findings.profiles = profiles(findings.cuda.len(), args.profile)?;
    findings.host = if args.profile { Some(host::measure()?) } else { None };
    if args.json {
        return report::json(&findings);
    }
    report::print(&format!("tilefuse      {}", findings.version));
    report::print(&format!("libtorch      {}, {} threads", findings.libtorch, findings.threads));
    if let Some(folder) = &findings.libtorch_folder {
        report::print(&format!("              {folder}"));
    }
    report::print(&format!("LLVM          {}", findings.llvm));
    report::print(&format!("processor     {}", findings.processor));
    for device in &findings.cuda {
        report::print(&format!("cuda          {device}"));
    }
    if let Some(missing) = &findings.cuda_missing {
        report::print(&format!("cuda          none: {missing}"));
    }
    report::print(&format!("targets       {}", findings.targets.join(", ")));
    let weights = if findings.tracks_writes {
        "prepacked"
    } else {
        "not prepacked: writes to memory cannot be tracked here"
    };
    report::print(&format!("weights       {weights}"));
    report::print(&format!("kernel cache  {} ({})", findings.cache, findings.cache_state));
    for (device, found) in &findings.profiles {
        report::print(&format!(
            "profile       {device}: copy {:.1} GB/s, launch {:.2} us, products {:.0} GFLOP/s, {:.0} with unaligned rows",
            found.bandwidth, found.launch_us, found.aligned, found.unaligned
        ));
    }
    if findings.profiles.is_empty() {
        report::print("profile       none measured: plans are priced by typical figures (see --profile)");
    }
    let lines = findings.host.as_ref().map(host::Figures::lines).unwrap_or_default();
    lines.iter().for_each(|line| report::print(line));
    Ok(())
}

/// What is known of each device, measured if that is asked for.
fn profiles(cuda: usize, measure: bool) -> Result<Vec<(String, Measured)>, Failure> {
    let devices = std::iter::once(tch::Device::Cpu).chain((0..cuda).map(tch::Device::Cuda));
    let mut found = Vec::new();
    for device in devices {
        let name = if device.is_cuda() { format!("{device:?}") } else { String::from("processor") };
        let measured = if measure { Some(measure_profile(device)?) } else { kept_profile(device) };
        found.extend(measured.map(|measured| (name, measured)));
    }
    Ok(found)
}

fn find() -> Findings {
    let (cuda, cuda_missing) = match crate::torch::cuda_devices() {
        Ok(count) => ((0..count as u32).map(describe).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let (cache, cache_state) = crate::engine::cache_state();
    let (libtorch, libtorch_folder) = crate::torch::libtorch();
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        libtorch: libtorch.unwrap_or_else(|| String::from("2.11")),
        libtorch_folder,
        llvm: tilefuse_codegen::llvm_version(),
        threads: tch::get_num_threads().max(1) as usize,
        processor: tilefuse_codegen::host::HostOptions::default().processor(),
        cuda,
        cuda_missing,
        targets: vec!["host", "sm_80", "sm_90a", "sm_100a"],
        tracks_writes: crate::Prepack::Tracked.is_possible(),
        cache,
        cache_state,
        profiles: Vec::new(),
        host: None,
    }
}

fn describe(ordinal: u32) -> String {
    match tilefuse_codegen::cuda::Device::get(ordinal as usize) {
        Ok(device) => {
            let p = device.properties();
            let (major, minor) = p.capability;
            let memory = p.memory_bytes >> 30;
            format!("{}, sm_{major}{minor}, {} multiprocessors, {memory} GiB", p.name, p.multiprocessors)
        }
        Err(error) => format!("device {ordinal}: {error}"),
    }
}
