//! Schedules of attention: which are candidates, the likeliest first.

use expect_test::{Expect, expect};

use super::tests::{Case, Mask, PLAIN};
use crate::contract::{Products, choose_products};
use crate::machine::Profile;
use crate::pipeline::primitive;

/// `[batch, heads, heads of keys]`, and `[queries, keys, width, depth]`.
fn of(batch: [i64; 3], [queries, keys, width, depth]: [i64; 4]) -> Case {
    Case { batch, queries, keys, width, depth, ..PLAIN }
}

/// The attention of some models.
fn models() -> Vec<(&'static str, Case)> {
    let causal = |case: Case| Case { causal: true, ..case };
    let masked = |case: Case, shape: &'static [i64]| Case { mask: Mask::Added(shape), ..case };
    vec![
        ("GPT-2, 8 x 1024", causal(of([8, 12, 12], [1024, 1024, 64, 64]))),
        ("GPT-2, one token over 1024", of([1, 12, 12], [1, 1024, 64, 64])),
        ("BERT, 32 x 512", of([32, 12, 12], [512, 512, 64, 64])),
        ("BERT, 1 x 128, padded", masked(of([1, 12, 12], [128, 128, 64, 64]), &[1, 1, 1, 128])),
        ("Llama, 4 x 2048", causal(of([4, 32, 8], [2048, 2048, 128, 128]))),
        ("Llama, one token over 2048", of([1, 32, 8], [1, 2048, 128, 128])),
        ("Llama, 4 x one token over 2048", of([4, 32, 8], [1, 2048, 128, 128])),
        ("multi-query, one token over 16384", of([1, 32, 1], [1, 16384, 128, 128])),
        ("one head, one token over 16384", of([1, 1, 1], [1, 16384, 64, 64])),
        ("four tokens over 2048", of([1, 8, 8], [4, 2048, 64, 64])),
        ("causal, four tokens", causal(of([1, 8, 8], [4, 4, 64, 64]))),
        ("ViT, 8 x 197", of([8, 12, 12], [197, 197, 64, 64])),
        ("Swin, 64 windows of 49", masked(of([64, 3, 3], [49, 49, 32, 32]), &[64, 3, 49, 49])),
        ("cross attention, 256 over 77", of([2, 8, 8], [256, 77, 40, 40])),
        ("cross attention, 4096 over 77", of([2, 8, 8], [4096, 77, 40, 40])),
        ("latents, 64 over 16384", of([1, 1, 1], [64, 16384, 64, 64])),
        ("eight queries over 4096", of([1, 2, 2], [8, 4096, 64, 64])),
        ("1 x 16384", of([1, 8, 8], [16384, 16384, 64, 64])),
        ("1 x 16384, causal", causal(of([1, 8, 8], [16384, 16384, 128, 128]))),
        ("wide heads, 1024", of([1, 1, 1], [1024, 1024, 512, 512])),
    ]
}

/// The kernels that are measured for a call, in their order.
fn schedules(case: &Case, profile: &Profile) -> String {
    let mut all = Vec::new();
    let mut graph = primitive(&case.text(), profile);
    choose_products(&mut graph, profile, Products::Measured, Some(0), u64::MAX, &mut |candidate| {
        let kernels = candidate.template.operand_kernels.iter().map(|own| &own.kernel);
        let kernels = kernels.chain([&candidate.template.kernel]);
        let kernels = kernels.filter(|kernel| !kernel.schedule.is_empty());
        let kernels = kernels.map(|kernel| format!("{}, grid {:?}", kernel.schedule, kernel.grid));
        all.push(kernels.collect::<Vec<_>>().join("; "));
        None
    });
    let declined = graph.ids().find_map(|id| graph.node(id).kernel.clone()?.err());
    if all.is_empty() { declined.map(|why| why.reason).unwrap_or_default() } else { all.join("\n    ") }
}

fn check(profile: &Profile, of: impl Fn(Case) -> Case, expected: Expect) {
    let all = models().into_iter().map(|(name, case)| (name, of(case)));
    let lines = all.map(|(name, case)| format!("{name}\n    {}\n", schedules(&case, profile)));
    expected.assert_eq(&lines.collect::<String>());
}

