# SPDX-License-Identifier: Apache-2.0
"""Why a broker cannot start or go on: the exceptions that reach the person who started it.

    BrokerError
      AddressInUseError           the port is taken, or the address is not ours
      ClusterMismatchError        the quorum at the given addresses belongs to another cluster
      RegistrationRefusedError    the controller will never take this broker (another process has its id)
      BrokerFailedError           the process cannot go on: its log directory or its quorum node failed

Wrong options are `metaquorum.process.settings.SettingsError`; errors of the data directory are those of `storage.errors`.
"""

from __future__ import annotations


class BrokerError(Exception):
    """A broker cannot start or go on; the text says what to do."""


class AddressInUseError(BrokerError):
    """The port is taken, or the address is not ours."""


class ClusterMismatchError(BrokerError):
    """The quorum at the given addresses belongs to another cluster than the data directory."""


class RegistrationRefusedError(BrokerError):
    """The controller will never take this broker."""


class BrokerFailedError(BrokerError):
    """The process cannot go on: its log directory or its quorum node failed."""
