//! Programs that are valid by construction: each operator is run while it is chosen, so its result's type, layout and
//! magnitude are known, and what libtorch rejects or what would only measure rounding is left out.

mod attention;
mod conv;
mod host;
mod inputs;
mod loss;
mod moves;
mod neighbours;
mod opaque;
mod operand;
mod overlap;
mod pointwise;
mod pooling;
mod product;
mod read;
mod reduce;
mod shape;
mod statistics;
mod write;

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::program::{Mode, Named, OpCall, Program, is_float};
use crate::rng::Rng;
use crate::torch::{Arg, Meta};

pub(super) use inputs::layout;

type Args = Vec<Arg<u32>>;

/// The program of a seed; equal seeds give equal programs.
pub fn generate(seed: u64) -> Program {
    Generator::new(seed).run()
}

/// What all operators of a program share.
#[derive(Clone, Debug)]
struct Traits {
    kind: Kind,
    mixed: bool,
    broadcast: bool,
    writes: bool,
    special: bool,
    shape: Vec<i64>,
    most_elements: i64,
    /// Elements of a value that products, convolutions and attention read.
    most_operand: usize,
    /// Sizes that tensor cores and blocked products take, and half precision.
    blocks: bool,
    ops: usize,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fact {
    /// All correct implementations agree to the bit.
    exact: bool,
    /// It holds integers of at most this magnitude.
    bound: Option<f64>,
}

impl Fact {
    const ROUNDED: Fact = Fact { exact: false, bound: None };
    const EXACT: Fact = Fact { exact: true, bound: None };

    /// The result of arithmetic that is exact on integers up to `bound`.
    fn integers(bound: Option<f64>) -> Fact {
        Fact { exact: false, bound }
    }

    fn join(self, other: Fact) -> Fact {
        let bound = self.bound.zip(other.bound).map(|(a, b)| a.max(b));
        Fact { exact: self.exact && other.exact, bound }
    }

    /// The fact of a result of this type.
    fn settle(self, kind: Kind) -> Fact {
        let bound = self.bound.filter(|&b| b <= largest_integer(kind));
        Fact { exact: self.exact || bound.is_some() || !is_float(kind), bound }
    }
}

/// Integers up to this magnitude have an exact value in the type.
fn largest_integer(kind: Kind) -> f64 {
    match kind {
        Kind::Bool => 1.0,
        Kind::Int8 => 127.0,
        Kind::Uint8 | Kind::BFloat16 => 255.0,
        Kind::Half => 2048.0,
        Kind::Float => 16_777_216.0,
        _ => 2_147_483_647.0,
    }
}

struct Generator {
    rng: Rng,
    traits: Traits,
    program: Program,
    /// Values in order of definition.
    values: Vec<u32>,
    env: HashMap<u32, Tensor>,
    facts: HashMap<u32, Fact>,
    storages: Vec<Tensor>,
    next: u32,
}

/// Families of operators with their weights.
type Family = fn(&mut Generator) -> Option<()>;
const FAMILIES: &[(u32, Family)] = &[
    (20, pointwise::unary),
    (18, pointwise::binary),
    (8, pointwise::with_scalar),
    (4, pointwise::divide),
    (3, pointwise::power),
    (3, pointwise::ternary),
    (1, pointwise::gated),
    (5, pointwise::compare),
    (3, pointwise::discontinuous),
    (5, pointwise::choose),
    (5, pointwise::cast),
    (4, pointwise::bits),
    (10, reduce::reduce),
    (3, reduce::indexed),
    (3, reduce::spread),
    (4, reduce::softmax),
    (4, reduce::normalize),
    (4, statistics::statistics),
    (18, shape::rearrange),
    (5, shape::resize),
    (2, shape::strided),
    (1, shape::windows),
    (2, shape::of_rank_zero),
    (5, moves::moves),
    (1, moves::filled),
    (4, shape::join),
    (1, shape::grid),
    (3, shape::divide),
    (5, read::read),
    (1, read::library),
    (9, product::product),
    (2, conv::convolution),
    (3, attention::attention),
    (10, neighbours::contraction),
    (6, pooling::pooling),
    (4, loss::loss),
    (2, opaque::opaque),
    (1, host::on_the_host),
];

/// Those that programs of blocks begin with.
const BLOCKS: [Family; 8] = [
    product::product,
    conv::convolution,
    conv::convolution,
    attention::attention,
    neighbours::contraction,
    neighbours::contraction,
    pooling::pooling,
    loss::loss,
];

impl Generator {
    fn new(seed: u64) -> Generator {
        let mut rng = Rng::new(seed);
        let traits = Traits::draw(&mut rng);
        Generator {
            rng,
            traits,
            program: Program::default(),
            values: Vec::new(),
            env: HashMap::new(),
            facts: HashMap::new(),
            storages: Vec::new(),
            next: 0,
        }
    }

