//! Parser of templates: statements here, expressions in `expressions`.
//!
//! Nesting and operators in a row are bounded while the tree is made, so that neither reading, filling nor dropping it can
//! use up a stack.

mod expressions;

use super::fault::{Fault, Trouble};
use super::lexer::Token;
use super::syntax::{Block, FilterCall, For, Macro, Node, Parameter, Recursion, Statement, Target};
use std::sync::Arc;

/// Deepest tree of an expression. Each operator, filter and subscript of a chain adds a level.
pub(super) const EXPRESSION_DEPTH_MAX: usize = 200;

/// Most expressions in brackets in each other.
const NESTING_MAX: usize = 64;

/// Most blocks in each other.
pub(super) const BLOCK_DEPTH_MAX: usize = 64;

/// The statements of a template.
pub(super) fn parse(tokens: Vec<(usize, Token)>) -> Result<Block, Fault> {
    let mut parser = Parser { tokens, at: 0, nesting: 0, blocks: 0, loops: 0 };
    let parsed = parser.block(&[]).map(|(block, _)| block);
    parsed.map_err(|trouble| Fault { line: parser.line(), trouble })
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// Brackets that are being read.
    nesting: usize,
    /// Blocks that are being read.
    blocks: usize,
    /// Loops that are being read.
    loops: usize,
}

