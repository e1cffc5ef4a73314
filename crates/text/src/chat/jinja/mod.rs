//! Jinja, as far as chat templates use it, within bounds.
//!
//! A template comes with a model file, from a stranger. So its length and nesting are bounded when it is read
//! (`parser`), its values cannot be nested deeply or hold themselves (`value`), and whatever it does is charged before it
//! is done (`meter`): expressions, items that are visited or compared, bytes that are read or made. A filling therefore
//! ends soon, with little memory and stack, whatever the template says.
//!
//! `lexer`, `parser` and `syntax` read; `filling` and `expressions` walk the tree; `filters`, `methods`, `predicates`,
//! `functions` and `operators` are what it may call. Where jinja2 and minijinja differ, the more lenient one is followed.

mod arguments;
mod compare;
mod expressions;
mod fault;
mod filling;
mod filters;
mod format;
mod functions;
mod json;
mod lexer;
mod meter;
mod methods;
mod operators;
mod parser;
mod predicates;
mod scope;
mod syntax;
mod text;
mod value;

pub(super) use fault::{Fault, Trouble};
pub(super) use filling::{Filled, Filling};
pub(super) use meter::Limits;

/// Template that was read. It is never changed, so threads may share it.
#[derive(Debug)]
pub(super) struct Template {
    statements: syntax::Block,
    texts: Vec<String>,
}

impl Template {
    /// Reads `source`.
    ///
    /// # Errors
    ///
    /// [`Trouble::Syntax`] if it is no template, or too long or too deep a one.
    pub(super) fn new(source: &str) -> Result<Self, Fault> {
        let tokens = lexer::tokens(source)?;
        let texts = tokens.iter().filter_map(|(_, token)| match token {
            lexer::Token::Text(text) if !text.trim().is_empty() => Some(text.to_string()),
            _ => None,
        });
        let mut texts: Vec<String> = texts.collect();
        texts.sort_unstable();
        texts.dedup();
        Ok(Self { statements: parser::parse(tokens)?, texts })
    }

    /// Text literals in its tags, but for white space: those that it may compare texts with.
    pub(super) fn texts(&self) -> Vec<String> {
        self.texts.clone()
    }
}