    fn run(mut self) -> Program {
        let shape = self.traits.shape.clone();
        for _ in 0..=self.rng.below(2) {
            let kind = self.some_kind();
            self.input(&shape, kind);
        }
        if self.traits.blocks {
            BLOCKS[self.rng.below(BLOCKS.len())](&mut self);
        }
        let weights: Vec<u32> = FAMILIES.iter().map(|f| f.0).collect();
        for _ in 0..self.traits.ops * 4 {
            if self.program.ops.len() >= self.traits.ops {
                break;
            }
            if self.traits.writes && self.rng.chance(0.25) {
                write::write(&mut self);
            } else {
                let family = self.rng.weighted(&weights);
                FAMILIES[family].1(&mut self);
            }
        }
        self.finish()
    }

    /// Returns what nothing reads, and a few other values.
    fn finish(mut self) -> Program {
        if self.rng.chance(0.15) {
            self.views_of_one();
        }
        let read: Vec<u32> = self.program.ops.iter().flat_map(OpCall::reads).collect();
        let made: Vec<u32> = self.program.ops.iter().flat_map(|o| o.results.iter().map(|r| r.id)).collect();
        for id in self.values.clone() {
            let often = if made.contains(&id) { 0.1 } else { 0.02 };
            if (made.contains(&id) && !read.contains(&id)) || self.rng.chance(often) {
                self.program.outputs.push(Named { id, exact: self.fact(id).exact });
            }
        }
        if self.program.outputs.is_empty() {
            let id = self.values.last().copied().unwrap_or(0);
            self.program.outputs.push(Named { id, exact: self.fact(id).exact });
        }
        if self.rng.chance(0.05) {
            self.program.other = self.with_other_number();
        }
        self.program
    }

    /// A call with another number than the program's, for a model whose state is in no tensor.
    fn with_other_number(&self) -> Option<OpCall> {
        const NUMBERS: [&str; 5] = ["add.Scalar", "sub.Scalar", "mul.Scalar", "mul_.Scalar", "add_.Scalar"];
        let mut ops = self.program.ops.iter().filter(|op| NUMBERS.contains(&op.name.as_str()));
        let mut call = ops.next_back()?.clone();
        match call.args.get_mut(1)? {
            Arg::Int(n) => *n += 1,
            Arg::Float(x) => *x += 1.0,
            _ => return None,
        }
        Some(call)
    }

    /// A few views of one value, for results that share memory.
    fn views_of_one(&mut self) {
        let Some(base) = self.any() else { return };
        for _ in 0..2 + self.rng.below(2) {
            write::view_of(self, base);
        }
    }

    fn fact(&self, id: u32) -> Fact {
        self.facts.get(&id).copied().unwrap_or(Fact::ROUNDED)
    }

    fn bound(&self, id: u32) -> Option<f64> {
        self.fact(id).bound
    }

    fn exact(&self, id: u32) -> bool {
        self.fact(id).exact
    }

    fn tensor(&self, id: u32) -> &Tensor {
        &self.env[&id]
    }

    fn kind(&self, id: u32) -> Kind {
        self.tensor(id).kind()
    }

    fn is_float(&self, id: u32) -> bool {
        is_float(self.kind(id))
    }

    fn size(&self, id: u32) -> Vec<i64> {
        self.tensor(id).size()
    }

