//! Parsing of graphs.

use std::collections::HashMap;

use smallvec::SmallVec;
use tilefuse_block::ScalarFn;

use super::lexer::Token;
use super::syntax::{Parser, Result};
use super::{ParseError, form};
use crate::block_kernel::BlockKernelKind;
use crate::combiner::Combiner;
use crate::contraction::Window;
use crate::graph::{AliasTarget, AtenCall, Graph, NodeId, Op, OutputAlias, Update, ValueRef, View};
use crate::types::{DType, TensorType};

/// Reads the text form of a graph. The graph is well-formed as text; [`verify`](crate::verify()) says whether it is one that
/// passes accept.
///
/// # Errors
/// If the text is not of the form that [`Graph`]'s `Display` prints.
pub fn parse_graph(text: &str) -> std::result::Result<Graph, ParseError> {
    let mut state = State { parser: Parser::new(text)?, graph: Graph::new(), values: HashMap::new() };
    state.parser.keyword("graph")?;
    state.parser.mark('{')?;
    while !state.parser.eat('}') {
        state.line()?;
    }
    if *state.parser.peek() != Token::End {
        return state.parser.error("text after the graph");
    }
    Ok(state.graph)
}

struct State {
    parser: Parser,
    graph: Graph,
    values: HashMap<u32, ValueRef>,
}

impl State {
    fn line(&mut self) -> Result<()> {
        match self.parser.peek().clone() {
            Token::Name(n) if n == "origin" => self.origin(),
            Token::Name(n) if n == "outputs" => self.outputs(),
            Token::Name(n) if n == "update" => self.update(),
            Token::Name(n) if n == "alias" => self.alias(),
            Token::Name(n) if n == "buffer" => self.buffer(),
            Token::Name(n) if n == "offset" => self.offset(),
            _ => self.node(),
        }
    }

    fn origin(&mut self) -> Result<()> {
        self.parser.bump();
        let index: usize = self.parser.small()?;
        if index != self.graph.origins.len() {
            return self.parser.error("origins are numbered in order");
        }
        let text = self.parser.string()?;
        self.graph.add_origin(text);
        Ok(())
    }

    fn outputs(&mut self) -> Result<()> {
        self.parser.bump();
        loop {
            let value = self.value()?;
            self.graph.outputs.push(value);
            if !self.parser.eat(',') {
                return Ok(());
            }
        }
    }

    fn update(&mut self) -> Result<()> {
        self.parser.bump();
        let target = self.value()?;
        self.parser.mark('<')?;
        let value = self.value()?;
        self.graph.updates.push(Update { target: target.node, value });
        Ok(())
    }

    fn alias(&mut self) -> Result<()> {
        self.parser.bump();
        let index: usize = self.parser.small()?;
        if index >= self.graph.outputs.len() {
            return self.parser.error("there is no such output");
        }
        self.parser.mark('=')?;
        let target = match self.parser.eat_name("output") {
            true => AliasTarget::Output(self.parser.small()?),
            false => AliasTarget::Node(self.value()?.node),
        };
        self.parser.mark('+')?;
        let offset = self.parser.int()?;
        self.parser.mark(':')?;
        let ty = self.parser.ty()?;
        self.graph.aliases.resize(self.graph.outputs.len(), None);
        self.graph.aliases[index] = Some(OutputAlias { target, ty, offset });
        Ok(())
    }

    fn buffer(&mut self) -> Result<()> {
        self.parser.bump();
        let ty = self.parser.ty()?;
        self.graph.buffers.push(ty);
        Ok(())
    }

    fn offset(&mut self) -> Result<()> {
        self.parser.bump();
        let node = self.value()?.node;
        self.graph.offsets.push(node);
        Ok(())
    }

    fn value(&mut self) -> Result<ValueRef> {
        read_value(&mut self.parser, &self.values)
    }

