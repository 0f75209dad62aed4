//! Models as plain tch code.
