//! The schemas in `docs/schemas/`, one file a message: `<topic>.json`, or `<topic>.<EVENT_TYPE>.json`
//! where each type has its own. What is published is held against them, the page `docs/events.md` is
//! made of them, and they may only grow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

const FOLDER: &str = "docs/schemas";
/// What consumers rely on: the fields of the last release.
pub const RELEASED: &str = "docs/schemas/released/fields.json";
pub const PAGE: &str = "docs/events.md";

pub struct Schema {
    /// The file's name without its ending.
    pub name: String,
    pub json: Value,
}

impl Schema {
    pub fn topic(&self) -> &str {
        self.split().0
    }

    /// The one type that it is for, if it is for one.
    fn event_type(&self) -> Option<&str> {
        self.split().1
    }

    fn split(&self) -> (&str, Option<&str>) {
        match self.name.rsplit_once('.') {
            Some((topic, last)) if last.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                (topic, Some(last))
            }
            _ => (&self.name, None),
        }
    }

    fn is_for(&self, topic: &str, event_type: &str) -> bool {
        self.topic() == topic && self.event_type().is_none_or(|own| own == event_type)
    }

    /// The values that its messages may have as their type.
    pub fn event_types(&self) -> Vec<String> {
        let words = self.json["properties"]["event_type"]["enum"].as_array();
        words.into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    }
}

/// All of them, by name.
pub fn all(root: &Path) -> Result<Vec<Schema>, String> {
    let folder = root.join(FOLDER);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{FOLDER}: {error}"))?;
    let mut schemas = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some(name) = name.strip_suffix(".json") else { continue };
        let text = std::fs::read(&path).map_err(|error| format!("{FOLDER}/{name}: {error}"))?;
        let json =
            serde_json::from_slice(&text).map_err(|error| format!("{FOLDER}/{name}: {error}"))?;
        schemas.push(Schema { name: name.to_owned(), json });
    }
    schemas.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(schemas)
}

/// Holds messages against the schemas.
pub struct Judge(Vec<(Schema, Validator)>);

impl Judge {
    pub fn new(root: &Path) -> Result<Self, String> {
        let schemas = all(root)?.into_iter().map(|schema| {
            let validator = jsonschema::options().should_validate_formats(true);
            let validator = validator.build(&schema.json);
            let validator = validator.map_err(|error| format!("{}: {error}", schema.name))?;
            Ok((schema, validator))
        });
        Ok(Self(schemas.collect::<Result<_, String>>()?))
    }

    /// The name of the schema that a message keeps to, or everything that is wrong with it. A field
    /// that no schema tells of is wrong too.
    pub fn judge(&self, topic: &str, message: &Value) -> Result<&str, String> {
        let event_type = message["event_type"].as_str().unwrap_or_default();
        let found = self.0.iter().find(|(schema, _)| schema.is_for(topic, event_type));
        let Some((schema, validator)) = found else {
            return Err(format!("no schema is for {event_type} on {topic}"));
        };
        let errors = validator.iter_errors(message);
        let mut wrong: Vec<String> =
            errors.map(|error| format!("{}: {error}", error.instance_path())).collect();
        untold("", message, &schema.json, &mut wrong);
        if wrong.is_empty() {
            return Ok(&schema.name);
        }
        Err(format!("{}: {}: {message}", schema.name, wrong.join("; ")))
    }
}

/// Fields of a value that its schema does not tell of.
fn untold(path: &str, value: &Value, schema: &Value, found: &mut Vec<String>) {
    if let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        for (name, value) in fields {
            match properties.get(name) {
                Some(schema) => untold(&format!("{path}/{name}"), value, schema, found),
                None if schema["additionalProperties"] == true => {}
                None => found.push(format!("{path}/{name} is in no schema")),
            }
        }
    }
    for item in value.as_array().into_iter().flatten() {
        untold(&format!("{path}[]"), item, &schema["items"], found);
    }
}

/// What a consumer may rely on in one field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    types: BTreeSet<String>,
    is_required: bool,
    words: BTreeSet<String>,
}

type Fields = BTreeMap<String, Field>;

fn fields(schema: &Value) -> Fields {
    let mut fields = Fields::new();
    collect("", schema, &mut fields);
    fields
}

