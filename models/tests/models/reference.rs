//! Outputs of other libraries (`data/make.py`) on the same weights.

use std::collections::HashMap;
use std::path::PathBuf;

use tch::nn::{self, ModuleT};
use tch::{Device, Tensor};
use tilefuse_models::*;

/// The weights in a file of their own, as a checkpoint is, and the reference's inputs and outputs.
struct Reference {
    _dir: tempfile::TempDir,
    weights: PathBuf,
    others: HashMap<String, Tensor>,
}

impl Reference {
    fn read(name: &str) -> Self {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models/data");
        let tensors = Tensor::read_safetensors(data.join(name).with_extension("safetensors")).unwrap();
        let given = |name: &str| name.starts_with("input.") || name.starts_with("output.");
        let (others, weights): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|(name, _)| given(name));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        Tensor::write_safetensors(&weights, &path).unwrap();
        Reference { _dir: dir, weights: path, others: others.into_iter().collect() }
    }

    fn input(&self, i: usize) -> &Tensor {
        &self.others[&format!("input.{i}")]
    }

    #[track_caller]
    fn check(&self, i: usize, found: &Tensor) {
        let expected = &self.others[&format!("output.{i}")];
        assert_eq!(found.size(), expected.size());
        let error = (found - expected).abs().max().double_value(&[]);
        assert!(found.allclose(expected, 1e-4, 2e-5, false), "differs by {error}");
    }
}

const VARIANTS: [Attention; 2] = [Attention::WrittenOut, Attention::Sdpa];

fn store() -> nn::VarStore {
    nn::VarStore::new(Device::Cpu)
}

#[test]
fn gpt2_is_that_of_transformers() {
    let reference = Reference::read("gpt2");
    for variant in VARIANTS {
        let mut vs = store();
        let net = gpt2(&vs.root(), &Gpt2Config::tiny().attention(variant));
        Gpt2::load_hf(&mut vs, &reference.weights).unwrap();
        reference.check(0, &net.forward_t(reference.input(0), false));
    }
}

#[test]
fn llama_is_that_of_transformers() {
    let reference = Reference::read("llama");
    for variant in VARIANTS {
        let mut vs = store();
        let net = llama(&vs.root(), &LlamaConfig::tiny().attention(variant));
        Llama::load_hf(&mut vs, &reference.weights).unwrap();
        reference.check(0, &net.forward_t(reference.input(0), false));
    }
}

#[test]
fn bert_is_that_of_transformers() {
    let reference = Reference::read("bert");
    for variant in VARIANTS {
        let mut vs = store();
        let net = bert(&vs.root(), &BertConfig::tiny().attention(variant));
        Bert::load_hf(&mut vs, &reference.weights).unwrap();
        let [ids, types, mask] = [0, 1, 2].map(|i| reference.input(i));
        let output = net.encode(ids, Some(types), Some(mask), false);
        reference.check(0, &output.hidden);
        reference.check(1, &output.pooled.unwrap());
    }
}

#[test]
fn vit_is_that_of_torchvision() {
    let reference = Reference::read("vit");
    for variant in VARIANTS {
        let mut vs = store();
        let net = vit(&vs.root(), &VitConfig::tiny().attention(variant));
        vs.load(&reference.weights).unwrap();
        vs.float();
        reference.check(0, &net.forward_t(reference.input(0), false));
    }
}

#[test]
fn mixer_is_that_of_timm() {
    let reference = Reference::read("mixer");
    let mut vs = store();
    let net = mixer(&vs.root(), &MixerConfig::tiny());
    vs.load(&reference.weights).unwrap();
    vs.float();
    reference.check(0, &net.forward_t(reference.input(0), false));
}

#[test]
fn swin_is_that_of_torchvision() {
    let reference = Reference::read("swin");
    let mut vs = store();
    let net = swin(&vs.root(), &SwinConfig::tiny());
    vs.load(&reference.weights).unwrap();
    vs.float();
    reference.check(0, &net.forward_t(reference.input(0), false));
}
