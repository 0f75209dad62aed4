//! Text forms of [`Graph`](crate::Graph) and [`Recording`](crate::Recording): printed deterministically, parsed back exactly.
//!
//! ```text
//! graph {
//!   origin 0 "aten::relu #4"
//!   %0 = input 0 : f32[2,3]
//!   %1 = param 0 : f32[3]
//!   %2 = aten::add.Tensor(self=%0, other=%1, alpha=1) : f32[2,3]
//!   %3 = scalar 0.0 : f32[]
//!   %4 = view reshape(%3) : f32[1,1]
//!   %5 = view expand(%4) : f32[2,3]
//!   %6 = map max(%2, %5) : f32[2,3] @0
//!   outputs %6
//!   update %0 <- %2
//! }
//! ```
//!
//! Values are numbered in topological order, so a graph that differs only in node indices prints the same. A
//! tensor argument's text names the value itself; its operand position is its place in the argument list. Behind the arguments of
//! a library call stands what it computes, of operands by their position:
//!
//! ```text
//! %3 = aten::linear(input=%0, weight=%1, bias=%2) contracts sum[1]x[1](0, 1) adds 2 : f32[2,4]
//! ```
//!
//! ```text
//! recording {
//!   %0 = input 0 : f32[4]
//!   %1 = param 0 "weight" : f32[4]
//!   %2: f32[2] in %0+2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=4, step=1)
//!   %2 = aten::relu_(self=%2!)
//!   outputs %2
//! }
//! ```
//!
//! In a recording a result that already exists has no type, `_` is a result that is no tensor, `in %0+2` shares
//! `%0`'s storage two elements on, `opaque` marks a tensor that kernels may not address, `!` an argument that is
//! written.

mod form;
mod graph;
mod lexer;
mod print;
mod recording;
mod syntax;

pub use graph::parse_graph;
pub use recording::parse_recording;

/// Text that is no graph or no recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}
