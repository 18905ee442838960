# SPDX-License-Identifier: Apache-2.0
"""The cluster metadata: values, records, the committed image, and its copies on disk."""