#[test]
fn on_a_host() {
    check(
        &Profile::host(2),
        |case| case,
        expect![[r#"
        GPT-2, 8 x 1024
            online softmax, blocks of 64 x 64 keys, grid [16, 96, 1]
        GPT-2, one token over 1024
            online softmax, blocks of 1 x 128 keys, grid [1, 12, 1]
        BERT, 32 x 512
            online softmax, blocks of 64 x 128 keys, grid [8, 384, 1]
        BERT, 1 x 128, padded
            online softmax, blocks of 64 x 128 keys, grid [2, 12, 1]
        Llama, 4 x 2048
            online softmax, blocks of 64 x 64 keys, grid [32, 128, 1]
        Llama, one token over 2048
            split-KV in 2 parts, online softmax, blocks of 1 x 64 keys, grid [2, 1, 8]; split-KV: combines 2 parts, grid [4, 8, 1]
        Llama, 4 x one token over 2048
            online softmax, blocks of 1 x 64 keys, grid [1, 32, 1]
        multi-query, one token over 16384
            split-KV in 16 parts, online softmax, blocks of 32 x 64 keys, grid [16, 1, 1]; split-KV: combines 16 parts, grid [32, 1, 1]
        one head, one token over 16384
            split-KV in 16 parts, online softmax, blocks of 1 x 128 keys, grid [16, 1, 1]; split-KV: combines 16 parts, grid [1, 1, 1]
        four tokens over 2048
            split-KV in 2 parts, online softmax, blocks of 1 x 128 keys, grid [2, 1, 8]; split-KV: combines 2 parts, grid [4, 8, 1]
        causal, four tokens
            online softmax, blocks of 4 x 8 keys, grid [1, 8, 1]
        ViT, 8 x 197
            online softmax, blocks of 32 x 64 keys, grid [7, 96, 1]
        Swin, 64 windows of 49
            online softmax, blocks of 64 x 128 keys, grid [1, 192, 1]
        cross attention, 256 over 77
            online softmax, blocks of 64 x 64 keys, grid [4, 16, 1]
        cross attention, 4096 over 77
            online softmax, blocks of 64 x 64 keys, grid [64, 16, 1]
        latents, 64 over 16384
            split-KV in 8 parts, online softmax, blocks of 32 x 128 keys, grid [8, 2, 1]; split-KV: combines 8 parts, grid [64, 1, 1]
        eight queries over 4096
            split-KV in 8 parts, online softmax, blocks of 8 x 128 keys, grid [8, 1, 2]; split-KV: combines 8 parts, grid [8, 2, 1]
        1 x 16384
            online softmax, blocks of 64 x 128 keys, grid [256, 8, 1]
        1 x 16384, causal
            online softmax, blocks of 64 x 64 keys, grid [256, 8, 1]
        wide heads, 1024
            online softmax, blocks of 64 x 16 keys, grid [16, 1, 1]
    "#]],
    );
}

#[test]
fn on_a_host_that_multiplies_pairs() {
    let profile = Profile::host(2).with_vnni([800.0, 1500.0]);
    check(
        &profile,
        |case| Case { dtype: "bf16", ..case },
        expect![[r#"
        GPT-2, 8 x 1024
            online softmax, blocks of 64 x 64 keys, grid [16, 96, 1]
        GPT-2, one token over 1024
            online softmax, blocks of 1 x 128 keys, grid [1, 12, 1]
        BERT, 32 x 512
            online softmax, blocks of 64 x 128 keys, grid [8, 384, 1]
        BERT, 1 x 128, padded
            online softmax, blocks of 64 x 128 keys, grid [2, 12, 1]
        Llama, 4 x 2048
            online softmax, keys and values in VNNI-2 layout, grid [32, 128, 1]
            online softmax, blocks of 64 x 64 keys, grid [32, 128, 1]
        Llama, one token over 2048
            split-KV in 2 parts, online softmax, blocks of 1 x 64 keys, grid [2, 1, 8]; split-KV: combines 2 parts, grid [4, 8, 1]
        Llama, 4 x one token over 2048
            online softmax, blocks of 1 x 64 keys, grid [1, 32, 1]
        multi-query, one token over 16384
            split-KV in 16 parts, online softmax, blocks of 32 x 64 keys, grid [16, 1, 1]; split-KV: combines 16 parts, grid [32, 1, 1]
        one head, one token over 16384
            split-KV in 16 parts, online softmax, blocks of 1 x 128 keys, grid [16, 1, 1]; split-KV: combines 16 parts, grid [1, 1, 1]
        four tokens over 2048
            split-KV in 2 parts, online softmax, blocks of 1 x 128 keys, grid [2, 1, 8]; split-KV: combines 2 parts, grid [4, 8, 1]
        causal, four tokens
            online softmax, blocks of 4 x 8 keys, grid [1, 8, 1]
        ViT, 8 x 197
            online softmax, blocks of 32 x 64 keys, grid [7, 96, 1]
        Swin, 64 windows of 49
            online softmax, blocks of 64 x 128 keys, grid [1, 192, 1]
        cross attention, 256 over 77
            online softmax, blocks of 64 x 64 keys, grid [4, 16, 1]
        cross attention, 4096 over 77
            online softmax, blocks of 64 x 64 keys, grid [64, 16, 1]
        latents, 64 over 16384
            split-KV in 8 parts, online softmax, blocks of 32 x 128 keys, grid [8, 2, 1]; split-KV: combines 8 parts, grid [64, 1, 1]
        eight queries over 4096
            split-KV in 8 parts, online softmax, blocks of 8 x 128 keys, grid [8, 1, 2]; split-KV: combines 8 parts, grid [8, 2, 1]
        1 x 16384
            online softmax, blocks of 64 x 128 keys, grid [256, 8, 1]
        1 x 16384, causal
            online softmax, keys and values in VNNI-2 layout, grid [256, 8, 1]
            online softmax, blocks of 64 x 64 keys, grid [256, 8, 1]
        wide heads, 1024
            online softmax, keys and values in VNNI-2 layout, grid [16, 1, 1]
    "#]],
    );
}

#[test]
fn on_a_gpu() {
    let profile = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
    check(
        &profile,
        |case| Case { dtype: "bf16", device: "@cuda:0", ..case },
        expect![[r#"
        GPT-2, 8 x 1024
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [8, 96, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [8, 96, 1]
        GPT-2, one token over 1024
            split-KV in 16 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [16, 1, 12]; split-KV: combines 16 parts, grid [1, 12, 1]
        BERT, 32 x 512
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [4, 384, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [4, 384, 1]
        BERT, 1 x 128, padded
            online softmax, blocks of 64 x 64 keys, 4 warps, grid [2, 12, 1]
            online softmax, blocks of 64 x 32 keys, 4 warps, grid [2, 12, 1]
        Llama, 4 x 2048
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [16, 128, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [16, 128, 1]
        Llama, one token over 2048
            split-KV in 32 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [32, 1, 8]; split-KV: combines 32 parts, grid [4, 8, 1]
        Llama, 4 x one token over 2048
            split-KV in 8 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [8, 1, 32]; split-KV: combines 8 parts, grid [4, 32, 1]
        multi-query, one token over 16384
            split-KV in 64 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [64, 1, 1]; split-KV: combines 64 parts, grid [32, 1, 1]
        one head, one token over 16384
            split-KV in 64 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [64, 1, 1]; split-KV: combines 64 parts, grid [1, 1, 1]
        four tokens over 2048
            split-KV in 32 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [32, 1, 8]; split-KV: combines 32 parts, grid [4, 8, 1]
        causal, four tokens
            online softmax, blocks of 64 x 32 keys, 4 warps, grid [1, 8, 1]
            online softmax, blocks of 64 x 64 keys, 4 warps, grid [1, 8, 1]
        ViT, 8 x 197
            online softmax, blocks of 64 x 64 keys, 4 warps, grid [4, 96, 1]
            online softmax, blocks of 64 x 32 keys, 4 warps, grid [4, 96, 1]
        Swin, 64 windows of 49
            online softmax, blocks of 64 x 64 keys, 4 warps, grid [1, 192, 1]
            online softmax, blocks of 64 x 32 keys, 4 warps, grid [1, 192, 1]
        cross attention, 256 over 77
            online softmax, blocks of 64 x 64 keys, 4 warps, grid [4, 16, 1]
            online softmax, blocks of 64 x 32 keys, 4 warps, grid [4, 16, 1]
        cross attention, 4096 over 77
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [32, 16, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [32, 16, 1]
        latents, 64 over 16384
            split-KV in 64 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [64, 1, 1]; split-KV: combines 64 parts, grid [64, 1, 1]
        eight queries over 4096
            split-KV in 64 parts, online softmax, blocks of 64 x 64 keys, 4 warps, grid [64, 1, 2]; split-KV: combines 64 parts, grid [8, 2, 1]
        1 x 16384
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [128, 8, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [128, 8, 1]
        1 x 16384, causal
            online softmax, blocks of 128 x 128 keys, 8 warps, grid [128, 8, 1]
            online softmax, blocks of 128 x 64 keys, 8 warps, grid [128, 8, 1]
        wide heads, 1024
            no kernel takes so large sizes
    "#]],
    );
}
