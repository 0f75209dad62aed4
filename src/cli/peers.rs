//! The peers in Python: a process that answers one line for each line. `benches/peers/bench.py` is its program.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tch::Kind;

use crate::cli::Failure;
use crate::cli::inputs::{Spec, kind_name};
use crate::cli::model::Which;
use crate::cli::times::Time;

const PROGRAM: &str = include_str!("../../benches/peers/bench.py");

/// What a Python may have.
struct Peer {
    key: &'static str,
    name: &'static str,
    packages: &'static str,
    /// Whether it runs models on a GPU.
    gpu: bool,
    /// Whether it runs TorchScript files.
    files: bool,
}

const PEERS: [Peer; 4] = [
    Peer { key: "inductor", name: "Inductor", packages: "torch", gpu: true, files: true },
    Peer { key: "xla", name: "XLA", packages: "jax", gpu: true, files: false },
    Peer { key: "onnxruntime", name: "ONNX Runtime", packages: "onnx onnxruntime", gpu: false, files: true },
    Peer { key: "openvino", name: "OpenVINO", packages: "openvino", gpu: false, files: true },
];

/// What a comparison asks of peers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) gpu: bool,
    /// Whether there are models of the zoo.
    pub(crate) zoo: bool,
    /// Whether there are TorchScript files.
    pub(crate) files: bool,
}

impl Wanted {
    pub(crate) fn of<'a>(device: &str, models: impl IntoIterator<Item = &'a Which>) -> Wanted {
        let mut wanted = Wanted { gpu: device.starts_with("cuda"), ..Wanted::default() };
        for model in models {
            match model {
                Which::Zoo(_) => wanted.zoo = true,
                Which::File(_) => wanted.files = true,
            }
        }
        wanted
    }
}

/// The model that peers are to run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    /// The one of the zoo with this name.
    Zoo(&'a str),
    /// A TorchScript file, with the type of its weights where that is not the file's.
    File(&'a Path, Option<Kind>),
}

impl Asked<'_> {
    /// Whether a peer runs such a model.
    fn suits(&self, peer: &str) -> bool {
        matches!(self, Asked::Zoo(_)) || runs_files(peer)
    }

    fn request(&self, inputs: &[Value], peers: &[String]) -> Value {
        let mut request = json!({ "ask": "prepare", "inputs": inputs, "peers": peers });
        match self {
            Asked::Zoo(name) => request["model"] = json!(name),
            Asked::File(path, kind) => {
                (request["model"], request["file"]) = (json!(path.to_string_lossy()), json!(true));
                request["dtype"] = json!(kind.map(kind_name));
            }
        }
        request
    }
}

struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The peers that a Python has.
pub(crate) struct Python {
    process: Option<Process>,
    /// What started it, and for which device.
    started: Option<[String; 2]>,
    peers: Vec<String>,
    versions: BTreeMap<String, String>,
}

impl Python {
    /// Nobody.
    pub(crate) fn none() -> Python {
        Python { process: None, started: None, peers: Vec::new(), versions: BTreeMap::new() }
    }

    /// Starts a Python. Where there is none, or it has no peers, nobody is measured, and the versions say why.
    pub(crate) fn start(program: &str, device: &str) -> Python {
        let mut python = Python::none();
        match Process::start(program, device) {
            Ok(process) => {
                python.process = Some(process);
                python.started = Some([program, device].map(str::to_owned));
            }
            Err(why) => {
                python.versions.insert(String::from("python"), format!("none: {program}: {why}"));
                return python;
            }
        }
        match python.ask(&json!({ "ask": "who" })) {
            Ok(answer) => {
                python.versions = texts(&answer["versions"]);
                python.peers = strings(&answer["peers"]);
            }
            Err(failure) => {
                python.process = None;
                python.versions.insert(String::from("python"), format!("none: {}", failure.message));
            }
        }
        python
    }

