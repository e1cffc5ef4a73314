//! The Jinja dialect of chat templates: that of Hugging Face's `transformers`, as far as minijinja does not have it
//! already.

use super::json::{python_float, tojson};
use super::local_time::LocalTime;
use super::marks::Marks;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

/// The name of the one template of an environment.
pub(super) const NAME: &str = "chat template";

/// What `raise_exception` was called with.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment with the template `source`.
pub(super) fn compile(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "the template refuses").with_source(Raised(message)))
    });
    environment.add_filter("string", |value: &Value| -> String {
        match value.kind() {
            ValueKind::Number if !value.is_integer() => {
                f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python_float)
            }
            _ => value.to_string(),
        }
    });
    // In Python, strings and dictionaries have a length and items too.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| {
        let kinds = [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Map, ValueKind::Iterable];
        kinds.contains(&value.kind())
    });
    set_marks(&mut environment, Marks::default());
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// Lets `tojson` know marked characters.
pub(super) fn set_marks(environment: &mut Environment<'static>, marks: Marks) {
    environment.add_filter("tojson", move |value: &Value, options: Kwargs| tojson(value, &options, &marks));
}

/// The function `strftime_now`, for which it is always `now`.
pub(super) fn strftime_now(now: LocalTime) -> Value {
    Value::from_function(move |format: &str| {
        now.format(format).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the format `{format}`"))
        })
    })
}
