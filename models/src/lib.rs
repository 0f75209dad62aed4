//! Models as plain [`tch`] code, spelled the way that model authors spell them.
//!
//! Each model has a configuration with named presets and a constructor that takes an
//! [`nn::Path`](tch::nn::Path):
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn, nn::Module};
//! use tilefuse_models::{Gpt2Config, gpt2};
//!
//! let vs = nn::VarStore::new(Device::Cpu);
//! let net = gpt2(&vs.root(), &Gpt2Config::small());
//! let ids = Tensor::randint(50257, [1, 128], (Kind::Int64, Device::Cpu));
//! assert_eq!(net.forward(&ids).size(), [1, 128, 50257]);
//! ```
//!
//! Weights are drawn as the originals draw them; [`Gpt2::load_hf`], [`Llama::load_hf`] and [`Bert::load_hf`]
//! read checkpoints that carry the Hugging Face names. [`zoo`](zoo()) lists every model under the name by
//! which the `tilefuse` program knows it, with its default inputs.
//!
//! Modules panic on inputs of a wrong rank or shape, as the modules of `tch` itself do. Buffers (masks,
//! rotary tables) are variables of the `VarStore`, so that they follow it to a device and to another
//! floating-point kind.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bert;
mod error;
mod gpt2;
mod growth;
mod kernels;
mod layers;
mod llama;
mod mixer;
mod mlp;
mod mobilenet;
mod resnet;
mod swin;
mod unet;
mod vision;
mod vit;
mod weights;
mod workload;
mod zoo;

pub use bert::{Bert, BertConfig, BertOutput, bert};
pub use error::Error;
pub use gpt2::{Gpt2, Gpt2Config, gpt2};
pub use growth::{Growth, growing};
pub use layers::{Attention, upcast};
pub use llama::{Llama, LlamaConfig, RmsNorm, llama, rms_norm};
pub use mixer::{Mixer, MixerConfig, mixer};
pub use mlp::{Mlp, MlpConfig, mlp};
pub use mobilenet::{MobileNetV2, MobileNetV2Config, mobilenet_v2};
pub use resnet::{Block, ResNet, ResNetConfig, resnet, resnet18, resnet50};
pub use swin::{Swin, SwinConfig, swin};
pub use unet::{
    AttentionBlock, DownBlock, ResnetBlock, TimestepEmbedding, UNet, UNetConfig, UpBlock, timestep_embedding,
    unet,
};
pub use vit::{Vit, VitConfig, vit};
pub use workload::{Workload, WorkloadInput, workloads};
pub use zoo::{Case, InputSpec, Model, ZooEntry, disturb, find, zoo};
