"""Tests for devices of other packages, and a device that is as unforgiving as hardware can be.

class TestMine(DeviceConformance):
    def device(self) -> Device:
        return MyDevice()
"""

from glowtrain.runtime.conformance.kit import DeviceConformance
from glowtrain.runtime.conformance.poisoned_device import PoisonedDevice

__all__ = ["DeviceConformance", "PoisonedDevice"]
