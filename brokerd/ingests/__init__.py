# SPDX-License-Identifier: Apache-2.0
"""Ingests: the core that decides which staged records count, and has them published once."""
