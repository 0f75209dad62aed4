//! The schedules of attention: what an instance computes, and what that is expected to take.
//!
//! ```text
//! 12 heads of 4 tokens over 1024 keys, f32, a host    1.00  each query by itself, 128 keys at a time
//!                                                     1.09  queries as lanes, blocks of 4 x 128 keys
//! ```
//!
//! Costs are in pairs of a query and a key, of which an instance computes more than count: lanes without a query, keys that a query
//! does not see, and what queries, steps and instances take besides. The share that counts is that of the machine's rates that a
//! schedule reaches, of which [`Work`] makes microseconds. [`on_host`] lists the schedules on a processor, `warpgroup.rs` those on a GPU.

use tilefuse_block::Elem;

use super::blocks::{Blocks, tail};
use super::call::Attention;
use super::kv_splits::{KvSplits, written};
use super::{decode, kernel, program, rows, split_kv, vnni, with};
use crate::block_kernel::BlockKernel;
use crate::contract::blocks::blocks_of;
use crate::contract::call_kernels::Template;
use crate::contract::host::Host;
use crate::contract::price::Work;
use crate::contract::pruning::Priced;
use crate::contract::vnni::VNNI2;
use crate::graph::{Graph, NodeId};
use crate::machine::{HOST_PARTS, Profile};

/// How attention is computed.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// What queries are to an instance.
    pub(super) form: Form,
    /// What an instance computes, and what it goes through at a time.
    pub(super) blocks: Blocks,
    /// The shares of the machine's rates that this and libtorch's call reach.
    pub(super) shares: [f64; 2],
}

/// What queries are to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each is multiplied by keys as rows (`decode.rs`).
    Each,
    /// The lanes of vectors (`program.rs`).
    Lanes,
    /// The rows of products by so many warps (`rows.rs`).
    Rows { warps: u32 },
    /// The same on a processor that multiplies pairs, over keys and values that are packed (`vnni.rs`).
    PackedRows,
}

/// Threads that blocks of queries are chosen for. Not the machine's: a plan must not depend on how many there are.
const THREADS: i64 = 4;

/// What an instance takes beside its queries, in queries: bringing them into place and storing the result.
const INSTANCE: f64 = 6.0;

/// What a step takes beside its keys, in keys: rescaling what was summed.
const STEP: f64 = 8.0;

/// What a query by itself takes, in vectors of queries: its products are added up across lanes.
const EACH: f64 = 0.28;

/// The most queries that are taken each by itself: a program has the code of each.
const MAX_EACH: i64 = 8;

/// What queries take where they fill no two vectors: the sums of a row fill no registers.
const NARROW: f64 = 1.25;

/// Operations for each score beside its products, of queries as lanes and as rows, whose maxima and sums go across lanes: with rows, keys
/// and values of 256 elements together take as long as with lanes.
const LANES_SCORE: f64 = 20.0;
const ROWS_SCORE: f64 = 155.0;

/// How many times as long as the best schedule may be expected to take for others that may be the quickest: over keys and values where
/// they lie, and over those that are packed.
const IN_PLACE_SLOWDOWN: f64 = 3.0;
const PACKED_SLOWDOWN: f64 = 1.1;

/// The schedules on a host that hold partial sums in at most so many bytes.
pub(super) fn on_host(
    attention: &Attention,
    (profile, host): (&Profile, Host),
    most_bytes: u64,
) -> Vec<Priced<Schedule>> {
    let best = |forms: &[Form]| {
        let all = forms.iter().flat_map(|&form| blocks(form, attention, most_bytes));
        let all = all.map(|schedule| schedule.priced_on_host(attention, profile));
        // Other blocks differ by less than a measurement tells.
        all.min_by(|a, b| a.us.total_cmp(&b.us).then(a.arithmetic_us.total_cmp(&b.arithmetic_us)))
    };
    let in_place = best(&[Form::Each, Form::Lanes]);
    // Parts have no program over what is packed.
    let in_parts = in_place.as_ref().is_some_and(|best| best.schedule.blocks.splits.is_some());
    let packs = host.vnni2 && !in_parts && vnni::is_valid(attention);
    let packed = if packs { best(&[Form::PackedRows]) } else { None };
    in_place.into_iter().chain(packed).collect()
}

