//! Contractions of windows as libtorch's convolutions.
//!
//! ```text
//! %3 = view pad[0,0,1,1]=0.0(%0) : f32[2,3,10,10]                  ->   %7 = aten::conv2d(input=%0, weight=%1, bias=%2,
//! %4 = view window[2,3] kernel[3,3] ...(%3) : f32[2,3,8,8,3,3]               stride=[1,1], padding=[1,1], ...)
//! %5 = contract sum[1,4,5]x[1,2,3](%4, %1) : f32[2,8,8,4]
//! %6 = view permute[0,3,1,2](%5) : f32[2,4,8,8]
//! %7 = map add(%6, %2 broadcast) : f32[2,4,8,8]
//! ```
//!
//! Zeros around the images, and between their elements, are the call's where a convolution was lowered to them: what a call
//! pads is not multiplied by every kernel, so that other zeros meet what is infinite in a weight.

#[cfg(test)]
mod tests;

use super::product::{Contract, Epilogue, allowed};
use crate::contraction::Window;
use crate::convolution::{ConvArgs, ConvDims, PerAxis};
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef, View};
use crate::library_form::{ContractionForm, LibraryForm};
use crate::recording::Arg;
use crate::rewrite_limit::Rewrites;
use crate::types::{Dims, TensorType};

/// A contraction that libtorch computes as a convolution.
pub(super) struct Convolution {
    contract: Contract,
    dims: ConvDims,
    args: ConvArgs,
    /// Sizes of the kernel.
    kernel: Dims,
    /// Images and weight.
    operands: [ValueRef; 2],
}

impl Convolution {
    /// The convolution that a contraction is, if it is one.
    pub(super) fn of(graph: &Graph, contract: &Contract) -> Option<Convolution> {
        let (windows, weight, groups) = match contract.pairs.batch[..] {
            [] => (contract.operands[0], contract.operands[1], 1),
            [(left, right)] => {
                let groups = *graph.ty(contract.operands[1]).shape.get(usize::from(right))?;
                let [windows, weight] = contract.operands;
                (ungrouped(graph, windows, left)?, ungrouped(graph, weight, right)?, groups)
            }
            _ => return None,
        };
        let Op::View(View::Window(list)) = &graph.node(windows.node).op else { return None };
        let image = operand(graph, windows)?;
        let lead = graph.ty(image).rank().checked_sub(list.len() + 1).filter(|&lead| lead <= 1)?;
        let in_order = list.iter().map(|w| usize::from(w.dim)).eq(lead + 1..lead + 1 + list.len());
        if !in_order {
            return None;
        }
        let grouped = !contract.pairs.batch.is_empty();
        let of = |transposed| ConvDims { lead, grouped, axes: list.len(), transposed };
        let dims = [false, true].map(of).into_iter().find(|dims| dims.pairs() == contract.pairs)?;
        let place = Place { graph, contract: contract.node, windows: list, image, lead, groups };
        let (args, operands) = match dims.transposed {
            false => place.plain(weight)?,
            true => place.transposed(weight)?,
        };
        let kernel = list.iter().map(|window| window.kernel).collect();
        Some(Convolution { contract: contract.clone(), dims, args, kernel, operands })
    }

    /// Calls of libtorch for each of its uses that rounds, or one for all.
    pub(super) fn as_calls(&self, graph: &mut Graph, rewrites: &Rewrites) {
        let value = self.result(graph);
        let sums = Contract { node: value, ty: graph.ty(value.into()).clone(), ..self.contract.clone() };
        let (epilogues, all) = sums.epilogues(graph, &|graph, e| self.call(graph, e).is_some());
        let calls: Option<Vec<_>> = epilogues.iter().map(|e| self.call(graph, e)).collect();
        match calls.filter(|_| all && allowed(&epilogues, value, rewrites)) {
            Some(calls) => {
                for ((call, operands), epilogue) in calls.into_iter().zip(&epilogues) {
                    self.replace(graph, epilogue.root, value, (call, &operands));
                }
            }
            None => self.bare(graph, value),
        }
    }

    /// A call for the sums alone, in the type that they are held in.
    fn bare(&self, graph: &mut Graph, value: NodeId) {
        let origin = graph.node(self.contract.node).origin;
        let dtype = graph.ty(value.into()).dtype;
        let operands = self.operands.map(|operand| {
            let ty = TensorType { dtype, ..graph.ty(operand).clone() };
            match graph.ty(operand).dtype == dtype {
                true => operand,
                false => graph.add(Op::Cast, &[operand], [ty], origin).into(),
            }
        });
        if let Some(call) = self.library(false) {
            self.replace(graph, value, value, (call, &operands));
        }
    }

