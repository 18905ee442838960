# SPDX-License-Identifier: Apache-2.0
"""Scrapes the metrics of a server as Prometheus does, for tests."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

SCRAPE_S = 20.0
"""Seconds that a scrape may take."""


class ScrapeRefusedError(Exception):
    """The server refused a scrape."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def scrape_text(address: str, path: str = "/metrics") -> str:
    """Return the body of a server's answer; raises ScrapeRefusedError for any status but 200."""
    # A proxy of the environment must not get between two processes of one machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{path}", timeout=SCRAPE_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise ScrapeRefusedError(error.code, error.read().decode()) from None


def samples(text: str) -> Mapping[str, float]:
    """Return the samples of an answer by name, those with labels as `name{label="value"}`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, f"{family.name} has no help"
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} twice"
            found[name] = sample.value
    return found


def scrape(address: str) -> Mapping[str, float]:
    """Scrape a server."""
    return samples(scrape_text(address))


def role_of(found: Mapping[str, float]) -> str:
    """The one role that a node shows."""
    (role,) = [
        name.partition('"')[2].rstrip('"}') for name, value in found.items() if "quorum_role{" in name and value == 1
    ]
    return role
