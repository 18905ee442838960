# SPDX-License-Identifier: Apache-2.0
"""The reference of configs, from the table by which the controller checks them."""

from __future__ import annotations

from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.topic_configs import ANYWHERE, TOPIC_CONFIGS, ConfigDefinition

PLURALS = {
    ConfigResource.TOPIC: "topics",
    ConfigResource.BROKER: "brokers",
    ConfigResource.CLUSTER: "the cluster",
}


def config_tables() -> str:
    """Return one section for the configs of topics, and one for those of brokers and the cluster alone."""
    of_topics = [each for each in TOPIC_CONFIGS.values() if ConfigResource.TOPIC in each.scopes]
    others = [each for each in TOPIC_CONFIGS.values() if ConfigResource.TOPIC not in each.scopes]
    lines = ["## Configs of topics", "", *_table(of_topics), "", "## Configs of brokers and the cluster alone", ""]
    return "\n".join([*lines, *_table(others)])


def _table(definitions: list[ConfigDefinition]) -> list[str]:
    head = ["| config | default | meaning, values and scope |", "|---|---|---|"]
    return [*head, *map(_row, definitions)]


def _row(definition: ConfigDefinition) -> str:
    meaning = f"{definition.meaning[0].upper()}{definition.meaning[1:]}."
    scope = "" if definition.scopes == ANYWHERE else f" For {' and '.join(PLURALS[each] for each in definition.scopes)} only."
    allowed = definition.allowed
    facts = f"{meaning} Value: {allowed}.{scope}"
    return f"| `{definition.name}` | {f'`{definition.default}`' if definition.default else '(empty)'} | {facts} |"
