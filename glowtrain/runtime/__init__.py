"""The runtime: networks on devices, and requests as they come.

with HostManager() as host:
    host.add_network("mlp", model)
    host.run_sync("mlp", {"x": x})
"""

from glowtrain.backends.device import Device, DeviceFacts, Resident, ResidentVariables
from glowtrain.runtime.device.host_device import HostDevice, cpu_devices
from glowtrain.runtime.host_manager import HostManager
from glowtrain.runtime.network import Network
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.runtime.partition.partitioner import partitioned
from glowtrain.runtime.partition.running import run_parts
from glowtrain.runtime.pipeline import Link, Pipeline
from glowtrain.runtime.request.request import RequestFuture
from glowtrain.runtime.training import TrainingNetwork

__all__ = [
    "Device",
    "DeviceFacts",
    "HostDevice",
    "HostManager",
    "Link",
    "Network",
    "Part",
    "Partition",
    "Pipeline",
    "RequestFuture",
    "Resident",
    "ResidentVariables",
    "TrainingNetwork",
    "cpu_devices",
    "partitioned",
    "run_parts",
]
