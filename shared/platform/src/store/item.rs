//! The bridge between JSON values, which rows are described in, and DynamoDB attributes.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Map, Value};

pub type Item = HashMap<String, AttributeValue>;

pub fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Nulls are left out: an absent attribute says the same in less room.
pub fn from_json(value: Value) -> Item {
    let Value::Object(fields) = value else { panic!("a row is an object") };
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| (name, attribute(value))).collect()
}

fn attribute(value: Value) -> AttributeValue {
    match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(flag) => AttributeValue::Bool(flag),
        Value::Number(number) => AttributeValue::N(number.to_string()),
        Value::String(text) => AttributeValue::S(text),
        Value::Array(values) => AttributeValue::L(values.into_iter().map(attribute).collect()),
        object @ Value::Object(_) => AttributeValue::M(from_json(object)),
    }
}

pub fn to_json(item: Item) -> Value {
    let fields = item.into_iter().map(|(name, value)| (name, json(value)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn json(value: AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => Value::String(text),
        // Whole numbers only: nothing of ours has a fraction.
        AttributeValue::N(number) => number.parse::<i64>().map_or(Value::Null, Value::from),
        AttributeValue::Bool(flag) => Value::Bool(flag),
        AttributeValue::L(values) => Value::Array(values.into_iter().map(json).collect()),
        AttributeValue::M(fields) => to_json(fields),
        AttributeValue::B(bytes) => Value::String(hex::encode(bytes)),
        _ => Value::Null,
    }
}
