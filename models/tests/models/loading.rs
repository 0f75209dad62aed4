use std::path::{Path, PathBuf};

use tch::nn::{self, Module, ModuleT};
use tch::{Device, Kind, Tensor};
use tilefuse_models::*;

const CPU: Device = Device::Cpu;

type Named = Vec<(String, Tensor)>;

fn save(dir: &tempfile::TempDir, tensors: &Named) -> PathBuf {
    let path = dir.path().join("model.safetensors");
    Tensor::write_safetensors(tensors, &path).unwrap();
    path
}

/// The variables of a model as a Hugging Face checkpoint spells them.
fn checkpoint(vs: &nn::VarStore, name: impl Fn(&str) -> Option<String>, transposed: &[&str]) -> Named {
    let transpose = |name: &str| transposed.iter().any(|end| name.ends_with(end));
    let entry = |(key, variable): (String, Tensor)| {
        let stored = if transpose(&key) { variable.tr().contiguous() } else { variable };
        name(&key).map(|name| (name, stored.detach()))
    };
    vs.variables().into_iter().filter_map(entry).collect()
}

const CONV1D: [&str; 3] = [".c_attn.weight", ".c_proj.weight", ".c_fc.weight"];

fn gpt2_names(key: &str) -> Option<String> {
    (key != "transformer.future").then(|| key.to_string())
}

fn gpt2_store() -> (nn::VarStore, Gpt2) {
    let vs = nn::VarStore::new(CPU);
    let net = gpt2(&vs.root(), &Gpt2Config::tiny());
    disturb(&vs);
    (vs, net)
}

fn some_ids() -> Tensor {
    Tensor::randint(97, [2, 9], (Kind::Int64, CPU))
}

fn add_gpt2_extras(tensors: &mut Named) {
    tensors.push(("transformer.h.0.attn.bias".into(), Tensor::ones([1, 1, 24, 24], (Kind::Uint8, CPU))));
    tensors.push(("transformer.h.1.attn.masked_bias".into(), Tensor::from(-1e4f32)));
    tensors.push(("lm_head.weight".into(), Tensor::zeros([97, 32], (Kind::Float, CPU))));
}

#[test]
fn gpt2_reads_its_checkpoint_with_and_without_prefix() {
    let (source, net) = gpt2_store();
    let ids = some_ids();
    let strip = |key: &str| gpt2_names(key).map(|key| key.trim_start_matches("transformer.").to_string());
    for name in [&gpt2_names as &dyn Fn(&str) -> Option<String>, &strip] {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors = checkpoint(&source, name, &CONV1D);
        add_gpt2_extras(&mut tensors);
        let (mut target, copy) = gpt2_store();
        Gpt2::load_hf(&mut target, save(&dir, &tensors)).unwrap();
        assert_eq!(net.forward(&ids), copy.forward(&ids));
    }
}

/// The first projection of GPT-2 by the formula of Hugging Face's `Conv1D`: `x · w + b` with `w: [in, out]`.
#[test]
fn gpt2_weights_are_those_of_conv1d() {
    let (source, _) = gpt2_store();
    let mut tensors = checkpoint(&source, gpt2_names, &CONV1D);
    let name = "transformer.h.0.mlp.c_fc.weight";
    let weight = Tensor::randn([32, 128], (Kind::Float, CPU));
    tensors.retain(|(key, _)| key != name);
    tensors.push((name.to_string(), weight.shallow_clone()));
    let dir = tempfile::tempdir().unwrap();
    let (mut target, _net) = gpt2_store();
    Gpt2::load_hf(&mut target, save(&dir, &tensors)).unwrap();
    let variables = target.variables();
    let bias = &variables["transformer.h.0.mlp.c_fc.bias"];
    let xs = Tensor::randn([5, 32], (Kind::Float, CPU));
    let expected = bias.addmm(&xs, &weight);
    let found = xs.linear(&variables[name], Some(bias));
    assert!(found.allclose(&expected, 1e-5, 1e-5, false));
}

