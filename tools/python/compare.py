"""Holds the translated template against what the code says (`xtask catalog`).

Usage: compare.py CATALOG TRANSLATED-TEMPLATE. Every difference is printed; any fails the check.
"""

import json
import os
import sys

from branches import settle
from cfnlint.decode import cfn_yaml

problems = []

# Facts and keys are evidence: whoever may write them may not change or remove them.
NEVER = {
    "DEALS_TABLE": {"dynamodb:DeleteItem"},
    "JOURNAL_TABLE": {"dynamodb:DeleteItem", "dynamodb:UpdateItem"},
    "PROCESSED_TABLE": {"dynamodb:DeleteItem", "dynamodb:UpdateItem"},
}
FOURTEEN_DAYS_SECS = 14 * 24 * 3600
BELL_SECS = 3600


def expect(what, found, wanted):
    if found != wanted:
        problems.append(f"{what}: the template has {found!r}, the code {wanted!r}")


def pascal(name):
    return "".join(part.capitalize() for part in name.split("-"))


def of_type(resources, kind):
    return {name: body for name, body in resources.items() if body["Type"] == kind}


def as_list(value):
    return value if isinstance(value, list) else [value]


def targets(value):
    """The resources that a value names: logical ids, outputs of the data stack, ends of Kafka ARNs."""
    if isinstance(value, list):
        return set().union(*map(targets, value))
    if isinstance(value, str):
        return {value}
    (kind, inner), = value.items()
    if kind == "Fn::If":
        return set().union(*map(targets, inner[1:]))
    if kind == "Fn::GetAtt":
        logical_id, attribute = inner if isinstance(inner, list) else inner.split(".", 1)
        return {attribute.removeprefix("Outputs.") if logical_id == "Data" else logical_id}
    if kind == "Fn::Join":
        last = inner[1][-1]
        return {(last["Fn::Sub"] if isinstance(last, dict) else last).lstrip("/")}
    return {inner}


def retry_queues(functions):
    return {f"{pascal(function['name'])}RetryQueue" for function in functions if function["retries"]}


def own_queue(function):
    """The logical id of the queue that others send to."""
    return f"{pascal(function['queue'].removesuffix('.fifo'))}Queue"


def claiming(functions):
    """The functions that claim a type of result, to which unclaimed-results forwards letters."""
    return [each for each in functions if any(source["event_type"] for source in each["sources"])]


def check_function(function, catalog, resources):
    name, logical = function["name"], pascal(function["name"])
    for folder in (f"functions/{name}", f"events/{name}"):
        if not os.path.isdir(folder):
            problems.append(f"{name}: there is no folder {folder}")
    body = resources.get(f"{logical}Function", {})
    if body.get("Type") != "AWS::Lambda::Function":
        return  # The comparison of the sets has said so.
    properties = body["Properties"]
    expect(f"{name}: timeout", properties.get("Timeout"), function["timeout_secs"])
    expect(f"{name}: role", targets(properties["Role"]), {f"{logical}Role"})
    expect(f"{name}: log group", targets(properties["LoggingConfig"]["LogGroup"]), {f"{logical}LogGroup"})
    check_environment(function, catalog, properties["Environment"]["Variables"])
    mappings = [
        mapping["Properties"]
        for mapping in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
        if targets(mapping["Properties"]["FunctionName"]) == {f"{logical}Function"}
    ]
    check_kafka(function, [mapping for mapping in mappings if "Topics" in mapping])
    check_queue_mappings(function, [mapping for mapping in mappings if "Topics" not in mapping])
    check_queues(function, resources)
    check_alarm(function, resources)
    check_role(function, catalog, resources)


def check_environment(function, catalog, variables):
    name, logical = function["name"], pascal(function["name"])
    expect(f"{name}: environment", sorted(variables), sorted(function["variables"]))
    for variable, wanted in {
        "RETRY_QUEUE_URL": f"{logical}RetryQueue",
        "DLQ_URL": f"{logical}Dlq",
        "DOORBELL_QUEUE_URL": "OutboxDoorbellQueue",
    }.items():
        if variable in variables:
            expect(f"{name}: {variable}", targets(variables[variable]), {wanted})
    for variable in variables:
        if variable.endswith("_TABLE"):
            wanted = f"{variable.removesuffix('_TABLE').capitalize()}TableName"
            expect(f"{name}: {variable}", targets(variables[variable]), {wanted})
    if "FORWARD_QUEUES" in variables:
        forwards = variables["FORWARD_QUEUES"]["Fn::Join"][1]
        wanted = [f"{each['name']}=${{{pascal(each['name'])}RetryQueue}}" for each in claiming(catalog)]
        expect(f"{name}: FORWARD_QUEUES", sorted(each["Fn::Sub"] for each in forwards), sorted(wanted))


