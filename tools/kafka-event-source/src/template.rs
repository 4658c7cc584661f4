//! Reads the mappings from a SAM template, built or not, or from the CloudFormation it becomes. Only
//! what the mappings need is evaluated: parameters, conditions, `!Ref`, `!Sub`, `!If`, `!Join`,
//! `!GetAtt`. A value that only a deploy would know stands as its resource's logical id.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::filter::Criteria;
use crate::mapping::{
    DEFAULT_BATCH_SIZE, DEFAULT_WINDOW_MS, MAX_BATCH_SIZE, MAX_WINDOW_MS, Mapping, Provisioned,
    Source, Start,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the template is not YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    #[error("{place}: {what}")]
    Bad { place: String, what: String },
}

fn bad(place: impl Into<String>, what: impl Into<String>) -> Error {
    Error::Bad { place: place.into(), what: what.into() }
}

pub struct Template {
    resources: Map<String, Value>,
    conditions: Map<String, Value>,
    /// Parameters and pseudo parameters.
    values: BTreeMap<String, Value>,
}

impl Template {
    /// Reads a template; `given` overrides the defaults of its parameters.
    pub fn read(text: &str, given: &BTreeMap<String, String>) -> Result<Self, Error> {
        let document = plain(serde_yaml_ng::from_str(text)?);
        let section = |name: &str| document[name].as_object().cloned().unwrap_or_default();
        let parameters = section("Parameters");
        if let Some(unknown) = given.keys().find(|name| !parameters.contains_key(*name)) {
            let known: Vec<&str> = parameters.keys().map(String::as_str).collect();
            let what = format!("there is no such parameter; there are: {}", known.join(", "));
            return Err(bad(unknown, what));
        }
        let mut values = BTreeMap::from([
            ("AWS::Region".to_owned(), json!(region())),
            ("AWS::AccountId".to_owned(), json!("000000000000")),
            ("AWS::Partition".to_owned(), json!("aws")),
            ("AWS::NoValue".to_owned(), Value::Null),
        ]);
        for (name, parameter) in &parameters {
            let given = given.get(name).map(|text| json!(text));
            if let Some(value) = given.or_else(|| parameter.get("Default").cloned()) {
                values.insert(name.clone(), value);
            }
        }
        Ok(Self { resources: section("Resources"), conditions: section("Conditions"), values })
    }

    /// All enabled Kafka mappings. `names` gives functions their names where the template does not.
    pub fn mappings(&self, names: &BTreeMap<String, String>) -> Result<Vec<Mapping>, Error> {
        let mut mappings = Vec::new();
        for (id, resource) in &self.resources {
            let properties = &resource["Properties"];
            match resource["Type"].as_str() {
                Some("AWS::Serverless::Function") => {
                    for (event, body) in properties["Events"].as_object().into_iter().flatten() {
                        let msk = match body["Type"].as_str() {
                            Some("MSK") => true,
                            Some("SelfManagedKafka") => false,
                            _ => continue,
                        };
                        let place = format!("{id}/{event}");
                        let function = self.function_name(id, names)?;
                        mappings.extend(self.mapping(place, function, &body["Properties"], msk)?);
                    }
                }
                Some("AWS::Lambda::EventSourceMapping") if !properties["Topics"].is_null() => {
                    let msk = properties["SelfManagedEventSource"].is_null();
                    let named = self.text(&properties["FunctionName"], id)?;
                    let function = if self.resources.contains_key(&named) {
                        self.function_name(&named, names)?
                    } else {
                        named
                    };
                    mappings.extend(self.mapping(id.clone(), function, properties, msk)?);
                }
                _ => {}
            }
        }
        Ok(mappings)
    }

    fn function_name(&self, id: &str, names: &BTreeMap<String, String>) -> Result<String, Error> {
        if let Some(name) = names.get(id) {
            return Ok(name.clone());
        }
        let place = format!("{id}/FunctionName");
        match self.value(&self.resources[id]["Properties"]["FunctionName"], &place)? {
            Value::String(name) => Ok(name),
            _ => Err(bad(place, format!("the template gives no name: say --function {id}=NAME"))),
        }
    }

