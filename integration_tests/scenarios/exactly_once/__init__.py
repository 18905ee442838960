# SPDX-License-Identifier: Apache-2.0
"""Exactly once on real brokers, with programs and servers that are killed. docs/testing.md has the proofs as a table.

`compare` is the judge: what a topic has, against what it must have. `scene` is a cluster with its questions, `processes` the programs
under test. Each of `transform`, `matrix`, `streaming` and `replay` is a proof; `run` is the command line.
"""