#[test]
fn weights_take_the_kind_of_the_variables() {
    let (source, _) = gpt2_store();
    let tensors = checkpoint(&source, gpt2_names, &CONV1D);
    let half = tensors.iter().map(|(name, t)| (name.clone(), t.to_kind(Kind::BFloat16))).collect();
    let dir = tempfile::tempdir().unwrap();
    let (mut target, _net) = gpt2_store();
    Gpt2::load_hf(&mut target, save(&dir, &half)).unwrap();
    let (a, b) =
        (&source.variables()["transformer.wte.weight"], &target.variables()["transformer.wte.weight"]);
    assert_eq!(b.kind(), Kind::Float);
    assert_eq!(a.to_kind(Kind::BFloat16).to_kind(Kind::Float), *b);
}

fn llama_names(key: &str) -> Option<String> {
    (!key.contains("rotary_emb")).then(|| key.to_string())
}

#[test]
fn llama_reads_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let stores = [nn::VarStore::new(CPU), nn::VarStore::new(CPU)];
    let nets =
        [llama(&stores[0].root(), &LlamaConfig::tiny()), llama(&stores[1].root(), &LlamaConfig::tiny())];
    let [source, mut target] = stores;
    let mut tensors = checkpoint(&source, llama_names, &[]);
    tensors
        .push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), Tensor::ones([4], (Kind::Float, CPU))));
    Llama::load_hf(&mut target, save(&dir, &tensors)).unwrap();
    let ids = some_ids();
    assert_eq!(nets[0].forward(&ids), nets[1].forward(&ids));
}

#[test]
fn llama_head_missing_from_the_file_is_the_embedding() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = LlamaConfig { tied_head: true, ..LlamaConfig::tiny() };
    let stores = [nn::VarStore::new(CPU), nn::VarStore::new(CPU)];
    let nets = [llama(&stores[0].root(), &cfg), llama(&stores[1].root(), &LlamaConfig::tiny())];
    let [source, mut target] = stores;
    assert!(!source.variables().contains_key("lm_head.weight"));
    Llama::load_hf(&mut target, save(&dir, &checkpoint(&source, llama_names, &[]))).unwrap();
    let ids = some_ids();
    assert!(nets[0].forward(&ids).allclose(&nets[1].forward(&ids), 1e-6, 1e-6, false));
}

#[test]
fn bert_reads_prefixed_and_old_names() {
    let stores = [nn::VarStore::new(CPU), nn::VarStore::new(CPU)];
    let cfg = BertConfig::tiny();
    let nets = [bert(&stores[0].root(), &cfg), bert(&stores[1].root(), &cfg)];
    let [source, mut target] = stores;
    disturb(&source);
    let old = |key: &str| {
        let key =
            key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        Some(format!("bert.{key}"))
    };
    let mut tensors = checkpoint(&source, old, &[]);
    tensors
        .push(("bert.embeddings.position_ids".into(), Tensor::arange(24, (Kind::Int64, CPU)).unsqueeze(0)));
    tensors.push(("cls.predictions.bias".into(), Tensor::zeros([97], (Kind::Float, CPU))));
    let dir = tempfile::tempdir().unwrap();
    Bert::load_hf(&mut target, save(&dir, &tensors)).unwrap();
    let ids = some_ids();
    assert_eq!(nets[0].forward_t(&ids, false), nets[1].forward_t(&ids, false));
}

#[test]
fn a_bert_without_pooler_passes_over_the_files() {
    let source = nn::VarStore::new(CPU);
    let _net = bert(&source.root(), &BertConfig::tiny());
    let mut target = nn::VarStore::new(CPU);
    let _net = bert(&target.root(), &BertConfig { pooler: false, ..BertConfig::tiny() });
    let dir = tempfile::tempdir().unwrap();
    let path = save(&dir, &checkpoint(&source, |key| Some(format!("bert.{key}")), &[]));
    Bert::load_hf(&mut target, path).unwrap();
}

