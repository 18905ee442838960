# SPDX-License-Identifier: Apache-2.0
"""The reference of configs, from the table by which the controller checks them."""

from __future__ import annotations

from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS, ConfigDefinition

PLURALS = {
    ConfigResource.TOPIC: "topics",
    ConfigResource.BROKER: "brokers",
    ConfigResource.CLUSTER: "the cluster",
    ConfigResource.GROUP: "groups",
}


def config_sections() -> str:
    """Return a section for each config: those of topics, of groups, then those of brokers and the cluster alone."""
    of_topics = [each for each in TOPIC_CONFIGS.values() if ConfigResource.TOPIC in each.scopes]
    of_groups = [each for each in TOPIC_CONFIGS.values() if ConfigResource.GROUP in each.scopes]
    others = [each for each in TOPIC_CONFIGS.values() if each not in of_topics and each not in of_groups]
    sections = [
        "## Configs of topics",
        *map(_section, of_topics),
        "## Configs of groups",
        *map(_section, of_groups),
        "## Configs of brokers and the cluster",
        *map(_section, others),
    ]
    return "\n\n".join(sections)


def _section(definition: ConfigDefinition) -> str:
    default = f"`{definition.default}`" if definition.default else "empty"
    facts = f"Default: {default} · Value: {definition.allowed} · For: {_scope(definition)}"
    return f"### `{definition.name}`\n\n{definition.meaning[0].upper()}{definition.meaning[1:]}.\n\n{facts}"


def _scope(definition: ConfigDefinition) -> str:
    names = [PLURALS[each] for each in definition.scopes]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