fn collect(path: &str, schema: &Value, fields: &mut Fields) {
    let texts = |value: &Value| -> BTreeSet<String> {
        let one = value.as_str().into_iter();
        let many = value.as_array().into_iter().flatten().map(|word| word.as_str());
        one.chain(many.map(|word| word.unwrap_or("null"))).map(str::to_owned).collect()
    };
    let required = texts(&schema["required"]);
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let field = Field {
            types: texts(&inner["type"]),
            is_required: required.contains(name),
            words: texts(&inner["enum"]),
        };
        fields.insert(path.clone(), field);
        collect(&path, inner, fields);
        collect(&format!("{path}[]"), &inner["items"], fields);
    }
}

/// The file that a release writes.
pub fn release(schemas: &[Schema]) -> Value {
    let schemas = schemas.iter().map(|schema| {
        let fields = fields(&schema.json).into_iter().map(|(path, field)| {
            let Field { types, is_required, words } = field;
            (path, json!({"types": types, "required": is_required, "words": words}))
        });
        (schema.name.clone(), Value::Object(fields.collect()))
    });
    Value::Object(schemas.collect())
}

/// How schemas break what consumers rely on.
pub fn breaks(released: &Value, now: &[Schema]) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, fields_then) in released.as_object().into_iter().flatten() {
        let Some(schema) = now.iter().find(|schema| schema.name == *name) else {
            broken.push(format!("{name} is gone"));
            continue;
        };
        let fields = fields(&schema.json);
        for (path, then) in fields_then.as_object().into_iter().flatten() {
            let Some(field) = fields.get(path) else {
                broken.push(format!("{name}: {path} is gone"));
                continue;
            };
            let words = |name: &str| -> BTreeSet<String> {
                let words = then[name].as_array().into_iter().flatten();
                words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
            };
            if words("types") != field.types {
                broken.push(format!("{name}: {path} has another type"));
            }
            if then["required"] == true && !field.is_required {
                broken.push(format!("{name}: {path} may be missing now"));
            }
            for word in words("words").difference(&field.words) {
                broken.push(format!("{name}: {path} is never {word} any more"));
            }
        }
    }
    broken
}

/// `docs/events.md`.
pub fn page(schemas: &[Schema]) -> String {
    let mut text = String::from(
        "# What is published\n\n\
         Made by `make schemas` from the schemas in [schemas](schemas); CI checks that it is in step.\n\
         The relay's tests hold all that they publish against the same files.\n\n\
         Every message has this envelope. Its key is `aggregate_id`: messages of one aggregate on one\n\
         topic come in order, each at least once. Drop an `event_id` that you have seen; a message with\n\
         a lower `seq` than its aggregate's last is late or repeated.\n\n",
    );
    let Some(first) = schemas.first() else { return text };
    text += &table(&first.json, |name| name != "payload");
    text += "\nHeaders of every record: `event_id`, `seq` (the aggregate's version after the commit, which all\n\
             of its messages share), and `X-Worker-Signature`, `X-Worker-Id` (`outbox-relay`) and `X-Worker-Timestamp`,\n\
             as workers sign theirs: check them before you act on a command.\n\n\
             Schemas only grow: what is released stays, with its type and its words.\n";
    let mut topic = "";
    for schema in schemas {
        if schema.topic() != topic {
            topic = schema.topic();
            text += &format!("\n## `{topic}`\n");
        }
        let name = schema.event_type().unwrap_or_default();
        if !name.is_empty() {
            text += &format!("\n### {name}\n");
        }
        let description = schema.json["description"].as_str().unwrap_or_default();
        text += &format!("\n[schema](schemas/{}.json). {description}\n", schema.name);
        if name.is_empty() {
            let words: Vec<String> =
                schema.event_types().iter().map(|word| format!("`{word}`")).collect();
            text += &format!("\n`event_type` is one of {}.\n", words.join(", "));
        }
        text += "\n";
        let common = &first.json["properties"];
        text += &table(&schema.json, |name| common.get(name).is_none());
        text += &table(&schema.json["properties"]["payload"], |_| true);
    }
    text
}

fn table(schema: &Value, is_wanted: impl Fn(&str) -> bool) -> String {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let wanted = schema["properties"].as_object().into_iter().flatten();
    let rows = wanted.filter(|(name, _)| is_wanted(name)).map(|(name, field)| {
        let types = match &field["type"] {
            Value::Array(types) => {
                let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
                types.join(" or ")
            }
            kind => kind.as_str().unwrap_or_default().to_owned(),
        };
        let always = if required.contains(&json!(name)) { "" } else { ", optional" };
        let description = field["description"].as_str().unwrap_or_default();
        format!("| `{name}` | {types}{always} | {description} |\n")
    });
    let rows: String = rows.collect();
    if rows.is_empty() {
        rows
    } else {
        format!("| field | type | meaning |\n|---|---|---|\n{rows}")
    }
}

