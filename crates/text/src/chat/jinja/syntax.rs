//! Syntax tree of a template.

use std::sync::Arc;

/// Statements in their order, each with its line.
pub(super) type Block = Vec<(usize, Statement)>;

/// Statement or text of a template.
#[derive(Debug)]
pub(super) enum Statement {
    /// Text outside of tags.
    Data(Arc<str>),
    /// `{{ value }}`.
    Print(Expr),
    /// `{% if %}` with its `elif`s, and the block of `else`.
    If(Vec<(Expr, Block)>, Block),
    /// `{% for %}`.
    For(Arc<For>),
    /// `{% set target = value %}`.
    Set(Target, Expr),
    /// `{% set target | filters %}block{% endset %}`.
    SetBlock(Target, Vec<FilterCall>, Block),
    /// `{% macro %}`.
    Macro(Arc<Macro>),
    /// `{% call %}`: the call, and its block as the macro `caller`.
    Call(Expr, Arc<Macro>),
    /// `{% filter %}`.
    Filter(Vec<FilterCall>, Block),
    /// `{% with %}`.
    With(Vec<(Target, Expr)>, Block),
    /// `{% do value %}`.
    Do(Expr),
    /// `{% generation %}` and `{% autoescape %}`, which change nothing.
    Transparent(Block),
    /// `{% break %}`.
    Break,
    /// `{% continue %}`.
    Continue,
}

/// Loop over items.
#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    /// Condition of an item's turn.
    pub(super) condition: Option<Expr>,
    pub(super) body: Block,
    /// Block for no turn at all.
    pub(super) otherwise: Block,
    pub(super) recursion: Recursion,
}

/// Permission of a loop to call itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Recursion {
    Allowed,
    Refused,
}

/// Macro, or the block of a `{% call %}`.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Block,
}

/// Name and default of a macro's parameter.
pub(super) type Parameter = (Arc<str>, Option<Expr>);

/// Left side of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// `namespace.name`.
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

/// Filter without the value that it is applied to.
#[derive(Debug)]
pub(super) struct FilterCall {
    pub(super) name: Arc<str>,
    pub(super) arguments: Arguments,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    /// `*value`.
    pub(super) spread: Option<Expr>,
    /// `**value`.
    pub(super) spread_named: Option<Expr>,
}

/// Expression.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    /// Levels of expressions in it, itself included.
    pub(super) depth: usize,
    pub(super) node: Box<Node>,
}

/// Kind of expression, and its parts.
#[derive(Debug)]
pub(super) enum Node {
    Constant(Constant),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// `value.name`.
    Attribute(Expr, Arc<str>),
    /// `value[key]`.
    Item(Expr, Expr),
    /// `value[start:stop:step]`.
    Slice(Expr, [Option<Expr>; 3]),
    Call(Expr, Arguments),
    Filter(Expr, FilterCall),
    Test(Expr, FilterCall),
    Not(Expr),
    Negative(Expr),
    Positive(Expr),
    And(Expr, Expr),
    Or(Expr, Expr),
    Arithmetic(Operator, Expr, Expr),
    Compare(Expr, Vec<(Comparison, Expr)>),
    /// `then if condition else otherwise`.
    Choice {
        condition: Expr,
        then: Expr,
        otherwise: Option<Expr>,
    },
}

/// Literal.
#[derive(Clone, Debug)]
pub(super) enum Constant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
}

/// Operator on two values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    /// `~`.
    Join,
}

/// Comparison of two values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
