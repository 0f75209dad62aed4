//! Tests of the whole path: models wrapped, captured, compiled and run.

#![allow(clippy::unwrap_used)]

mod ahead;
mod alias;
mod attention;
mod audit;
mod bounds;
mod chains;
mod cli;
mod common;
mod conv;
mod conv_packed;
mod conv_transposed;
mod devices;
mod edge;
mod errors;
mod fused;
mod graphs;
mod groups;
mod growth;
mod hand;
mod horizontal;
mod kernels;
mod lang;
mod memory;
mod opaque;
mod operator;
mod packing;
mod processors;
mod products;
mod random;
mod samples;
mod schedules;
mod sdpa;
mod sequence;
mod threads;
mod tune;
mod tutorials;
mod updates;
mod values;
mod writes;