    /// Keeps these of the peers, if any are named.
    ///
    /// # Errors
    /// A peer that is none of those that this Python knows.
    pub(crate) fn keep(&mut self, names: &[String]) -> Result<(), Failure> {
        if let Some(name) =
            names.iter().find(|&name| self.process.is_some() && !self.versions.contains_key(name))
        {
            let known: Vec<&str> = self.versions.keys().map(String::as_str).collect();
            return Err(Failure::usage(format!("--peers {name:?} is none of {}", known.join(", "))));
        }
        if !names.is_empty() {
            self.peers.retain(|peer| names.contains(peer));
            self.versions.retain(|peer, _| names.contains(peer));
        }
        Ok(())
    }

    /// Those that it has and that run such a model.
    pub(crate) fn peers_for(&self, model: &Asked<'_>) -> impl Iterator<Item = &String> {
        self.peers.iter().filter(|peer| model.suits(peer))
    }

    /// What is said once of peers: which there are, and why others are not and how they are got.
    pub(crate) fn said(&self, wanted: Wanted) -> Vec<String> {
        if self.versions.is_empty() {
            return vec![nobody(wanted)];
        }
        let said = |(peer, version): (&String, &String)| match (runs_files(peer), wanted.zoo, wanted.files) {
            (false, false, true) => format!("{peer}: it runs no TorchScript file"),
            (false, true, true) => format!("{peer}: {version}; it runs no TorchScript file"),
            _ => format!("{peer}: {version}"),
        };
        self.versions.iter().map(said).collect()
    }

    /// Versions of what there is, and why the rest is not.
    pub(crate) fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }

    /// Compiles or loads a model for inputs of these types; milliseconds that this and the first call took whoever has
    /// it.
    pub(crate) fn prepare(
        &mut self,
        model: &Asked<'_>,
        inputs: &[Spec],
        failed: &mut BTreeMap<String, String>,
    ) -> BTreeMap<String, f64> {
        let peers: Vec<String> = self.peers_for(model).cloned().collect();
        if peers.is_empty() {
            return BTreeMap::new();
        }
        // A peer may have taken it down, for want of memory: those of later rows have another one.
        if let (None, Some([program, device])) = (&self.process, &self.started) {
            self.process = Process::start(program, device).ok();
            // As the first one was: it loads the peers' libraries.
            let _ = self.ask(&json!({ "ask": "who" }));
        }
        let spec = |s: &Spec| {
            let range = s.range.map(|(low, end)| vec![low, end]);
            json!({ "dtype": kind_name(s.kind), "shape": s.shape, "range": range })
        };
        let inputs: Vec<Value> = inputs.iter().map(spec).collect();
        match self.ask(&model.request(&inputs, &peers)) {
            Ok(answer) => {
                failed.extend(texts(&answer["failed"]));
                let took =
                    |peer: &String| answer["seconds"][peer.as_str()].as_f64().unwrap_or(f64::NAN) * 1e3;
                strings(&answer["ready"]).into_iter().map(|peer| (peer.clone(), took(&peer))).collect()
            }
            Err(failure) => {
                failed.insert(String::from("python"), failure.message);
                BTreeMap::new()
            }
        }
    }

    /// Samples of one peer's call, in microseconds.
    pub(crate) fn turn(&mut self, peer: &str) -> Result<Vec<f64>, Failure> {
        let answer = self.ask(&json!({ "ask": "turn", "peer": peer }))?;
        let samples = answer["us"].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
        samples.ok_or_else(|| Failure::usage(format!("{peer} gave no times: {answer}")))
    }

    /// Times of every peer's call of a model on inputs of these types, one after the other for so many seconds each.
    pub(crate) fn times(
        &mut self,
        model: &Asked<'_>,
        inputs: &[Spec],
        seconds: f64,
        failed: &mut BTreeMap<String, String>,
    ) -> BTreeMap<String, Time> {
        let mut times = BTreeMap::new();
        if self.peers.is_empty() {
            return times;
        }
        let prepare = || self.prepare(model, inputs, failed);
        let ready = tracing::info_span!("compile with the peers").in_scope(prepare);
        for peer in ready.into_keys() {
            let _span = tracing::info_span!("time", peer).entered();
            let (mut samples, end) = (Vec::new(), Instant::now() + Duration::from_secs_f64(seconds));
            while Instant::now() < end || samples.is_empty() {
                match self.turn(&peer) {
                    Ok(more) if !more.is_empty() => samples.extend(more),
                    Ok(_) => break,
                    Err(failure) => {
                        failed.insert(peer.clone(), failure.message);
                        break;
                    }
                }
            }
            if !samples.is_empty() {
                times.insert(peer, Time::of(samples));
            }
        }
        times
    }

    fn ask(&mut self, request: &Value) -> Result<Value, Failure> {
        let process =
            self.process.as_mut().ok_or_else(|| Failure::usage(String::from("it is not running")))?;
        let answer = process.ask(request).map_err(|why| {
            self.process = None;
            Failure::usage(format!("Python: {why}"))
        })?;
        match answer["error"].as_str() {
            Some(error) => Err(Failure::usage(error.to_owned())),
            None => Ok(answer),
        }
    }
}

