//! The tensor graph of Tilefuse: lowering, planning and scheduling into block programs.
