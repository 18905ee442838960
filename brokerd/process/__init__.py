# SPDX-License-Identifier: Apache-2.0
"""A broker as a process: settings, composition, start and stop."""
