//! What a target must provide, and a target that provides nothing.

use std::collections::BTreeMap;

use expect_test::expect;
use tilefuse_block::{AtomicFn, ReduceFn, TypeRule};

use super::*;

/// A third target, of which nothing is written yet.
struct Empty;

impl LlvmTarget for Empty {
    type Value = ();
    const NAME: &'static str = "empty";
}

/// Something that a target is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Int(Ty),
    Float(Ty),
    Build(Instruction, Ty, usize),
}

/// A target that writes down what it is asked for.
#[derive(Default)]
struct Record(Vec<Asked>);

impl Record {
    fn note(&mut self, asked: Asked) -> Result<()> {
        if !self.0.contains(&asked) {
            self.0.push(asked);
        }
        Ok(())
    }
}

impl LlvmTarget for Record {
    type Value = ();
    const NAME: &'static str = "record";

    fn build(&mut self, instruction: Instruction, ty: Ty, args: &[()]) -> Result<()> {
        self.note(Asked::Build(instruction, ty, args.len()))
    }

    fn int(&mut self, ty: Ty, _: i64) -> Result<()> {
        self.note(Asked::Int(ty))
    }

    fn float(&mut self, ty: Ty, _: f64) -> Result<()> {
        self.note(Asked::Float(ty))
    }
}

/// All that any function, conversion, reduction or atomic operation asks of a target.
fn everything() -> Vec<Asked> {
    let mut record = Record::default();
    let kinds = || Elem::ALL.into_iter().filter(|e| !e.is_small_float());
    for elem in kinds() {
        for &function in ScalarFn::ALL.iter().filter(|f| !f.is_math()) {
            let mut operands = vec![elem; function.arity()];
            if function.rule() == TypeRule::Select {
                operands[0] = Elem::Bool;
            }
            if function.result(&operands).is_some() {
                map(&mut record, function, elem, &vec![(); function.arity()]).unwrap();
            }
        }
        for to in kinds() {
            cast(&mut record, elem, to, &()).unwrap();
            if elem.bits() == to.bits() {
                bitcast(&mut record, elem, to, &()).unwrap();
            }
        }
        for function in ReduceFn::ALL.into_iter().filter(|f| f.accepts(elem)) {
            combine(&mut record, function, accumulator(elem), &(), &()).unwrap();
            masked(&mut record, function, elem, &(), &()).unwrap();
        }
        if elem.is_int() {
            for function in [AtomicFn::Add, AtomicFn::Max, AtomicFn::And, AtomicFn::Exchange] {
                atomic(&mut record, function, elem, &(), &()).unwrap();
            }
        }
    }
    record.0
}

/// What a target lacks, by name: instructions with the types that they are missing for. `value` makes an operand of a type.
fn missing<T: LlvmTarget>(target: &mut T, value: impl Fn(&mut T, Ty) -> T::Value) -> Vec<String> {
    let mut lacking: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for asked in everything() {
        let (name, result) = match asked {
            Asked::Int(ty) => ("constant".to_owned(), target.int(ty, 1)),
            Asked::Float(ty) => ("constant".to_owned(), target.float(ty, 1.0)),
            Asked::Build(instruction, ty, operands) => {
                let is_condition = |i| i == 0 && instruction == Instruction::Select;
                let types = (0..operands).map(|i| if is_condition(i) { Ty::Int(1) } else { ty });
                let args: Vec<T::Value> = types.map(|ty| value(target, ty)).collect();
                (instruction.to_string(), target.build(instruction, ty, &args))
            }
        };
        match result {
            Ok(_) => {}
            Err(Error::Unsupported { target, message }) => {
                assert_eq!(target, T::NAME);
                let types = message.strip_prefix(&name).unwrap().trim().to_owned();
                lacking.entry(name).or_default().push(types);
            }
            Err(error) => panic!("{asked:?}: {error}"),
        }
    }
    lacking.into_iter().map(|(name, types)| format!("{name}: {}", types.join(", "))).collect()
}

