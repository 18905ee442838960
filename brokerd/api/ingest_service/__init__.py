# SPDX-License-Identifier: Apache-2.0
"""gRPC of ingests: `IngestService`."""
