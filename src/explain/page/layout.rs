//! Where things lie in a box: layers, and the order within each, by Sugiyama's method.

use indexmap::IndexSet;
use rust_sugiyama::configure::{Config, RankingType};
use rust_sugiyama::from_vertices_and_edges;

/// The size of a step on the page, and of a closed box.
pub(super) const SIZE: (f64, f64) = (196.0, 46.0);

/// The room for an edge that goes through a layer.
const WAY: f64 = 18.0;

const SPACING: f64 = 28.0;

/// Things beyond which neighbours are not swapped once more to avoid crossings.
const MAX_TRANSPOSED: usize = 60;

/// A thing in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// One of the things that are laid out, by position.
    Thing(usize),
    /// Where an edge goes through the layer, by the edge's position.
    Way(usize),
}

/// Layers from the top, each from the left, with the middle of each thing.
pub(super) type Layers = Vec<Vec<(Place, f64)>>;

/// Lays out things that edges connect, each from an earlier thing to a later one: a layout has no cycles.
pub(super) fn layers(things: usize, edges: &IndexSet<(usize, usize)>) -> Layers {
    let vertices: Vec<Vertex> = (0..things).map(|_| SIZE).collect();
    let direct: Vec<(u32, u32)> = edges.iter().map(|&(a, b)| (a as u32, b as u32)).collect();
    let rows = rows(&place(&vertices, &direct));
    // Once more, with a place in each layer that an edge crosses, which is where it is drawn.
    let mut ways: Vec<usize> = Vec::new();
    let mut vertices = vertices;
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for (position, &(from, to)) in edges.iter().enumerate() {
        let mut last = from;
        for _ in rows[from] + 1..rows[to] {
            ways.push(position);
            vertices.push((WAY, SIZE.1));
            parts.push((last as u32, vertices.len() as u32 - 1));
            last = vertices.len() - 1;
        }
        parts.push((last as u32, to as u32));
    }
    let placed = place(&vertices, &parts);
    let named = |vertex: usize| match vertex.checked_sub(things) {
        None => Place::Thing(vertex),
        Some(way) => Place::Way(ways[way]),
    };
    let mut layers: Layers = Vec::new();
    for (vertex, row) in self::rows(&placed).into_iter().enumerate() {
        layers.resize_with(layers.len().max(row + 1), Vec::new);
        layers[row].push((named(vertex), placed[vertex].0));
    }
    layers.iter_mut().for_each(|layer| layer.sort_by(|a, b| a.1.total_cmp(&b.1)));
    layers
}

type Vertex = (f64, f64);

/// The middle of each vertex; components that are not connected are placed next to each other.
fn place(vertices: &[Vertex], edges: &[(u32, u32)]) -> Vec<(f64, f64)> {
    let config = Config {
        vertex_spacing: SPACING,
        ranking_type: RankingType::Original,
        transpose: vertices.len() <= MAX_TRANSPOSED,
        ..Config::default()
    };
    let named: Vec<(u32, Vertex)> = (0..).zip(vertices.iter().copied()).collect();
    let mut placed = vec![(0.0, 0.0); vertices.len()];
    let mut left = 0.0;
    for (part, ..) in from_vertices_and_edges(&named, edges, &config) {
        let edge = |f: fn(f64, f64) -> f64, side: f64, start: f64| {
            part.iter().map(|&(v, (x, _))| x + side * vertices[v].0 / 2.0).fold(start, f)
        };
        let (least, most) = (edge(f64::min, -1.0, f64::INFINITY), edge(f64::max, 1.0, f64::NEG_INFINITY));
        let top = part.iter().map(|(_, (_, y))| *y).fold(f64::INFINITY, f64::min);
        for &(vertex, (x, y)) in &part {
            placed[vertex] = (left + x - least, y - top);
        }
        left += most - least + SPACING;
    }
    placed
}

/// The layer of each vertex.
fn rows(placed: &[(f64, f64)]) -> Vec<usize> {
    let height = SIZE.1 + SPACING;
    placed.iter().map(|(_, y)| (y / height).round().max(0.0) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directed(edges: impl IntoIterator<Item = (usize, usize)>) -> IndexSet<(usize, usize)> {
        edges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).filter(|(a, b)| a != b).collect()
    }

    fn text(layers: &Layers) -> Vec<Vec<String>> {
        let name = |place: &Place| match place {
            Place::Thing(at) => at.to_string(),
            Place::Way(edge) => format!("edge {edge}"),
        };
        layers.iter().map(|layer| layer.iter().map(|(place, _)| name(place)).collect()).collect()
    }

    #[test]
    fn an_edge_over_layers_has_a_place_in_each() {
        let found = text(&layers(3, &directed([(0, 1), (1, 2), (0, 2)])));
        assert_eq!(found.len(), 3);
        assert_eq!((&found[0], &found[2]), (&vec![String::from("0")], &vec![String::from("2")]));
        let mut middle = found[1].clone();
        middle.sort();
        assert_eq!(middle, ["1", "edge 2"]);
    }

    #[test]
    fn nothing_and_unconnected_things_are_laid_out() {
        assert_eq!(layers(0, &directed([])), Layers::new());
        assert_eq!(layers(3, &directed([])).iter().map(Vec::len).sum::<usize>(), 3);
    }

    #[test]
    fn any_edges_have_a_layout_without_overlap() {
        let mut state = 1_u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for round in 0..60 {
            let things = 1 + random(40);
            let edges = directed((0..round).map(|_| (random(things), random(things))).collect::<Vec<_>>());
            let found = layers(things, &edges);
            let mut seen = vec![0; things];
            for layer in &found {
                for (place, _) in layer {
                    if let Place::Thing(at) = place {
                        seen[*at] += 1;
                    }
                }
                let only = layer.iter().filter(|(place, _)| matches!(place, Place::Thing(_)));
                let middles: Vec<f64> = only.map(|&(_, x)| x).collect();
                assert!(middles.windows(2).all(|pair| pair[1] - pair[0] >= SIZE.0), "{edges:?}: {middles:?}");
            }
            assert!(seen.iter().all(|&times| times == 1), "{edges:?}");
        }
    }
}