#[test]
fn a_folder_of_parts_is_one_checkpoint() {
    let (source, net) = gpt2_store();
    let mut first = checkpoint(&source, gpt2_names, &CONV1D);
    let second = first.split_off(first.len() / 2);
    let dir = tempfile::tempdir().unwrap();
    for (name, part) in [("model-00001-of-00002", first), ("model-00002-of-00002", second)] {
        Tensor::write_safetensors(&part, dir.path().join(name).with_extension("safetensors")).unwrap();
    }
    let (mut target, copy) = gpt2_store();
    Gpt2::load_hf(&mut target, dir.path()).unwrap();
    let ids = some_ids();
    assert_eq!(net.forward(&ids), copy.forward(&ids));
}

/// Loads `tensors` into a new GPT-2, which must fail and leave every variable as it was.
fn refusal(tensors: &Named) -> Error {
    let dir = tempfile::tempdir().unwrap();
    refusal_of(&save(&dir, tensors))
}

fn refusal_of(path: &Path) -> Error {
    let (mut vs, _net) = gpt2_store();
    let before: Vec<_> = vs.variables().into_iter().map(|(name, variable)| (name, variable.copy())).collect();
    let error = Gpt2::load_hf(&mut vs, path).unwrap_err();
    for (name, value) in before {
        assert_eq!(vs.variables()[&name], value, "{name}");
    }
    error
}

fn gpt2_tensors() -> Named {
    checkpoint(&gpt2_store().0, gpt2_names, &CONV1D)
}

#[test]
fn a_missing_tensor_is_named() {
    let mut tensors = gpt2_tensors();
    tensors.retain(|(name, _)| name != "transformer.h.1.ln_2.bias");
    let error = refusal(&tensors);
    assert!(
        matches!(&error, Error::MissingTensor { name, .. } if name == "transformer.h.1.ln_2.bias"),
        "{error}"
    );
}

#[test]
fn a_tensor_without_a_place_is_named() {
    let mut tensors = gpt2_tensors();
    tensors.push(("transformer.h.2.ln_2.bias".into(), Tensor::zeros([32], (Kind::Float, CPU))));
    let error = refusal(&tensors);
    assert!(
        matches!(&error, Error::UnexpectedTensor { name, .. } if name == "transformer.h.2.ln_2.bias"),
        "{error}"
    );
}

#[test]
fn a_tensor_given_twice_is_named() {
    let mut tensors = gpt2_tensors();
    tensors.push(("ln_f.bias".into(), Tensor::zeros([32], (Kind::Float, CPU))));
    assert!(matches!(refusal(&tensors), Error::DuplicateTensor { .. }));
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let mut tensors = gpt2_tensors();
    for (name, tensor) in &mut tensors {
        if name == "transformer.h.0.mlp.c_fc.weight" {
            *tensor = tensor.tr().contiguous();
        }
    }
    let error = refusal(&tensors);
    assert_eq!(
        error.to_string(),
        "tensor `transformer.h.0.mlp.c_fc.weight` has shape [128, 32], the model expects [32, 128]"
    );
}

#[test]
fn a_wrong_kind_is_refused() {
    let mut tensors = gpt2_tensors();
    tensors.retain(|(name, _)| name != "transformer.ln_f.bias");
    tensors.push(("transformer.ln_f.bias".into(), Tensor::zeros([32], (Kind::Int64, CPU))));
    assert!(matches!(refusal(&tensors), Error::Torch(_)));
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(&dir, &gpt2_tensors());
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 4, 8, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(matches!(refusal_of(&path), Error::Format { .. }), "{length} bytes");
    }
    std::fs::write(&path, [&u64::MAX.to_le_bytes(), &whole[8..]].concat()).unwrap();
    assert!(matches!(refusal_of(&path), Error::Format { .. }));
    assert!(matches!(refusal_of(&dir.path().join("absent")), Error::Read { .. }));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(refusal_of(empty.path()), Error::NoWeights { .. }));
}