    /// The call for an epilogue, and its operands.
    fn call(&self, graph: &Graph, epilogue: &Epilogue) -> Option<(AtenCall, Vec<ValueRef>)> {
        let rounded = graph.ty(epilogue.root.into()).dtype.elem() == Some(self.contract.elem);
        if !rounded || epilogue.alpha != 1.0 {
            return None;
        }
        let bias = match epilogue.addend {
            Some((addend, 1.0)) => Some(self.bias(graph, addend)?),
            Some(_) => return None,
            None => None,
        };
        let call = self.library(bias.is_some())?;
        Some((call, self.operands.into_iter().chain(bias).collect()))
    }

    /// libtorch's call of images, weight and bias.
    fn library(&self, bias: bool) -> Option<AtenCall> {
        let contraction = ContractionForm {
            pairs: self.contract.pairs.clone(),
            window: Some(self.args.clone()),
            lhs: 0,
            rhs: 1,
            alpha: 1.0,
            addend: bias.then_some((2, 1.0)),
        };
        Some(library_call(&self.args, &self.kernel, bias)?.of(LibraryForm::Contraction(contraction)))
    }

    /// The vector that an addend repeats along all dimensions but the filters'.
    fn bias(&self, graph: &Graph, addend: ValueRef) -> Option<ValueRef> {
        let filters = self.filters(graph);
        let shape = &graph.ty(addend).shape;
        let dim = shape.len().checked_sub(self.dims.axes + 1)?;
        let along = (0..shape.len()).all(|d| shape[d] == if d == dim { filters } else { 1 });
        let vector = operand(graph, addend).filter(|_| is_reshape(graph, addend))?;
        (along && graph.ty(vector).shape[..] == [filters]).then_some(vector)
    }

    fn filters(&self, graph: &Graph) -> i64 {
        let weight = &graph.ty(self.operands[1]).shape;
        if self.dims.transposed { weight[1] * self.args.groups } else { weight[0] }
    }

    /// The node whose value is the sums in the order of libtorch's result; it is added where there is none.
    fn result(&self, graph: &mut Graph) -> NodeId {
        let contract = self.contract.node;
        let alone = |graph: &Graph, node: NodeId| {
            let value = ValueRef::from(node);
            let kept = graph.outputs.contains(&value) || graph.updates.iter().any(|u| u.value == value);
            match graph.users(node)[..] {
                [(user, _)] if !kept => Some(user),
                _ => None,
            }
        };
        let order = self.dims.order();
        let permuted = alone(graph, contract)
            .filter(|&user| graph.node(user).op == Op::View(View::Permute(order.clone())));
        let found = match self.dims.grouped {
            false => permuted,
            true => permuted.and_then(|node| alone(graph, node)).filter(|&node| {
                is_reshape(graph, node.into()) && graph.ty(node.into()).shape == self.shape(graph)
            }),
        };
        found.unwrap_or_else(|| self.add_result(graph))
    }

    /// Makes all uses of the contraction uses of a view of its sums in the order of libtorch's result, which it returns.
    fn add_result(&self, graph: &mut Graph) -> NodeId {
        let origin = graph.node(self.contract.node).origin;
        let ty = &self.contract.ty;
        let form = |shape: &[i64]| TensorType::contiguous(ty.dtype, shape, ty.device);
        let order = self.dims.order();
        let permuted: Dims = order.iter().map(|&d| ty.shape[usize::from(d)]).collect();
        let mut back = order.clone();
        order.iter().enumerate().for_each(|(at, &d)| back[usize::from(d)] = at as u8);
        let first = graph.add(Op::View(View::Permute(order)), &[], [form(&permuted)], origin);
        let result = form(&self.shape(graph));
        let result = graph.add(Op::View(View::Reshape), &[first.into()], [result], origin);
        let apart = graph.add(Op::View(View::Reshape), &[result.into()], [form(&permuted)], origin);
        let back = graph.add(Op::View(View::Permute(back)), &[apart.into()], [ty.clone()], origin);
        graph.replace_uses(self.contract.node.into(), back.into());
        graph.set_operand(first, 0, self.contract.node.into());
        result
    }

    /// The shape of libtorch's result.
    fn shape(&self, graph: &Graph) -> Dims {
        let permuted = self.dims.order().into_iter().map(|d| self.contract.ty.shape[usize::from(d)]);
        let mut shape: Dims = permuted.collect();
        shape.drain(self.dims.lead..self.dims.lead + usize::from(self.dims.grouped));
        shape[self.dims.lead] = self.filters(graph);
        shape
    }

