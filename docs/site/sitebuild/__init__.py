# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site: `python -m sitebuild OUTPUT`, with `docs/site` on the path (`make docs`).

`sources` gathers the pages, the engineering pages of `docs/` and the generated parts in one folder. `commands`, `configs` and
`errors` write the generated parts from the code's own tables. Then Sphinx builds the folder, and every warning is an error.
"""

from __future__ import annotations
