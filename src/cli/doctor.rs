//! `tilefuse doctor`: what is there and what is missing.

mod host;

use serde::Serialize;

use super::{Failure, report};
use crate::engine::{Measured, kept_profile, measure_profile};
use crate::explain::counted;

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
    /// The processor's name as it is sold, where the system tells.
    processor_model: Option<String>,
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
    let progress = args.profile.then(|| report::spinner("measuring the machine", false));
    findings.profiles = profiles(findings.cuda.len(), args.profile)?;
    findings.host = if args.profile { Some(host::measure()?) } else { None };
    if let Some(progress) = progress {
        progress.finish_and_clear();
    }
    if args.json {
        return report::json(&findings);
    }
    let field = report::print_field;
    field("tilefuse", findings.version);
    field("libtorch", &format!("{}, {}", findings.libtorch, counted(findings.threads as u64, "thread")));
    findings.libtorch_folder.iter().for_each(|folder| field("", folder));
    field("LLVM", &findings.llvm);
    match &findings.processor_model {
        Some(model) => {
            field("processor", model);
            field("", &findings.processor);
        }
        None => field("processor", &findings.processor),
    }
    findings.cuda.iter().for_each(|device| field("cuda", device));
    findings.cuda_missing.iter().for_each(|missing| field("cuda", &format!("none: {missing}")));
    field("targets", &findings.targets.join(", "));
    let weights = if findings.tracks_writes {
        "prepacked"
    } else {
        "not prepacked: writes to memory cannot be tracked here"
    };
    field("weights", weights);
    field("kernel cache", &format!("{} ({})", findings.cache, findings.cache_state));
    for (device, found) in &findings.profiles {
        let text = format!(
            "{device}: copy {:.1} GB/s, launch {:.2} us, products {:.0} GFLOP/s, {:.0} with unaligned rows",
            found.bandwidth, found.launch_us, found.aligned, found.unaligned
        );
        field("profile", &text);
    }
    if findings.profiles.is_empty() {
        field("profile", "none measured: plans are priced by typical figures (see --profile)");
    }
    let lines = findings.host.as_ref().map(host::Figures::lines).unwrap_or_default();
    lines.iter().for_each(|line| report::print(&report::wrapped(line)));
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
        processor_model: std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model_name(&text)),
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

/// The name of the first processor of `/proc/cpuinfo`, in which those of ARM have none.
fn model_name(cpuinfo: &str) -> Option<String> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut names = fields.filter(|(field, _)| field.trim() == "model name").map(|(_, name)| name);
    let name = names.next()?.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
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

#[cfg(test)]
mod tests {
    use super::model_name;

    #[test]
    fn processors_have_the_name_that_the_system_tells() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)  Platinum 8481C CPU @ 2.70GHz\n\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(model_name(text).as_deref(), Some("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"));
        assert_eq!(model_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"), None);
        assert_eq!(model_name("model name\t:\n"), None);
    }
}
