use tch::nn::{self, Module, ModuleT};
use tch::{Device, Kind, Tensor};
use tilefuse_models::*;

const CPU: Device = Device::Cpu;

fn ids(shape: [i64; 2], vocabulary: i64) -> Tensor {
    Tensor::randint(vocabulary, shape, (Kind::Int64, CPU))
}

fn image(batch: i64) -> Tensor {
    Tensor::randn([batch, 3, 32, 32], (Kind::Float, CPU))
}

#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.size(), b.size());
    let distance = (a - b).abs().max().double_value(&[]);
    assert!(a.allclose(b, 1e-4, 1e-5, false), "differ by {distance}");
}

/// The model's outputs in both variants, made from the same weights.
fn both<M>(make: impl Fn(&nn::Path, Attention) -> M, call: impl Fn(&M) -> Tensor) -> (Tensor, Tensor) {
    let stores = [nn::VarStore::new(CPU), nn::VarStore::new(CPU)];
    let models = [make(&stores[0].root(), Attention::WrittenOut), make(&stores[1].root(), Attention::Sdpa)];
    disturb(&stores[0]);
    let [source, mut target] = stores;
    target.copy(&source).unwrap();
    tch::no_grad(|| (call(&models[0]), call(&models[1])))
}

#[test]
fn gpt2_variants_agree() {
    let ids = ids([2, 17], 97);
    let (a, b) = both(|p, v| gpt2(p, &Gpt2Config::tiny().attention(v)), |m| m.forward(&ids));
    assert_eq!(a.size(), [2, 17, 97]);
    assert_close(&a, &b);
}

#[test]
fn llama_variants_agree() {
    let ids = ids([2, 17], 97);
    let (a, b) = both(|p, v| llama(p, &LlamaConfig::tiny().attention(v)), |m| m.forward(&ids));
    assert_eq!(a.size(), [2, 17, 97]);
    assert_close(&a, &b);
}

#[test]
fn bert_variants_agree_with_and_without_mask() {
    let (ids, types) = (ids([2, 17], 97), ids([2, 17], 2));
    let mask = Tensor::ones([2, 17], (Kind::Int64, CPU));
    let _ = mask.narrow(1, 11, 6).fill_(0);
    for mask in [None, Some(&mask)] {
        let call = |m: &Bert| m.encode(&ids, Some(&types), mask, false).hidden;
        let (a, b) = both(|p, v| bert(p, &BertConfig::tiny().attention(v)), call);
        assert_eq!(a.size(), [2, 17, 32]);
        assert_close(&a, &b);
    }
}

#[test]
fn vit_and_unet_variants_agree() {
    let xs = image(2);
    let (a, b) = both(|p, v| vit(p, &VitConfig::tiny().attention(v)), |m| m.forward_t(&xs, false));
    assert_eq!(a.size(), [2, 10]);
    assert_close(&a, &b);

    let (sample, time) = (Tensor::randn([2, 4, 8, 8], (Kind::Float, CPU)), ids([1, 2], 1000).view([2]));
    let (a, b) = both(|p, v| unet(p, &UNetConfig::tiny().attention(v)), |m| m.forward(&sample, &time));
    assert_eq!(a.size(), [2, 4, 8, 8]);
    assert_close(&a, &b);
}

/// A later token changes no earlier logit, and does change its own.
fn assert_causal(model: &impl Module) {
    let before = ids([1, 12], 90);
    let after = before.copy();
    let _ = after.narrow(1, 7, 1).g_add_scalar_(3);
    let (a, b) = tch::no_grad(|| (model.forward(&before), model.forward(&after)));
    assert_close(&a.narrow(1, 0, 7), &b.narrow(1, 0, 7));
    let moved = (a.select(1, 7) - b.select(1, 7)).abs().max().double_value(&[]);
    let later = (a.select(1, 9) - b.select(1, 9)).abs().max().double_value(&[]);
    assert!(moved > 1e-3 && later > 1e-5, "moved by {moved}, a later token by {later}");
}

#[test]
fn decoders_are_causal() {
    for variant in [Attention::WrittenOut, Attention::Sdpa] {
        let vs = nn::VarStore::new(CPU);
        assert_causal(&gpt2(&(vs.root() / "gpt2"), &Gpt2Config::tiny().attention(variant)));
        assert_causal(&llama(&(vs.root() / "llama"), &LlamaConfig::tiny().attention(variant)));
    }
}

#[test]
fn masked_positions_do_not_reach_bert() {
    let vs = nn::VarStore::new(CPU);
    let net = bert(&vs.root(), &BertConfig::tiny());
    let before = ids([1, 12], 90);
    let after = before.copy();
    let _ = after.narrow(1, 9, 3).g_add_scalar_(3);
    let mask = Tensor::ones([1, 12], (Kind::Int64, CPU));
    let _ = mask.narrow(1, 9, 3).fill_(0);
    let hidden = |ids: &Tensor| net.encode(ids, None, Some(&mask), false).hidden.narrow(1, 0, 9);
    assert_close(&hidden(&before), &hidden(&after));
    let pooled = net.encode(&before, None, None, false).pooled.unwrap();
    assert_eq!(pooled.size(), [1, 32]);
}

#[test]
fn bert_drops_activations_in_training_alone() {
    let vs = nn::VarStore::new(CPU);
    let net = bert(&vs.root(), &BertConfig::tiny());
    let ids = ids([1, 12], 90);
    assert_eq!(net.forward_t(&ids, false), net.forward_t(&ids, false));
    assert_ne!(net.forward_t(&ids, true), net.forward_t(&ids, true));
}

