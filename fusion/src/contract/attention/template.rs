//! The kernels of attention in given blocks.

use super::blocks::{QueryBlocks, QueryMapping};
use super::call::Attention;
use super::{decode, kernel, program, rows, split_kv, vnni, with};
use crate::contract::call_kernels::Template;
use crate::contract::schedule::Splits;
use crate::graph::{Graph, NodeId};

/// The template of attention in these blocks, whose keys are in parts, or packed with their values first.
pub(in crate::contract) fn template(
    graph: &Graph,
    node: NodeId,
    attention: &Attention,
    blocks: &QueryBlocks,
    (splits, packs): (Option<Splits>, bool),
) -> Option<Template> {
    let device = graph.ty(node.into()).device;
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let members = u32::try_from(attention.members()?).ok()?;
    let instances = u32::try_from(blocks.mapping.blocks_of(attention, blocks.queries)).ok()?;
    let name = name(attention, blocks, (splits, packs));
    if packs {
        // Parts have no program over what is packed.
        if splits.is_some() {
            return None;
        }
        let packed = vnni::pack(attention, blocks, position, device)?;
        let (kernel, own) = packed.kernel(attention, [instances, members, 1], name);
        return Some(with(attention, kernel, own));
    }
    let program = match blocks.mapping {
        QueryMapping::Each => decode::write(attention, blocks, splits),
        QueryMapping::Lanes => program::write(attention, blocks, splits),
        QueryMapping::Rows => rows::write(attention, (blocks, splits), None),
    };
    let mut program = program.ok()?;
    if let Some(warps) = blocks.warps {
        program.0.warps = warps;
    }
    let Some(splits) = splits else {
        let kernel = kernel(attention, program, [instances, members, 1], name);
        return Some(with(attention, kernel, Vec::new()));
    };
    let grid = [splits.count, instances, members];
    let parts = split_kv::parts(attention, splits, (program, grid), device, name)?;
    let combining = split_kv::combining(attention, blocks, splits, position)?;
    Some(with(attention, combining, vec![parts]))
}

/// How it computes.
fn name(attention: &Attention, blocks: &QueryBlocks, (splits, packs): (Option<Splits>, bool)) -> String {
    if packs {
        return "online softmax, keys and values in VNNI-2 layout".to_owned();
    }
    let queries = if blocks.mapping == QueryMapping::Each { 1 } else { blocks.queries };
    let mut text = format!("online softmax, blocks of {queries} x {} keys", blocks.keys);
    if let Some(splits) = splits {
        text = format!("split-KV in {} parts, {text}", splits.count);
    }
    if let Some(heads) = &attention.repeated {
        text.push_str(&format!(", {} heads share keys and values (GQA)", heads.shared));
    }
    if let Some(warps) = blocks.warps {
        text.push_str(&format!(", {warps} warps"));
    }
    text
}
