//! Calls that address the storage of a tensor: made of the root, by the order in which its elements lie in memory.

use smallvec::SmallVec;

use super::overlap::{is_dense, span};
use super::state::State;
use super::views;
use crate::graph::{AtenCall, Op, ValueRef};
use crate::recording::{Arg, TensorId};
use crate::types::{Dims, TensorType, row_major};

impl State<'_> {
    /// The offset of strides over a tensor's storage from the tensor's root, which has all elements that they address. What
    /// is written there has the type of the root.
    pub(super) fn within_root(
        &self,
        tensor: usize,
        strided: &views::Strided<usize>,
        offset: i64,
    ) -> Option<i64> {
        let (own, root) = (&self.tensors[tensor], &self.tensors[self.root(tensor)]);
        let ty = TensorType {
            shape: Dims::from_slice(&strided.size),
            strides: Dims::from_slice(&strided.stride),
            ..own.ty.clone()
        };
        let same_type = own.ty == root.ty && own.offset == root.offset;
        if ty.shape.len() != ty.strides.len() || (strided.source.is_some() && !same_type) {
            return None;
        }
        if ty.numel() == 0 {
            return Some(0);
        }
        let offset = offset.checked_sub(root.offset).filter(|&offset| offset >= 0)?;
        let inside = offset.checked_add(span(&ty))? <= span(&root.ty);
        let addressable = is_dense(&root.ty) && root.ty.dtype == own.ty.dtype && root.plain && own.plain;
        (inside && addressable).then_some(offset)
    }

    /// Whether a tensor of the recording, a view of another, is strides over elements of that one's root.
    pub(super) fn is_within_root(&self, view: TensorId, of: usize) -> bool {
        let Some(info) = self.recording.tensors.get(view.0 as usize) else { return false };
        let strided = views::Strided {
            op: "aten::as_strided",
            tensor: of,
            source: None,
            size: info.ty.shape.to_vec(),
            stride: info.ty.strides.to_vec(),
            offset: Some(info.storage_offset),
        };
        info.ty.dtype == self.tensors[of].ty.dtype
            && self.within_root(of, &strided, info.storage_offset).is_some()
    }

    /// Adds a node for a call that addresses the storage of its first operand, a value of a tensor of type `root`: the value
    /// is given to it in the order in which the elements lie there.
    pub(super) fn strided(
        &mut self,
        call: AtenCall,
        mut operands: Vec<ValueRef>,
        root: &TensorType,
        outs: SmallVec<[TensorType; 1]>,
        origin: Option<u32>,
    ) -> ValueRef {
        let mut order: Vec<usize> = (0..root.rank()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(root.strides[d]));
        let mut inverse = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &d)| inverse[d] = i as i64);
        let (shape, in_memory) = (&root.shape, order.iter().map(|&d| root.shape[d]).collect::<Vec<_>>());
        let dims = |list: Vec<i64>| ("dims", Arg::Ints(list));
        let sizes = |list: &[i64]| ("shape", Arg::Ints(list.to_vec()));
        let flat = [root.numel()];
        let elements = operands[0];
        let moved = order.iter().map(|&d| d as i64).collect();
        let moved = self.rearranged("permute", dims(moved), elements, root, &in_memory, origin);
        operands[0] = self.rearranged("reshape", sizes(&flat), moved, root, &flat, origin);
        if call.op == "aten::as_strided" {
            return self.graph.add(Op::Aten(Box::new(call)), &operands, outs, origin).into();
        }
        let ty =
            TensorType { shape: Dims::from_slice(&flat), strides: Dims::from_slice(&[1]), ..root.clone() };
        let written = self.graph.add(Op::Aten(Box::new(call)), &operands, [ty], origin).into();
        let written = self.rearranged("reshape", sizes(&in_memory), written, root, &in_memory, origin);
        let result = self.rearranged("permute", dims(inverse), written, root, shape, origin);
        self.graph.node_mut(result.node).outs = outs;
        result
    }

    /// A value in another arrangement, row-major; itself where that is the one it has.
    fn rearranged(
        &mut self,
        op: &str,
        to: (&str, Arg<u16>),
        value: ValueRef,
        like: &TensorType,
        shape: &[i64],
        origin: Option<u32>,
    ) -> ValueRef {
        let same = match &to.1 {
            Arg::Ints(dims) if op == "permute" => dims.is_sorted(),
            _ => self.graph.ty(value).shape.as_slice() == shape,
        };
        if same {
            return value;
        }
        let call = AtenCall::new(&format!("aten::{op}"), "", [("self", Arg::Tensor(0)), to]);
        let ty = TensorType { shape: Dims::from_slice(shape), strides: row_major(shape), ..like.clone() };
        self.graph.add(Op::Aten(Box::new(call)), &[value], [ty], origin).into()
    }
}
