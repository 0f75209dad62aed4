//! What stands in front of contractions of random programs, and behind them.

use std::collections::{BTreeMap, HashMap};

use tilefuse::random::generate;

/// Operators by what they are.
type Kinds = [(&'static str, &'static [&'static str])];

const CONTRACTIONS: &Kinds = &[
    ("product", &["linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"]),
    ("convolution", &["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"]),
    ("attention", &["scaled_dot_product_attention"]),
];

const NEIGHBOURS: &Kinds = &[
    ("row reduction", &["softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm"]),
    ("pointwise", &["add", "sub", "mul", "relu", "gelu", "silu", "sigmoid", "tanh"]),
    ("view", &["view", "reshape", "permute", "transpose", "slice", "flatten", "unsqueeze"]),
    ("cast", &["to"]),
    ("reduction", &["sum", "mean", "amax", "amin", "logsumexp", "linalg_vector_norm"]),
];

/// Of convolutions alone.
const POOLING: &Kinds = &[(
    "pooling",
    &["max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d"],
)];

/// Of products and convolutions, behind them.
const LOSSES: &Kinds =
    &[("loss", &["cross_entropy_loss", "mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"])];

/// The least programs of a kind.
const LEAST: usize = 4;

/// What an operator is, by its name without overload and mark of a write.
fn kind(kinds: &Kinds, call: &str) -> Option<&'static str> {
    let name = call.split('.').next().unwrap_or_default().trim_end_matches('_');
    kinds.iter().find(|(_, names)| names.contains(&name)).map(|found| found.0)
}

#[test]
fn contractions_have_neighbours_on_every_side() {
    let neighbours = [NEIGHBOURS, POOLING, LOSSES].concat();
    let mut found: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    let mut between = 0;
    for program in (0..4000).map(generate) {
        let mut makers: HashMap<u32, &str> = HashMap::new();
        let mut contractions: HashMap<u32, (&str, bool)> = HashMap::new();
        for op in &program.ops {
            let neighbour = kind(&neighbours, &op.name);
            for of in op.reads().iter().filter_map(|id| contractions.get(id)) {
                if let Some(neighbour) = neighbour {
                    *found.entry((of.0, "in front of", neighbour)).or_default() += 1;
                    between += usize::from(of.1);
                }
            }
            let contraction = kind(CONTRACTIONS, &op.name);
            let mut is_behind = false;
            for maker in op.reads().iter().filter_map(|id| makers.get(id)) {
                if let Some((of, neighbour)) = contraction.zip(kind(&neighbours, maker)) {
                    *found.entry((of, "behind", neighbour)).or_default() += 1;
                    is_behind = true;
                }
            }
            for result in &op.results {
                makers.insert(result.id, &op.name);
                if let Some(contraction) = contraction {
                    contractions.insert(result.id, (contraction, is_behind));
                }
            }
        }
    }
    println!("{found:?}, {between} between two");
    let sides = |kinds: &'static Kinds, of: &'static [&'static str], sides: &'static [&'static str]| {
        let all = of.iter().flat_map(move |of| sides.iter().map(move |side| (*of, *side)));
        all.flat_map(move |(of, side)| kinds.iter().map(move |kind| (of, side, kind.0)))
    };
    let both = &["in front of", "behind"];
    let wanted = sides(NEIGHBOURS, &["product", "convolution", "attention"], both)
        .chain(sides(POOLING, &["convolution"], both))
        .chain(sides(LOSSES, &["product", "convolution"], &["in front of"]));
    let rare: Vec<_> = wanted.filter(|key| found.get(key).is_none_or(|&count| count < LEAST)).collect();
    assert!(rare.is_empty(), "{rare:?} of {found:?}");
    assert!(between >= 400, "{between}");
}
