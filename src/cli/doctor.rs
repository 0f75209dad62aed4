//! `tilefuse doctor`: what is there and what is missing.

use serde::Serialize;

use super::{Failure, report};

/// Options of `tilefuse doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is there.
#[derive(Serialize)]
struct Findings {
    version: &'static str,
    libtorch: String,
    threads: usize,
    processor: String,
    cuda: Vec<String>,
    cuda_missing: Option<String>,
    targets: Vec<&'static str>,
    cache: String,
    cache_state: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let findings = find();
    if args.json {
        let text = serde_json::to_string(&findings).map_err(|e| Failure::usage(e.to_string()))?;
        report::print(&text);
        return Ok(());
    }
    report::print(&format!("tilefuse      {}", findings.version));
    report::print(&format!("libtorch      {}, {} threads", findings.libtorch, findings.threads));
    report::print(&format!("processor     {}", findings.processor));
    for device in &findings.cuda {
        report::print(&format!("cuda          {device}"));
    }
    if let Some(missing) = &findings.cuda_missing {
        report::print(&format!("cuda          none: {missing}"));
    }
    report::print(&format!("targets       {}", findings.targets.join(", ")));
    report::print(&format!("kernel cache  {} ({})", findings.cache, findings.cache_state));
    Ok(())
}

fn find() -> Findings {
    let (cuda, cuda_missing) = match crate::torch::cuda_devices() {
        Ok(count) => ((0..count as u32).map(describe).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let (cache, cache_state) = crate::engine::cache_state();
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        libtorch: String::from("2.11"),
        threads: tch::get_num_threads().max(1) as usize,
        processor: tilefuse_codegen::host::HostOptions::default().fingerprint(),
        cuda,
        cuda_missing,
        targets: vec!["host", "sm_80", "sm_90a", "sm_100a"],
        cache,
        cache_state,
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
