//! Variables by name, in scopes within each other, and the macros that remember theirs.

use super::fault::Trouble;
use super::meter::Meter;
use super::syntax::Macro;
use super::value::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Variables of a template, a macro's call, a loop's turn or a block.
#[derive(Debug, Default)]
pub(super) struct Scope {
    variables: RefCell<HashMap<Arc<str>, Value>>,
    around: Option<Rc<Scope>>,
}

/// Macro as a value. Its scope is not kept alive by it, so that no variable can hold on to itself.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) definition: Arc<Macro>,
    pub(super) scope: Weak<Scope>,
}

impl Scope {
    /// A scope within `around`.
    pub(super) fn within(around: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { variables: RefCell::default(), around: Some(Rc::clone(around)) })
    }

    /// The variable `name` of this scope or the nearest one around it.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(inner) = scope {
            if let Some(value) = inner.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = inner.around.as_deref();
        }
        None
    }

    /// Sets a variable of this scope.
    pub(super) fn set(&self, name: &Arc<str>, value: Value, meter: &Meter) -> Result<(), Trouble> {
        meter.make_items(3)?;
        let previous = self.variables.borrow_mut().insert(Arc::clone(name), value);
        drop(previous);
        Ok(())
    }
}
