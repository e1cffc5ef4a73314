//! Jinja, as far as chat templates use it, within bounds.
//!
//! A template comes with a model file and is untrusted. So its length and nesting are bounded when it is read
//! (`parser`), its values cannot be nested deeply or hold themselves (`value`), and all work is charged before it is
//! done (`meter`): expressions, items that are visited or compared, bytes that are read or made. A filling therefore
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
    /// Text literals in its tags, but for white space, in their order and once each.
    texts: Vec<String>,
    /// Names of variables, attributes and functions in its tags, the same way.
    names: Vec<String>,
}

impl Template {
    /// Reads `source`.
    ///
    /// # Errors
    ///
    /// [`Trouble::Syntax`] if it is no template, or too long or too deep a one.
    pub(super) fn new(source: &str) -> Result<Self, Fault> {
        let tokens = lexer::tokens(source)?;
        let (mut texts, mut names) = (Vec::new(), Vec::new());
        for (_, token) in &tokens {
            match token {
                lexer::Token::Text(text) if !text.trim().is_empty() => texts.push(text.to_string()),
                lexer::Token::Name(name) => names.push(name.to_string()),
                _ => {}
            }
        }
        for list in [&mut texts, &mut names] {
            list.sort_unstable();
            list.dedup();
        }
        Ok(Self { statements: parser::parse(tokens)?, texts, names })
    }

    /// True if `name` is in its tags, as a name or a whole text literal.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let found = |list: &[String]| list.binary_search_by(|item| item.as_str().cmp(name)).is_ok();
        found(&self.names) || found(&self.texts)
    }

    /// Text literals in its tags, but for white space: those that it may compare texts with.
    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }
}