    /// Makes uses of the last node of an epilogue uses of a call, whose result lies in memory as the sums do.
    fn replace(
        &self,
        graph: &mut Graph,
        root: NodeId,
        value: NodeId,
        (call, operands): (AtenCall, &[ValueRef]),
    ) {
        let (ty, origin) = (graph.ty(root.into()).clone(), graph.node(root).origin);
        let mut own = ty.clone();
        if root == value {
            let strides = self.dims.order().into_iter().map(|d| self.contract.ty.strides[usize::from(d)]);
            own.strides = strides.collect();
            own.strides.drain(self.dims.lead..self.dims.lead + usize::from(self.dims.grouped));
        }
        let same = own == ty;
        let mut result: ValueRef = graph.add(Op::Aten(Box::new(call)), operands, [own], origin).into();
        if !same {
            result = graph.add(Op::View(View::Reshape), &[result], [ty], origin).into();
        }
        graph.replace_uses(root.into(), result);
    }
}

/// Windows of images in a graph, in groups of channels.
struct Place<'a> {
    graph: &'a Graph,
    contract: NodeId,
    windows: &'a [Window],
    /// What the windows are of.
    image: ValueRef,
    lead: usize,
    groups: i64,
}

/// Zeros around and between the elements of images: those before the images and between elements by axis, and the images.
struct Padding {
    low: Dims,
    interior: Dims,
    images: ValueRef,
}

impl Place<'_> {
    fn args(&self, transposed: bool) -> ConvArgs {
        let axes = self.windows.len();
        ConvArgs {
            stride: self.windows.iter().map(|w| w.stride).collect(),
            padding: (0..axes).map(|_| [0, 0]).collect(),
            dilation: self.windows.iter().map(|w| w.dilation).collect(),
            output_padding: (0..axes).map(|_| 0).collect(),
            groups: self.groups,
            transposed,
        }
    }

    /// Sizes of images by axis.
    fn sizes(&self, images: ValueRef) -> &[i64] {
        &self.graph.ty(images).shape[self.lead + 1..]
    }

    /// A convolution, and its images and weight.
    fn plain(&self, weight: ValueRef) -> Option<(ConvArgs, [ValueRef; 2])> {
        let args = self.args(false);
        let kernel: Dims = self.windows.iter().map(|w| w.kernel).collect();
        let padded = self.padding(self.image).and_then(|found| {
            let sizes = self.sizes(found.images).iter().zip(self.sizes(self.image));
            let padding = found.low.iter().zip(sizes).map(|(&low, (&from, &to))| [low, to - from - low]);
            let args = ConvArgs { padding: padding.collect(), ..args.clone() };
            let said =
                found.interior.iter().all(|&n| n == 0) && library_call(&args, &kernel, false).is_some();
            said.then_some((args, [found.images, weight]))
        });
        let own = || library_call(&args, &kernel, false).is_some().then_some((args, [self.image, weight]));
        padded.or_else(own)
    }

    /// A transposed convolution, and its images and weight.
    fn transposed(&self, weight: ValueRef) -> Option<(ConvArgs, [ValueRef; 2])> {
        let weight = self.unflipped(weight)?;
        if self.windows.iter().any(|window| window.stride != 1) {
            return None;
        }
        let (mut base, mut low) = (self.image, Dims::from_elem(0, self.windows.len()));
        while let Op::View(View::Slice { dim, start, step: 1 }) = &self.graph.node(base.node).op {
            *low.get_mut(usize::from(*dim).checked_sub(self.lead + 1)?)? -= start;
            base = operand(self.graph, base)?;
        }
        let args = self.padding(base).and_then(|found| {
            let low = low.iter().zip(&found.low).map(|(a, b)| a + b).collect();
            let args = self.cut(&Padding { low, ..found })?;
            Some((args, [found.images, weight]))
        });
        let none = Padding {
            low: self.windows.iter().map(|_| 0).collect(),
            interior: self.windows.iter().map(|_| 0).collect(),
            images: self.image,
        };
        args.or_else(|| Some((self.cut(&none)?, [self.image, weight])))
    }

    /// The arguments of a transposed convolution of images with such zeros.
    fn cut(&self, padding: &Padding) -> Option<ConvArgs> {
        let mut args = self.args(true);
        let sizes = self.sizes(padding.images).iter().zip(self.sizes(self.image));
        for (d, (&from, &to)) in sizes.enumerate() {
            let window = &self.windows[d];
            let stride = padding.interior[d] + 1;
            let behind = to - padding.low[d] - (from - 1) * stride - 1;
            let cut = window.dilation * (window.kernel - 1) - padding.low[d];
            let further = behind - padding.low[d];
            // libtorch takes no more behind a result than would be another element.
            if cut < 0 || !(0..stride.max(window.dilation)).contains(&further) {
                return None;
            }
            (args.stride[d], args.padding[d], args.output_padding[d]) = (stride, [cut, cut], further);
        }
        library_call(&args, &self.windows.iter().map(|w| w.kernel).collect::<Dims>(), false)?;
        Some(args)
    }

    /// The zeros that a value has around and between images, where a convolution was lowered to them.
    fn padding(&self, value: ValueRef) -> Option<Padding> {
        let graph = self.graph;
        let Op::View(View::Pad { low, interior, fill }) = &graph.node(value.node).op else { return None };
        let images = operand(graph, value)?;
        let (from, to) = (&graph.ty(images).shape, &graph.ty(value).shape);
        let lead = self.lead + 1;
        let own = self.is_of_convolution(value.node) && fill.as_f64() == 0.0 && from[..lead] == to[..lead];
        own.then(|| Padding {
            low: Dims::from_slice(&low[lead..]),
            interior: Dims::from_slice(&interior[lead..]),
            images,
        })
    }

    /// Whether a node comes from this convolution, or from another that shares it.
    fn is_of_convolution(&self, node: NodeId) -> bool {
        let origin = |id: NodeId| self.graph.node(id).origin;
        let contracts = self.graph.ids().filter(|&id| matches!(self.graph.node(id).op, Op::Contract(_)));
        [self.contract].into_iter().chain(contracts).any(|id| origin(id) == origin(node))
    }

    /// The weight whose kernels a weight has in reverse.
    fn unflipped(&self, weight: ValueRef) -> Option<ValueRef> {
        let longer = |d: usize| self.windows[d].kernel > 1;
        if let Op::View(View::Flip(dims)) = &self.graph.node(weight.node).op {
            let all = (0..self.windows.len()).filter(|&d| longer(d)).all(|d| dims.contains(&(d as u8 + 2)));
            return operand(self.graph, weight).filter(|_| all && dims.iter().all(|&d| d >= 2));
        }
        (!(0..self.windows.len()).any(longer)).then_some(weight)
    }
}