/// The schedules of a form on a host.
fn blocks(form: Form, attention: &Attention, most_bytes: u64) -> Vec<Schedule> {
    let is_valid = match form {
        // Its program masks no keys that come after a query.
        Form::Each => !attention.causal && attention.queries <= MAX_EACH,
        Form::Lanes | Form::PackedRows => true,
        Form::Rows { .. } => false,
    };
    let spans = if is_valid { form.spans(attention) } else { None };
    let Some(spans) = spans else { return Vec::new() };
    let all = form
        .queries(attention)
        .into_iter()
        .flat_map(|queries| form.keys(attention).into_iter().map(move |keys| (queries, keys)));
    let of = |(queries, keys): (u32, u32)| {
        // A rule, not a price: how many threads there are, which parts keep at work, is not in the model.
        let splits = match form {
            Form::Each | Form::Lanes => KvSplits::on_host(attention, form, keys),
            Form::Rows { .. } | Form::PackedRows => None,
        };
        let splits = splits.filter(|&splits| bytes(attention, splits) <= most_bytes as f64);
        let [width, depth] = spans.clone();
        let blocks = Blocks { queries, keys, width, depth, splits };
        let rate = form.rate(attention, &blocks);
        Some(Schedule { form, blocks, shares: [rate, 1.0] }).filter(|_| rate > 0.0)
    };
    all.filter_map(of).collect()
}

/// Bytes of what parts leave.
pub(super) fn bytes(attention: &Attention, splits: KvSplits) -> f64 {
    written(attention, splits) as f64 * f64::from(attention.sum().bytes())
}

impl Form {
    /// Blocks of queries of an instance.
    pub(super) fn down(self, attention: &Attention, queries: u32) -> i64 {
        if self == Form::Each { 1 } else { blocks_of(attention.queries, queries) }
    }

    /// What the queries of an instance on a host take, of `vector` to a vector.
    fn queries_computed(self, queries: u32, vector: u32) -> f64 {
        let all = f64::from(queries);
        match self {
            Form::Each => EACH * all * f64::from(vector),
            Form::Lanes if queries < 2 * vector => NARROW * all.max(vector.into()),
            Form::Lanes | Form::Rows { .. } | Form::PackedRows => all,
        }
    }

    /// The share of a host's rate that blocks reach: of the pairs that all threads compute, those that count.
    fn rate(self, attention: &Attention, blocks: &Blocks) -> f64 {
        let vector = if attention.elem == Elem::F64 { 8 } else { 16 };
        let parts = blocks.splits.map_or(1, |splits| splits.count);
        let threads = if parts > 1 { HOST_PARTS } else { THREADS };
        let members = attention.members().unwrap_or(i64::MAX);
        let instances =
            self.down(attention, blocks.queries).saturating_mul(members).saturating_mul(parts.into());
        let rounds = (instances as f64 / threads as f64).ceil();
        let queries = self.queries_computed(blocks.queries, vector) + INSTANCE;
        let keys = self.keys_computed(attention, blocks) / f64::from(parts);
        attention.pairs() / (threads as f64 * rounds * queries * keys)
    }

    /// What an instance's keys take, of all parts together.
    fn keys_computed(self, attention: &Attention, blocks: &Blocks) -> f64 {
        let step = f64::from(blocks.keys) + STEP;
        if attention.causal {
            return blocks.causal_steps(attention) * step;
        }
        let (whole, rest) =
            (attention.keys / i64::from(blocks.keys), attention.keys % i64::from(blocks.keys));
        let rest = match self {
            _ if rest == 0 => 0.0,
            // Panels are filled up to whole ones.
            Form::PackedRows => step,
            _ => f64::from(tail(rest)) + 2.0 * STEP,
        };
        whole as f64 * step + rest
    }
}