    fn mapping(
        &self,
        place: String,
        function: String,
        properties: &Value,
        msk: bool,
    ) -> Result<Option<Mapping>, Error> {
        let at = |name: &str| format!("{place}/{name}");
        let get = |name: &str| self.value(&properties[name], &at(name));
        if get("Enabled")? == json!(false) {
            return Ok(None);
        }
        let topics = get("Topics")?;
        let topic = match topics.as_array().map(Vec::as_slice) {
            Some([Value::String(topic)]) => topic.clone(),
            _ => return Err(bad(at("Topics"), "exactly one topic is needed, as at AWS")),
        };
        let arn = if msk { get("Stream")?.as_str().map(str::to_owned) } else { None };
        let arn = match (msk, arn) {
            (true, None) => get("EventSourceArn")?.as_str().map(str::to_owned),
            (_, arn) => arn,
        };
        let config = ["AmazonManagedKafkaEventSourceConfig", "SelfManagedKafkaEventSourceConfig"];
        let mut group = get("ConsumerGroupId")?;
        for name in config {
            if group.is_null() {
                group = get(name)?["ConsumerGroupId"].take();
            }
        }
        let group = group.as_str().map_or_else(|| place.replace('/', "-"), str::to_owned);
        let start = match get("StartingPosition")?.as_str() {
            Some("TRIM_HORIZON") => Start::TrimHorizon,
            Some("LATEST") | None => Start::Latest,
            Some(other) => {
                return Err(bad(at("StartingPosition"), format!("{other} is not supported here")));
            }
        };
        let whole = |name: &str, default: u64, allowed: std::ops::RangeInclusive<u64>| {
            let value = get(name)?;
            let number = match &value {
                Value::Null => Some(default),
                Value::String(text) => text.parse().ok(),
                other => other.as_u64(),
            };
            let number = number.filter(|number| allowed.contains(number));
            let (from, to) = (allowed.start(), allowed.end());
            number.ok_or_else(|| {
                bad(at(name), format!("{value} is no whole number from {from} to {to}"))
            })
        };
        let batch_size = whole("BatchSize", DEFAULT_BATCH_SIZE as u64, 1..=MAX_BATCH_SIZE as u64)?;
        let window_ms = match get("MaximumBatchingWindowInSeconds")? {
            Value::Null => DEFAULT_WINDOW_MS,
            _ => whole("MaximumBatchingWindowInSeconds", 0, 0..=MAX_WINDOW_MS / 1000)? * 1000,
        };
        let filters = get("FilterCriteria")?["Filters"].take();
        let mut patterns = Vec::new();
        for filter in filters.as_array().into_iter().flatten() {
            let text = filter["Pattern"].as_str();
            let text = text.ok_or_else(|| bad(at("FilterCriteria"), "a filter has no Pattern"))?;
            patterns.push(text.to_owned());
        }
        let criteria = Criteria::parse(&patterns)
            .map_err(|error| bad(at("FilterCriteria"), error.to_string()))?;
        let source = match (msk, arn) {
            (true, Some(cluster_arn)) => Source::Msk { cluster_arn },
            (true, None) => return Err(bad(at("Stream"), "the cluster's ARN is missing")),
            (false, _) => Source::SelfManaged,
        };
        let provisioned = self.provisioned(properties, &place)?;
        Ok(Some(Mapping {
            name: place.clone(),
            function,
            topic,
            group,
            source,
            start,
            criteria,
            batch_size: usize::try_from(batch_size).unwrap_or(MAX_BATCH_SIZE),
            window_ms,
            provisioned,
        }))
    }