impl Parser {
    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(line, _)| *line)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if **found == *name)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect_sign(&mut self, sign: &str) -> Result<(), Trouble> {
        if self.take_sign(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    fn expect(&mut self, token: &Token, wanted: &str) -> Result<(), Trouble> {
        if self.peek() == Some(token) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(wanted))
    }

    fn name(&mut self) -> Result<Arc<str>, Trouble> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = Arc::clone(name);
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn unexpected(&self, wanted: &str) -> Trouble {
        let found = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Token::Data(_) | Token::BlockOpen | Token::PrintOpen) => "text".to_owned(),
            Some(Token::PrintClose | Token::BlockClose) => "the end of the tag".to_owned(),
            Some(Token::Name(name)) => format!("`{}`", shortened(name)),
            Some(Token::Text(text)) => format!("{:?}", shortened(text)),
            Some(Token::Int(number)) => number.to_string(),
            Some(Token::Float(number)) => number.to_string(),
            Some(Token::Sign(sign)) => format!("`{sign}`"),
        };
        syntax(&format!("unexpected {found}, wanted {wanted}"))
    }

    fn block_end(&mut self) -> Result<(), Trouble> {
        self.expect(&Token::BlockClose, "the end of the tag")
    }

    /// Statements up to a tag called one of `ends`, and that name; up to the end of the template if there are none.
    fn block(&mut self, ends: &[&'static str]) -> Result<(Block, &'static str), Trouble> {
        self.blocks += 1;
        if self.blocks > BLOCK_DEPTH_MAX {
            return Err(syntax(&format!("more than {BLOCK_DEPTH_MAX} blocks are nested in each other")));
        }
        let mut block = Vec::new();
        loop {
            let line = self.line();
            match self.peek() {
                None if ends.is_empty() => {
                    self.blocks -= 1;
                    return Ok((block, ""));
                }
                None => return Err(syntax(&format!("the end of the template, wanted `{}`", ends.join("` or `")))),
                Some(Token::Data(text)) => {
                    block.push((line, Statement::Data(Arc::clone(text))));
                    self.at += 1;
                }
                Some(Token::PrintOpen) => {
                    self.at += 1;
                    let value = self.tuple_or_expression()?;
                    self.expect(&Token::PrintClose, "the end of the tag")?;
                    block.push((line, Statement::Print(value)));
                }
                _ => {
                    self.expect(&Token::BlockOpen, "a tag")?;
                    let name = self.name()?;
                    if let Some(end) = ends.iter().find(|end| ***end == *name) {
                        self.blocks -= 1;
                        return Ok((block, end));
                    }
                    block.push((line, self.statement(&name)?));
                }
            }
        }
    }

    /// The block of a tag that ends here, up to its end tag.
    fn body(&mut self, end: &'static str) -> Result<Block, Trouble> {
        self.block_end()?;
        let (block, _) = self.block(&[end])?;
        self.block_end()?;
        Ok(block)
    }

    fn statement(&mut self, name: &str) -> Result<Statement, Trouble> {
        let statement = match name {
            "if" => return self.conditional(),
            "for" => return self.for_loop(),
            "set" => return self.assignment(),
            "macro" => return self.macro_definition(),
            "call" => return self.call_block(),
            "with" => return self.with_block(),
            "filter" => {
                let filters = self.filter_chain()?;
                return Ok(Statement::Filter(filters, self.body("endfilter")?));
            }
            "generation" => return Ok(Statement::Transparent(self.body("endgeneration")?)),
            "autoescape" => {
                self.expression()?;
                return Ok(Statement::Transparent(self.body("endautoescape")?));
            }
            "do" => Statement::Do(self.tuple_or_expression()?),
            "break" if self.loops > 0 => Statement::Break,
            "continue" if self.loops > 0 => Statement::Continue,
            "break" | "continue" => return Err(syntax(&format!("`{name}` stands outside of a loop"))),
            _ => return Err(syntax(&format!("unknown statement `{}`", shortened(name)))),
        };
        self.block_end()?;
        Ok(statement)
    }

    fn conditional(&mut self) -> Result<Statement, Trouble> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            self.block_end()?;
            let (block, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((condition, block));
            let otherwise = match end {
                "elif" => continue,
                "else" => self.body("endif")?,
                _ => {
                    self.block_end()?;
                    Vec::new()
                }
            };
            return Ok(Statement::If(branches, otherwise));
        }
    }

    fn for_loop(&mut self) -> Result<Statement, Trouble> {
        let target = self.targets()?;
        if !self.take_name("in") {
            return Err(self.unexpected("`in`"));
        }
        let items = self.tuple_or_expression_without_if()?;
        let condition = if self.take_name("if") { Some(self.expression()?) } else { None };
        let recursion = if self.take_name("recursive") { Recursion::Allowed } else { Recursion::Refused };
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.block(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if end == "else" {
            self.body("endfor")?
        } else {
            self.block_end()?;
            Vec::new()
        };
        Ok(Statement::For(Arc::new(For { target, items, condition, body, otherwise, recursion })))
    }

    fn assignment(&mut self) -> Result<Statement, Trouble> {
        let target = self.targets()?;
        if self.take_sign("=") {
            let value = self.tuple_or_expression()?;
            self.block_end()?;
            return Ok(Statement::Set(target, value));
        }
        let filters = if self.take_sign("|") { self.filter_chain()? } else { Vec::new() };
        Ok(Statement::SetBlock(target, filters, self.body("endset")?))
    }

    /// One target, or several with commas between them.
    fn targets(&mut self) -> Result<Target, Trouble> {
        let first = self.target()?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.take_sign(",") {
            if self.is_name("in") || self.is_sign("=") || self.is_sign(")") {
                break;
            }
            targets.push(self.target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn target(&mut self) -> Result<Target, Trouble> {
        if self.take_sign("(") {
            self.nesting += 1;
            if self.nesting > NESTING_MAX {
                return Err(syntax("too many targets are nested in each other"));
            }
            let targets = self.targets()?;
            self.nesting -= 1;
            self.expect_sign(")")?;
            return Ok(targets);
        }
        let name = self.name()?;
        if self.take_sign(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        if ["true", "false", "none", "True", "False", "None"].contains(&&*name) {
            return Err(syntax(&format!("`{name}` cannot be assigned to")));
        }
        Ok(Target::Name(name))
    }

    fn macro_definition(&mut self) -> Result<Statement, Trouble> {
        let name = self.name()?;
        let parameters = self.parameters()?;
        Ok(Statement::Macro(self.macro_body(name, parameters, "endmacro")?))
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<Parameter>,
        end: &'static str,
    ) -> Result<Arc<Macro>, Trouble> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(end)?;
        self.loops = loops;
        Ok(Arc::new(Macro { name, parameters, body }))
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>, Trouble> {
        let mut parameters = Vec::new();
        self.expect_sign("(")?;
        while !self.take_sign(")") {
            if !parameters.is_empty() {
                self.expect_sign(",")?;
                if self.take_sign(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.take_sign("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn call_block(&mut self) -> Result<Statement, Trouble> {
        let parameters = if self.is_sign("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(*call.node, Node::Call(..)) {
            return Err(syntax("a call block wants a call"));
        }
        let body = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Statement::Call(call, body))
    }

    fn with_block(&mut self) -> Result<Statement, Trouble> {
        let mut values = Vec::new();
        while self.peek() != Some(&Token::BlockClose) {
            if !values.is_empty() {
                self.expect_sign(",")?;
            }
            let target = self.target()?;
            self.expect_sign("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Statement::With(values, self.body("endwith")?))
    }

    fn filter_chain(&mut self) -> Result<Vec<FilterCall>, Trouble> {
        let mut filters = vec![self.filter_call()?];
        while self.take_sign("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }
}

fn syntax(detail: &str) -> Trouble {
    Trouble::Syntax(detail.to_owned())
}

/// The start of `text`, for messages.
fn shortened(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    if start.len() < text.len() { start + "..." } else { start }
}