#[test]
fn an_empty_target_is_told_what_it_lacks() {
    let list = missing(&mut Empty, |_, _| ()).join("\n") + "\n";
    expect![[r#"
        add: i8, i16, i32, i64
        and: i1, i8, i16, i32, i64
        ashr: i8, i16, i32, i64
        bitcast: i16 to half, i16 to bfloat, i32 to float, i64 to double, half to i16, bfloat to i16, float to i32, double to i64
        constant: i1, i8, i16, i32, i64, i128, float, half, bfloat, double
        fadd: float, double
        fcmp oeq: float, double
        fcmp oge: float, double
        fcmp ogt: float, double
        fcmp ole: float, double
        fcmp olt: float, double
        fcmp une: float, half, bfloat, double
        fcmp uno: float, double
        fdiv: float, double
        fmul: float, double
        fneg: half, bfloat, float, double
        fpext: half to float, float to double, bfloat to float
        fptosi: float to i32, float to i64, double to i32, double to i64
        fptrunc: float to half, float to bfloat, double to float
        frem: float, double
        fsub: float, double
        icmp eq: i1, i8, i16, i32, i64
        icmp ne: i1, i8, i16, i32, i64
        icmp sge: i8, i16, i32, i64
        icmp sgt: i8, i16, i32, i64
        icmp sle: i8, i16, i32, i64
        icmp slt: i8, i16, i32, i64
        icmp uge: i1, i8, i16, i32, i64
        icmp ugt: i1, i8, i16, i32, i64
        icmp ule: i1, i8, i16, i32, i64
        icmp ult: i1, i8, i16, i32, i64
        llvm.abs: i8, i16, i32, i64
        llvm.ceil: float, double
        llvm.copysign: half, bfloat, float, double
        llvm.fabs: half, float, bfloat, double
        llvm.floor: float, double
        llvm.fma: float, double
        llvm.maximum: half, float, bfloat, double
        llvm.maximumnum: float, double
        llvm.minimum: half, float, bfloat, double
        llvm.minimumnum: float, double
        llvm.roundeven: float, double
        llvm.smax: i8, i16, i32, i64
        llvm.smin: i8, i16, i32, i64
        llvm.sqrt: float, double
        llvm.trunc: float, double
        llvm.umax: i8, i16, i32, i64
        llvm.umin: i8, i16, i32, i64
        lshr: i16, i32, i64, i128, i8
        mul: i8, i16, i32, i64, i128
        or: i1, i8, i16, i32, i64
        sdiv: i8, i16, i32, i64
        select: i1, i8, i16, i32, i64, float, half, bfloat, double
        sext: i8 to i16, i8 to i32, i8 to i64, i16 to i32, i16 to i64, i32 to i64, i64 to i128
        shl: i8, i16, i32, i64
        sitofp: i8 to float, i8 to double, i16 to float, i16 to double, i32 to float, i32 to double, i64 to float, i64 to double
        srem: i8, i16, i32, i64
        sub: i8, i16, i32, i64
        trunc: i16 to i8, i32 to i16, i64 to i32, i32 to i8, i128 to i64, i64 to i8, i64 to i16
        udiv: i8, i16, i32, i64
        uitofp: i1 to float, i1 to double, i8 to float, i8 to double, i16 to float, i16 to double, i32 to float, i32 to double, i64 to float, i64 to double
        urem: i8, i16, i32, i64
        xor: i1, i8, i16, i32, i64
        zext: i1 to i8, i1 to i16, i1 to i32, i1 to i64, i8 to i16, i8 to i32, i8 to i64, i16 to i32, i16 to i64, i32 to i64, i64 to i128
    "#]].assert_eq(&list);
    let error = map(&mut Empty, ScalarFn::Add, Elem::F32, &[(), ()]).unwrap_err();
    expect!["empty: fadd float"].assert_eq(&error.to_string());
    let error = map(&mut Empty, ScalarFn::Exp, Elem::F32, &[()]).unwrap_err();
    expect!["empty: exp of f32 that is not expanded"].assert_eq(&error.to_string());
    let error = map(&mut Empty, ScalarFn::Shl, Elem::F32, &[(), ()]).unwrap_err();
    expect!["empty: shl of f32 with 2 operands"].assert_eq(&error.to_string());
}

#[test]
fn ptx_lacks_nothing() {
    let mut ir = crate::ptx::Ir::new(false);
    assert_eq!(missing(&mut ir, |_, _| "%x".into()), Vec::<String>::new());
}
