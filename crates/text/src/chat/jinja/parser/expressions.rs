//! Expressions, by rising precedence.

use super::{EXPRESSION_DEPTH_MAX, NESTING_MAX, Parser, syntax};
use crate::chat::jinja::fault::Trouble;
use crate::chat::jinja::lexer::Token;
use crate::chat::jinja::syntax::{Arguments, Comparison, Constant, Expr, FilterCall, Node, Operator};
use std::sync::Arc;

/// Most arguments of a call.
const ARGUMENTS_MAX: usize = 1000;

impl Parser {
    /// `node` at `line`, with `deepest` levels of expressions in it.
    fn expr(&self, line: usize, deepest: usize, node: Node) -> Result<Expr, Trouble> {
        let depth = deepest + 1;
        if depth > EXPRESSION_DEPTH_MAX {
            return Err(syntax(&format!("an expression has more than {EXPRESSION_DEPTH_MAX} operators in a row")));
        }
        Ok(Expr { line, depth, node: Box::new(node) })
    }

    /// An expression, or several with commas between them, which are a tuple.
    pub(super) fn tuple_or_expression(&mut self) -> Result<Expr, Trouble> {
        self.tuple_of(Self::expression)
    }

    /// The same, where an `if` does not belong to it.
    pub(super) fn tuple_or_expression_without_if(&mut self) -> Result<Expr, Trouble> {
        self.tuple_of(Self::or)
    }

    fn tuple_of(&mut self, item: fn(&mut Self) -> Result<Expr, Trouble>) -> Result<Expr, Trouble> {
        let line = self.line();
        let first = item(self)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take_sign(",") {
            if matches!(self.peek(), Some(Token::PrintClose | Token::BlockClose | Token::Sign(")"))) {
                break;
            }
            items.push(item(self)?);
        }
        self.expr(line, deepest(&items), Node::Tuple(items))
    }