impl Process {
    fn start(program: &str, device: &str) -> Result<Process, String> {
        let mut command = Command::new(program);
        command.args(["-u", "-c", PROGRAM, device]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Process { child, requests, answers: BufReader::new(answers) })
            }
            _ => Err(String::from("it has no standard input and output")),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        writeln!(self.requests, "{request}")
            .and_then(|()| self.requests.flush())
            .map_err(|e| e.to_string())?;
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(String::from("it ended")),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("{e}: {}", line.trim())),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs_files(key: &str) -> bool {
    PEERS.iter().all(|peer| peer.files || peer.key != key)
}

/// What is said where no Python was asked for.
fn nobody(wanted: Wanted) -> String {
    let suits = |peer: &&Peer| (peer.gpu || !wanted.gpu) && (peer.files || wanted.zoo);
    let list = |of: fn(&Peer) -> &str| PEERS.iter().filter(suits).map(of).collect::<Vec<_>>();
    let names = list(|peer| peer.name).join(", ");
    let packages = list(|peer| peer.packages).join(" ");
    format!(
        "peers: TorchScript alone; --python python3 adds what it has of {names} (python3 -m pip install {packages})"
    )
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Wanted = Wanted { gpu: false, zoo: false, files: true };

    #[test]
    fn a_peer_is_missing_only_where_it_could_run_the_model() {
        let said = |wanted| Python::none().said(wanted).remove(0);
        assert_eq!(
            said(FILE),
            "peers: TorchScript alone; --python python3 adds what it has of Inductor, ONNX Runtime, OpenVINO (python3 -m pip install \
             torch onnx onnxruntime openvino)"
        );
        assert!(said(Wanted { zoo: true, ..FILE }).contains("Inductor, XLA, ONNX Runtime, OpenVINO"));
        let on_gpu = Wanted { gpu: true, zoo: true, files: false };
        assert!(said(on_gpu).ends_with("of Inductor, XLA (python3 -m pip install torch jax)"));
        assert!(said(Wanted { gpu: true, ..FILE }).ends_with("of Inductor (python3 -m pip install torch)"));
    }

    #[test]
    fn a_peer_that_runs_no_file_says_so() {
        let mut python = Python::none();
        python.versions = [("inductor", "torch 9"), ("xla", "none: no jax")]
            .map(|(peer, version)| (peer.to_owned(), version.to_owned()))
            .into();
        assert_eq!(python.said(FILE), ["inductor: torch 9", "xla: it runs no TorchScript file"]);
        let both = python.said(Wanted { zoo: true, ..FILE });
        assert_eq!(both[1], "xla: none: no jax; it runs no TorchScript file");
        assert_eq!(python.said(Wanted { zoo: true, ..Wanted::default() })[1], "xla: none: no jax");
    }
}
