"""Holds the translated template against what the code says (`xtask catalog`).

Usage: compare.py CATALOG TRANSLATED-TEMPLATE. Every difference is printed; any fails the check.
"""

import json
import os
import sys

from cfnlint.decode import cfn_yaml

problems = []


def expect(what, found, wanted):
    if found != wanted:
        problems.append(f"{what}: the template has {found!r}, the code {wanted!r}")


def pascal(name):
    return "".join(part.capitalize() for part in name.split("-"))


def of_type(resources, kind):
    return {name: body for name, body in resources.items() if body["Type"] == kind}


def refers_to(value, logical_id):
    return logical_id in json.dumps(value)


def check_function(function, resources):
    name = function["name"]
    logical = pascal(name)
    lambdas = of_type(resources, "AWS::Lambda::Function")
    body = lambdas.get(f"{logical}Function")
    if body is None:
        problems.append(f"{name}: the template has no {logical}Function")
        return
    for folder in (f"functions/{name}", f"events/{name}"):
        if not os.path.isdir(folder):
            problems.append(f"{name}: there is no folder {folder}")
    properties = body["Properties"]
    expect(f"{name}: timeout", properties.get("Timeout"), function["timeout_secs"])
    variables = set(properties["Environment"]["Variables"])
    expect(f"{name}: environment", sorted(variables), sorted(function["variables"]))
    check_mappings(function, logical, resources)
    check_queues(function, resources)


def check_mappings(function, logical, resources):
    name = function["name"]
    mappings = [
        mapping["Properties"]
        for mapping in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
        if refers_to(mapping["Properties"]["FunctionName"], f"{logical}Function")
    ]
    kafka = [mapping for mapping in mappings if "Topics" in mapping]
    queues = [mapping for mapping in mappings if "Topics" not in mapping]
    if not kafka:
        problems.append(f"{name}: no Kafka mapping")
    for mapping in kafka:
        expect(f"{name}: topics", mapping["Topics"], [function["topic"]])
        expect(f"{name}: starting position", mapping["StartingPosition"], "TRIM_HORIZON")
        group = mapping["AmazonManagedKafkaEventSourceConfig"]["ConsumerGroupId"]
        expect(f"{name}: consumer group", group, function["consumer_group"])
        patterns = [json.loads(each["Pattern"]) for each in mapping["FilterCriteria"]["Filters"]]
        expect(f"{name}: filter", patterns, [{"value": {"event_type": [function["event_type"]]}}])
        for unwanted in ("DestinationConfig", "FunctionResponseTypes"):
            if unwanted in mapping:
                problems.append(f"{name}: a Kafka mapping must not have {unwanted}")
    if not queues:
        problems.append(f"{name}: no mapping of its retry queue")
    for mapping in queues:
        expect(f"{name}: SQS answers", mapping.get("FunctionResponseTypes"), ["ReportBatchItemFailures"])
        if "MaximumConcurrency" not in mapping.get("ScalingConfig", {}):
            problems.append(f"{name}: an SQS mapping needs a maximum concurrency")


def check_queues(function, resources):
    name = function["name"]
    queues = of_type(resources, "AWS::SQS::Queue")
    for suffix in ("retry", "dlq"):
        found = [
            queue["Properties"]
            for queue in queues.values()
            if json.dumps(queue["Properties"].get("QueueName", "")).find(f"{name}-{suffix}") >= 0
        ]
        if len(found) != 1:
            problems.append(f"{name}: {len(found)} queues are named {name}-{suffix}")
            continue
        if suffix == "retry":
            queue = found[0]
            expect(f"{name}: visibility", queue["VisibilityTimeout"], 6 * function["timeout_secs"])
            expect(f"{name}: receives", queue["RedrivePolicy"]["maxReceiveCount"], 1000)


def check_groups(resources):
    groups = [
        json.dumps(mapping["Properties"]["AmazonManagedKafkaEventSourceConfig"]["ConsumerGroupId"])
        for mapping in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
        if "AmazonManagedKafkaEventSourceConfig" in mapping["Properties"]
    ]
    doubled = sorted({group for group in groups if groups.count(group) > 1})
    # One with IAM and one with SCRAM, of which a deployment has either.
    for group in doubled:
        owners = [
            mapping
            for mapping in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
            if json.dumps(mapping["Properties"].get("AmazonManagedKafkaEventSourceConfig", {})).find(group) >= 0
        ]
        conditions = {owner.get("Condition") for owner in owners}
        if None in conditions or len(conditions) != len(owners):
            problems.append(f"the consumer group {group} is used by two mappings at once")


def plain(statements):
    """Statements with both sides of every condition."""
    for statement in statements:
        if "Fn::If" in statement:
            yield from plain(side for side in statement["Fn::If"][1:] if "Ref" not in side)
        else:
            yield statement


def check_policies(resources):
    for name, role in of_type(resources, "AWS::IAM::Role").items():
        for policy in role["Properties"].get("Policies", []):
            for statement in plain(policy["PolicyDocument"]["Statement"]):
                actions = statement["Action"]
                for action in [actions] if isinstance(actions, str) else actions:
                    if action in ("*", "dynamodb:*", "sqs:*", "secretsmanager:*"):
                        problems.append(f"{name}: the action {action} is too wide")
                text = json.dumps(statement)
                if "dynamodb:" in text and statement["Resource"] == "*":
                    problems.append(f"{name}: a table can be named, * is too wide")


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
    lambdas = of_type(resources, "AWS::Lambda::Function")
    folders = sorted(os.listdir("functions"))
    expect("functions", sorted(lambdas), sorted(f"{pascal(name)}Function" for name in folders))
    for function in catalog["functions"]:
        check_function(function, resources)
    check_groups(resources)
    check_policies(resources)
    check_tables(catalog["tables"], cfn_yaml.load("infra/data.yaml")["Resources"])
    for problem in problems:
        print(f"compare: {problem}", file=sys.stderr)
    if not problems:
        print(f"ok      template and code agree ({len(catalog['functions'])} functions, {len(catalog['tables'])} tables)")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