    fn rank(&self, id: u32) -> usize {
        self.tensor(id).dim()
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// A value that fits, recent ones rather than old ones.
    fn value(&mut self, fits: impl Fn(&Generator, u32) -> bool) -> Option<u32> {
        let found: Vec<u32> = self.values.iter().copied().filter(|&id| fits(self, id)).collect();
        let recent = found.len().min(3);
        match found.len() {
            0 => None,
            n if self.rng.chance(0.6) => Some(found[n - 1 - self.rng.below(recent)]),
            n => Some(found[self.rng.below(n)]),
        }
    }

    fn any(&mut self) -> Option<u32> {
        self.value(|_, _| true)
    }

    fn float(&mut self) -> Option<u32> {
        self.value(Generator::is_float)
    }

    /// A dimension of a value, if it has any.
    fn dim(&mut self, id: u32) -> Option<i64> {
        let rank = self.rank(id);
        (rank > 0).then(|| self.rng.below(rank) as i64)
    }

    /// Adds a call with one result.
    fn emit(&mut self, name: &str, args: Args, fact: Fact) -> Option<u32> {
        self.emit_all(name, args, &[fact])?.first().copied()
    }

    /// The last value that operators add.
    fn made(&mut self, add: impl FnOnce(&mut Generator) -> Option<()>) -> Option<u32> {
        add(self)?;
        self.values.last().copied()
    }

    /// Adds a call whose result only calls that ask for it by name read, since few operators take it.
    fn emit_hidden(&mut self, name: &str, args: Args) -> Option<u32> {
        let id = self.fresh();
        let results = vec![Named { id, exact: false }];
        let op = OpCall { name: name.to_owned(), args, results };
        let tensor = op.run(&self.env, Mode::Native).ok()?.pop()?;
        self.env.insert(id, tensor);
        self.program.ops.push(op);
        Some(id)
    }

    /// Adds a call with as many results as facts. Nothing is added where libtorch rejects the call or a result is too
    /// large, in elements or in magnitude.
    fn emit_all(&mut self, name: &str, args: Args, facts: &[Fact]) -> Option<Vec<u32>> {
        let ids: Vec<u32> = facts.iter().map(|_| self.fresh()).collect();
        let results = ids.iter().map(|&id| Named { id, exact: false }).collect();
        let mut op = OpCall { name: name.to_owned(), args, results };
        // What a call draws decides whether it is accepted, and libtorch's generators are the process's.
        let _generators = op.draws().then(super::check::seeded);
        let tensors = op.run(&self.env, Mode::Native).ok()?;
        if tensors.iter().any(|t| !self.acceptable(t)) {
            return None;
        }
        for ((tensor, named), fact) in tensors.into_iter().zip(&mut op.results).zip(facts) {
            let fact = fact.settle(tensor.kind());
            named.exact = fact.exact;
            self.facts.insert(named.id, fact);
            self.env.insert(named.id, tensor);
            self.values.push(named.id);
        }
        self.program.ops.push(op);
        Some(ids)
    }

    fn acceptable(&self, t: &Tensor) -> bool {
        if t.dim() > 5 || t.numel() as i64 > self.traits.most_elements {
            return false;
        }
        if t.numel() == 0 || !is_float(t.kind()) || self.traits.special || self.traits.shape.contains(&0) {
            return true;
        }
        largest(t) <= if t.kind() == Kind::Half { 500.0 } else { 1e4 }
    }

    /// The largest magnitude of a value's elements in the draw that the program is made with.
    fn magnitude(&self, id: u32) -> f64 {
        let t = self.tensor(id);
        if t.numel() == 0 || self.traits.special { f64::INFINITY } else { largest(t) }
    }

    /// The join of what is known of values.
    fn joined(&self, ids: &[u32]) -> Fact {
        let facts = ids.iter().map(|&id| self.fact(id));
        facts.reduce(Fact::join).unwrap_or(Fact::ROUNDED)
    }

    fn storage_of(&self, id: u32) -> usize {
        Meta::of(self.tensor(id)).map_or(0, |m| m.storage)
    }
}

fn largest(t: &Tensor) -> f64 {
    t.to_kind(Kind::Double).abs().max().double_value(&[])
}

fn t(id: u32) -> Arg<u32> {
    Arg::Tensor(id)
}

impl Traits {
    fn draw(rng: &mut Rng) -> Traits {
        const KINDS: &[(u32, Kind)] = &[
            (62, Kind::Float),
            (7, Kind::Double),
            (8, Kind::Half),
            (10, Kind::BFloat16),
            (5, Kind::Int64),
            (3, Kind::Int),
            (2, Kind::Uint8),
            (2, Kind::Int8),
            (1, Kind::Bool),
        ];
        let weights: Vec<u32> = KINDS.iter().map(|k| k.0).collect();
        let blocks = rng.chance(0.06);
        let kind = match blocks && rng.chance(0.8) {
            true => *rng.pick(&[Kind::Half, Kind::BFloat16]),
            false => KINDS[rng.weighted(&weights)].1,
        };
        let size = rng.unit();
        let (least, most) = if size < 0.82 {
            (0, 5_000)
        } else if size < 0.99 {
            (2_000, 100_000)
        } else {
            // Drawing and judging one takes as long as fifty others.
            (1_000_000, 2_500_000)
        };
        let zero = rng.chance(0.15);
        let ops = match rng.below(10) {
            0..=5 => 1 + rng.below(6),
            6..=8 => 4 + rng.below(10),
            _ => 12 + rng.below(29),
        };
        let (least, most) = if blocks { (0, 100_000) } else { (least, most) };
        let shape = if blocks { inputs::shape_of_blocks(rng) } else { inputs::shape(rng, least, most, zero) };
        Traits {
            kind,
            mixed: rng.chance(0.2),
            broadcast: rng.chance(0.25),
            writes: rng.chance(0.2),
            special: rng.chance(0.04),
            shape,
            most_elements: most.max(5_000) * 2,
            most_operand: if blocks { 1 << 16 } else { 1 << 12 },
            blocks,
            ops,
        }
    }
}

/// CPU tensors of a program's first draw.
fn first_draw(storage: &super::program::Storage, seed: u64) -> Tensor {
    let one = Program { storages: vec![storage.clone()], ..Program::default() };
    one.draw(seed, Device::Cpu).pop().unwrap_or_default()
}