    fn node(&mut self) -> Result<()> {
        let mut names = Vec::new();
        if !self.parser.eat_name("_") {
            names.push(self.parser.value_number()?);
            while self.parser.eat(',') {
                names.push(self.parser.value_number()?);
            }
        }
        self.parser.mark('=')?;
        let (op, operands) = self.op()?;
        let mut outs: SmallVec<[TensorType; 1]> = SmallVec::new();
        if !names.is_empty() {
            self.parser.mark(':')?;
            outs.push(self.parser.ty()?);
            while self.parser.eat(',') {
                outs.push(self.parser.ty()?);
            }
        }
        if outs.len() != names.len() {
            return self.parser.error(format!("{} results, {} types", names.len(), outs.len()));
        }
        let op = self.finish_literal(op, &outs)?;
        let origin = if self.parser.eat('@') { Some(self.parser.small()?) } else { None };
        let node = self.graph.add(op, &operands, outs, origin);
        self.define(&names, node)
    }

    fn define(&mut self, names: &[u32], node: NodeId) -> Result<()> {
        for (out, &name) in names.iter().enumerate() {
            if self.values.insert(name, ValueRef { node, out: out as u16 }).is_some() {
                return self.parser.error(format!("`%{name}` is defined twice"));
            }
        }
        Ok(())
    }

    /// Literals are read before the type that says what they are of.
    fn finish_literal(&mut self, op: Parsed, outs: &[TensorType]) -> Result<Op> {
        let elem = outs.first().map(|t| t.dtype).and_then(DType::elem);
        match op {
            Parsed::Op(op) => Ok(op),
            Parsed::Const(slot, value) => {
                if let Some(token) = value {
                    let literal = self.literal(token, elem)?;
                    self.graph.literals.insert(slot, literal);
                }
                Ok(Op::Const(slot))
            }
            Parsed::Scalar(token) => Ok(Op::Scalar(self.literal(token, elem)?)),
            Parsed::Pad([low, interior], token) => {
                Ok(Op::View(View::Pad { low, interior, fill: self.literal(token, elem)? }))
            }
        }
    }

    fn literal(
        &mut self,
        token: Token,
        elem: Option<tilefuse_block::Elem>,
    ) -> Result<tilefuse_block::Literal> {
        let Some(elem) = elem else { return self.parser.error("a literal needs an element type of numbers") };
        self.parser.literal_from(token, elem)
    }

    fn op(&mut self) -> Result<(Parsed, Vec<ValueRef>)> {
        let name = self.parser.name()?;
        if name.contains("::") {
            return self.aten(&name);
        }
        let leaf = |op: Op| Ok((Parsed::Op(op), Vec::new()));
        match name.as_str() {
            "input" => leaf(Op::Input(self.parser.small()?)),
            "param" => leaf(Op::Param(self.parser.small()?)),
            "const" => {
                let slot = self.parser.small()?;
                let value = if self.parser.eat('=') { Some(self.parser.bump()) } else { None };
                Ok((Parsed::Const(slot, value), Vec::new()))
            }
            "iota" => leaf(Op::Iota { dim: self.parser.small()? }),
            "scalar" => Ok((Parsed::Scalar(self.parser.bump()), Vec::new())),
            "cast" => self.with_operands(Op::Cast),
            "map" => {
                let name = self.parser.name()?;
                match ScalarFn::from_name(&name) {
                    Some(function) => self.with_operands(Op::Map(function)),
                    None => self.parser.reject(format!("`{name}` is no scalar function")),
                }
            }
            "kernel" => {
                let name = self.parser.name()?;
                match BlockKernelKind::ALL.into_iter().find(|kind| kind.name() == name) {
                    Some(kind) => self.with_operands(Op::Kernel(kind)),
                    None => self.parser.reject(format!("`{name}` is no kind of block kernel")),
                }
            }
            "concat" => {
                let dim = self.parser.small()?;
                self.with_operands(Op::Concat { dim })
            }
            "gather" => {
                let dim = self.parser.small()?;
                self.with_operands(Op::Gather { dim })
            }
            "reduce" => {
                let name = self.parser.name()?;
                let Some(combine) = Combiner::from_name(&name) else {
                    return self.parser.reject(format!("`{name}` is no combiner"));
                };
                let dims = self.parser.axes()?;
                self.with_operands(Op::Reduce { combine, dims })
            }
            "contract" => {
                let pairs = form::pairs(&mut self.parser)?;
                self.with_operands(Op::Contract(pairs))
            }
            "view" => {
                let view = self.view()?;
                Ok((view, self.operands()?))
            }
            other => self.parser.reject(format!("`{other}` is no operator")),
        }
    }