def check_kafka(function, mappings):
    name = function["name"]
    found = []
    for mapping in mappings:
        patterns = [
            json.loads(each["Pattern"])
            for each in mapping.get("FilterCriteria", {}).get("Filters", [])
        ]
        group = mapping["AmazonManagedKafkaEventSourceConfig"]["ConsumerGroupId"]
        found.append([mapping["Topics"], group, patterns])
        expect(f"{name}: starting position", mapping.get("StartingPosition"), "TRIM_HORIZON")
        expect(f"{name}: batching window", mapping.get("MaximumBatchingWindowInSeconds"), 1)
        for unwanted in ("DestinationConfig", "FunctionResponseTypes"):
            if unwanted in mapping:
                problems.append(f"{name}: a Kafka mapping must not have {unwanted}")
    wanted = [
        [
            [source["topic"]],
            source["consumer_group"],
            [{"value": {"event_type": [source["event_type"]]}}] if source["event_type"] else [],
        ]
        for source in function["sources"]
    ]
    expect(f"{name}: topics, groups and filters", sorted(found, key=str), sorted(wanted, key=str))


def check_queue_mappings(function, mappings):
    name = function["name"]
    found = sorted(str(*targets(mapping["EventSourceArn"])) for mapping in mappings)
    expect(f"{name}: queues it consumes", found, sorted(consumed(function)))
    for mapping in mappings:
        answers = mapping.get("FunctionResponseTypes")
        expect(f"{name}: SQS answers", answers, ["ReportBatchItemFailures"])
        if "MaximumConcurrency" not in mapping.get("ScalingConfig", {}):
            problems.append(f"{name}: an SQS mapping needs a maximum concurrency")


def consumed(function):
    """The queues that a function reads, by logical id."""
    own = retry_queues([function])
    return own | {own_queue(function)} if function["queue"] else own


