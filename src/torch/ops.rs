//! What the recorder must know of single operators beyond their schemas.

use super::{Arg, Schema};

/// The operator's name without its namespace.
pub(super) fn short(schema: &Schema) -> &str {
    schema.op.strip_prefix("aten::").unwrap_or(&schema.op)
}

fn arg<'a, T>(schema: &Schema, args: &'a [Arg<T>], name: &str) -> Option<&'a Arg<T>> {
    args.get(schema.args.iter().position(|a| a.name == name)?)
}

/// Whether a call with these arguments draws random numbers.
pub(super) fn draws_random_numbers<T: PartialEq>(schema: &Schema, args: &[Arg<T>]) -> bool {
    let off = |name: &str| arg(schema, args, name) == Some(&Arg::Bool(false));
    let zero = |name: &str| arg(schema, args, name) == Some(&Arg::Float(0.0));
    schema.seeded && !off("train") && !off("training") && !zero("dropout_p") && !zero("dropout")
}

/// The positions of the arguments that a call writes: those that the schema marks, and running statistics, which it does not.
/// An operator that has a momentum writes these, unless a flag or its name says that it takes them as they are.
pub(super) fn hidden_writes<T: PartialEq>(schema: &Schema, args: &[Arg<T>]) -> Vec<usize> {
    let on = |name: &str| arg(schema, args, name) == Some(&Arg::Bool(true));
    let has = |name: &str| schema.args.iter().any(|a| a.name == name);
    let flagged = has("training") || has("use_input_stats");
    let fixed = ["_no_training", "_no_update"].iter().any(|end| short(schema).ends_with(end));
    let statistics = on("use_input_stats") || on("training") || (has("momentum") && !flagged && !fixed);
    let written = |i: &usize| {
        schema.args.get(*i).is_some_and(|a| {
            a.written || (statistics && (a.name == "running_mean" || a.name == "running_var"))
        })
    };
    (0..args.len()).filter(written).filter(|&i| args.get(i) != Some(&Arg::None)).collect()
}

/// Whether the operator looks at the sizes, dtype and device of the argument at `i` and not at its data.
pub(super) fn reads_only_metadata(schema: &Schema, i: usize) -> bool {
    let (op, name) = (short(schema), schema.args.get(i).map_or("", |a| a.name.as_str()));
    match op {
        "zeros_like" | "ones_like" | "full_like" | "empty_like" | "rand_like" | "randn_like" => {
            name == "self"
        }
        "new_empty" | "new_empty_strided" | "new_zeros" | "new_ones" | "new_full" => name == "self",
        "expand_as" | "view_as" | "reshape_as" | "type_as" | "sum_to_size" => name == "other",
        "to" => name == "other",
        _ => false,
    }
}

/// Operators whose results that are no tensors tell of sizes, dtypes and the like, never of data, and not of what
/// guards do not compare (offsets into storages, storages, versions, how a tensor is quantised, which dimensions of a sparse
/// one are dense and whether it is coalesced, whether memory is pinned).
pub(super) fn is_metadata_query(schema: &Schema) -> bool {
    let op = short(schema);
    (op.starts_with("sym_") && op != "sym_storage_offset")
        || matches!(
            op,
            "size"
                | "stride"
                | "dim"
                | "numel"
                | "is_contiguous"
                | "is_complex"
                | "is_floating_point"
                | "is_signed"
                | "is_inference"
                | "is_conj"
                | "is_neg"
                | "is_same_size"
                | "is_distributed"
                | "result_type"
                | "can_cast"
                | "promote_types"
                | "_has_compatible_shallow_copy_type"
                | "_is_zerotensor"
                | "_use_cudnn_ctc_loss"
                | "_use_cudnn_rnn_flatten_weight"
                | "cudnn_is_acceptable"
                | "_nested_tensor_size"
                | "get_device"
                | "_fused_sdp_choice"
        )
}

/// The arguments whose data decides the shape of a result: none, these, or all.
pub(super) enum ShapeFrom {
    /// Shapes follow from shapes.
    Nothing,
    /// The data of the argument with this name.
    Arg(&'static str),
    /// Index tensors that are masks.
    Masks,
    /// The data of any argument.
    Any,
}

/// What the shapes of the results depend on.
pub(super) fn shape_from<T>(schema: &Schema, args: &[Arg<T>]) -> ShapeFrom {
    let absent = |name: &str| matches!(arg(schema, args, name), None | Some(Arg::None));
    match (short(schema), schema.overload.as_str()) {
        ("index", _) => ShapeFrom::Masks,
        ("masked_select", _) => ShapeFrom::Arg("mask"),
        ("narrow", "Tensor") => ShapeFrom::Arg("start"),
        ("repeat_interleave", _) if !absent("output_size") => ShapeFrom::Nothing,
        ("repeat_interleave", _) => ShapeFrom::Arg("repeats"),
        ("tensor_split", "tensor_indices_or_sections") => ShapeFrom::Arg("tensor_indices_or_sections"),
        ("_pack_padded_sequence", _) => ShapeFrom::Arg("lengths"),
        ("_pad_packed_sequence", _) => ShapeFrom::Arg("batch_sizes"),
        ("one_hot", _) if matches!(arg(schema, args, "num_classes"), Some(Arg::Int(n)) if *n >= 0) => {
            ShapeFrom::Nothing
        }
        ("where", "") | ("one_hot", _) => ShapeFrom::Any,
        (
            "nonzero"
            | "nonzero_numpy"
            | "argwhere"
            | "unique_dim"
            | "unique_consecutive"
            | "unique_dim_consecutive"
            | "_unique"
            | "_unique2"
            | "bincount"
            | "to_sparse"
            | "_to_sparse",
            _,
        ) => ShapeFrom::Any,
        _ if schema.dynamic_shape => ShapeFrom::Any,
        _ => ShapeFrom::Nothing,
    }
}

/// Whether the results of an operator are memory that nobody has written.
pub(super) fn is_uninitialized(op: &str) -> bool {
    let name = op.strip_prefix("aten::").unwrap_or_default();
    name.starts_with("empty") || name.starts_with("new_empty") || name.starts_with("_empty")
}