#[test]
fn rotary_embedding_turns_pairs_by_their_angle() {
    let vs = nn::VarStore::new(CPU);
    let _net = llama(&vs.root(), &LlamaConfig::tiny());
    let variables = vs.variables();
    let (cos, sin) = (&variables["model.rotary_emb.cos"], &variables["model.rotary_emb.sin"]);
    assert_eq!(cos.size(), [24, 8]);
    for (row, column) in [(0i64, 0i64), (1, 0), (5, 1), (23, 3)] {
        let angle = row as f64 * 10000f64.powf(-(2 * column) as f64 / 8.0);
        for column in [column, column + 4] {
            assert!((cos.double_value(&[row, column]) - angle.cos()).abs() < 1e-6);
            assert!((sin.double_value(&[row, column]) - angle.sin()).abs() < 1e-6);
        }
    }
}

#[test]
fn llama_scores_depend_on_relative_positions() {
    let vs = nn::VarStore::new(CPU);
    let net = llama(&vs.root(), &LlamaConfig { layers: 1, ..LlamaConfig::tiny() });
    let repeated = Tensor::full([1, 9], 5, (Kind::Int64, CPU));
    let logits = net.forward(&repeated);
    assert_close(&logits.select(1, 3), &logits.select(1, 8));
}

#[test]
fn rms_norm_is_its_formula() {
    let vs = nn::VarStore::new(CPU);
    let norm = rms_norm(&vs.root(), 16, 1e-5);
    disturb(&vs);
    let xs = Tensor::randn([3, 16], (Kind::Float, CPU));
    let weight = &vs.variables()["weight"];
    let expected =
        &xs / (xs.square().sum_dim_intlist([1i64].as_slice(), true, None) / 16.0 + 1e-5).sqrt() * weight;
    assert_close(&norm.forward(&xs), &expected);
}

#[test]
fn resnets_have_torchvision_names() {
    let vs = nn::VarStore::new(CPU);
    let net = resnet50(&vs.root());
    let variables = vs.variables();
    assert_eq!(variables.len(), 267);
    assert_eq!(vs.trainable_variables().iter().map(Tensor::numel).sum::<usize>(), 25_557_032);
    assert_eq!(variables["layer2.0.downsample.0.weight"].size(), [512, 256, 1, 1]);
    assert_eq!(variables["layer4.2.bn3.running_var"].size(), [2048]);
    assert_eq!(variables["fc.bias"].size(), [1000]);
    assert_eq!(tch::no_grad(|| net.forward_t(&image(1), false)).size(), [1, 1000]);

    let vs = nn::VarStore::new(CPU);
    let _net = resnet18(&vs.root());
    assert_eq!(vs.variables().len(), 102);
    assert_eq!(vs.trainable_variables().iter().map(Tensor::numel).sum::<usize>(), 11_689_512);
    assert!(!vs.variables().contains_key("layer1.0.downsample.0.weight"));
}

#[test]
fn parameters_are_as_many_as_published() {
    let count = |make: &dyn Fn(&nn::Path)| {
        let vs = nn::VarStore::new(CPU);
        make(&vs.root());
        vs.trainable_variables().iter().map(Tensor::numel).sum::<usize>()
    };
    assert_eq!(count(&|p| drop(mobilenet_v2(p, &MobileNetV2Config::standard()))), 3_504_872);
    assert_eq!(count(&|p| drop(vit(p, &VitConfig::b_16()))), 86_567_656);
    assert_eq!(count(&|p| drop(swin(p, &SwinConfig::tiny_224()))), 28_288_354);
    assert_eq!(count(&|p| drop(mixer(p, &MixerConfig::b_16()))), 59_880_472);
    assert_eq!(count(&|p| drop(bert(p, &BertConfig::base()))), 109_482_240);
    assert_eq!(count(&|p| drop(gpt2(p, &Gpt2Config::small()))), 124_439_808);
}

#[test]
fn in_place_resnet_computes_the_same() {
    let stores = [nn::VarStore::new(CPU), nn::VarStore::new(CPU)];
    let cfg = ResNetConfig::tiny(Block::Basic);
    let plain = resnet(&stores[0].root(), &cfg);
    let inplace = resnet(&stores[1].root(), &cfg.clone().inplace());
    let [source, mut target] = stores;
    target.copy(&source).unwrap();
    let xs = image(2);
    let kept = xs.copy();
    tch::no_grad(|| assert_close(&plain.forward_t(&xs, false), &inplace.forward_t(&xs, false)));
    assert_eq!(xs, kept);
}

#[test]
fn training_moves_running_statistics() {
    let vs = nn::VarStore::new(CPU);
    let net = resnet(&vs.root(), &ResNetConfig::tiny(Block::Bottleneck));
    let mean = vs.variables()["bn1.running_mean"].copy();
    let _ = net.forward_t(&image(2), false);
    assert_eq!(mean, vs.variables()["bn1.running_mean"]);
    let _ = net.forward_t(&image(2), true);
    assert_ne!(mean, vs.variables()["bn1.running_mean"]);
}

#[test]
fn masks_survive_a_change_of_every_kind() {
    let mut vs = nn::VarStore::new(CPU);
    let net = gpt2(&vs.root(), &Gpt2Config::tiny());
    vs.set_kind(Kind::Double);
    assert_causal(&net);
}

#[test]
fn timestep_embedding_is_its_formula() {
    let time = Tensor::from_slice(&[0i64, 7, 999]);
    let embedded = timestep_embedding(&time, 8);
    assert_eq!(embedded.size(), [3, 8]);
    let angle = 7.0 * (-(10000f64.ln()) * 2.0 / 4.0).exp();
    assert!((embedded.double_value(&[1, 2]) - angle.cos()).abs() < 1e-6);
    assert!((embedded.double_value(&[1, 6]) - angle.sin()).abs() < 1e-6);
}