def check_queues(function, resources):
    name, dlq = function["name"], f"{pascal(function['name'])}Dlq"
    names = {each: f"{name}-retry" for each in retry_queues([function])} | {dlq: f"{name}-dlq"}
    if function["queue"]:
        names[own_queue(function)] = function["queue"]
    for logical_id, suffix in names.items():
        body = resources.get(logical_id, {})
        if body.get("Type") != "AWS::SQS::Queue":
            problems.append(f"{name}: the template has no queue {logical_id}")
            continue
        queue = body["Properties"]
        expect(f"{logical_id}: name", queue.get("QueueName"), {"Fn::Sub": f"${{Prefix}}-{suffix}"})
        is_bell = suffix.endswith(".fifo")
        # What a bell tells of is in the outbox: an old bell is worth nothing, and a lost one little.
        retention = BELL_SECS if is_bell else FOURTEEN_DAYS_SECS
        expect(f"{logical_id}: retention", queue.get("MessageRetentionPeriod"), retention)
        for taken in (True, False):
            settled = settle(queue, taken)
            if not (settled.get("KmsMasterKeyId") or settled.get("SqsManagedSseEnabled") is True):
                problems.append(f"{logical_id}: not encrypted")
        redrive = queue.get("RedrivePolicy", {})
        if logical_id == dlq or is_bell:
            expect(f"{logical_id}: redrive", redrive, {})
        visibility = queue.get("VisibilityTimeout")
        if is_bell:
            expect(f"{logical_id}: is FIFO", queue.get("FifoQueue"), True)
            # Lambda takes no less than the timeout; longer, and a relay that died closes its bucket.
            expect(f"{logical_id}: visibility", visibility, function["timeout_secs"] * 3 // 2)
        if logical_id == dlq or is_bell:
            continue
        expect(f"{logical_id}: visibility", visibility, 6 * function["timeout_secs"])
        expect(f"{logical_id}: receives", redrive.get("maxReceiveCount"), 1000)
        expect(f"{logical_id}: redrive", targets(redrive.get("deadLetterTargetArn", [])), {dlq})


def check_alarm(function, resources):
    """CRITICAL where money or a command waits, WARNING elsewhere."""
    logical = pascal(function["name"])
    alarm = resources.get(f"{logical}DlqAlarm", {}).get("Properties")
    if alarm is None:
        problems.append(f"{function['name']}: the template has no {logical}DlqAlarm")
        return
    watched = set().union(*(targets(each["Value"]) for each in alarm["Dimensions"]))
    expect(f"{logical}DlqAlarm: queue", watched, {f"{logical}Dlq"})
    topics = [source["topic"] for source in function["sources"]]
    critical = not topics or any(topic.startswith(("escrow.", "payments.")) for topic in topics)
    severity = alarm["AlarmDescription"].split(":")[0]
    expect(f"{logical}DlqAlarm: severity", severity, "CRITICAL" if critical else "WARNING")


def plain(statements):
    """Statements with both sides of every condition."""
    for statement in statements:
        if "Fn::If" in statement:
            yield from plain(side for side in statement["Fn::If"][1:] if "Ref" not in side)
        else:
            yield statement


def statements_of(name, resources):
    """What a role may do: by its own policies and by those of the template that it names."""
    role = resources.get(name, {}).get("Properties", {})
    documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
    for arn in role.get("ManagedPolicyArns", []):
        policy = resources.get(arn.get("Ref"), {}) if isinstance(arn, dict) else {}
        if policy.get("Type") == "AWS::IAM::ManagedPolicy":
            documents.append(policy["Properties"]["PolicyDocument"])
        else:
            problems.append(f"{name}: {arn} is no policy of the template")
    for document in documents:
        yield from plain(document["Statement"])


def check_role(function, catalog, resources):
    role, logical = f"{pascal(function['name'])}Role", pascal(function["name"])
    variables = set(function["variables"])
    allowed = {}
    for statement in statements_of(role, resources):
        for action in as_list(statement["Action"]):
            if "*" in action:
                problems.append(f"{role}: the action {action} is too wide")
            allowed.setdefault(action, set()).update(targets(statement["Resource"]))

    sends = retry_queues([function]) | {f"{logical}Dlq"}
    if "DOORBELL_QUEUE_URL" in variables:
        sends.add("OutboxDoorbellQueue")
    if "FORWARD_QUEUES" in variables:
        sends |= retry_queues(claiming(catalog))
    secrets = set()
    if "WORKER_SECRET_ID" in variables:
        secrets |= {"WorkerSecret", "WorkerSecretArn"}
    if "INTERNAL_API_KEY_SECRET_ID" in variables:
        secrets |= {"InternalApiKeySecret", "InternalApiKeySecretArn"}
    if function["sources"]:
        secrets.add("KafkaScramSecretArn")
    if function["topics"]:
        secrets |= {"KafkaScramSecretArn", "KafkaRelaySecretArn"}
    for action, wanted in {
        "sqs:SendMessage": sends,
        "sqs:ReceiveMessage": consumed(function),
        "sqs:DeleteMessage": consumed(function),
        "secretsmanager:GetSecretValue": secrets,
        "logs:PutLogEvents": {f"{logical}LogGroup"},
        "kafka-cluster:ReadData": {source["topic"] for source in function["sources"]},
        "kafka-cluster:AlterGroup": {source["consumer_group"] for source in function["sources"]},
        "kafka-cluster:WriteData": set(function["topics"]),
    }.items():
        expect(f"{role}: {action}", sorted(allowed.get(action, ())), sorted(wanted))
    if not function["sources"] and not function["topics"]:
        for action in allowed:
            if action.startswith(("kafka:", "kafka-cluster:", "ec2:")):
                problems.append(f"{role}: {action} without a Kafka source")
    check_table_rights(role, variables, allowed)


def check_table_rights(role, variables, allowed):
    rights = {}
    for action, resources in allowed.items():
        if action.startswith("dynamodb:"):
            for resource in resources:
                rights.setdefault(resource, set()).add(action)
    wanted = {
        f"{variable.removesuffix('_TABLE').capitalize()}TableArn": variable
        for variable in variables
        if variable.endswith("_TABLE")
    }
    expect(f"{role}: tables", sorted(rights), sorted(wanted))
    for table, variable in wanted.items():
        for action in sorted(rights.get(table, set()) & NEVER.get(variable, set())):
            problems.append(f"{role}: nobody may {action} in {table}")


def check_groups(resources):
    groups = [
        mapping["Properties"]["AmazonManagedKafkaEventSourceConfig"]["ConsumerGroupId"]
        for mapping in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
        if "AmazonManagedKafkaEventSourceConfig" in mapping["Properties"]
    ]
    for group in sorted({group for group in groups if groups.count(group) > 1}):
        problems.append(f"the consumer group {group} is used by two mappings at once")


def check_metrics(resources):
    """An alarm of ours listens to a metric that the code counts, and some code counts."""
    code = "".join(
        open(os.path.join(folder, name), encoding="utf-8").read()
        for root in ("functions", "shared")
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(".rs")
    )
    for name, alarm in of_type(resources, "AWS::CloudWatch::Alarm").items():
        properties = alarm["Properties"]
        if properties["Namespace"] == {"Ref": "MetricsNamespace"} and f'"{properties["MetricName"]}"' not in code:
            problems.append(f"{name}: no function counts {properties['MetricName']}")


def check_apis(resources):
    """Every method asks for IAM, and callers outside the allowed networks are denied."""
    for name, api in of_type(resources, "AWS::ApiGateway::RestApi").items():
        body = api["Properties"]["Body"]
        for path, methods in body["paths"].items():
            for method, operation in methods.items():
                security = operation.get("security")
                expect(f"{name}: {method} {path}", security, [{"AWS_IAM": []}])
        for taken, key in ((True, "aws:VpcSourceIp"), (False, "aws:SourceIp")):
            policy = settle(body.get("x-amazon-apigateway-policy", {}), taken)
            if not any(
                statement["Effect"] == "Deny"
                and statement["Principal"] == "*"
                and statement["Resource"] == "execute-api:/*"
                and set(statement.get("Condition", {}).get("NotIpAddress", {})) == {key}
                for statement in policy.get("Statement", [])
            ):
                problems.append(f"{name}: its policy denies nobody by {key}")


def check_tables(tables, data):
    found = {
        str(body["Properties"]["TableName"]).split("-")[-1].rstrip("'}"): body
        for body in of_type(data, "AWS::DynamoDB::Table").values()
    }
    expect("tables", sorted(found), sorted(table["name"] for table in tables))
    for table in tables:
        body = found.get(table["name"])
        if body is None:
            continue
        name, properties = table["name"], body["Properties"]
        kinds = {each["AttributeName"]: each["AttributeType"] for each in properties["AttributeDefinitions"]}
        keys = lambda schema: [[each["AttributeName"], kinds[each["AttributeName"]]] for each in schema]
        expect(f"{name}: keys", keys(properties["KeySchema"]), table["keys"])
        indexes = properties.get("GlobalSecondaryIndexes", [])
        wanted = table["index"]
        expect(f"{name}: indexes", [each["IndexName"] for each in indexes], [wanted["name"]] if wanted else [])
        for index in indexes:
            expect(f"{name}: index keys", keys(index["KeySchema"]), wanted["keys"])
            projection = index["Projection"]
            expect(f"{name}: index projection", projection["ProjectionType"], "INCLUDE" if wanted["includes"] else "KEYS_ONLY")
            expect(f"{name}: index attributes", sorted(projection.get("NonKeyAttributes", [])), sorted(wanted["includes"]))
        expect(f"{name}: deletion policy", body.get("DeletionPolicy"), "Retain")
        expect(f"{name}: replace policy", body.get("UpdateReplacePolicy"), "Retain")
        recovery = properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
        expect(f"{name}: point-in-time recovery", recovery, True)


def main():
    catalog = json.load(open(sys.argv[1], encoding="utf-8"))
    resources = json.load(open(sys.argv[2], encoding="utf-8"))["Resources"]
    functions = catalog["functions"]
    names = sorted(function["name"] for function in functions)
    folders = sorted(entry.name for entry in os.scandir("functions") if entry.is_dir())
    if folders != names:
        problems.append(f"functions: the folders are {folders}, the code has {names}")
    lambdas = sorted(of_type(resources, "AWS::Lambda::Function"))
    expect("functions", lambdas, sorted(f"{pascal(name)}Function" for name in names))
    for function in functions:
        check_function(function, functions, resources)
    check_groups(resources)
    check_apis(resources)
    check_metrics(resources)
    check_tables(catalog["tables"], cfn_yaml.load("infra/data.yaml")["Resources"])
    for problem in problems:
        print(f"compare: {problem}", file=sys.stderr)
    if not problems:
        print(f"ok      template and code agree ({len(functions)} functions, {len(catalog['tables'])} tables)")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