#[cfg(test)]
mod tests {
    use domain::fact;
    use domain::state::Status;

    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    fn sample() -> Schema {
        let payload = json!({
            "type": "object", "required": ["seq"],
            "properties": {"seq": {"type": "integer"}, "word": {"type": "string", "enum": ["A"]}},
        });
        let json =
            json!({"type": "object", "required": ["payload"], "properties": {"payload": payload}});
        Schema { name: "deal.events".to_owned(), json }
    }

    #[test]
    fn a_removed_renamed_or_retyped_field_breaks_what_was_released() {
        let released = release(&[sample()]);
        assert_eq!(breaks(&released, &[sample()]), Vec::<String>::new());
        let after = |change: &dyn Fn(&mut Value)| {
            let mut schema = sample();
            change(&mut schema.json["properties"]["payload"]);
            breaks(&released, &[schema])
        };
        let renamed = after(&|payload| {
            let field = payload["properties"].as_object_mut().unwrap().remove("seq").unwrap();
            payload["properties"]["number"] = field;
        });
        assert_eq!(renamed, ["deal.events: payload.seq is gone"]);
        let retyped = after(&|payload| payload["properties"]["seq"]["type"] = "string".into());
        assert_eq!(retyped, ["deal.events: payload.seq has another type"]);
        let optional = after(&|payload| payload["required"] = json!([]));
        assert_eq!(optional, ["deal.events: payload.seq may be missing now"]);
        let reworded = after(&|payload| payload["properties"]["word"]["enum"] = json!(["B"]));
        assert_eq!(reworded, ["deal.events: payload.word is never A any more"]);
        let grown = after(&|payload| {
            payload["properties"]["more"] = json!({"type": "string"});
            payload["properties"]["word"]["enum"] = json!(["A", "B"]);
            payload["required"] = json!(["seq", "word"]);
        });
        assert_eq!(grown, Vec::<String>::new());
        assert_eq!(breaks(&released, &[]), ["deal.events is gone"]);
    }

    #[test]
    fn what_was_released_still_holds() {
        let text = std::fs::read(root().join(RELEASED)).unwrap();
        let released: Value = serde_json::from_slice(&text).unwrap();
        let schemas = all(root()).unwrap();
        assert_eq!(released.as_object().map(serde_json::Map::len), Some(schemas.len()));
        assert_eq!(breaks(&released, &schemas), Vec::<String>::new());
    }

    #[test]
    fn every_word_of_the_journal_is_in_the_schema_of_its_topic() {
        let schemas = all(root()).unwrap();
        let schema = schemas.iter().find(|schema| schema.name == "deal.events").unwrap();
        let told: BTreeSet<String> = schema.event_types().into_iter().collect();
        let words = Status::ALL.into_iter().map(Status::name).chain(fact::WORDS.iter().copied());
        assert_eq!(told, words.map(str::to_owned).collect());
    }

    #[test]
    fn a_message_that_keeps_to_no_schema_is_found() {
        let judge = Judge::new(root()).unwrap();
        let deal = "3f0e2b7a-1111-4222-8333-444455556666";
        let good = json!({
            "event_id": "01HYABCDEF1234567890QRSTVW",
            "aggregate_type": "Deal",
            "aggregate_id": deal,
            "event_type": "GENERATE_DEPOSIT_ADDRESS",
            "payload": {"command_id": format!("deposit-address:{deal}"), "deal_id": deal},
            "timestamp": "2026-01-02T03:04:05.678Z",
        });
        let topic = "escrow.commands";
        let name = judge.judge(topic, &good).unwrap();
        assert_eq!(name, "escrow.commands.GENERATE_DEPOSIT_ADDRESS");
        assert!(judge.judge("deal.events", &good).is_err(), "not on that topic");
        let change = |pointer: &str, value: Value| {
            let mut bad = good.clone();
            let (path, name) = pointer.rsplit_once('/').unwrap();
            bad.pointer_mut(path).unwrap()[name] = value;
            judge.judge(topic, &bad).unwrap_err()
        };
        assert!(change("/event_id", json!("x")).contains("/event_id"));
        assert!(change("/timestamp", json!("yesterday")).contains("/timestamp"));
        assert!(change("/payload/deal_id", Value::Null).contains("/payload/deal_id"));
        assert!(change("/payload/more", json!(1)).contains("/payload/more is in no schema"));
    }
}