    /// An expression.
    pub(super) fn expression(&mut self) -> Result<Expr, Trouble> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(syntax(&format!("more than {NESTING_MAX} expressions are nested in each other")));
        }
        let parsed = self.choice();
        self.nesting -= 1;
        parsed
    }

    fn choice(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut then = self.or()?;
        while self.take_name("if") {
            let condition = self.or()?;
            let otherwise = if self.take_name("else") { Some(self.expression()?) } else { None };
            let deepest = then.depth.max(condition.depth).max(otherwise.as_ref().map_or(0, |expr| expr.depth));
            then = self.expr(line, deepest, Node::Choice { condition, then, otherwise })?;
        }
        Ok(then)
    }

    fn or(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut left = self.and()?;
        while self.take_name("or") {
            let right = self.and()?;
            left = self.expr(line, left.depth.max(right.depth), Node::Or(left, right))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut left = self.not()?;
        while self.take_name("and") {
            let right = self.not()?;
            left = self.expr(line, left.depth.max(right.depth), Node::And(left, right))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut count = 0;
        while self.take_name("not") {
            count += 1;
        }
        let mut value = self.comparison()?;
        for _ in 0..count {
            value = self.expr(line, value.depth, Node::Not(value))?;
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison_sign() {
            rest.push((comparison, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        let deepest = rest.iter().map(|(_, expr)| expr.depth).fold(first.depth, usize::max);
        self.expr(line, deepest, Node::Compare(first, rest))
    }

    fn comparison_sign(&mut self) -> Option<Comparison> {
        let comparison = match self.peek()? {
            Token::Sign("==") => Comparison::Equal,
            Token::Sign("!=") => Comparison::NotEqual,
            Token::Sign("<") => Comparison::Less,
            Token::Sign("<=") => Comparison::LessOrEqual,
            Token::Sign(">") => Comparison::Greater,
            Token::Sign(">=") => Comparison::GreaterOrEqual,
            Token::Name(name) if **name == *"in" => Comparison::In,
            Token::Name(name) if **name == *"not" => {
                let next = self.tokens.get(self.at + 1).map(|(_, token)| token);
                if !matches!(next, Some(Token::Name(name)) if **name == *"in") {
                    return None;
                }
                self.at += 1;
                Comparison::NotIn
            }
            _ => return None,
        };
        self.at += 1;
        Some(comparison)
    }

    /// A chain of operators that bind from the left.
    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Self) -> Result<Expr, Trouble>,
    ) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut left = operand(self)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.is_sign(sign)) {
            self.at += 1;
            let right = operand(self)?;
            left = self.expr(line, left.depth.max(right.depth), Node::Arithmetic(*operator, left, right))?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr, Trouble> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::joined)
    }

    fn joined(&mut self) -> Result<Expr, Trouble> {
        self.chain(&[("~", Operator::Join)], Self::product)
    }

    fn product(&mut self) -> Result<Expr, Trouble> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.chain(&operators, Self::power)
    }

    fn power(&mut self) -> Result<Expr, Trouble> {
        self.chain(&[("**", Operator::Power)], Self::filtered)
    }

    /// An operand with its signs, subscripts, filters and tests.
    fn filtered(&mut self) -> Result<Expr, Trouble> {
        let mut value = self.signed()?;
        loop {
            let line = self.line();
            if self.take_sign("|") {
                let filter = self.filter_call()?;
                value = self.expr(line, value.depth.max(filter.depth()), Node::Filter(value, filter))?;
            } else if self.take_name("is") {
                value = self.test(line, value)?;
            } else if self.is_sign("(") {
                let arguments = self.arguments()?;
                value = self.expr(line, value.depth.max(arguments.depth()), Node::Call(value, arguments))?;
            } else {
                return Ok(value);
            }
        }
    }

    fn test(&mut self, line: usize, value: Expr) -> Result<Expr, Trouble> {
        let negated = self.take_name("not");
        let name = self.dotted_name()?;
        let has_operand = match self.peek() {
            Some(Token::Name(name)) => !["else", "or", "and", "is", "if", "in", "not", "recursive"].contains(&&**name),
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{")) => true,
            _ => false,
        };
        let arguments = if self.is_sign("(") {
            self.arguments()?
        } else if has_operand {
            let operand = self.primary()?;
            Arguments { positional: vec![self.subscripts(operand)?], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        let test = FilterCall { name, arguments };
        let value = self.expr(line, value.depth.max(test.depth()), Node::Test(value, test))?;
        if negated { self.expr(line, value.depth, Node::Not(value)) } else { Ok(value) }
    }

    /// An operand with its signs and subscripts: signs apply to what is subscripted.
    fn signed(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let mut signs = Vec::new();
        while let Some(Token::Sign(sign @ ("-" | "+"))) = self.peek() {
            signs.push(*sign);
            self.at += 1;
        }
        let operand = self.primary()?;
        let mut value = self.subscripts(operand)?;
        while let Some(sign) = signs.pop() {
            let depth = value.depth;
            let node = if sign == "-" { Node::Negative(value) } else { Node::Positive(value) };
            value = self.expr(line, depth, node)?;
        }
        Ok(value)
    }

    fn subscripts(&mut self, mut value: Expr) -> Result<Expr, Trouble> {
        loop {
            let line = self.line();
            if self.take_sign(".") {
                value = match self.peek() {
                    Some(Token::Int(index)) => {
                        let index = Node::Constant(Constant::Int(*index));
                        self.at += 1;
                        let index = self.expr(line, 0, index)?;
                        self.expr(line, value.depth, Node::Item(value, index))?
                    }
                    _ => {
                        let name = self.name()?;
                        self.expr(line, value.depth, Node::Attribute(value, name))?
                    }
                };
            } else if self.take_sign("[") {
                value = self.subscript(line, value)?;
            } else if self.is_sign("(") {
                let arguments = self.arguments()?;
                value = self.expr(line, value.depth.max(arguments.depth()), Node::Call(value, arguments))?;
            } else {
                return Ok(value);
            }
        }
    }

    /// `key]` or `start:stop:step]`.
    fn subscript(&mut self, line: usize, value: Expr) -> Result<Expr, Trouble> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        loop {
            if self.take_sign("]") {
                break;
            }
            if self.take_sign(":") {
                colons += 1;
            } else if colons < 3 && parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                return Err(self.unexpected("`]`"));
            }
        }
        let deepest = parts.iter().flatten().map(|expr| expr.depth).fold(value.depth, usize::max);
        match (colons, parts) {
            (0, [Some(key), ..]) => self.expr(line, deepest, Node::Item(value, key)),
            (1 | 2, parts) => self.expr(line, deepest, Node::Slice(value, parts)),
            _ => Err(syntax("a subscript has one key, or two to three parts of a slice")),
        }
    }

    /// A filter's name and arguments.
    pub(super) fn filter_call(&mut self) -> Result<FilterCall, Trouble> {
        let name = self.dotted_name()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(FilterCall { name, arguments })
    }

    fn dotted_name(&mut self) -> Result<Arc<str>, Trouble> {
        let first = self.name()?;
        if !self.is_sign(".") {
            return Ok(first);
        }
        let mut name = first.to_string();
        while self.take_sign(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }

    fn arguments(&mut self) -> Result<Arguments, Trouble> {
        let mut arguments = Arguments::default();
        let mut count = 0;
        self.expect_sign("(")?;
        while !self.take_sign(")") {
            if count > 0 {
                self.expect_sign(",")?;
                if self.take_sign(")") {
                    break;
                }
            }
            count += 1;
            if count > ARGUMENTS_MAX {
                return Err(syntax(&format!("a call has more than {ARGUMENTS_MAX} arguments")));
            }
            self.argument(&mut arguments)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<(), Trouble> {
        if self.take_sign("**") {
            let previous = arguments.spread_named.replace(self.expression()?);
            return previous.map_or(Ok(()), |_| Err(syntax("a call has two arguments with `**`")));
        }
        if self.take_sign("*") {
            let previous = arguments.spread.replace(self.expression()?);
            return previous.map_or(Ok(()), |_| Err(syntax("a call has two arguments with `*`")));
        }
        let next = self.tokens.get(self.at + 1).map(|(_, token)| token);
        if matches!(self.peek(), Some(Token::Name(_))) && next == Some(&Token::Sign("=")) {
            let name = self.name()?;
            self.expect_sign("=")?;
            arguments.named.push((name, self.expression()?));
            return Ok(());
        }
        if !arguments.named.is_empty() {
            return Err(syntax("an argument without a name follows one with a name"));
        }
        arguments.positional.push(self.expression()?);
        Ok(())
    }

    fn primary(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        let token = self.peek().cloned();
        let node = match token {
            Some(Token::Name(name)) => name_or_constant(name),
            Some(Token::Int(number)) => Node::Constant(Constant::Int(number)),
            Some(Token::Float(number)) => Node::Constant(Constant::Float(number)),
            Some(Token::Text(text)) => {
                let mut whole = text.to_string();
                while let Some((_, Token::Text(more))) = self.tokens.get(self.at + 1) {
                    whole.push_str(more);
                    self.at += 1;
                }
                Node::Constant(Constant::Text(whole.into()))
            }
            Some(Token::Sign("(")) => return self.parenthesised(),
            Some(Token::Sign("[")) => {
                self.at += 1;
                let items = self.items("]")?;
                return self.expr(line, deepest(&items), Node::List(items));
            }
            Some(Token::Sign("{")) => return self.map(line),
            _ => return Err(self.unexpected("an expression")),
        };
        self.at += 1;
        self.expr(line, 0, node)
    }

    fn parenthesised(&mut self) -> Result<Expr, Trouble> {
        let line = self.line();
        self.at += 1;
        if self.take_sign(")") {
            return self.expr(line, 0, Node::Tuple(Vec::new()));
        }
        let value = self.tuple_or_expression()?;
        self.expect_sign(")")?;
        Ok(value)
    }

    /// Expressions with commas between them, up to `end`.
    fn items(&mut self, end: &str) -> Result<Vec<Expr>, Trouble> {
        let mut items = Vec::new();
        while !self.take_sign(end) {
            if !items.is_empty() {
                self.expect_sign(",")?;
                if self.take_sign(end) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn map(&mut self, line: usize) -> Result<Expr, Trouble> {
        self.at += 1;
        let mut pairs: Vec<(Expr, Expr)> = Vec::new();
        while !self.take_sign("}") {
            if !pairs.is_empty() {
                self.expect_sign(",")?;
                if self.take_sign("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_sign(":")?;
            pairs.push((key, self.expression()?));
        }
        let deepest = pairs.iter().map(|(key, value)| key.depth.max(value.depth)).max().unwrap_or(0);
        self.expr(line, deepest, Node::Map(pairs))
    }
}

impl Arguments {
    fn depth(&self) -> usize {
        let spread = self.spread.iter().chain(&self.spread_named);
        let all = self.positional.iter().chain(self.named.iter().map(|(_, value)| value)).chain(spread);
        all.map(|expr| expr.depth).max().unwrap_or(0)
    }
}

impl FilterCall {
    fn depth(&self) -> usize {
        self.arguments.depth()
    }
}

fn deepest(items: &[Expr]) -> usize {
    items.iter().map(|expr| expr.depth).max().unwrap_or(0)
}

fn name_or_constant(name: Arc<str>) -> Node {
    match &*name {
        "true" | "True" => Node::Constant(Constant::Bool(true)),
        "false" | "False" => Node::Constant(Constant::Bool(false)),
        "none" | "None" => Node::Constant(Constant::None),
        _ => Node::Name(name),
    }
}
