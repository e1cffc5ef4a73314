//! The configuration file: TOML, keys are long flags, tables are commands.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::ConfigSourceError;
use super::{Entry, Given, Origin};
use crate::input::read_file;

/// All that the file at `path` sets.
pub fn entries(path: &Path) -> Result<Vec<Entry>, ConfigSourceError> {
    let text = read_file(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8"))
    });
    let text = text.map_err(|reason| ConfigSourceError::Read { path: path.to_owned(), reason })?;
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    let parsed = DeTable::parse(&text).map_err(|error| ConfigSourceError::Syntax {
        path: path.to_owned(),
        line: line(error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut entries = Vec::new();
    let mut reader = Reader { path: path.into(), line: &line, entries: &mut entries };
    reader.table(&[], parsed.get_ref())?;
    Ok(entries)
}

struct Reader<'a> {
    path: Arc<Path>,
    line: &'a dyn Fn(usize) -> usize,
    entries: &'a mut Vec<Entry>,
}

impl Reader<'_> {
    /// Reads the table of the command `scope`; of all commands, if that is empty.
    fn table(&mut self, scope: &[String], table: &DeTable<'_>) -> Result<(), ConfigSourceError> {
        for (key, value) in table {
            let name = key.get_ref().to_string();
            let origin = Arc::new(Origin::File {
                path: Arc::clone(&self.path),
                line: (self.line)(key.span().start),
                table: scope.join("."),
                key: name.clone(),
            });
            if let DeValue::Table(table) = value.get_ref() {
                let scope = [scope, &[name]].concat();
                // Also of an empty table the command must exist.
                self.entries.push(Entry { scope: scope.clone(), key: String::new(), given: Given::Nothing, origin });
                self.table(&scope, table)?;
            } else {
                let given = given(value).ok_or_else(|| ConfigSourceError::Kind {
                    origin: origin.clone(),
                    flag: name.clone(),
                    takes: "text, numbers, booleans, or an array of them",
                    given: "something else",
                })?;
                self.entries.push(Entry { scope: scope.to_vec(), key: name, given, origin });
            }
        }
        Ok(())
    }
}

/// The value as command-line text.
fn given(value: &Spanned<DeValue<'_>>) -> Option<Given> {
    match value.get_ref() {
        DeValue::Boolean(value) => Some(Given::Boolean(*value)),
        DeValue::Array(values) => {
            values.iter().map(|value| single(value.get_ref())).collect::<Option<_>>().map(Given::List)
        }
        value => single(value).map(Given::Single),
    }
}

fn single(value: &DeValue<'_>) -> Option<OsString> {
    match value {
        DeValue::String(text) => Some(text.as_ref().into()),
        DeValue::Integer(number) => decimal(number),
        DeValue::Float(number) => Some(number.as_str().into()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// TOML has numbers in bases that flags do not know.
fn decimal(number: &DeInteger<'_>) -> Option<OsString> {
    match number.radix() {
        10 => Some(number.as_str().into()),
        radix => Some(i128::from_str_radix(number.as_str(), radix).ok()?.to_string().into()),
    }
}
