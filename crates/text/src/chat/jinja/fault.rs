//! Errors of templates, with the line they are about.

/// Error of a template, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Line of the template, counted from 1.
    pub(crate) line: usize,
    /// The error.
    pub(crate) trouble: Trouble,
}

/// Error of a template, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Source that is no template, or one beyond a limit of length or nesting.
    Syntax(String),
    /// Operation that is impossible with these values.
    Failed(String),
    /// Call of `raise_exception`.
    Raised(String),
    /// Work beyond the budget's steps.
    Work,
    /// Values beyond the budget's bytes.
    Memory,
    /// Text of at least `bytes` bytes, beyond the budget.
    TooLong {
        /// Length at which it was stopped.
        bytes: usize,
    },
    /// The caller's deadline.
    Deadline,
}
