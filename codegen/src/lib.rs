//! Host and PTX code generation for Tilefuse block programs.
