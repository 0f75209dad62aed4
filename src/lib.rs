//! Tilefuse.
