//! A node's configuration file: what `muser produce` and `muser serve` need to find each other.
//!
//! A file that is there already is somebody's: what it says stays, byte for byte. A table that is missing is added at its
//! end, a key that is missing behind the head of its table, and a producer to those that are there. What contradicts that, or
//! cannot be added so, is left to the person.

use std::ops::Range;
use std::path::Path;

use muser_enrol::{Rates, Round};
use muser_files::change_text;
use muser_trust::Address;
use muser_trust::identity::IdentityError;
use toml::de::DeTable;
use toml::{Table, Value};

use crate::commands::cluster::ClusterFailure;
use crate::failure::Failure;
use crate::settings::KvType;
use crate::settings::enroll::EnrollArgs;
use crate::usage::UsageError;

const PRODUCER: &str = "producer";
const PACE: &str = "pace";
/// Above this link rate pacing has no use.
const PACED_BELOW_GBIT_PER_S: f64 = 1.0;
/// Of the middle rate, so that queues on the way stay empty.
const PACE_PART: f64 = 0.95;

/// Settings to write into the file.
pub struct NodeConfig {
    /// For both commands.
    common: Vec<(&'static str, Value)>,
    serve: Option<Address>,
    produce: Option<Address>,
    pace: Option<f64>,
}

/// Result of writing the settings.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// The file has the settings.
    Written,
    /// Lines that the user has to add by hand.
    ByHand(String),
}

impl NodeConfig {
    /// For the node in `folder`, enrolled with `args`. Says nothing yet.
    pub fn new(folder: &Path, args: &EnrollArgs) -> Result<Self, Failure> {
        let text = |path: &Path| match path.to_str() {
            Some(text) => Ok(Value::from(text)),
            None => Err(UsageError::PathNotUtf8(path.to_owned())),
        };
        let mut common = vec![("cluster", text(folder)?)];
        if let Some(model) = &args.model {
            common.push(("model", text(&super::absolute(model)?)?));
        }
        if let Some(reference) = &args.hub.hf_repo {
            common.push(("hf-repo", reference.to_string().into()));
        }
        if let Some(file) = &args.hub.hf_file {
            common.push(("hf-file", file.to_string().into()));
        }
        if args.kv != KvType::Q8 {
            common.push(("cache-type-k", args.kv.to_string().into()));
            common.push(("cache-type-v", args.kv.to_string().into()));
        }
        Ok(Self { common, serve: None, produce: None, pace: None })
    }

    /// `muser serve` asks the producer at this address.
    pub fn serve_with(&mut self, producer: Address) {
        self.serve = Some(producer);
    }

    /// `muser produce` listens here, and sends over a link for which `rounds` were measured.
    pub fn produce_at(&mut self, listen: Address, rounds: &[Round]) {
        self.produce = Some(listen);
        let slow = Rates::of(rounds).map(|rates| rates.median).filter(|rate| *rate < PACED_BELOW_GBIT_PER_S);
        // Six places, in Gbit/s, are a kilobit.
        self.pace = slow.map(|rate| (rate * PACE_PART * 1e6).round() / 1e6).filter(|pace| *pace > 0.0);
    }

    /// Writes the file, or adds to it what it does not say yet.
    pub fn write_or_add(&self, path: &Path) -> Result<Outcome, Failure> {
        // Two enrolments at a time each add theirs.
        let written = change_text(path, |old| self.added_to(old));
        match written.map_err(|error| ClusterFailure::from(IdentityError::File(error)))? {
            true => Ok(Outcome::Written),
            false => Ok(Outcome::ByHand(self.text())),
        }
    }

    fn text(&self) -> String {
        self.tables().iter().map(|(table, keys)| table_text(table, keys)).collect::<Vec<_>>().join("\n")
    }

    /// The keys of every table.
    fn tables(&self) -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
        let with = |key, value: Value| [self.common.clone(), vec![(key, value)]].concat();
        let one = |address: Address| Value::from(vec![address.to_string()]);
        let serve = self.serve.map(|address| ("serve", with(PRODUCER, one(address))));
        let pace = self.pace.map(|pace| (PACE, pace.into()));
        let listening = |address: Address| with("listen", address.to_string().into()).into_iter().chain(pace).collect();
        let produce = self.produce.map(|address| ("produce", listening(address)));
        serve.into_iter().chain(produce).collect()
    }

    /// `old` with what it does not say yet; none if that cannot be added.
    fn added_to(&self, old: &str) -> Option<String> {
        let mut text = old.to_owned();
        let mut wanted: Table = text.parse().ok()?;
        for (table, keys) in self.tables() {
            if !wanted.contains_key(table) {
                if !text.is_empty() {
                    text += if text.ends_with('\n') { "\n" } else { "\n\n" };
                }
                text += &table_text(table, &keys);
                wanted.insert(
                    table.into(),
                    Value::Table(keys.into_iter().map(|(key, value)| (key.into(), value)).collect()),
                );
                continue;
            }
            let known = wanted.get_mut(table)?.as_table_mut()?;
            for (key, value) in keys {
                match known.get_mut(key) {
                    None => {
                        text = with_line(&text, table, &format!("{key} = {value}"))?;
                        known.insert(key.into(), value);
                    }
                    Some(found) if *found == value => {}
                    // No two measurements are the same.
                    Some(_) if key == PACE => {}
                    Some(found) if key == PRODUCER => {
                        let more = value.as_array()?.first()?.clone();
                        let mut all = found.as_array().cloned().unwrap_or_else(|| vec![found.clone()]);
                        if all.contains(&more) {
                            continue;
                        }
                        all.push(more);
                        let span = span_of(&text, table, key)?;
                        text.replace_range(span, &Value::Array(all.clone()).to_string());
                        *found = Value::Array(all);
                    }
                    // This machine's folder, model or address is another: not ours to decide.
                    Some(_) => return None,
                }
            }
        }
        // Whatever was found by its text must mean what was wanted.
        (text.parse::<Table>().ok()? == wanted).then_some(text)
    }
}