    fn view(&mut self) -> Result<Parsed> {
        let name = self.parser.name()?;
        let view = match name.as_str() {
            "reshape" => View::Reshape,
            "expand" => View::Expand,
            "permute" => View::Permute(self.parser.axes()?),
            "flip" => View::Flip(self.parser.axes()?),
            "slice" => {
                self.parser.mark('[')?;
                let dim = self.parser.small()?;
                self.parser.mark(',')?;
                let start = self.parser.int()?;
                self.parser.mark(',')?;
                let step = self.parser.int()?;
                self.parser.mark(']')?;
                View::Slice { dim, start, step }
            }
            "pad" => {
                let low = self.parser.dims()?;
                let interior = match self.parser.eat_name("interior") {
                    true => self.parser.dims()?,
                    false => low.iter().map(|_| 0).collect(),
                };
                self.parser.mark('=')?;
                return Ok(Parsed::Pad([low, interior], self.parser.bump()));
            }
            "window" => View::Window(self.windows()?),
            other => return self.parser.reject(format!("`{other}` is no view")),
        };
        Ok(Parsed::Op(Op::View(view)))
    }

    /// `[2,3] kernel[3,3] stride[1,1] dilation[1,1]`.
    fn windows(&mut self) -> Result<SmallVec<[Window; 3]>> {
        let dims = self.parser.axes()?;
        let mut list = |name: &str| {
            self.parser.keyword(name)?;
            let list = self.parser.dims()?;
            if list.len() == dims.len() {
                Ok(list)
            } else {
                self.parser.reject("as many as dimensions are expected")
            }
        };
        let (kernel, stride, dilation) = (list("kernel")?, list("stride")?, list("dilation")?);
        let window = |(at, &dim): (usize, &u8)| Window {
            dim,
            kernel: kernel[at],
            stride: stride[at],
            dilation: dilation[at],
        };
        Ok(dims.iter().enumerate().map(window).collect())
    }

    fn operands(&mut self) -> Result<Vec<ValueRef>> {
        self.parser.mark('(')?;
        let values = &self.values;
        self.parser.list(')', |p| read_value(p, values))
    }

    fn with_operands(&mut self, op: Op) -> Result<(Parsed, Vec<ValueRef>)> {
        Ok((Parsed::Op(op), self.operands()?))
    }

    fn aten(&mut self, name: &str) -> Result<(Parsed, Vec<ValueRef>)> {
        let (op, overload) = name.split_once('.').unwrap_or((name, ""));
        let mut operands = Vec::new();
        let values = &self.values;
        self.parser.mark('(')?;
        let args = self.parser.list(')', |p| {
            let name = p.arg_name()?;
            p.mark('=')?;
            let arg = p.arg(&mut |p: &mut Parser| {
                operands.push(read_value(p, values)?);
                Ok((operands.len() - 1) as u16)
            })?;
            Ok((name, arg))
        })?;
        let mut call = AtenCall::new(op, overload, args);
        call.form = form::parse(&mut self.parser)?;
        self.flags(&mut call)?;
        Ok((Parsed::Op(Op::Aten(Box::new(call))), operands))
    }

    fn flags(&mut self, call: &mut AtenCall) -> Result<()> {
        while self.parser.eat('!') {
            match self.parser.name()?.as_str() {
                "random" => call.random = true,
                "replay" => call.replay = Some(self.parser.small()?),
                "writes" => {
                    self.parser.mark('[')?;
                    call.writes = self.parser.list(']', Parser::small::<u16>)?.into();
                }
                other => return self.parser.reject(format!("`{other}` is no flag of a call")),
            }
        }
        Ok(())
    }
}

enum Parsed {
    Op(Op),
    Const(u32, Option<Token>),
    Scalar(Token),
    Pad([crate::types::Dims; 2], Token),
}

fn read_value(parser: &mut Parser, values: &HashMap<u32, ValueRef>) -> Result<ValueRef> {
    let number = parser.value_number()?;
    match values.get(&number) {
        Some(&value) => Ok(value),
        None => parser.reject(format!("`%{number}` is not defined above")),
    }
}
