"""Writes a template with its conditions settled, all true (taken) and all false, and checks both.

branches.py <template> <folder for taken> <folder for default>. Runs in .tools/sam. Why: checkov does
not look into Fn::If. One in a policy's statements silently turns five of its IAM checks off, and one
in a KMS property passes as encrypted whatever the branches say.
"""

import json
import pathlib
import sys

from samtranslator.yaml_helper import yaml_parse

NO_VALUE = {"Ref": "AWS::NoValue"}


def settle(node, taken):
    if isinstance(node, dict):
        if set(node) == {"Fn::If"}:
            _, yes, no = node["Fn::If"]
            return settle(yes if taken else no, taken)
        settled = {key: settle(value, taken) for key, value in node.items()}
        return {key: value for key, value in settled.items() if value != NO_VALUE}
    if isinstance(node, list):
        return [item for item in (settle(item, taken) for item in node) if item != NO_VALUE]
    return node


def check_queues(name, template):
    """Every queue is encrypted, by KMS or by SQS itself; checkov knows only the first."""
    for queue, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::SQS::Queue" and not (
            properties.get("KmsMasterKeyId") or properties.get("SqsManagedSseEnabled") is True
        ):
            yield f"{name}: {queue} is not encrypted"


def policy_documents(resource):
    """Of a role, a managed policy or a queue; and of an API, which keeps it in its OpenAPI body."""
    properties = resource.get("Properties", {})
    yield from (policy["PolicyDocument"] for policy in properties.get("Policies", []))
    if "PolicyDocument" in properties:
        yield properties["PolicyDocument"]
    if "x-amazon-apigateway-policy" in properties.get("Body", {}):
        yield properties["Body"]["x-amazon-apigateway-policy"]


def check_policies(name, template):
    """Nothing that is allowed has an action with `*`, the resource `*` (save for actions of services
    that know no resources) or everybody as its principal."""
    without_resources = ("xray:Put", "ec2:Describe")
    for owner, resource in template["Resources"].items():
        for document in policy_documents(resource):
            for statement in document["Statement"]:
                if statement["Effect"] == "Deny":
                    continue
                actions, resources = (
                    value if isinstance(value, list) else [value]
                    for value in (statement["Action"], statement["Resource"])
                )
                where = f"{name}: {owner}, {statement.get('Sid', 'a statement without Sid')}"
                if any("*" in action for action in actions):
                    yield f"{where}: an action with *"
                if "*" in resources and not all(a.startswith(without_resources) for a in actions):
                    yield f"{where}: every resource, where one can be named"
                if statement.get("Principal") in ("*", {"AWS": "*"}):
                    yield f"{where}: every principal"


def main(source, *folders):
    source = pathlib.Path(source)
    template = yaml_parse(source.read_text())
    findings = []
    for folder, taken in zip(folders, (True, False)):
        settled = settle(template, taken)
        if taken:
            # checkov would put an option's empty default in place of its !Ref and see no key.
            for parameter in settled["Parameters"].values():
                if parameter.get("Default") == "":
                    del parameter["Default"]
        name = f"{source.name} ({'taken' if taken else 'default'})"
        findings += [*check_policies(name, settled), *check_queues(name, settled)]
        target = pathlib.Path(folder, source.stem + ".json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(settled, indent=2) + "\n")
    if findings:
        sys.exit("\n".join(findings))


if __name__ == "__main__":
    main(*sys.argv[1:])
