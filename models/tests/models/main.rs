//! Shapes, meanings and weights of the models, on their tiny presets.

#![allow(clippy::unwrap_used)]

mod behaviour;
mod loading;
mod reference;
mod zoo;
