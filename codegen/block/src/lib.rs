//! The block IR of Tilefuse: programs over tiles.
