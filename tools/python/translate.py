"""Turns a SAM template into the CloudFormation that AWS would make of it, without AWS.

translate.py <SAM template> <CloudFormation as JSON>. Runs in .tools/sam.
"""

import json
import os
import sys

# The translator asks the SDK for a region, only to learn the partition.
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samtranslator.model.exceptions import InvalidDocumentException
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse


class NoManagedPolicies:
    """The real loader lists them from IAM. Our roles name none, and one that did would fail here."""

    def load(self):
        return {}


def main(source, target):
    with open(source) as file:
        template = yaml_parse(file.read())

    # `sam package` replaces local paths by addresses in S3; the translator takes nothing else.
    functions = [template.get("Globals", {}).get("Function", {})] + [
        resource.get("Properties", {})
        for resource in template["Resources"].values()
        if resource.get("Type") == "AWS::Serverless::Function"
    ]
    for function in functions:
        if "CodeUri" in function:
            function["CodeUri"] = "s3://bucket/code.zip"

    try:
        translated = transform(template, {}, NoManagedPolicies())
    except InvalidDocumentException as error:
        causes = "\n".join(f"  {cause.message}" for cause in error.causes)
        sys.exit(f"{source} is no valid SAM template:\n{causes}")

    with open(target, "w") as file:
        json.dump(translated, file, indent=2)
        file.write("\n")


main(*sys.argv[1:])
