# SPDX-License-Identifier: Apache-2.0
"""`make sql-proofs`: records and offsets in one SQL transaction, with workers that are killed, stopped and replaced.

`worker` is the program under test: it reads a topic and writes the records into a table that forbids no duplicate. `steps` kills or
stops it between two of its steps. `kills` and `two_owners` are the proofs, `mutants` the faults that they must find, `run` the program.
"""
