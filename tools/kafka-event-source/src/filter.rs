//! Filter criteria: which records a mapping's function gets to see. The pattern language is the one
//! that Lambda documents for the `value` of Kafka records.
//!
//! A pattern mirrors the shape of the data; its leaves are lists of alternatives. A record passes if
//! any filter matches it.
//!
//! Where a pattern asks for JSON and the value is none, or the other way round, AWS's documents do not
//! agree with each other: one says that such a record is dropped, another that only its metadata is
//! filtered, which lets it pass. `Mismatch` chooses; dropped is the default, since it is the dangerous
//! one: whoever loses nothing then loses nothing either way.

#![expect(clippy::disallowed_types, reason = "JSON's numbers are compared as AWS does; no money")]

use serde_json::{Map, Number, Value};

/// AWS's limits.
const MAX_FILTERS: usize = 10;
const MAX_PATTERN_CHARS: usize = 4096;
const RANGE: f64 = 5e9;

/// What is wrong with a pattern, and where.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter pattern: {0}")]
pub struct Invalid(String);

/// What becomes of a record whose value has another format than its filter asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mismatch {
    #[default]
    Drop,
    Deliver,
}

/// All filters of a mapping. None at all let everything pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Criteria(Vec<Pattern>);

#[derive(Debug, Clone, PartialEq)]
enum Pattern {
    /// `{"value": {…}}`
    Json(Object),
    /// `{"value": ["text", …]}`
    Text(Vec<Leaf>),
    /// Nothing is asked of the value.
    Any,
}

#[derive(Debug, Clone, PartialEq)]
struct Object {
    fields: Vec<(String, Node)>,
    /// `$or`: at least one of these has to match too.
    any_of: Vec<Object>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Object(Object),
    Leaves(Vec<Leaf>),
}

