//! Tests of the whole path: models wrapped, captured, compiled and run, beside eager.
//!
//! - `edge` tries every lowered scalar function and reduction in every type on the values that go wrong in compilers,
//!   `bounds` gives indices that are out of range, and `samples` runs a part of PyTorch's operator samples, of which
//!   `benches/samples/opinfo.py` writes all.
//! - `lowered` compares the lowered operators with those that `edge` and the generator of random programs have.
//! - `random` runs random programs; `tilefuse random` runs as many as one likes, and shrinks those that fail.
//! - `sequence` calls one fused model again after something has changed, `audit` after something that no guard sees, `state` after what
//!   a plan takes from its first call is something else.
//! - `spans` collects the spans of calls.
//! - `kernels` counts kernels: the decision is tested as well as the value. `reasons` lists what plans of whole models say of their edges.
//! - `page` uses the page of a plan in a browser, and keeps pictures of it.
//! - `processors` runs some tests as on machines with less than this one has, and on emulated processors.
//! - `devices` runs each module again on a GPU, in a process of its own, but for those about processors alone. Tests take
//!   their device from `common::device`.

#![allow(clippy::unwrap_used)]

mod alias;
mod attention;
mod audit;
mod bounds;
#[path = "../../src/explain/page/devtools.rs"]
mod browser;
mod cli;
mod common;
mod compare;
mod conv;
mod conv_packed;
mod conv_transposed;
mod corners;
mod dependent_launch;
mod devices;
mod edge;
mod errors;
mod fused;
mod graphs;
mod growth;
mod half_types;
mod hand;
mod hints;
mod horizontal;
mod host_beside;
mod images;
mod kernels;
mod lang;
mod lowered;
mod memory;
mod neighbours;
mod opaque;
mod operator;
mod outer_loops;
mod packing;
mod page;
mod processors;
mod products;
mod random;
mod ranges;
mod reasons;
mod report;
mod samples;
mod schedules;
mod sdpa;
mod sequence;
mod spans;
mod state;
mod threads;
mod tune;
mod tutorials;
mod updates;
mod values;
mod vnni;
mod writes;