impl Schedule {
    /// It, with what it is expected to take on a host.
    fn priced_on_host(self, attention: &Attention, profile: &Profile) -> Priced<Schedule> {
        let (score, group, slowdown) = match self.form {
            // So many queries read what is packed that packing it is a small part of the work, on a machine of any bandwidth.
            Form::PackedRows => (ROWS_SCORE, VNNI2, PACKED_SLOWDOWN),
            _ => (LANES_SCORE, 1, IN_PLACE_SLOWDOWN),
        };
        let ops = score * attention.pairs();
        let work = Work { shares: self.shares, ops, group, ..Work::of_attention(attention) };
        self.priced(attention, (work, profile), slowdown)
    }

    /// It, with what its work is expected to take on a machine.
    pub(super) fn priced(
        self,
        attention: &Attention,
        (work, profile): (Work, &Profile),
        slowdown: f64,
    ) -> Priced<Schedule> {
        let left = self.blocks.splits.map_or(0.0, |splits| bytes(attention, splits));
        let packed = if self.form == Form::PackedRows { vnni::bytes(attention, &self.blocks) } else { 0.0 };
        Priced {
            us: work.generated_us(profile) + work.left_us(profile),
            arithmetic_us: work.arithmetic_us(profile),
            slowdown,
            bytes: left + packed,
            schedule: self,
        }
    }

    /// Its kernels.
    pub(super) fn template(&self, graph: &Graph, node: NodeId, attention: &Attention) -> Option<Template> {
        let Schedule { form, blocks, shares } = self;
        let device = graph.ty(node.into()).device;
        let position = u16::try_from(graph.operands(node).len()).ok()?;
        let members = u32::try_from(attention.members()?).ok()?;
        let instances = u32::try_from(form.down(attention, blocks.queries)).ok()?;
        let on_gpu = matches!(form, Form::Rows { .. });
        // That less is computed for nothing ranks schedules on a host; the rate of what is computed is the same.
        let shares = if on_gpu { *shares } else { [1.0; 2] };
        let with = |kernel: BlockKernel, own| Some(Template { shares, ..with(attention, kernel, own) });
        let program = match form {
            Form::Each => decode::write(attention, blocks),
            Form::Lanes => program::write(attention, blocks),
            Form::Rows { .. } => rows::write(attention, blocks, None),
            Form::PackedRows => {
                let packed = vnni::pack(attention, blocks, position, device)?;
                let (kernel, own) = packed.kernel(attention, [instances, members, 1], self.name(attention));
                return with(kernel, own);
            }
        };
        let mut program = program.ok()?;
        if let Form::Rows { warps } = *form {
            program.0.warps = warps;
        }
        let Some(splits) = blocks.splits else {
            let kernel = kernel(attention, program, [instances, members, 1], self.name(attention));
            return with(kernel, Vec::new());
        };
        let grid = [splits.count, instances, members];
        let parts = split_kv::parts(attention, splits, (program, grid), device, self.name(attention))?;
        with(split_kv::combining(attention, blocks, splits, position)?, vec![parts])
    }

    /// How it computes.
    fn name(&self, attention: &Attention) -> String {
        let Blocks { queries, keys, .. } = self.blocks;
        if self.form == Form::PackedRows {
            return "online softmax, keys and values in VNNI-2 layout".to_owned();
        }
        let queries = if self.form == Form::Each { 1 } else { queries };
        let mut text = format!("online softmax, blocks of {queries} x {keys} keys");
        if let Some(splits) = self.blocks.splits {
            text = format!("split-KV in {} parts, {text}", splits.count);
        }
        if let Some(heads) = &attention.repeated {
            text.push_str(&format!(", {} heads share keys and values (GQA)", heads.shared));
        }
        if let Form::Rows { warps } = self.form {
            text.push_str(&format!(", {warps} warps"));
        }
        text
    }
}