    fn provisioned(&self, properties: &Value, place: &str) -> Result<Option<Provisioned>, Error> {
        let get = |name: &str| self.value(&properties[name], &format!("{place}/{name}"));
        let used = |name: &str| Ok::<_, Error>(!get(name)?.is_null());
        if !used("ProvisionedPollerConfig")? {
            for name in
                ["BisectBatchOnFunctionError", "MaximumRetryAttempts", "MaximumRecordAgeInSeconds"]
            {
                if used(name)? {
                    let what = "AWS obeys it in provisioned mode only (ProvisionedPollerConfig)";
                    return Err(bad(format!("{place}/{name}"), what));
                }
            }
            return Ok(None);
        }
        let types = get("FunctionResponseTypes")?;
        let types = types.as_array().map(Vec::as_slice).unwrap_or_default();
        let limit = |value: Value| value.as_i64().and_then(|limit| u64::try_from(limit).ok());
        Ok(Some(Provisioned {
            reports_items: types.contains(&json!("ReportBatchItemFailures")),
            bisects: get("BisectBatchOnFunctionError")? == json!(true),
            max_retries: limit(get("MaximumRetryAttempts")?)
                .map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            max_age_secs: limit(get("MaximumRecordAgeInSeconds")?),
        }))
    }

    fn text(&self, value: &Value, place: &str) -> Result<String, Error> {
        let value = self.value(value, place)?;
        value.as_str().map(str::to_owned).ok_or_else(|| bad(place, format!("{value} is no text")))
    }

    /// A value with its intrinsic functions carried out.
    fn value(&self, value: &Value, place: &str) -> Result<Value, Error> {
        match value {
            Value::Array(list) => {
                let list = list.iter().map(|entry| self.value(entry, place));
                let list = list.collect::<Result<Vec<_>, _>>()?;
                Ok(Value::Array(list.into_iter().filter(|entry| !entry.is_null()).collect()))
            }
            Value::Object(object) => {
                if let (Some((name, argument)), 1) = (object.iter().next(), object.len())
                    && (name == "Ref" || name == "Condition" || name.starts_with("Fn::"))
                {
                    return self.intrinsic(name, argument, place);
                }
                let entries = object.iter().map(|(name, entry)| {
                    Ok((name.clone(), self.value(entry, &format!("{place}/{name}"))?))
                });
                entries.collect::<Result<Map<_, _>, Error>>().map(Value::Object)
            }
            plain => Ok(plain.clone()),
        }
    }

    fn intrinsic(&self, name: &str, argument: &Value, place: &str) -> Result<Value, Error> {
        let wrong = || bad(place, format!("{name} has a form that is not understood"));
        match name {
            "Ref" => self.reference(argument.as_str().ok_or_else(wrong)?, place),
            // Not known before a deploy.
            "Fn::GetAtt" => Ok(match argument {
                Value::String(text) => json!(text),
                Value::Array(parts) => {
                    json!(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("."))
                }
                _ => return Err(wrong()),
            }),
            "Fn::Sub" => {
                let (text, own) = match argument {
                    Value::String(text) => (text.as_str(), Map::new()),
                    Value::Array(parts) => (
                        parts.first().and_then(Value::as_str).ok_or_else(wrong)?,
                        parts.get(1).and_then(Value::as_object).cloned().unwrap_or_default(),
                    ),
                    _ => return Err(wrong()),
                };
                self.substitute(text, &own, place)
            }
            "Fn::Join" => {
                let parts = self.value(&argument[1], place)?;
                let parts = parts.as_array().ok_or_else(wrong)?;
                let glue = argument[0].as_str().ok_or_else(wrong)?;
                let parts = parts.iter().map(as_text).collect::<Option<Vec<_>>>();
                Ok(json!(parts.ok_or_else(wrong)?.join(glue)))
            }
            "Fn::If" => {
                let condition = argument[0].as_str().ok_or_else(wrong)?;
                let branch = if self.condition(condition, place)? { 1 } else { 2 };
                self.value(&argument[branch], place)
            }
            "Condition" | "Fn::Equals" | "Fn::Not" | "Fn::And" | "Fn::Or" => {
                Ok(json!(self.test(name, argument, place)?))
            }
            _ => Err(bad(place, format!("{name} is not understood here"))),
        }
    }

