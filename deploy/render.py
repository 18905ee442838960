# SPDX-License-Identifier: Apache-2.0
"""Render the Kubernetes overlays offline: `python -m deploy.render deploy/kubernetes/overlays/three`.

Does what `kubectl kustomize` does, for exactly the features that our overlays use: `resources`, `images` with a new
name and tag, and strategic-merge patch files that change maps and scalars. Whatever else a kustomization or a patch
holds is refused, never ignored, so that this cannot silently render something other than kustomize would. A test
compares both where kubectl is there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, cast

import yaml

KUSTOMIZATION_NAME = "kustomization.yaml"
KUSTOMIZATION_TYPE = ("kustomize.config.k8s.io/v1beta1", "Kustomization")
KNOWN_KEYS = frozenset({"apiVersion", "kind", "resources", "images", "patches"})
CONTAINER_LISTS = ("initContainers", "containers")

Tree = dict[str, Any]


class RenderError(Exception):
    """A kustomization uses something that this renderer does not know, or contradicts itself."""


def render(directory: Path) -> list[Tree]:
    """Return the objects of a kustomization, in the order of its resources.

    Raises:
        RenderError: see the class.
    """
    kustomization = _load_one(directory / KUSTOMIZATION_NAME)
    if (kustomization.get("apiVersion"), kustomization.get("kind")) != KUSTOMIZATION_TYPE:
        raise RenderError(f"{directory} holds no {' '.join(KUSTOMIZATION_TYPE)}")
    unknown = sorted(kustomization.keys() - KNOWN_KEYS)
    if unknown:
        raise RenderError(f"{directory}: not known here: {', '.join(unknown)}")
    objects: list[Tree] = []
    for name in _texts(kustomization.get("resources")):
        path = directory / name
        objects += render(path.resolve()) if path.is_dir() else _load_all(path)
    identities = [_identity(each) for each in objects]
    if len(set(identities)) != len(identities):
        raise RenderError(f"{directory}: an object is there twice")
    for entry in _trees(kustomization.get("patches")):
        if entry.keys() != {"path"}:
            raise RenderError(f"{directory}: a patch has other keys than `path`: {sorted(entry)}")
        _apply_patch(objects, _load_one(directory / str(entry["path"])))
    for image in _trees(kustomization.get("images")):
        _apply_image(objects, image)
    return objects


def _load_all(path: Path) -> list[Tree]:
    return _trees([document for document in yaml.safe_load_all(path.read_text()) if document is not None])


def _load_one(path: Path) -> Tree:
    documents = _load_all(path)
    if len(documents) != 1:
        raise RenderError(f"{path} holds {len(documents)} documents, not one")
    return documents[0]


def _identity(of: Tree) -> tuple[object, object, object, object]:
    metadata: Tree = of.get("metadata", {})
    return of.get("apiVersion"), of.get("kind"), metadata.get("namespace"), metadata.get("name")


def _apply_patch(objects: list[Tree], patch: Tree) -> None:
    targets = [each for each in objects if _identity(each) == _identity(patch)]
    if len(targets) != 1:
        raise RenderError(f"the patch of {_identity(patch)} fits {len(targets)} objects")
    _merge(targets[0], patch)


def _merge(target: Tree, patch: Tree) -> None:
    for key, value in patch.items():
        below = target.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(cast(Tree, below), cast(Tree, value))
        elif isinstance(value, list | dict) or value is None or isinstance(below, list | dict):
            raise RenderError(f"a patch changes {key!r}, which is more than a scalar in a map that is there")
        else:
            target[key] = value


def _apply_image(objects: list[Tree], image: Tree) -> None:
    if not {"name", "newTag"} <= image.keys() <= {"name", "newName", "newTag"}:
        raise RenderError(f"an image entry has other keys than name, newName, newTag: {sorted(image)}")
    for container in (each for owner in objects for each in containers(owner)):
        name = str(container["image"]).partition(":")[0]
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image['newTag']}"


def containers(of: Tree) -> list[Tree]:
    """Return the containers of an object that has a pod template; none of others."""
    template: Tree = of.get("spec", {}).get("template", {})
    pod: Tree = template.get("spec", {})
    return [each for name in CONTAINER_LISTS for each in _trees(pod.get(name))]


def _trees(value: Any) -> list[Tree]:
    entries: list[Any] = [] if value is None else value
    for entry in entries:
        if not isinstance(entry, dict):
            raise RenderError(f"not a map: {entry!r}")
    return entries


def _texts(value: Any) -> list[str]:
    entries: list[Any] = [] if value is None else value
    for entry in entries:
        if not isinstance(entry, str):
            raise RenderError(f"not a text: {entry!r}")
    return entries


def main() -> int:
    """Print the rendered objects as YAML."""
    parser = argparse.ArgumentParser(description="Render an overlay offline, as `kubectl kustomize` does.")
    parser.add_argument("directory", type=Path)
    sys.stdout.write(yaml.safe_dump_all(render(parser.parse_args().directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
