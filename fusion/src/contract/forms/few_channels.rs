//! Contractions of windows of few channels, as images have: convolutions whose pixels begin at no multiples of what is copied at a time.

use smallvec::SmallVec;

use crate::contract::blocks::blocks_of;
use crate::contract::price::{BLOCK_COLUMNS, ComputedBy, FormWork};
use crate::contract::product::COPIED;
use crate::contraction::{Contraction, Window};
use crate::graph::{Graph, NodeId, Op, ValueRef, View};

/// Dimensions of the left and of the right operand.
type Pairs = SmallVec<[(u8, u8); 2]>;

/// A contraction of windows of few channels with filters.
pub(super) struct FewChannels {
    pub(super) contract: NodeId,
    pub(super) contraction: Contraction,
    pub(super) windows: NodeId,
    pub(super) axes: SmallVec<[Window; 3]>,
    /// What the windows are of, and the filters.
    pub(super) operands: [ValueRef; 2],
    /// The dimensions of channels in windows and filters.
    pub(super) channels: Pairs,
    /// The dimension of the filters that tells them apart.
    pub(super) filter: u8,
}

impl FewChannels {
    /// That of a node, if it is one.
    pub(super) fn of(graph: &Graph, contract: NodeId) -> Option<FewChannels> {
        let Op::Contract(contraction) = &graph.node(contract).op else { return None };
        let &[windows, filters] = graph.operands(contract).as_slice() else { return None };
        let Op::View(View::Window(axes)) = &graph.node(windows.node).op else { return None };
        let &[images] = graph.operands(windows.node).as_slice() else { return None };
        let shape = &graph.ty(windows).shape;
        let within = shape.len() - axes.len();
        let (taps, channels): (Pairs, Pairs) =
            contraction.sum.iter().copied().partition(|&(left, _)| usize::from(left) >= within);
        let &[filter] = contraction.others(1, graph.ty(filters).rank()).as_slice() else { return None };
        let count: i64 = channels.iter().map(|&(left, _)| shape[usize::from(left)]).product();
        let fits = contraction.batch.is_empty()
            && taps.len() == axes.len()
            && channels.iter().all(|&(left, _)| axes.iter().all(|window| window.dim != left))
            && count < COPIED;
        fits.then(|| FewChannels {
            contract,
            contraction: contraction.clone(),
            windows: windows.node,
            axes: axes.iter().copied().collect(),
            operands: [images, filters],
            channels,
            filter,
        })
    }

    /// How many filters there are.
    pub(super) fn filters(&self, graph: &Graph) -> i64 {
        graph.ty(self.operands[1]).shape[usize::from(self.filter)]
    }

    /// How many channels there are.
    pub(super) fn count(&self, graph: &Graph) -> i64 {
        let shape = &graph.ty(self.operands[1]).shape;
        self.channels.iter().map(|&(_, right)| shape[usize::from(right)]).product()
    }

    /// What libtorch's call computes, which fills up the channels itself in copies of images and filters.
    pub(super) fn as_it_is(&self, graph: &Graph) -> FormWork {
        let taps: i64 = self.axes.iter().map(|window| window.kernel).product();
        self.filled_up(graph, ComputedBy::UnalignedCall, taps * COPIED)
    }

    /// What filters of such depth compute over images whose channels are filled up, both of which are copied for that.
    pub(super) fn filled_up(&self, graph: &Graph, by: ComputedBy, depth: i64) -> FormWork {
        let out = graph.ty(self.contract.into());
        let filters = self.filters(graph).max(1);
        let columns = blocks_of(filters, BLOCK_COLUMNS) * i64::from(BLOCK_COLUMNS);
        let filling = COPIED as f64 / self.count(graph).max(1) as f64;
        let copies = self.operands.map(|value| graph.ty(value).bytes() as f64 * filling);
        let written = out.numel() as f64 * graph.ty(self.operands[0]).dtype.bytes() as f64;
        FormWork {
            by,
            flops: 2.0 * (out.numel() / filters) as f64 * columns as f64 * depth as f64,
            bytes: copies.iter().sum::<f64>() + written,
            copies: copies.to_vec(),
            prepackable: Vec::new(),
        }
    }
}
