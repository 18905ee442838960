# SPDX-License-Identifier: Apache-2.0
"""gRPC services of the metadata quorum: protobuf to core types and back, nothing else."""

from __future__ import annotations