fn operand(graph: &Graph, value: ValueRef) -> Option<ValueRef> {
    graph.operands(value.node).first().copied()
}

fn is_reshape(graph: &Graph, value: ValueRef) -> bool {
    matches!(graph.node(value.node).op, Op::View(View::Reshape))
}

/// The value of which a value is that with a dimension split in two.
fn ungrouped(graph: &Graph, value: ValueRef, dim: u8) -> Option<ValueRef> {
    let whole = operand(graph, value).filter(|_| is_reshape(graph, value))?;
    let mut shape = graph.ty(value).shape.clone();
    let dim = usize::from(dim);
    let groups = (dim + 1 < shape.len()).then(|| shape.remove(dim))?;
    shape[dim] *= groups;
    (graph.ty(whole).shape == shape).then_some(whole)
}

/// libtorch's call with operands images, weight and bias; `None` where it has none for them.
fn library_call(args: &ConvArgs, kernel: &[i64], bias: bool) -> Option<AtenCall> {
    let axes = Some(kernel.len()).filter(|axes| (1..=3).contains(axes))?;
    let ints = |list: &PerAxis| Arg::Ints(list.to_vec());
    let symmetric = args.padding.iter().all(|[before, behind]| before == behind);
    let padding = || Arg::Ints(args.padding.iter().map(|p| p[0]).collect());
    let bias = if bias { Arg::Tensor(2) } else { Arg::None };
    let tensors = [("input", Arg::Tensor(0)), ("weight", Arg::Tensor(1)), ("bias", bias)];
    let stride = ("stride", ints(&args.stride));
    let (dilation, groups) = (("dilation", ints(&args.dilation)), ("groups", Arg::Int(args.groups)));
    if args.transposed {
        let overload = if axes == 1 { "" } else { "input" };
        let output_padding = ("output_padding", ints(&args.output_padding));
        let rest = [stride, ("padding", padding()), output_padding, groups, dilation];
        let all = tensors.into_iter().chain(rest);
        let name = format!("aten::conv_transpose{axes}d");
        return symmetric.then(|| AtenCall::new(&name, overload, all));
    }
    let (overload, padding) = match symmetric {
        true => ("", padding()),
        false if args.is_same(kernel) => ("padding", Arg::Str("same".into())),
        false => return None,
    };
    let all = tensors.into_iter().chain([stride, ("padding", padding), dilation, groups]);
    Some(AtenCall::new(&format!("aten::conv{axes}d"), overload, all))
}
