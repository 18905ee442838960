# SPDX-License-Identifier: Apache-2.0
"""The cluster metadata: its records, the committed image, and the copies of the image on disk."""