#[derive(Debug, Clone, PartialEq)]
enum Leaf {
    Null,
    Text(String),
    Number(Number),
    Bool(bool),
    IgnoreCase(String),
    Prefix(String),
    Suffix(String),
    AnythingBut(Vec<Value>),
    Numeric(Vec<(Comparison, f64)>),
    Exists(bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Criteria {
    /// Reads the patterns of a mapping, each a JSON text.
    pub fn parse<T: AsRef<str>>(patterns: &[T]) -> Result<Self, Invalid> {
        if patterns.len() > MAX_FILTERS {
            return Err(Invalid(format!("{} filters; {MAX_FILTERS} are allowed", patterns.len())));
        }
        patterns.iter().map(|text| pattern(text.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    pub fn passes(&self, value: Option<&[u8]>, mismatch: Mismatch) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let json = value.and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let structured = json.as_ref().filter(|json| json.is_object() || json.is_array());
        let text = value.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let deliver = mismatch == Mismatch::Deliver;
        self.0.iter().any(|pattern| match pattern {
            Pattern::Any => true,
            Pattern::Json(object) => structured.map_or(deliver, |data| object.matches(data)),
            Pattern::Text(leaves) => {
                let text = text.filter(|_| structured.is_none());
                text.map_or(deliver, |text| {
                    let data = Value::String(text.to_owned());
                    leaves.iter().any(|leaf| leaf.matches(Some(&data)))
                })
            }
        })
    }
}

fn pattern(text: &str) -> Result<Pattern, Invalid> {
    if text.chars().count() > MAX_PATTERN_CHARS {
        return Err(Invalid(format!("longer than {MAX_PATTERN_CHARS} characters")));
    }
    let parsed: Value =
        serde_json::from_str(text).map_err(|error| Invalid(format!("it is not JSON: {error}")))?;
    let Value::Object(mut fields) = parsed else {
        return Err(Invalid("it is no JSON object".to_owned()));
    };
    let value = fields.remove("value");
    if let Some(other) = fields.keys().next() {
        let why = "of a Kafka record only `value` can be filtered";
        return Err(Invalid(format!("{other:?}: {why}")));
    }
    match value {
        None => Ok(Pattern::Any),
        Some(Value::Object(object)) => Ok(Pattern::Json(Object::read(&object, "value")?)),
        Some(Value::Array(leaves)) => Ok(Pattern::Text(read_leaves(&leaves, "value")?)),
        Some(_) => Err(Invalid("value is neither an object nor a list".to_owned())),
    }
}

impl Object {
    fn read(object: &Map<String, Value>, path: &str) -> Result<Self, Invalid> {
        let mut read = Self { fields: Vec::new(), any_of: Vec::new() };
        for (name, inner) in object {
            let path = format!("{path}.{name}");
            match inner {
                Value::Array(alternatives) if name == "$or" => {
                    for alternative in alternatives {
                        let alternative = alternative
                            .as_object()
                            .ok_or_else(|| Invalid(format!("{path} is no list of objects")))?;
                        read.any_of.push(Self::read(alternative, &path)?);
                    }
                    if read.any_of.len() < 2 {
                        return Err(Invalid(format!("{path} needs two alternatives or more")));
                    }
                }
                Value::Array(leaves) => {
                    let leaves = read_leaves(leaves, &path)?;
                    read.fields.push((name.clone(), Node::Leaves(leaves)));
                }
                Value::Object(inner) => {
                    let inner = Self::read(inner, &path)?;
                    read.fields.push((name.clone(), Node::Object(inner)));
                }
                _ => return Err(Invalid(format!("{path} is neither an object nor a list"))),
            }
        }
        if read.fields.is_empty() && read.any_of.is_empty() {
            return Err(Invalid(format!("{path} is empty")));
        }
        Ok(read)
    }

    /// Data that is a list matches if one of its elements does: the same one in all fields.
    fn matches(&self, data: &Value) -> bool {
        match data {
            Value::Array(elements) if !elements.is_empty() => {
                elements.iter().any(|element| self.matches(element))
            }
            Value::Object(_) | Value::Array(_) => {
                self.fields.iter().all(|(name, node)| node.matches(data.get(name)))
                    && (self.any_of.is_empty()
                        || self.any_of.iter().any(|object| object.matches(data)))
            }
            // Nothing can be inside of it: only a pattern that asks for absence is content.
            _ => {
                self.fields.iter().all(|(_, node)| node.matches(None))
                    && (self.any_of.is_empty()
                        || self.any_of.iter().any(|object| object.matches(data)))
            }
        }
    }
}

impl Node {
    fn matches(&self, data: Option<&Value>) -> bool {
        match self {
            Self::Object(object) => object.matches(data.unwrap_or(&Value::Null)),
            Self::Leaves(leaves) => leaves.iter().any(|leaf| leaf.matches(data)),
        }
    }
}

impl Leaf {
    fn matches(&self, data: Option<&Value>) -> bool {
        // Only a leaf exists: an object, or a list without one, is as good as absent.
        match data {
            Some(Value::Array(elements)) => {
                let mut leaves = Vec::new();
                flatten(elements, &mut leaves);
                if leaves.is_empty() {
                    return self.matches_leaf(None);
                }
                leaves.into_iter().any(|leaf| self.matches_leaf(Some(leaf)))
            }
            Some(Value::Object(_)) | None => self.matches_leaf(None),
            Some(leaf) => self.matches_leaf(Some(leaf)),
        }
    }

    fn matches_leaf(&self, data: Option<&Value>) -> bool {
        if let Self::Exists(wanted) = self {
            return data.is_some() == *wanted;
        }
        let Some(data) = data else { return false };
        let text = data.as_str();
        match self {
            Self::Null => data.is_null(),
            Self::Text(wanted) => text == Some(wanted),
            Self::Number(wanted) => data.as_number().is_some_and(|number| same(number, wanted)),
            Self::Bool(wanted) => data.as_bool() == Some(*wanted),
            Self::IgnoreCase(wanted) => {
                text.is_some_and(|text| text.to_lowercase() == wanted.to_lowercase())
            }
            Self::Prefix(wanted) => text.is_some_and(|text| text.starts_with(wanted)),
            Self::Suffix(wanted) => text.is_some_and(|text| text.ends_with(wanted)),
            Self::AnythingBut(unwanted) => !unwanted.contains(data),
            Self::Numeric(comparisons) => data.as_f64().is_some_and(|number| {
                number.abs() <= RANGE
                    && comparisons.iter().all(|(how, bound)| how.holds(number, *bound))
            }),
            Self::Exists(_) => unreachable!("answered above"),
        }
    }
}

fn flatten<'a>(elements: &'a [Value], leaves: &mut Vec<&'a Value>) {
    for element in elements {
        match element {
            Value::Array(inner) => flatten(inner, leaves),
            Value::Object(_) => {}
            leaf => leaves.push(leaf),
        }
    }
}

/// Lambda's documents say that 300 and 300.0 differ; the engine behind them takes them for equal.
fn same(number: &Number, wanted: &Number) -> bool {
    let near = |number: &Number| number.as_f64().filter(|number| number.abs() <= RANGE);
    number == wanted || near(number).is_some_and(|number| Some(number) == near(wanted))
}

impl Comparison {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "=" => Self::Equal,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    fn holds(self, number: f64, bound: f64) -> bool {
        match self {
            Self::Equal => number == bound,
            Self::Less => number < bound,
            Self::LessOrEqual => number <= bound,
            Self::Greater => number > bound,
            Self::GreaterOrEqual => number >= bound,
        }
    }
}

fn read_leaves(leaves: &[Value], path: &str) -> Result<Vec<Leaf>, Invalid> {
    if leaves.is_empty() {
        return Err(Invalid(format!("{path} is an empty list, which matches nothing")));
    }
    leaves.iter().map(|leaf| read_leaf(leaf, path)).collect()
}

fn read_leaf(leaf: &Value, path: &str) -> Result<Leaf, Invalid> {
    let operator = match leaf {
        Value::Null => return Ok(Leaf::Null),
        Value::String(text) => return Ok(Leaf::Text(text.clone())),
        Value::Number(number) => return Ok(Leaf::Number(number.clone())),
        Value::Bool(value) => return Ok(Leaf::Bool(*value)),
        Value::Array(_) => return Err(Invalid(format!("{path} has a list inside a list"))),
        Value::Object(operator) => operator,
    };
    let (Some((name, argument)), 1) = (operator.iter().next(), operator.len()) else {
        return Err(Invalid(format!("{path} has an object that is not one operator")));
    };
    let text = || {
        let text = argument.as_str().map(str::to_owned);
        text.ok_or_else(|| Invalid(format!("{path}: {name} takes a text")))
    };
    Ok(match name.as_str() {
        "equals-ignore-case" => Leaf::IgnoreCase(text()?),
        "prefix" => Leaf::Prefix(text()?),
        "suffix" => Leaf::Suffix(text()?),
        "exists" => {
            let wanted = argument.as_bool();
            let wrong = || Invalid(format!("{path}: exists takes true or false"));
            Leaf::Exists(wanted.ok_or_else(wrong)?)
        }
        "anything-but" => Leaf::AnythingBut(read_unwanted(argument, path)?),
        "numeric" => Leaf::Numeric(read_comparisons(argument, path)?),
        _ => return Err(Invalid(format!("{path}: there is no operator {name:?} for Kafka"))),
    })
}

fn read_unwanted(argument: &Value, path: &str) -> Result<Vec<Value>, Invalid> {
    let list = match argument {
        Value::Array(list) => list.clone(),
        single => vec![single.clone()],
    };
    let plain = |value: &Value| value.is_string() || value.is_number();
    if list.is_empty() || !list.iter().all(plain) {
        return Err(Invalid(format!("{path}: anything-but takes texts or numbers")));
    }
    Ok(list)
}

fn read_comparisons(argument: &Value, path: &str) -> Result<Vec<(Comparison, f64)>, Invalid> {
    let wrong =
        || Invalid(format!("{path}: numeric takes [\"=\", n] or one or two of < <= > >= with n"));
    let list = argument.as_array().filter(|list| matches!(list.len(), 2 | 4)).ok_or_else(wrong)?;
    let pair = |pair: &[Value]| {
        let how = pair[0].as_str().and_then(Comparison::parse)?;
        let bound = pair[1].as_f64().filter(|bound| bound.abs() <= RANGE)?;
        Some((how, bound))
    };
    let read: Option<Vec<_>> = list.chunks(2).map(pair).collect();
    let read = read.ok_or_else(wrong)?;
    // A range has a lower bound, then an upper one.
    let lower = |how: Comparison| matches!(how, Comparison::Greater | Comparison::GreaterOrEqual);
    let upper = |how: Comparison| matches!(how, Comparison::Less | Comparison::LessOrEqual);
    let sound = match read.as_slice() {
        [_] => true,
        [(first, from), (second, to)] => lower(*first) && upper(*second) && from < to,
        _ => false,
    };
    if sound { Ok(read) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn passes(pattern: Value, data: &Value) -> bool {
        let criteria = Criteria::parse(&[pattern.to_string()]).unwrap();
        criteria.passes(Some(data.to_string().as_bytes()), Mismatch::Drop)
    }

    #[test]
    fn every_operator_takes_what_it_should_and_leaves_the_rest() {
        let cases = [
            ("null", json!({"a": [null]}), json!({"a": null}), json!({"a": "null"})),
            ("empty", json!({"a": [""]}), json!({"a": ""}), json!({"a": null})),
            ("text", json!({"a": ["x"]}), json!({"a": "x"}), json!({"a": "X"})),
            ("number", json!({"a": [5]}), json!({"a": 5}), json!({"a": "5"})),
            ("number, other spelling", json!({"a": [300]}), json!({"a": 3e2}), json!({"a": 301})),
            ("true", json!({"a": [true]}), json!({"a": true}), json!({"a": false})),
            ("or", json!({"a": ["x", 5]}), json!({"a": 5}), json!({"a": 6})),
            ("and", json!({"a": [1], "b": [2]}), json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3})),
            ("nested", json!({"a": {"b": [1]}}), json!({"a": {"b": 1}}), json!({"a": 1})),
            (
                "$or",
                json!({"c": [0], "$or": [{"a": [1]}, {"b": [2]}]}),
                json!({"c": 0, "b": 2}),
                json!({"c": 0, "b": 1}),
            ),
            (
                "equals-ignore-case",
                json!({"a": [{"equals-ignore-case": "Ab"}]}),
                json!({"a": "aB"}),
                json!({"a": "abc"}),
            ),
            ("prefix", json!({"a": [{"prefix": "us-"}]}), json!({"a": "us-1"}), json!({"a": "eu"})),
            ("suffix", json!({"a": [{"suffix": "g"}]}), json!({"a": "png"}), json!({"a": "gi"})),
            (
                "anything-but",
                json!({"a": [{"anything-but": ["x", 1]}]}),
                json!({"a": "y"}),
                json!({"a": 1}),
            ),
            (
                "anything-but, a list",
                json!({"a": [{"anything-but": "x"}]}),
                json!({"a": ["x", "y"]}),
                json!({"a": ["x"]}),
            ),
            (
                "anything-but, other types",
                json!({"a": [{"anything-but": [100]}]}),
                json!({"a": null}),
                json!({"a": []}),
            ),
            (
                "anything-but, absent",
                json!({"a": [{"anything-but": "x"}]}),
                json!({"a": 1}),
                json!({}),
            ),
            (
                "numeric =",
                json!({"a": [{"numeric": ["=", 3]}]}),
                json!({"a": 3.0}),
                json!({"a": 4}),
            ),
            (
                "numeric range",
                json!({"a": [{"numeric": [">", 1, "<=", 3]}]}),
                json!({"a": 3}),
                json!({"a": 1}),
            ),
            (
                "numeric, text",
                json!({"a": [{"numeric": ["<", 3]}]}),
                json!({"a": 1}),
                json!({"a": "1"}),
            ),
            ("exists", json!({"a": [{"exists": true}]}), json!({"a": null}), json!({"b": 1})),
            (
                "exists, a node",
                json!({"a": [{"exists": true}]}),
                json!({"a": 1}),
                json!({"a": {"b": 1}}),
            ),
            ("absent", json!({"a": [{"exists": false}]}), json!({"b": 1}), json!({"a": 1})),
            (
                "absent inside",
                json!({"a": {"b": [{"exists": false}]}}),
                json!({"c": 1}),
                json!({"a": {"b": 1}}),
            ),
            ("a list of values", json!({"a": [2]}), json!({"a": [1, 2]}), json!({"a": [1, 3]})),
            (
                "a list of objects",
                json!({"a": {"b": [1], "c": [2]}}),
                json!({"a": [{"b": 0}, {"b": 1, "c": 2}]}),
                json!({"a": [{"b": 1}, {"c": 2}]}),
            ),
            (
                "an empty list",
                json!({"a": [{"exists": false}]}),
                json!({"a": []}),
                json!({"a": [1]}),
            ),
        ];
        for (name, pattern, taken, left) in cases {
            let pattern = json!({"value": pattern});
            assert!(passes(pattern.clone(), &taken), "{name}: {taken} does not pass {pattern}");
            assert!(!passes(pattern.clone(), &left), "{name}: {left} passes {pattern}");
        }
    }

    #[test]
    fn a_value_of_the_other_format_is_dropped_or_delivered_as_chosen() {
        let json = Criteria::parse(&[r#"{"value":{"a":[{"exists":false}]}}"#]).unwrap();
        for value in
            [Some(&b"plain"[..]), Some(b""), Some(b"{\"b\":"), Some(b"\xff"), Some(b"7"), None]
        {
            assert!(!json.passes(value, Mismatch::Drop), "{value:?}");
            assert!(json.passes(value, Mismatch::Deliver), "{value:?}");
        }
        assert!(json.passes(Some(b"{}"), Mismatch::Drop));
        let text = Criteria::parse(&[r#"{"value":["plain",{"prefix":"x"}]}"#]).unwrap();
        for mismatch in [Mismatch::Drop, Mismatch::Deliver] {
            assert!(text.passes(Some(b"plain"), mismatch) && text.passes(Some(b"xyz"), mismatch));
            assert!(!text.passes(Some(b"other"), mismatch));
            let other = text.passes(Some(b"{\"plain\":1}"), mismatch);
            assert_eq!(other, mismatch == Mismatch::Deliver);
        }
    }

    #[test]
    fn one_of_several_filters_is_enough_and_none_lets_all_pass() {
        let two = [r#"{"value":{"t":["A"]}}"#, r#"{"value":{"t":["B"]}}"#];
        let criteria = Criteria::parse(&two).unwrap();
        assert!(criteria.passes(Some(br#"{"t":"B"}"#), Mismatch::Drop));
        assert!(!criteria.passes(Some(br#"{"t":"C"}"#), Mismatch::Drop));
        let none: [&str; 0] = [];
        assert!(Criteria::parse(&none).unwrap().passes(Some(b"\xff"), Mismatch::Drop));
        assert!(Criteria::parse(&["{}"]).unwrap().passes(None, Mismatch::Drop));
    }

    #[test]
    fn a_wrong_pattern_is_refused_with_its_place() {
        let cases = [
            ("[]", "no JSON object"),
            ("{", "not JSON"),
            (r#"{"key":["a"]}"#, "\"key\""),
            (r#"{"value":{"a":"b"}}"#, "value.a"),
            (r#"{"value":{"a":[]}}"#, "value.a"),
            (r#"{"value":{}}"#, "value is empty"),
            (r#"{"value":{"a":[{"wildcard":"*"}]}}"#, "wildcard"),
            (r#"{"value":{"a":[{"numeric":["<",1,">",0]}]}}"#, "numeric"),
            (r#"{"value":{"a":[{"numeric":[">",6000000000]}]}}"#, "numeric"),
            (r#"{"value":{"a":[{"anything-but":[null]}]}}"#, "anything-but"),
            (r#"{"value":{"a":[{"exists":"yes"}]}}"#, "exists"),
            (r#"{"value":{"$or":[{"a":[1]}]}}"#, "$or"),
        ];
        for (pattern, place) in cases {
            let told = Criteria::parse(&[pattern]).unwrap_err().to_string();
            assert!(told.contains(place), "{pattern}: {told}");
        }
        let long = format!(r#"{{"value":{{"a":["{}"]}}}}"#, "x".repeat(4096));
        assert!(Criteria::parse(&[long]).is_err());
        assert!(Criteria::parse(&["{}"; 11]).is_err());
    }
}