fn table_text(table: &str, keys: &[(&str, Value)]) -> String {
    let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    format!("[{table}]\n{lines}")
}

/// `text` with a line behind the head of a table.
fn with_line(text: &str, table: &str, line: &str) -> Option<String> {
    let head = format!("[{table}]");
    let mut lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.split('#').next().is_some_and(|line| line.trim() == head))?;
    lines.insert(at + 1, line);
    Some(lines.join("\n") + "\n")
}

/// Byte range of a value in `text`.
fn span_of(text: &str, table: &str, key: &str) -> Option<Range<usize>> {
    let parsed = DeTable::parse(text).ok()?;
    let of_table = parsed.get_ref().iter().find(|(name, _)| name.get_ref() == table)?.1;
    let table = of_table.get_ref().as_table()?;
    let value = table.iter().find(|(name, _)| name.get_ref() == key)?.1;
    Some(value.span())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn config(serve: Option<&str>, produce: Option<&str>) -> NodeConfig {
        let address = |text: &str| text.parse().unwrap();
        let common = vec![("cluster", Value::from("/a \"b\"/ours"))];
        NodeConfig { common, serve: serve.map(address), produce: produce.map(address), pace: None }
    }

    #[test]
    fn a_new_file_has_a_table_for_each_command_and_is_read_back() {
        let text = config(Some("10.0.0.7:9932"), Some("0.0.0.0:9932")).added_to("").unwrap();
        let table: Table = text.parse().unwrap();
        assert_eq!(table["serve"]["cluster"].as_str(), Some("/a \"b\"/ours"));
        assert_eq!(table["serve"]["producer"].as_array().unwrap().len(), 1);
        assert_eq!(table["produce"]["listen"].as_str(), Some("0.0.0.0:9932"));
    }

    #[test]
    fn a_slow_link_is_paced_below_its_middle_rate_and_a_fast_one_is_not() {
        // 100, 80 and 90 MB in a second.
        let rounds = |times: u64| {
            [100, 80, 90].map(|mega| Round { bytes: mega * 1_000_000 * times, wall_us: 1_000_000, busy_us: None })
        };
        let produce = |rounds: &[Round]| {
            let mut config = config(None, None);
            config.produce_at("0.0.0.0:1".parse().unwrap(), rounds);
            let table: Table = config.added_to("").unwrap().parse().unwrap();
            table["produce"].get("pace").and_then(Value::as_float)
        };
        assert_eq!(produce(&rounds(1)), Some(0.684));
        assert_eq!(produce(&rounds(2)), None);
        assert_eq!(produce(&[]), None);
    }

    #[test]
    fn what_a_person_wrote_stays_and_producers_are_added_once() {
        let old =
            "# mine\nthreads = 3\n\n[serve] # here\nport = 1\nproducer = [\n  \"10.0.0.7:9932\", # the first\n]\n";
        let added = config(Some("10.0.0.8:9932"), None).added_to(old).unwrap();
        assert!(added.starts_with("# mine\nthreads = 3\n\n[serve] # here\ncluster = "), "{added}");
        assert!(added.contains("\nport = 1\n") && added.contains("producer = [\"10.0.0.7:9932\", \"10.0.0.8:9932\"]"));
        assert_eq!(config(Some("10.0.0.8:9932"), None).added_to(&added), Some(added.clone()));
        let both = config(None, Some("0.0.0.0:1")).added_to(&added).unwrap();
        assert!(both.starts_with(&added) && both.contains("\n\n[produce]\ncluster = "), "{both}");
        let single = config(Some("10.0.0.8:9932"), None).added_to("[serve]\nproducer = \"10.0.0.7:9932\"\n").unwrap();
        assert!(single.contains("producer = [\"10.0.0.7:9932\", \"10.0.0.8:9932\"]"), "{single}");
    }

    #[test]
    fn a_file_that_says_otherwise_or_is_no_toml_is_left_to_the_person() {
        let ours = config(Some("10.0.0.8:9932"), Some("0.0.0.0:9932"));
        for old in ["[serve]\ncluster = \"/other\"\n", "[produce]\nlisten = \"0.0.0.0:1\"\n", "serve = 5\n", "[serve"] {
            assert_eq!(ours.added_to(old), None, "{old}");
        }
        // A table without a line of its own.
        assert_eq!(ours.added_to("serve = { port = 1 }\n"), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("muser.toml");
        fs::write(&path, "[serve").unwrap();
        assert!(matches!(ours.write_or_add(&path).unwrap(), Outcome::ByHand(lines) if lines.contains("[produce]")));
        assert_eq!(fs::read_to_string(&path).unwrap(), "[serve");
    }
}
