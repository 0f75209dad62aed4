//! Structures that `Values` cannot be made of.

struct Unknown;

#[derive(tilefuse::Values)]
enum Either { //~ an enum has no fixed structure
    First(i64),
    Second(bool),
}

#[derive(tilefuse::Values)]
struct Borrowed<'a> { //~ a struct that borrows cannot be made of results
    number: &'a i64,
}

#[derive(tilefuse::Values)]
struct Fields {
    number: i64,
    unknown: Unknown, //~ the trait bound `Unknown: Values` is not satisfied
}

#[derive(tilefuse::Values)]
struct Many<T> {
    all: Vec<T>,
}

fn wants_values<T: tilefuse::Values>(_: T) {}

fn uses(many: Many<Unknown>) {
    wants_values(many); //~ the trait bound `Unknown: Values` is not satisfied
}