    fn reference(&self, name: &str, place: &str) -> Result<Value, Error> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        if self.resources.contains_key(name) || name.starts_with("AWS::") {
            return Ok(json!(name));
        }
        Err(bad(place, format!("the parameter {name} has no default: say --parameter {name}=…")))
    }

    fn substitute(
        &self,
        text: &str,
        own: &Map<String, Value>,
        place: &str,
    ) -> Result<Value, Error> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let end = rest[start..].find('}').ok_or_else(|| bad(place, "${ without }"))? + start;
            let name = &rest[start + 2..end];
            let value = match (name.strip_prefix('!'), own.get(name)) {
                (Some(literal), _) => json!(format!("${{{literal}}}")),
                (None, Some(value)) => self.value(value, place)?,
                (None, None) if name.contains('.') => json!(name),
                (None, None) => self.reference(name, place)?,
            };
            let shown = as_text(&value);
            out.push_str(&shown.ok_or_else(|| bad(place, format!("{name} is no text")))?);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(json!(out))
    }

    fn condition(&self, name: &str, place: &str) -> Result<bool, Error> {
        let body = self.conditions.get(name);
        let body = body.ok_or_else(|| bad(place, format!("there is no condition {name}")))?;
        self.truth(body, place)
    }

    fn truth(&self, body: &Value, place: &str) -> Result<bool, Error> {
        let value = self.value(body, place)?;
        value.as_bool().ok_or_else(|| bad(place, "a condition is neither true nor false"))
    }

    fn test(&self, name: &str, argument: &Value, place: &str) -> Result<bool, Error> {
        if name == "Condition" {
            return self.condition(argument.as_str().unwrap_or_default(), place);
        }
        let parts = argument.as_array().map(Vec::as_slice).unwrap_or_default();
        match name {
            "Fn::Equals" => {
                let sides = parts.iter().map(|part| Ok(as_text(&self.value(part, place)?)));
                let sides = sides.collect::<Result<Vec<_>, Error>>()?;
                Ok(sides.len() == 2 && sides[0] == sides[1])
            }
            "Fn::Not" => Ok(!self.truth(parts.first().unwrap_or(&Value::Null), place)?),
            "Fn::And" => {
                parts.iter().try_fold(true, |all, part| Ok(all & self.truth(part, place)?))
            }
            _ => parts.iter().try_fold(false, |any, part| Ok(any | self.truth(part, place)?)),
        }
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn region() -> String {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION")).unwrap_or("us-east-1".to_owned())
}

/// YAML's short forms (`!Ref x`) as the long ones (`{"Ref": "x"}`).
fn plain(value: serde_yaml_ng::Value) -> Value {
    use serde_yaml_ng::Value as Yaml;
    match value {
        Yaml::Null => Value::Null,
        Yaml::Bool(value) => json!(value),
        Yaml::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => json!(whole),
            (None, float) => json!(float),
        },
        Yaml::String(text) => json!(text),
        Yaml::Sequence(list) => Value::Array(list.into_iter().map(plain).collect()),
        Yaml::Mapping(entries) => {
            let name = |key: Yaml| as_text(&plain(key)).unwrap_or_default();
            let entries = entries.into_iter().map(|(key, value)| (name(key), plain(value)));
            Value::Object(entries.collect())
        }
        Yaml::Tagged(tagged) => {
            let name = tagged.tag.to_string();
            let name = name.trim_start_matches('!');
            let name = match name {
                "Ref" | "Condition" => name.to_owned(),
                function => format!("Fn::{function}"),
            };
            json!({ name: plain(tagged.value) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = r#"
Parameters:
  Prefix: { Type: String, Default: escrow }
  Cluster: { Type: String }
  Size: { Type: Number, Default: 50 }
Conditions:
  Small: !Equals [!Ref Size, 50]
  Large: !Not [!Condition Small]
Resources:
  HandlerFunction:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: !Sub ${Prefix}-handler
      Events:
        Results:
          Type: MSK
          Properties:
            Stream: !Ref Cluster
            Topics: [results]
            ConsumerGroupId: !Join [".", [cg, handler]]
            StartingPosition: TRIM_HORIZON
            BatchSize: !Ref Size
            MaximumBatchingWindowInSeconds: !If [Large, 9, 1]
            FilterCriteria:
              Filters:
                - Pattern: '{"value":{"event_type":["A"]}}'
        Off:
          Type: MSK
          Properties: { Stream: x, Topics: [off], StartingPosition: LATEST, Enabled: false }
        Queue: { Type: SQS, Properties: { Queue: !GetAtt Q.Arn } }
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      FunctionName: { Ref: HandlerFunction }
      SelfManagedEventSource: { Endpoints: { KafkaBootstrapServers: [a:9092] } }
      Topics: [raw]
      StartingPosition: LATEST
      SelfManagedKafkaEventSourceConfig: { ConsumerGroupId: raw-group }
      ProvisionedPollerConfig: { MinimumPollers: 1 }
      FunctionResponseTypes: [ReportBatchItemFailures]
      BisectBatchOnFunctionError: true
      MaximumRetryAttempts: 3
      MaximumRecordAgeInSeconds: -1
"#;

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn mappings(text: &str) -> Result<Vec<Mapping>, Error> {
        Template::read(text, &given(&[("Cluster", "arn:cluster")]))?.mappings(&given(&[]))
    }

    #[test]
    fn mappings_are_read_with_their_parameters_and_conditions() {
        let found = mappings(TEMPLATE).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        let msk = &found[0];
        assert_eq!(
            (msk.name.as_str(), msk.function.as_str()),
            ("HandlerFunction/Results", "escrow-handler")
        );
        assert_eq!((msk.topic.as_str(), msk.group.as_str()), ("results", "cg.handler"));
        assert_eq!(msk.source, Source::Msk { cluster_arn: "arn:cluster".to_owned() });
        assert_eq!((msk.batch_size, msk.window_ms, msk.start), (50, 1000, Start::TrimHorizon));
        assert_eq!(msk.provisioned, None);
        let own = &found[1];
        assert_eq!((own.function.as_str(), own.group.as_str()), ("escrow-handler", "raw-group"));
        assert_eq!((own.batch_size, own.window_ms, own.start), (100, 500, Start::Latest));
        let provisioned = own.provisioned.as_ref().unwrap();
        assert!(provisioned.reports_items && provisioned.bisects);
        assert_eq!((provisioned.max_retries, provisioned.max_age_secs), (Some(3), None));
    }

    #[test]
    fn parameters_override_defaults_and_names_come_from_outside_where_there_are_none() {
        let nameless = TEMPLATE.replace("      FunctionName: !Sub ${Prefix}-handler\n", "");
        let error = mappings(&nameless).unwrap_err().to_string();
        assert!(error.contains("--function HandlerFunction=NAME"), "{error}");
        let read = Template::read(&nameless, &given(&[("Cluster", "c"), ("Size", "7")])).unwrap();
        let found = read.mappings(&given(&[("HandlerFunction", "stack-fn-1")])).unwrap();
        assert_eq!((found[0].function.as_str(), found[0].batch_size), ("stack-fn-1", 7));
        assert_eq!(found[0].window_ms, 9000);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("Topics: [results]", "Topics: [a, b]", "Topics"),
            ("BatchSize: !Ref Size", "BatchSize: 20000", "BatchSize"),
            ("BatchSize: !Ref Size", "BatchSize: !Ref Nothing", "Nothing"),
            ("StartingPosition: TRIM_HORIZON", "StartingPosition: AT_TIMESTAMP", "AT_TIMESTAMP"),
            (r#"["A"]"#, r#""A""#, "FilterCriteria"),
            ("!If [Large, 9, 1]", "!If [Huge, 9, 1]", "Huge"),
            ("!If [Large, 9, 1]", "!Select [0, [1]]", "Fn::Select"),
            ("BatchSize: !Ref Size", "MaximumRetryAttempts: 1", "provisioned mode only"),
        ];
        for (from, to, place) in cases {
            assert!(TEMPLATE.contains(from));
            let told = mappings(&TEMPLATE.replace(from, to)).unwrap_err().to_string();
            assert!(told.contains(place), "{to}: {told}");
        }
        let unknown = Template::read(TEMPLATE, &given(&[("Prefixx", "x")]));
        let told = unknown.err().unwrap().to_string();
        assert!(told.contains("Prefixx") && told.contains("Prefix,"), "{told}");
    }
}
