//! What library calls compute, behind their arguments: operands by their position.
//!
//! ```text
//! aten::addmm(self=%2, mat1=%0, mat2=%1, beta=2, alpha=0.5) contracts sum[1]x[0](1, 2) alpha 0.5 adds 0 beta 2.0 : f32[5,7]
//! aten::conv1d(input=%0, ..) contracts window stride[1] padding[1]x[1] dilation[1] groups 1 sum[1,3]x[1,2](0, 1) : f32[1,4,8]
//! aten::scaled_dot_product_attention(query=%0, ..) attends(0, 1, 2) scale 0.25 keeps 3 shared 4 : f32[2,8,5,16]
//! ```

use std::fmt::Write;

use smallvec::SmallVec;

use super::syntax::{Parser, Result, axes_text, float_text};
use crate::contraction::Contraction;
use crate::convolution::ConvArgs;
use crate::library_form::{AttentionForm, ContractionForm, LibraryForm, MaskForm};
use crate::types::join;

/// The text of a form, which begins with a space.
pub(super) fn text(form: &LibraryForm) -> String {
    match form {
        LibraryForm::Contraction(form) => contraction_text(form),
        LibraryForm::Attention(form) => attention_text(form),
    }
}

/// The form at a place, if there is one.
pub(super) fn parse(parser: &mut Parser) -> Result<Option<LibraryForm>> {
    if parser.eat_name("contracts") {
        return contraction(parser).map(|form| Some(LibraryForm::Contraction(form)));
    }
    if parser.eat_name("attends") {
        return attention(parser).map(|form| Some(LibraryForm::Attention(form)));
    }
    Ok(None)
}

fn contraction_text(form: &ContractionForm) -> String {
    let window = form.window.as_ref().map_or_else(String::new, window_text);
    let mut text = format!(" contracts{window}{}({}, {})", pairs_text(&form.pairs), form.lhs, form.rhs);
    let factor = |name: &str, factor: f64| {
        if factor == 1.0 { String::new() } else { format!(" {name} {}", float_text(factor)) }
    };
    text.push_str(&factor("alpha", form.alpha));
    if let Some((position, beta)) = form.addend {
        let _ = write!(text, " adds {position}{}", factor("beta", beta));
    }
    text
}

fn contraction(parser: &mut Parser) -> Result<ContractionForm> {
    let window = if parser.eat_name("window") { Some(window(parser)?) } else { None };
    let pairs = pairs(parser)?;
    parser.mark('(')?;
    let lhs = parser.small()?;
    parser.mark(',')?;
    let rhs = parser.small()?;
    parser.mark(')')?;
    let alpha = factor(parser, "alpha")?;
    let addend = match parser.eat_name("adds") {
        true => Some((parser.small()?, factor(parser, "beta")?)),
        false => None,
    };
    Ok(ContractionForm { pairs, window, lhs, rhs, alpha, addend })
}

fn factor(parser: &mut Parser, name: &str) -> Result<f64> {
    if parser.eat_name(name) { parser.float() } else { Ok(1.0) }
}

/// Names of what masks do.
const MASKS: [(&str, MaskForm); 3] =
    [("keeps", MaskForm::Keeps), ("opens", MaskForm::Opens), ("adds", MaskForm::Added)];

fn attention_text(form: &AttentionForm) -> String {
    let AttentionForm { query, key, value, scale, causal, mask, shared, safe } = form;
    let mut text = format!(" attends({query}, {key}, {value}) scale {}", float_text(*scale));
    text.push_str(if *causal { " causal" } else { "" });
    let name = |of: MaskForm| MASKS.iter().find(|(_, form)| *form == of).map_or("", |(name, _)| name);
    if let Some((position, form)) = *mask {
        let _ = write!(text, " {} {position}", name(form));
    }
    if *shared != 1 {
        let _ = write!(text, " shared {shared}");
    }
    text.push_str(if *safe { "" } else { " unsafe" });
    text
}

fn attention(parser: &mut Parser) -> Result<AttentionForm> {
    parser.mark('(')?;
    let query = parser.small()?;
    parser.mark(',')?;
    let key = parser.small()?;
    parser.mark(',')?;
    let value = parser.small()?;
    parser.mark(')')?;
    parser.keyword("scale")?;
    let scale = parser.float()?;
    let causal = parser.eat_name("causal");
    let mask = match MASKS.iter().find(|(name, _)| parser.eat_name(name)) {
        Some(&(_, form)) => Some((parser.small()?, form)),
        None => None,
    };
    let shared = if parser.eat_name("shared") { parser.int()? } else { 1 };
    let safe = !parser.eat_name("unsafe");
    Ok(AttentionForm { query, key, value, scale, causal, mask, shared, safe })
}

fn window_text(args: &ConvArgs) -> String {
    let side = |at: usize| join(&args.padding.iter().map(|sides| sides[at]).collect::<Vec<_>>());
    let mut text = format!(
        " window stride[{}] padding[{}]x[{}] dilation[{}] groups {}",
        join(&args.stride),
        side(0),
        side(1),
        join(&args.dilation),
        args.groups
    );
    if args.transposed {
        let _ = write!(text, " transposed output_padding[{}]", join(&args.output_padding));
    }
    text
}

fn window(parser: &mut Parser) -> Result<ConvArgs> {
    let list = |parser: &mut Parser, name: &str| -> Result<SmallVec<[i64; 3]>> {
        parser.keyword(name)?;
        Ok(parser.dims()?.into_iter().collect())
    };
    let stride = list(parser, "stride")?;
    let before = list(parser, "padding")?;
    let behind = list(parser, "x")?;
    let dilation = list(parser, "dilation")?;
    parser.keyword("groups")?;
    let groups = parser.int()?;
    let transposed = parser.eat_name("transposed");
    let output_padding = match transposed {
        true => list(parser, "output_padding")?,
        false => stride.iter().map(|_| 0).collect(),
    };
    if [&before, &behind, &dilation, &output_padding].iter().any(|list| list.len() != stride.len()) {
        return parser.reject("as many numbers for each axis are expected");
    }
    let padding = before.into_iter().zip(behind).map(|(before, behind)| [before, behind]).collect();
    Ok(ConvArgs { stride, padding, dilation, output_padding, groups, transposed })
}

/// The text of pairs, each list of which begins with a space.
pub(super) fn pairs_text(pairs: &Contraction) -> String {
    let list = |name: &str, pairs: &[(u8, u8)]| {
        let (left, right): (Vec<u8>, Vec<u8>) = pairs.iter().copied().unzip();
        if pairs.is_empty() {
            String::new()
        } else {
            format!(" {name}{}x{}", axes_text(&left), axes_text(&right))
        }
    };
    list("batch", &pairs.batch) + &list("sum", &pairs.sum)
}

/// The pairs of a contraction, `batch[0]x[0] sum[2]x[1]`, where there are any.
pub(super) fn pairs(parser: &mut Parser) -> Result<Contraction> {
    Ok(Contraction { batch: pairs_named(parser, "batch")?, sum: pairs_named(parser, "sum")? })
}

fn pairs_named(parser: &mut Parser, name: &str) -> Result<SmallVec<[(u8, u8); 2]>> {
    if !parser.eat_name(name) {
        return Ok(SmallVec::new());
    }
    let left = parser.axes()?;
    parser.keyword("x")?;
    let right = parser.axes()?;
    if left.len() != right.len() {
        return parser.reject("as many dimensions of both operands are expected");
    }
    Ok(left.into_iter().zip(right).collect())
}
