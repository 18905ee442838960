# SPDX-License-Identifier: Apache-2.0
"""gRPC services of the broker: protobuf in and out, status mapping, streams. They decide nothing."""

from __future__ import annotations
