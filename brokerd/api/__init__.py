# SPDX-License-Identifier: Apache-2.0
"""The public API: one module for each gRPC service, with the sessions of its streams."""
