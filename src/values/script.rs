//! Values of TorchScript.

use tch::{Device, IValue, Tensor};

use super::{Flattener, Unflattener, Values, mismatch};
use crate::Error;

/// Which alternative follows, as its number.
#[derive(Clone, Copy)]
enum Tag {
    None,
    Tensor,
    Double,
    Int,
    Bool,
    Tuple,
    IntList,
    DoubleList,
    BoolList,
    String,
    StringList,
    TensorList,
    GenericList,
    GenericDict,
    Device,
}

impl Values for IValue {
    fn flatten_into(&self, parts: &mut Flattener) {
        match self {
            IValue::None => parts.count(Tag::None as usize),
            IValue::Tensor(tensor) => tagged(Tag::Tensor, tensor, parts),
            IValue::Double(value) => tagged(Tag::Double, value, parts),
            IValue::Int(value) => tagged(Tag::Int, value, parts),
            IValue::Bool(value) => tagged(Tag::Bool, value, parts),
            IValue::Tuple(values) => tagged(Tag::Tuple, values, parts),
            IValue::IntList(values) => tagged(Tag::IntList, values, parts),
            IValue::DoubleList(values) => tagged(Tag::DoubleList, values, parts),
            IValue::BoolList(values) => tagged(Tag::BoolList, values, parts),
            IValue::String(text) => tagged(Tag::String, text, parts),
            IValue::StringList(texts) => tagged(Tag::StringList, texts, parts),
            IValue::TensorList(tensors) => tagged(Tag::TensorList, tensors, parts),
            IValue::GenericList(values) => tagged(Tag::GenericList, values, parts),
            // In the dictionary's own order.
            IValue::GenericDict(entries) => tagged(Tag::GenericDict, entries, parts),
            IValue::Device(device) => tagged(Tag::Device, device, parts),
            IValue::Object(_) => parts.refuse("an object of TorchScript goes in or comes out: pass its attributes as tensors or numbers"),
            other => parts.refuse(format!("a value of TorchScript that is not known: {other:?}: pass tensors, numbers, texts, or lists of them")),
        }
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<IValue, Error> {
        const TAGS: [Tag; 15] = [
            Tag::None,
            Tag::Tensor,
            Tag::Double,
            Tag::Int,
            Tag::Bool,
            Tag::Tuple,
            Tag::IntList,
            Tag::DoubleList,
            Tag::BoolList,
            Tag::String,
            Tag::StringList,
            Tag::TensorList,
            Tag::GenericList,
            Tag::GenericDict,
            Tag::Device,
        ];
        let tag = TAGS.get(parts.count()?).ok_or_else(|| mismatch("a value of TorchScript"))?;
        Ok(match tag {
            Tag::None => IValue::None,
            Tag::Tensor => IValue::Tensor(Tensor::unflatten_from(parts)?),
            Tag::Double => IValue::Double(f64::unflatten_from(parts)?),
            Tag::Int => IValue::Int(i64::unflatten_from(parts)?),
            Tag::Bool => IValue::Bool(bool::unflatten_from(parts)?),
            Tag::Tuple => IValue::Tuple(Vec::unflatten_from(parts)?),
            Tag::IntList => IValue::IntList(Vec::unflatten_from(parts)?),
            Tag::DoubleList => IValue::DoubleList(Vec::unflatten_from(parts)?),
            Tag::BoolList => IValue::BoolList(Vec::unflatten_from(parts)?),
            Tag::String => IValue::String(String::unflatten_from(parts)?),
            Tag::StringList => IValue::StringList(Vec::unflatten_from(parts)?),
            Tag::TensorList => IValue::TensorList(Vec::unflatten_from(parts)?),
            Tag::GenericList => IValue::GenericList(Vec::unflatten_from(parts)?),
            Tag::GenericDict => IValue::GenericDict(Vec::unflatten_from(parts)?),
            Tag::Device => IValue::Device(Device::unflatten_from(parts)?),
        })
    }
}

fn tagged(tag: Tag, value: &impl Values, parts: &mut Flattener) {
    parts.count(tag as usize);
    value.flatten_into(parts);
}

/// As libtorch numbers them, below 0 where they are not CUDA's.
impl Values for Device {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.int(match self {
            Device::Cpu => -1,
            Device::Mps => -2,
            Device::Vulkan => -3,
            Device::Cuda(index) => *index as i128,
        });
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Device, Error> {
        Ok(match parts.int()? {
            -1 => Device::Cpu,
            -2 => Device::Mps,
            -3 => Device::Vulkan,
            index => Device::Cuda(usize::try_from(index).map_err(|_| mismatch("a device"))?),
        })
    }
}
