# SPDX-License-Identifier: Apache-2.0
"""Why a broker cannot start or continue: the exceptions that reach the person who started it.

    BrokerError
      AddressInUseError           the port is taken, or the address is not one of this machine
      ClusterMismatchError        the quorum at the given addresses belongs to another cluster
      RegistrationRefusedError    the controller will never accept this broker (another process has its id)
      BrokerFailedError           the process cannot continue: its log directory or its quorum node failed

Wrong options raise `metaquorum.process.settings.SettingsError`. The data directory raises the errors of `storage.errors`.
"""

from __future__ import annotations


class BrokerError(Exception):
    """A broker cannot start or continue; the text says what to do."""


class AddressInUseError(BrokerError):
    """The port is taken, or the address is not one of this machine."""


class ClusterMismatchError(BrokerError):
    """The quorum at the given addresses belongs to another cluster than the data directory."""


class RegistrationRefusedError(BrokerError):
    """The controller will never accept this broker: another process has its id."""


class BrokerFailedError(BrokerError):
    """The process cannot continue: its log directory or its quorum node failed."""
